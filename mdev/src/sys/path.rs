//! Paths below an injected root.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Text that is not a path below a root.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path:?} is not a path below a root: {why}")]
pub struct InvalidPath {
    path: String,
    why: &'static str,
}

/// A path below the root of sysfs, without a leading slash and without `..`:
/// `bus/pci/devices/0000:41:00.0/sriov_numvfs`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SysPath(String);

impl SysPath {
    /// A path from text.
    ///
    /// # Errors
    /// When it is absolute or empty, has an empty, `.` or `..` element, or holds
    /// a control character.
    pub fn new(path: impl Into<String>) -> Result<Self, InvalidPath> {
        let path = path.into();
        match fault(&path) {
            None => Ok(Self(path)),
            Some(why) => Err(InvalidPath { path: path.chars().take(256).collect(), why }),
        }
    }

    /// The path of `element`, further down.
    ///
    /// # Errors
    /// As for [`SysPath::new`].
    pub fn join(&self, element: &str) -> Result<Self, InvalidPath> {
        Self::new(format!("{}/{element}", self.0))
    }

    /// The path as text, relative to the root.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SysPath {
    type Err = InvalidPath;

    fn from_str(text: &str) -> Result<Self, InvalidPath> {
        Self::new(text)
    }
}

impl fmt::Display for SysPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/sys/{}", self.0)
    }
}

impl fmt::Debug for SysPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A path below `/dev`: `vfio/12`, `vfio/devices/vfio3`, `iommu`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodePath(String);

impl TryFrom<String> for NodePath {
    type Error = InvalidPath;

    fn try_from(path: String) -> Result<Self, InvalidPath> {
        Self::new(path)
    }
}

impl From<NodePath> for String {
    fn from(node: NodePath) -> Self {
        node.0
    }
}

impl NodePath {
    /// A node from text.
    ///
    /// # Errors
    /// As for [`SysPath::new`].
    pub fn new(path: impl Into<String>) -> Result<Self, InvalidPath> {
        SysPath::new(path).map(|path| Self(path.0))
    }

    /// The path as text, relative to `/dev`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/dev/{}", self.0)
    }
}

impl fmt::Debug for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn fault(path: &str) -> Option<&'static str> {
    if path.len() > 4000 {
        Some("it is longer than 4000 bytes")
    } else if path.chars().any(char::is_control) {
        Some("it holds a control character")
    } else if path.split('/').any(|element| matches!(element, "" | "." | "..")) {
        Some("it has an empty, '.' or '..' element")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_below_its_root() {
        assert!(SysPath::new("bus/pci/devices/0000:41:00.0/driver").is_ok());
        for path in ["", "/etc/passwd", "a//b", "a/../b", "..", "a/.", "a\nb", "a\0b"] {
            assert!(SysPath::new(path).is_err(), "{path:?} was taken");
            assert!(NodePath::new(path).is_err(), "{path:?} was taken");
        }
        assert!(SysPath::new("class").unwrap().join("../etc").is_err());
    }
}
