//! Signals: what a change of the picture, and a job's life, say on the bus.

use std::collections::HashMap;

use vgpu_host_api::{
    names::{self, standard},
    path,
};
use vgpu_mdev::model::{Change, Event, Gpu};
use zbus::{Message, ObjectPath, Result, Variant};

use super::{
    jobs::Job,
    objects::Interfaces,
    properties::{Interface, changed},
    service::Service,
    vgpu::VgpuObject,
    work::End,
};

/// The signals of one change of the picture, in order.
pub(crate) fn of_change(service: &Service, change: &Change) -> Result<Vec<Message>> {
    let mut messages = Vec::with_capacity(change.events.len());
    for event in &change.events {
        messages.extend(of_event(service, change, event)?);
    }
    Ok(messages)
}

fn of_event(service: &Service, change: &Change, event: &Event) -> Result<Option<Message>> {
    let (before, after) = (&change.before, &change.after);
    match event {
        Event::GpuAdded(id) => {
            after.gpu(id).map(|gpu| added(path::gpu(&id.to_string()), &**gpu)).transpose()
        }
        Event::GpuChanged(id) => match (before.gpu(id), after.gpu(id)) {
            (Some(old), Some(new)) => {
                properties_changed(path::gpu(&id.to_string()), &**old, &**new)
            }
            _ => Ok(None),
        },
        Event::GpuRemoved(id) => removed(path::gpu(&id.to_string()), Gpu::NAME).map(Some),
        Event::VgpuAdded(uuid) => {
            let vgpu = after.vgpu(*uuid).map(|vgpu| service.vgpu_object(vgpu.clone()));
            vgpu.map(|vgpu| added(vgpu.path(), &vgpu)).transpose()
        }
        Event::VgpuChanged(uuid) => match (before.vgpu(*uuid), after.vgpu(*uuid)) {
            (Some(old), Some(new)) => {
                let (old, new) =
                    (service.vgpu_object(old.clone()), service.vgpu_object(new.clone()));
                properties_changed(new.path(), &old, &new)
            }
            _ => Ok(None),
        },
        Event::VgpuRemoved(uuid) => {
            removed(path::vgpu(&uuid.to_string()), VgpuObject::NAME).map(Some)
        }
    }
}

/// A job has begun.
pub(crate) fn job_new(job: &Job) -> Result<[Message; 2]> {
    let path = job.path();
    let new = Message::signal(names::ROOT, names::MANAGER, "JobNew").build(&(job.id, &path))?;
    Ok([added(path, job)?, new])
}

/// A job is over.
pub(crate) fn job_removed(job: &Job, end: &End) -> Result<[Message; 2]> {
    let path = job.path();
    let gone = Message::signal(names::ROOT, names::MANAGER, "JobRemoved").build(&(
        job.id,
        &path,
        end.as_str(),
        end.details(),
    ))?;
    Ok([gone, removed(path, Job::NAME)?])
}

fn added<O: Interface>(path: ObjectPath<'_>, object: &O) -> Result<Message> {
    Message::signal(names::ROOT, standard::OBJECT_MANAGER, "InterfacesAdded")
        .build(&(path, Interfaces(object)))
}

fn removed(path: ObjectPath<'_>, interface: &str) -> Result<Message> {
    Message::signal(names::ROOT, standard::OBJECT_MANAGER, "InterfacesRemoved")
        .build(&(path, [interface].as_slice()))
}

/// The one signal that tells all changes of an object; none when nothing that
/// is told has changed.
fn properties_changed<O: Interface>(
    path: ObjectPath<'_>,
    before: &O,
    after: &O,
) -> Result<Option<Message>> {
    let changed: HashMap<&str, Variant<'_>> = changed(before, after).into_iter().collect();
    if changed.is_empty() {
        return Ok(None);
    }
    let invalidated: [&str; 0] = [];
    Message::signal(path, standard::PROPERTIES, "PropertiesChanged")
        .build(&(O::NAME, changed, invalidated.as_slice()))
        .map(Some)
}
