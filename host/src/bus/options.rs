//! `a{sv}` options and filters, and the checks of text that comes in.

use std::collections::HashMap;

use zbus::{OwnedVariant, Variant};

use super::error::Fault;

/// The longest text that any argument can need: a path element of 255 bytes.
const LONGEST: usize = 255;
/// The most texts that any list can need: a GPU has at most 7 GPU instances.
const MOST: usize = 64;
/// How much of a wrong text an error repeats.
const ECHO: usize = 64;

/// The options of one call, taken out one by one.
pub(crate) struct Options {
    method: &'static str,
    given: HashMap<String, OwnedVariant>,
}

impl Options {
    /// The options of that method.
    ///
    /// # Errors
    /// InvalidArgs when one is not among `known`.
    pub(crate) fn new(
        method: &'static str,
        given: HashMap<String, OwnedVariant>,
        known: &[&str],
    ) -> Result<Self, Fault> {
        if let Some(unknown) = given.keys().find(|key| !known.contains(&key.as_str())) {
            let known = match known {
                [] => "it takes none".to_owned(),
                known => format!("it takes {}", known.join(", ")),
            };
            return Err(Fault::invalid(format!(
                "{method} has no option {}; {known}",
                echo(unknown)
            )));
        }
        Ok(Self { method, given })
    }

    /// A text, `None` when it is not given.
    ///
    /// # Errors
    /// InvalidArgs when it is no text or too long.
    pub(crate) fn text(&mut self, key: &str) -> Result<Option<String>, Fault> {
        self.take(key, "a string (s)", |value| match value {
            Variant::Str(text) => Some(text.to_string()),
            _ => None,
        })?
        .map(|value| text(key, value))
        .transpose()
    }

    /// A number, `None` when it is not given.
    ///
    /// # Errors
    /// InvalidArgs when it is no unsigned number.
    pub(crate) fn number(&mut self, key: &str) -> Result<Option<u32>, Fault> {
        self.take(key, "an unsigned number (u)", |value| match value {
            Variant::U32(number) => Some(*number),
            _ => None,
        })
    }

    /// Yes or no, `None` when it is not given.
    ///
    /// # Errors
    /// InvalidArgs when it is neither.
    pub(crate) fn flag(&mut self, key: &str) -> Result<Option<bool>, Fault> {
        self.take(key, "true or false (b)", |value| match value {
            Variant::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// Texts, `None` when they are not given.
    ///
    /// # Errors
    /// InvalidArgs when they are no texts, or one of them or their number is too
    /// large.
    pub(crate) fn texts(&mut self, key: &str) -> Result<Option<Vec<String>>, Fault> {
        let given = self.take(key, "a list of strings (as)", |value| match value {
            Variant::Array(array) if value.value_signature() == "as" => {
                array.inner().iter().map(|held| held.downcast_ref().ok()).collect()
            }
            _ => None,
        })?;
        let Some(texts): Option<Vec<String>> = given else {
            return Ok(None);
        };
        if texts.len() > MOST {
            return Err(Fault::invalid(format!(
                "{key} has {} entries, more than {MOST}",
                texts.len()
            )));
        }
        texts.into_iter().map(|value| text(key, value)).collect::<Result<_, _>>().map(Some)
    }

    fn take<T>(
        &mut self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&Variant<'_>) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        let Some(value) = self.given.remove(key) else {
            return Ok(None);
        };
        match read(&value) {
            Some(value) => Ok(Some(value)),
            None => Err(Fault::invalid(format!(
                "the option {key} of {} is {wanted}, not of the type {}",
                self.method,
                value.value_signature(),
            ))),
        }
    }
}

/// A text argument called `name`, of a length that makes sense.
///
/// # Errors
/// InvalidArgs when it is too long.
pub(crate) fn text(name: &str, value: String) -> Result<String, Fault> {
    if value.len() > LONGEST {
        return Err(Fault::invalid(format!(
            "{name} has {} bytes, more than {LONGEST}: {}",
            value.len(),
            echo(&value)
        )));
    }
    Ok(value)
}

/// The start of a wrong text, quoted, its control characters escaped.
pub(crate) fn echo(value: &str) -> String {
    match value.char_indices().nth(ECHO) {
        Some((end, _)) => format!("{:?}…", value.get(..end).unwrap_or_default()),
        None => format!("{value:?}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn options(entries: &[(&str, Variant<'_>)], known: &[&str]) -> Result<Options, Fault> {
        let owned =
            |(key, value): &(&str, Variant<'_>)| ((*key).to_owned(), value.try_to_owned().unwrap());
        Options::new("CreateVgpu", entries.iter().map(owned).collect(), known)
    }

    #[test]
    fn options_are_taken_by_type() {
        let given = [("gpu", "mtty".into()), ("owner-uid", 7u32.into()), ("force", true.into())];
        let mut options = options(&given, &["gpu", "owner-uid", "force", "name"]).unwrap();
        assert_eq!(options.text("gpu").unwrap().as_deref(), Some("mtty"));
        assert_eq!(options.number("owner-uid").unwrap(), Some(7));
        assert_eq!(options.flag("force").unwrap(), Some(true));
        assert_eq!(options.text("name").unwrap(), None);
    }

    #[test]
    fn an_unknown_option_names_itself_and_the_known_ones() {
        let fault = options(&[("gpuu", "mtty".into())], &["gpu", "uuid"]).err().unwrap();
        assert_eq!(fault.text, "CreateVgpu has no option \"gpuu\"; it takes gpu, uuid");
        let fault = options(&[("a\u{1b}b", 1u32.into())], &[]).err().unwrap();
        assert_eq!(fault.text, "CreateVgpu has no option \"a\\u{1b}b\"; it takes none");
    }

    #[test]
    fn a_wrong_type_names_both() {
        let mut options = options(&[("gpu", 7u32.into())], &["gpu"]).unwrap();
        let text = options.text("gpu").unwrap_err().text;
        assert_eq!(text, "the option gpu of CreateVgpu is a string (s), not of the type u");
    }

    #[test]
    fn a_list_is_of_texts_and_not_too_long() {
        let list = |held: Variant<'static>| {
            options(&[("instances", held)], &["instances"]).unwrap().texts("instances")
        };
        let shapes = vec!["3g.20gb".to_owned(), "1g.5gb".to_owned()];
        assert_eq!(list(Variant::new(shapes.clone())), Ok(Some(shapes)));
        assert_eq!(list(Variant::new(Vec::<String>::new())), Ok(Some(Vec::new())));
        let wrong = list(Variant::new(Vec::<u32>::new())).unwrap_err().text;
        assert_eq!(
            wrong,
            "the option instances of CreateVgpu is a list of strings (as), not of the type au"
        );
        let long = list(Variant::new(vec!["1g.5gb"; 65])).unwrap_err().text;
        assert_eq!(long, "instances has 65 entries, more than 64");
        let wide = list(Variant::new(vec!["x".repeat(256)])).unwrap_err().text;
        assert!(wide.starts_with("instances has 256 bytes, more than 255: "), "{wide}");
    }

    #[test]
    fn a_long_text_is_repeated_in_part() {
        let fault = text("profile", "ä".repeat(500_000)).unwrap_err();
        assert!(
            fault.text.starts_with("profile has 1000000 bytes, more than 255: \"ää"),
            "{}",
            fault.text
        );
        assert!(fault.text.len() < 256, "{}", fault.text.len());
    }
}
