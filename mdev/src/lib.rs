//! mdev
