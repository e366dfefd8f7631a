//! `org.freedesktop.DBus.Peer`.

use vgpu_host_api::error::standard;
use zbus::Message;

use super::{call::Call, error::Fault, service::Service};

/// Answers `Ping`.
pub(crate) fn ping(call: &Call) -> Result<Message, Fault> {
    call.reply(&())
}

/// Answers `GetMachineId`.
pub(crate) fn machine_id(service: &Service, call: &Call) -> Result<Message, Fault> {
    match &service.machine_id {
        Some(id) => call.reply(&(id,)),
        None => Err(Fault::new(standard::FAILED, "this host has no /etc/machine-id")),
    }
}
