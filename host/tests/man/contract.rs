//! The manual page of the bus, made from the XML of its interfaces.

use std::fmt::Write as _;

use quick_xml::{Reader, events::Event};

/// An interface with its comments.
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) members: Vec<Member>,
}

/// A method, signal or property with its comment.
pub(crate) struct Member {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) text: String,
    /// Type and name of what goes in, or of a signal's or property's values.
    pub(crate) ins: Vec<String>,
    /// Type and name of what comes back.
    pub(crate) outs: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Method,
    Signal,
    Property,
}

impl Interface {
    /// Reads the XML, taking each comment for the element after it.
    pub(crate) fn parse(xml: &str) -> Self {
        let mut interface = Self { name: String::new(), text: String::new(), members: Vec::new() };
        let mut comment = String::new();
        let mut reader = Reader::from_str(xml);
        loop {
            let tag = match reader.read_event().unwrap() {
                Event::Eof => return interface,
                Event::Comment(text) => {
                    comment = text.split_whitespace().collect::<Vec<_>>().join(" ");
                    continue;
                }
                Event::Start(tag) | Event::Empty(tag) => tag,
                _ => continue,
            };
            let attribute = |name: &str| {
                let found = tag.try_get_attribute(name).unwrap();
                found.map(|found| found.value.into_owned()).unwrap_or_default()
            };
            let kind = match tag.name().as_ref() {
                "interface" => {
                    interface.name = attribute("name");
                    interface.text = std::mem::take(&mut comment);
                    continue;
                }
                "method" => Kind::Method,
                "signal" => Kind::Signal,
                "property" => Kind::Property,
                "arg" => {
                    let member = interface.members.last_mut().unwrap();
                    let argument = format!("{} {}", attribute("type"), attribute("name"));
                    let out = attribute("direction") == "out";
                    if out { &mut member.outs } else { &mut member.ins }.push(argument);
                    continue;
                }
                _ => continue,
            };
            let ins = if kind == Kind::Property { vec![attribute("type")] } else { Vec::new() };
            let text = std::mem::take(&mut comment);
            let (name, outs) = (attribute("name"), Vec::new());
            interface.members.push(Member { kind, name, text, ins, outs });
        }
    }
}

impl Member {
    fn shape(&self) -> String {
        match self.kind {
            Kind::Property => format!("\\fB{}\\fR {}", self.name, self.ins.join(", ")),
            Kind::Method if !self.outs.is_empty() => {
                format!(
                    "\\fB{}\\fR({}) -> ({})",
                    self.name,
                    self.ins.join(", "),
                    self.outs.join(", ")
                )
            }
            _ => format!("\\fB{}\\fR({})", self.name, self.ins.join(", ")),
        }
    }
}

/// The whole page.
pub(crate) fn page(interfaces: &[Interface]) -> String {
    let mut page = include_str!("org.vgpu.Host1.5.head").to_owned();
    for interface in interfaces {
        let _ =
            writeln!(page, ".SH {}\n{}", interface.name.to_uppercase(), escape(&interface.text));
        for (kind, heading) in
            [(Kind::Method, "Methods"), (Kind::Signal, "Signals"), (Kind::Property, "Properties")]
        {
            let members: Vec<_> =
                interface.members.iter().filter(|member| member.kind == kind).collect();
            if members.is_empty() {
                continue;
            }
            let _ = writeln!(page, ".SS {heading}");
            for member in members {
                let _ = writeln!(
                    page,
                    ".TP\n{}",
                    escape(&member.shape()).replace("\\efB", "\\fB").replace("\\efR", "\\fR")
                );
                if !member.text.is_empty() {
                    let _ = writeln!(page, "{}", escape(&member.text));
                }
            }
        }
    }
    page + include_str!("org.vgpu.Host1.5.tail")
}

/// Text for troff, in lines of at most 78 characters where it can be.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let mut out = String::new();
    let mut width = 0;
    for word in text.split(' ') {
        if width > 0 && width + word.len() > 78 {
            out.push('\n');
            width = 0;
        }
        if width > 0 {
            out.push(' ');
            width += 1;
        }
        if width == 0 && word.starts_with(['.', '\'']) {
            out.push_str("\\&");
        }
        out.push_str(word);
        width += word.len();
    }
    out
}
