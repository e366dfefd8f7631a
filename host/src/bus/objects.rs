//! The objects: found by path in a picture of the host, and listed by
//! `GetManagedObjects`.

use std::sync::Arc;

use serde::{Serialize, Serializer, ser::SerializeMap};
use vgpu_host_api::{
    names,
    path::{self, Object as Name},
};
use vgpu_mdev::model::{Gpu, Snapshot, parse_uuid};
use zbus::{Message, Signature, Type, signature};

use super::{
    call::Call,
    error::Fault,
    jobs::Job,
    properties::{Interface, Properties, Shown},
    service::Service,
};

/// What is at a path.
#[derive(Clone)]
pub(crate) enum Object {
    /// The manager.
    Manager,
    /// A GPU.
    Gpu(Arc<Gpu>),
    /// A vGPU.
    Vgpu(Arc<vgpu_mdev::model::Vgpu>),
    /// A job.
    Job(Arc<Job>),
    /// A node of the tree without an interface of ours.
    Node(Node),
}

/// The nodes above and between the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    /// A node with this one child on the way to the manager.
    Above(&'static str),
    /// The parent of the GPUs.
    Gpus,
    /// The parent of the vGPUs.
    Vgpus,
    /// The parent of the jobs.
    Jobs,
}

/// Finds what is at a path.
pub(crate) fn find(service: &Service, picture: &Snapshot, path: &str) -> Option<Object> {
    let node = match path {
        "/" => Some(Node::Above("org")),
        "/org" => Some(Node::Above("vgpu")),
        "/org/vgpu" => Some(Node::Above("Host1")),
        names::GPUS => Some(Node::Gpus),
        names::VGPUS => Some(Node::Vgpus),
        names::JOBS => Some(Node::Jobs),
        _ => None,
    };
    if let Some(node) = node {
        return Some(Object::Node(node));
    }
    match path::parse(path)? {
        Name::Manager => Some(Object::Manager),
        Name::Gpu(id) => picture.gpu(&id.parse().ok()?).cloned().map(Object::Gpu),
        Name::Vgpu(uuid) => picture.vgpu(parse_uuid(&uuid).ok()?).cloned().map(Object::Vgpu),
        Name::Job(id) => service.jobs.find(id).map(Object::Job),
    }
}

impl Object {
    /// Its interfaces of ours.
    pub(crate) fn own_interfaces(&self, service: &Service) -> Vec<&'static str> {
        match self {
            Self::Manager => interface_names(service),
            Self::Gpu(gpu) => interface_names(&**gpu),
            Self::Vgpu(vgpu) => interface_names(&service.vgpu_object(vgpu.clone())),
            Self::Job(job) => interface_names(&**job),
            Self::Node(_) => Vec::new(),
        }
    }

    /// All its interfaces.
    pub(crate) fn interfaces(&self, service: &Service) -> Vec<&'static str> {
        use names::standard::{INTROSPECTABLE, OBJECT_MANAGER, PEER, PROPERTIES};
        let mut interfaces = vec![PEER, INTROSPECTABLE];
        interfaces.extend(self.own_interfaces(service));
        match self {
            Self::Manager => interfaces.extend([PROPERTIES, OBJECT_MANAGER]),
            Self::Node(_) => {}
            _ => interfaces.push(PROPERTIES),
        }
        interfaces
    }
}

/// The names of the interfaces that an object has now.
pub(crate) fn interface_names<O: Shown>(object: &O) -> Vec<&'static str> {
    object.interfaces().map(|interface| interface.name).collect()
}

/// Answers `GetManagedObjects`, written straight from the picture.
pub(crate) fn get_managed_objects(
    service: &Service,
    picture: &Snapshot,
    call: &Call,
) -> Result<Message, Fault> {
    call.reply(&Managed { service, picture })
}

/// All objects below the manager: `a{oa{sa{sv}}}`.
struct Managed<'a> {
    service: &'a Service,
    picture: &'a Snapshot,
}

impl Type for Managed<'_> {
    const SIGNATURE: &'static Signature = &signature!("a{oa{sa{sv}}}");
}

impl Serialize for Managed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for gpu in self.picture.gpus() {
            map.serialize_entry(&path::gpu(&gpu.id.to_string()), &Interfaces::of(&**gpu))?;
        }
        for vgpu in self.picture.vgpus() {
            let object = self.service.vgpu_object(vgpu.clone());
            map.serialize_entry(&object.path(), &Interfaces::of(&object))?;
        }
        for job in self.service.jobs.all() {
            map.serialize_entry(&job.path(), &Interfaces::of(&*job))?;
        }
        map.end()
    }
}

/// Interfaces of an object with their properties: `a{sa{sv}}`.
pub(crate) struct Interfaces<'a, O: 'static> {
    object: &'a O,
    interfaces: Vec<&'static Interface<O>>,
}

impl<'a, O: Shown> Interfaces<'a, O> {
    /// All that it has.
    pub(crate) fn of(object: &'a O) -> Self {
        Self { object, interfaces: object.interfaces().collect() }
    }

    /// Those that it has and had not before; `None` when there is none.
    pub(crate) fn new_since(before: &O, object: &'a O) -> Option<Self> {
        let is_new = |interface: &&Interface<O>| !(interface.is_there)(before);
        let interfaces: Vec<_> = object.interfaces().filter(is_new).collect();
        (!interfaces.is_empty()).then_some(Self { object, interfaces })
    }
}

impl<O> Type for Interfaces<'_, O> {
    const SIGNATURE: &'static Signature = &signature!("a{sa{sv}}");
}

impl<O> Serialize for Interfaces<'_, O> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.interfaces.len()))?;
        for interface in &self.interfaces {
            let properties = Properties { object: self.object, interfaces: &[interface] };
            map.serialize_entry(interface.name, &properties)?;
        }
        map.end()
    }
}
