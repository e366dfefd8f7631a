//! Values of the bus as JSON, in the style of the rest: keys in snake_case.

use serde_json::{Map, Value};
use vgpu_host_api::names;
use zbus::Variant;

/// A value of any type.
fn value(variant: &Variant<'_>) -> Value {
    match variant {
        Variant::U8(n) => (*n).into(),
        Variant::Bool(b) => (*b).into(),
        Variant::I16(n) => (*n).into(),
        Variant::U16(n) => (*n).into(),
        Variant::I32(n) => (*n).into(),
        Variant::U32(n) => (*n).into(),
        Variant::I64(n) => (*n).into(),
        Variant::U64(n) => (*n).into(),
        Variant::F64(n) => (*n).into(),
        Variant::Str(text) => text.as_str().into(),
        Variant::Signature(signature) => signature.to_string().into(),
        Variant::ObjectPath(path) => path.as_str().into(),
        Variant::Variant(inner) => value(inner),
        Variant::Array(array) => array.inner().iter().map(value).collect(),
        Variant::Structure(fields) => fields.fields().iter().map(value).collect(),
        Variant::Dict(dict) => {
            let entry = |(key, held): (&Variant<'_>, &Variant<'_>)| match (key, held) {
                // Facts by name; other keys are data, such as type ids.
                (Variant::Str(name), Variant::Variant(held)) => (snake_case(name), fact(held)),
                (Variant::Str(text), held) => (text.as_str().to_owned(), value(held)),
                (other, held) => (value(other).to_string(), value(held)),
            };
            Value::Object(dict.iter().map(entry).collect())
        }
        Variant::Fd(_) => Value::Null,
    }
}

/// A fact: null for what the bus has to write as an empty text, as -1 or as the
/// path of nothing.
fn fact(held: &Variant<'_>) -> Value {
    match held {
        Variant::Str(text) if text.is_empty() => Value::Null,
        Variant::I32(-1) => Value::Null,
        Variant::ObjectPath(path) if path.as_str() == names::NONE => Value::Null,
        held => value(held),
    }
}

/// Properties by name, the names in snake_case.
pub(crate) fn facts<'a, 'v: 'a>(
    facts: impl IntoIterator<Item = (&'a str, &'a Variant<'v>)>,
) -> Map<String, Value> {
    facts.into_iter().map(|(name, held)| (snake_case(name), fact(held))).collect()
}

/// `VfTotal` as `vf_total`.
pub(crate) fn snake_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// The text, or null for an empty one.
pub(crate) fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashMap;

    use serde_json::json;

    use super::*;

    #[test]
    fn names_become_snake_case() {
        for (name, wanted) in
            [("VfTotal", "vf_total"), ("Uuid", "uuid"), ("OwnerUid", "owner_uid"), ("x", "x")]
        {
            assert_eq!(snake_case(name), wanted);
        }
    }

    #[test]
    fn values_keep_their_shape() {
        let capacity = HashMap::from([("mtty-1", (24_u32, "ok"))]);
        assert_eq!(value(&Variant::new(capacity)), json!({ "mtty-1": [24, "ok"] }));
        assert_eq!(
            value(&Variant::new(vec![("group", "/dev/vfio/7")])),
            json!([["group", "/dev/vfio/7"]])
        );
        assert_eq!(value(&Variant::new(-1_i32)), json!(-1));
        let functions = vec![HashMap::from([("VgpuName", Variant::from("x"))])];
        assert_eq!(value(&Variant::new(functions)), json!([{ "vgpu_name": "x" }]));
    }

    #[test]
    fn a_fact_that_is_not_there_is_null() {
        let (name, group, none) = (Variant::from(""), Variant::from(-1_i32), Variant::from(0_u32));
        let held = [("Name", &name), ("IommuGroup", &group), ("VfCount", &none)];
        assert_eq!(
            Value::Object(facts(held)),
            json!({ "name": null, "iommu_group": null, "vf_count": 0 })
        );
        let nothing = zbus::ObjectPath::try_from(names::NONE).unwrap();
        let functions =
            vec![HashMap::from([("Driver", Variant::from("")), ("Vgpu", Variant::from(nothing))])];
        assert_eq!(value(&Variant::new(functions)), json!([{ "driver": null, "vgpu": null }]));
    }
}
