//! Interfaces and their properties: what is shown as an object has a table of
//! interfaces, some of them only where they apply, and each has a table of
//! properties, from which they are read, listed and compared.

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

/// An interface of objects that are an `O`.
pub(crate) struct Interface<O: 'static> {
    /// Its name.
    pub(crate) name: &'static str,
    /// Whether the object has it now.
    pub(crate) is_there: fn(&O) -> bool,
    /// Its properties, in the order of the XML.
    pub(crate) properties: &'static [Property<O>],
}

impl<O> Interface<O> {
    /// One that every such object has.
    pub(crate) const fn always(
        name: &'static str,
        properties: &'static [Property<O>],
    ) -> Interface<O> {
        Interface { name, is_there: |_| true, properties }
    }
}

/// What is shown as an object.
pub(crate) trait Shown: Sized + 'static {
    /// The interfaces of ours that it can have.
    const INTERFACES: &'static [Interface<Self>];

    /// Those that it has now.
    fn interfaces(&self) -> impl Iterator<Item = &'static Interface<Self>> {
        Self::INTERFACES.iter().filter(|interface| (interface.is_there)(self))
    }

    /// Those that are called `name`; an empty name means any.
    fn interfaces_called(&self, name: &str) -> impl Iterator<Item = &'static Interface<Self>> {
        self.interfaces().filter(move |interface| name.is_empty() || interface.name == name)
    }
}

/// Properties of an object: `a{sv}`.
pub(crate) struct Properties<'a, O: 'static> {
    /// The object.
    pub(crate) object: &'a O,
    /// Whose properties; of several interfaces together, no two have the same
    /// name.
    pub(crate) interfaces: &'a [&'static Interface<O>],
}

impl<O> Serialize for Properties<'_, O> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for property in self.interfaces.iter().flat_map(|interface| interface.properties) {
            map.serialize_entry(property.name, &(property.get)(self.object))?;
        }
        map.end()
    }
}

impl<O> Type for Properties<'_, O> {
    const SIGNATURE: &'static Signature = &signature!("a{sv}");
}

/// The properties of an interface that differ between two states of an object,
/// with their new values.
pub(crate) fn changed<'a, O>(
    interface: &Interface<O>,
    before: &O,
    after: &'a O,
) -> Vec<(&'static str, Variant<'a>)> {
    let told = interface.properties.iter().filter(|property| property.emits == Emits::Change);
    told.filter_map(|property| {
        let value = (property.get)(after);
        ((property.get)(before) != value).then_some((property.name, value))
    })
    .collect()
}

/// Answers `Get`.
pub(crate) fn get(service: &Service, call: &Call, object: &Object) -> Result<Message, Fault> {
    let (interface, name): (String, String) = call.args()?;
    match object {
        Object::Manager => get_of(call, service, &interface, &name),
        Object::Gpu(gpu) => get_of(call, &**gpu, &interface, &name),
        Object::Vgpu(vgpu) => get_of(call, &service.vgpu_object(vgpu.clone()), &interface, &name),
        Object::Job(job) => get_of(call, &**job, &interface, &name),
        Object::Node(_) => Err(no_interface(&interface)),
    }
}

/// Answers `GetAll`.
pub(crate) fn get_all(service: &Service, call: &Call, object: &Object) -> Result<Message, Fault> {
    let (interface,): (String,) = call.args()?;
    if is_standard(&interface) {
        return call.reply(&std::collections::HashMap::<&str, Variant<'_>>::new());
    }
    match object {
        Object::Manager => get_all_of(call, service, &interface),
        Object::Gpu(gpu) => get_all_of(call, &**gpu, &interface),
        Object::Vgpu(vgpu) => get_all_of(call, &service.vgpu_object(vgpu.clone()), &interface),
        Object::Job(job) => get_all_of(call, &**job, &interface),
        Object::Node(_) => Err(no_interface(&interface)),
    }
}

/// Answers `Set`: nothing can be set.
pub(crate) fn set(service: &Service, call: &Call, object: &Object) -> Result<Message, Fault> {
    let (interface, name, _): (String, String, zbus::OwnedVariant) = call.args()?;
    match object {
        Object::Manager => find(service, &interface, &name).map(|_| ()),
        Object::Gpu(gpu) => find(&**gpu, &interface, &name).map(|_| ()),
        Object::Vgpu(vgpu) => {
            find(&service.vgpu_object(vgpu.clone()), &interface, &name).map(|_| ())
        }
        Object::Job(job) => find(&**job, &interface, &name).map(|_| ()),
        Object::Node(_) => Err(no_interface(&interface)),
    }?;
    Err(Fault::new(
        standard::PROPERTY_READ_ONLY,
        format!("the property {name} of {interface} cannot be set; methods change what it shows"),
    ))
}

fn get_of<O: Shown>(
    call: &Call,
    object: &O,
    interface: &str,
    name: &str,
) -> Result<Message, Fault> {
    let property = find(object, interface, name)?;
    let value = (property.get)(object);
    debug_assert_eq!(value.value_signature(), property.signature, "the property {name}");
    call.reply(&value)
}

fn get_all_of<O: Shown>(call: &Call, object: &O, interface: &str) -> Result<Message, Fault> {
    let interfaces: Vec<_> = object.interfaces_called(interface).collect();
    if interfaces.is_empty() {
        return Err(no_interface(interface));
    }
    call.reply(&Properties { object, interfaces: &interfaces })
}

fn find<O: Shown>(object: &O, interface: &str, name: &str) -> Result<&'static Property<O>, Fault> {
    if object.interfaces_called(interface).next().is_none() {
        return Err(no_interface(interface));
    }
    let mut properties = object.interfaces_called(interface).flat_map(|found| found.properties);
    properties.find(|property| property.name == name).ok_or_else(|| {
        Fault::new(
            standard::UNKNOWN_PROPERTY,
            format!("{} has no property {}", shown(interface), echo(name)),
        )
    })
}

/// An interface's name that is known, or none.
fn shown(interface: &str) -> &str {
    if interface.is_empty() { "the object" } else { interface }
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
