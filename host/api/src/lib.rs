//! host/api

pub mod proxy;
