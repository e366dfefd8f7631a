//! Properties: each interface has a table of them, from which they are read,
//! listed and compared.

use serde::{Serialize, Serializer, ser::SerializeMap};
use vgpu_host_api::error::standard;
use zbus::{Message, Signature, Type, Variant, signature};

use super::{call::Call, error::Fault, objects::Object, options::echo, service::Service};

/// One property of an interface whose object is an `O`.
pub(crate) struct Property<O> {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its type.
    pub(crate) signature: &'static str,
    /// How its changes are told.
    pub(crate) emits: Emits,
    /// Its value.
    pub(crate) get: for<'a> fn(&'a O) -> Variant<'a>,
}

/// How the changes of a property are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Emits {
    /// In PropertiesChanged, with the new value.
    Change,
    /// It does not change.
    Never,
    /// Not at all: it is to be asked for.
    Nothing,
}

/// An object's interface.
pub(crate) trait Interface: Sized + 'static {
    /// Its name.
    const NAME: &'static str;
    /// Its properties, in the order of the XML.
    const PROPERTIES: &'static [Property<Self>];
}

/// All properties of an object: `a{sv}`.
pub(crate) struct All<'a, O>(pub(crate) &'a O);

impl<O: Interface> Serialize for All<'_, O> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(O::PROPERTIES.len()))?;
        for property in O::PROPERTIES {
            map.serialize_entry(property.name, &(property.get)(self.0))?;
        }
        map.end()
    }
}

impl<O> Type for All<'_, O> {
    const SIGNATURE: &'static Signature = &signature!("a{sv}");
}

/// The properties that differ between two states of an object, with their new
/// values.
pub(crate) fn changed<'a, O: Interface>(
    before: &O,
    after: &'a O,
) -> Vec<(&'static str, Variant<'a>)> {
    let told = O::PROPERTIES.iter().filter(|property| property.emits == Emits::Change);
    told.filter_map(|property| {
        let value = (property.get)(after);
        ((property.get)(before) != value).then_some((property.name, value))
    })
    .collect()
}

/// Answers `Get`.
pub(crate) fn get(service: &Service, call: &Call, object: &Object) -> Result<Message, Fault> {
    let (interface, name): (String, String) = call.args()?;
    known_interface(object, &interface)?;
    match object {
        Object::Manager => get_of(call, service, &name),
        Object::Gpu(gpu) => get_of(call, &**gpu, &name),
        Object::Vgpu(vgpu) => get_of(call, &service.vgpu_object(vgpu.clone()), &name),
        Object::Job(job) => get_of(call, &**job, &name),
        Object::Node(_) => Err(no_interface(&interface)),
    }
}

/// Answers `GetAll`.
pub(crate) fn get_all(service: &Service, call: &Call, object: &Object) -> Result<Message, Fault> {
    let (interface,): (String,) = call.args()?;
    if is_standard(&interface) {
        return call.reply(&std::collections::HashMap::<&str, Variant<'_>>::new());
    }
    known_interface(object, &interface)?;
    match object {
        Object::Manager => call.reply(&All(service)),
        Object::Gpu(gpu) => call.reply(&All(&**gpu)),
        Object::Vgpu(vgpu) => call.reply(&All(&service.vgpu_object(vgpu.clone()))),
        Object::Job(job) => call.reply(&All(&**job)),
        Object::Node(_) => Err(no_interface(&interface)),
    }
}

/// Answers `Set`: nothing can be set.
pub(crate) fn set(call: &Call, object: &Object) -> Result<Message, Fault> {
    let (interface, name, _): (String, String, zbus::OwnedVariant) = call.args()?;
    known_interface(object, &interface)?;
    match object {
        Object::Manager => known_property::<Service>(&name).map(|_| ()),
        Object::Gpu(_) => known_property::<vgpu_mdev::model::Gpu>(&name).map(|_| ()),
        Object::Vgpu(_) => known_property::<super::vgpu::VgpuObject>(&name).map(|_| ()),
        Object::Job(_) => known_property::<super::jobs::Job>(&name).map(|_| ()),
        Object::Node(_) => Err(no_interface(&interface)),
    }?;
    Err(Fault::new(
        standard::PROPERTY_READ_ONLY,
        format!("the property {name} of {interface} cannot be set; methods change what it shows"),
    ))
}

fn get_of<O: Interface>(call: &Call, object: &O, name: &str) -> Result<Message, Fault> {
    let property = known_property::<O>(name)?;
    let value = (property.get)(object);
    debug_assert_eq!(value.value_signature(), property.signature, "the property {name}");
    call.reply(&value)
}

fn known_property<O: Interface>(name: &str) -> Result<&'static Property<O>, Fault> {
    O::PROPERTIES.iter().find(|property| property.name == name).ok_or_else(|| {
        Fault::new(
            standard::UNKNOWN_PROPERTY,
            format!("{} has no property {}", O::NAME, echo(name)),
        )
    })
}

/// An empty interface name means any: each object has one of ours.
fn known_interface(object: &Object, interface: &str) -> Result<(), Fault> {
    match object.interface() {
        Some(own) if interface.is_empty() || interface == own => Ok(()),
        _ => Err(no_interface(interface)),
    }
}

fn is_standard(interface: &str) -> bool {
    use vgpu_host_api::names::standard as names;
    [names::PEER, names::INTROSPECTABLE, names::PROPERTIES, names::OBJECT_MANAGER]
        .contains(&interface)
}

fn no_interface(interface: &str) -> Fault {
    Fault::new(
        standard::UNKNOWN_INTERFACE,
        format!("the object has no interface {}", echo(interface)),
    )
}
