//! polkit
