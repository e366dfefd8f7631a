//! Signals: what a change of the picture, and a job's life, say on the bus.

use std::collections::HashMap;

use vgpu_host_api::{
    names::{self, standard},
    path,
};
use vgpu_mdev::model::{Change, Event, Snapshot};
use zbus::{Message, ObjectPath, Result, Variant};

use super::{
    jobs::Job,
    objects::{Interfaces, interface_names},
    properties::{Interface, Shown, changed},
    service::Service,
    work::End,
};

/// The signals of one change of the picture, in order.
pub(crate) fn of_change(service: &Service, change: &Change) -> Result<Vec<Message>> {
    let mut messages = Vec::with_capacity(change.events.len());
    for event in &change.events {
        of_event(service, change, event, &mut messages)?;
    }
    Ok(messages)
}

fn of_event(
    service: &Service,
    change: &Change,
    event: &Event,
    messages: &mut Vec<Message>,
) -> Result<()> {
    match event {
        Event::GpuAdded(id) | Event::GpuChanged(id) | Event::GpuRemoved(id) => {
            let of = |picture: &Snapshot| picture.gpu(id).cloned();
            let (before, after) = (of(&change.before), of(&change.after));
            of_object(&path::gpu(&id.to_string()), before.as_deref(), after.as_deref(), messages)
        }
        Event::VgpuAdded(uuid) | Event::VgpuChanged(uuid) | Event::VgpuRemoved(uuid) => {
            let of = |picture: &Snapshot| {
                picture.vgpu(*uuid).map(|vgpu| service.vgpu_object(vgpu.clone()))
            };
            let (before, after) = (of(&change.before), of(&change.after));
            of_object(&path::vgpu(&uuid.to_string()), before.as_ref(), after.as_ref(), messages)
        }
    }
}

/// What a change says of one object: what it no longer has, what it has now, and
/// what differs.
fn of_object<O: Shown>(
    path: &ObjectPath<'_>,
    before: Option<&O>,
    after: Option<&O>,
    messages: &mut Vec<Message>,
) -> Result<()> {
    match (before, after) {
        (None, Some(after)) => messages.push(added(path, &Interfaces::of(after))?),
        (Some(before), None) => messages.push(removed(path, &interface_names(before))?),
        (Some(before), Some(after)) => {
            let gone = before.interfaces().filter(|interface| !(interface.is_there)(after));
            let gone: Vec<_> = gone.map(|interface| interface.name).collect();
            if !gone.is_empty() {
                messages.push(removed(path, &gone)?);
            }
            if let Some(new) = Interfaces::new_since(before, after) {
                messages.push(added(path, &new)?);
            }
            for interface in after.interfaces().filter(|there| (there.is_there)(before)) {
                messages.extend(properties_changed(path, interface, before, after)?);
            }
        }
        (None, None) => {}
    }
    Ok(())
}

/// A job has begun.
pub(crate) fn job_new(job: &Job) -> Result<[Message; 2]> {
    let path = job.path();
    let new = Message::signal(names::ROOT, names::MANAGER, "JobNew").build(&(job.id, &path))?;
    Ok([added(&path, &Interfaces::of(job))?, new])
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
    Ok([gone, removed(&path, &interface_names(job))?])
}

fn added<O: Shown>(path: &ObjectPath<'_>, interfaces: &Interfaces<'_, O>) -> Result<Message> {
    Message::signal(names::ROOT, standard::OBJECT_MANAGER, "InterfacesAdded")
        .build(&(path, interfaces))
}

fn removed(path: &ObjectPath<'_>, interfaces: &[&str]) -> Result<Message> {
    Message::signal(names::ROOT, standard::OBJECT_MANAGER, "InterfacesRemoved")
        .build(&(path, interfaces))
}

/// The one signal that tells all changes of an interface; none when nothing that
/// is told has changed.
fn properties_changed<O>(
    path: &ObjectPath<'_>,
    interface: &Interface<O>,
    before: &O,
    after: &O,
) -> Result<Option<Message>> {
    let changed: HashMap<&str, Variant<'_>> =
        changed(interface, before, after).into_iter().collect();
    if changed.is_empty() {
        return Ok(None);
    }
    let invalidated: [&str; 0] = [];
    Message::signal(path, standard::PROPERTIES, "PropertiesChanged")
        .build(&(interface.name, changed, invalidated.as_slice()))
        .map(Some)
}
