//! host/api
