//! Object paths. The daemon makes them, clients obtain them; a path element
//! takes only `[A-Za-z0-9_]`.
//!
//! ```text
//! 0000:41:00.0  /org/vgpu/Host1/gpus/pci_0000_41_00_0
//! my-parent     /org/vgpu/Host1/gpus/mdev_my_2dparent
//! 83b8f4f2-…    /org/vgpu/Host1/vgpus/83b8f4f2_…
//! ```

use std::fmt::Write as _;

use zbus::ObjectPath;

use crate::names;

/// What an object path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// The manager.
    Manager,
    /// A GPU, by address or parent name.
    Gpu(String),
    /// A vGPU, by UUID.
    Vgpu(String),
    /// A job, by number.
    Job(u32),
}

/// The path of a GPU, from its address (`0000:41:00.0`) or parent name.
pub fn gpu(id: &str) -> ObjectPath<'static> {
    let element = match is_address(id) {
        true => format!("pci_{}", id.replace([':', '.'], "_")),
        false => format!("mdev_{}", escape(id)),
    };
    below(names::GPUS, &element)
}

/// The path of a vGPU, from its UUID with hyphens.
pub fn vgpu(uuid: &str) -> ObjectPath<'static> {
    below(names::VGPUS, &uuid.replace('-', "_"))
}

/// The path of a job.
pub fn job(id: u32) -> ObjectPath<'static> {
    below(names::JOBS, &id.to_string())
}

/// The path that stands for no object.
pub fn none() -> ObjectPath<'static> {
    ObjectPath::from_static_str_unchecked(names::NONE)
}

/// What a path names, `None` when it is not the path of any object of ours. It
/// says nothing about whether the object exists.
pub fn parse(path: &str) -> Option<Object> {
    if path == names::ROOT {
        return Some(Object::Manager);
    }
    let (parent, element) = path.rsplit_once('/')?;
    let (object, canonical) = match parent {
        names::GPUS => {
            let id = match element.strip_prefix("pci_") {
                Some(address) => address_of(address)?,
                None => unescape(element.strip_prefix("mdev_")?)?,
            };
            let canonical = gpu(&id);
            (Object::Gpu(id), canonical)
        }
        names::VGPUS => {
            let uuid = element.replace('_', "-");
            let canonical = vgpu(&uuid);
            (Object::Vgpu(uuid), canonical)
        }
        names::JOBS => {
            let id = element.parse().ok()?;
            (Object::Job(id), job(id))
        }
        _ => return None,
    };
    (canonical.as_str() == path).then_some(object)
}

/// Elements hold `[A-Za-z0-9_]` by construction, or the path is not built of
/// ours: then it stands for no object.
fn below(parent: &str, element: &str) -> ObjectPath<'static> {
    ObjectPath::try_from(format!("{parent}/{element}")).unwrap_or_else(|_| none())
}

/// Every byte but letters and digits becomes `_` and two hexadecimal digits.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "_{byte:02x}");
        }
    }
    escaped
}

fn unescape(element: &str) -> Option<String> {
    let mut bytes = element.bytes();
    let mut text = Vec::with_capacity(element.len());
    while let Some(byte) = bytes.next() {
        text.push(match byte {
            b'_' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                u8::try_from(high << 4 | low).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(text).ok()
}

/// `dddd:bb:dd.f`, as sysfs writes it.
fn is_address(id: &str) -> bool {
    let Some((slot, function)) = id.split_once('.') else {
        return false;
    };
    let fields: Vec<&str> = slot.split(':').collect();
    let hex = |text: &str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let [domain, bus, device] = fields[..] else {
        return false;
    };
    (4..=8).contains(&domain.len())
        && (bus.len(), device.len(), function.len()) == (2, 2, 1)
        && [domain, bus, device, function].into_iter().all(hex)
}

/// The address of an element without its `pci_`.
fn address_of(element: &str) -> Option<String> {
    let fields: Vec<&str> = element.split('_').collect();
    let [domain, bus, device, function] = fields[..] else {
        return None;
    };
    let address = format!("{domain}:{bus}:{device}.{function}");
    is_address(&address).then_some(address)
}

#[cfg(test)]
#[path = "path_tests.rs"]
mod tests;
