//! Printing: tables, facts and JSON, each in one write.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use serde::Serialize;

use crate::failure::{Failure, Result};

/// How the caller wants it.
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether JSON was asked for.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints `value` as JSON, or else the text that `people` makes of it.
    pub(crate) fn print<T: Serialize>(
        &self,
        value: &T,
        people: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        if self.json { print_json(value) } else { print(&people(value)) }
    }

    /// Prints rows as JSON or as a table; a word on standard error when there
    /// are none, so that pipes see nothing.
    pub(crate) fn rows<T: Serialize>(
        &self,
        rows: &[T],
        nothing: &str,
        table: impl FnOnce(&[T]) -> String,
    ) -> Result<()> {
        if self.json {
            return print_json(&rows);
        }
        if rows.is_empty() {
            note(nothing);
            return Ok(());
        }
        print(&table(rows))
    }
}

/// Prints text to standard output.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

fn print_json<T: Serialize + ?Sized>(value: &T) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::other(format!("cannot write JSON: {error}")))?;
    text.push('\n');
    print(&text)
}

/// Says something beside the output.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// A table without lines. Columns whose heading starts with `>` hold numbers
/// and are aligned to the right.
pub(crate) fn table<const N: usize>(
    headings: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let right = headings.map(|heading| heading.starts_with('>'));
    let mut lines = vec![headings.map(|heading| heading.trim_start_matches('>').to_owned())];
    lines.extend(rows.map(|row| row.map(|cell| or_dash(&cell))));
    let mut widths = [0; N];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        for ((cell, width), right) in line.iter().zip(widths).zip(right) {
            let _ = match right {
                true => write!(text, "{cell:>width$}  "),
                false => write!(text, "{cell:<width$}  "),
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// Lines of `name: value`, the values below each other; without the empty ones.
pub(crate) fn facts<'a>(facts: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let facts: Vec<_> = facts.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let width = facts.iter().map(|(name, _)| name.len() + 1).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| {
        let label = format!("{name}:");
        format!("{label:<width$}  {}\n", plain(value))
    };
    facts.iter().map(line).collect()
}

/// Bytes as people say them; empty for none.
pub(crate) fn size(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    match bytes {
        0 => String::new(),
        bytes if bytes % (1 << 30) == 0 => format!("{} GiB", bytes >> 30),
        bytes if bytes % MIB == 0 => format!("{} MiB", bytes / MIB),
        bytes if bytes >= MIB => format!("{:.1} MiB", bytes as f64 / MIB as f64),
        bytes if bytes % (1 << 10) == 0 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { plain(text) }
}

/// Text without control characters: what a driver says must not drive a
/// terminal.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_the_largest_whole_unit() {
        for (bytes, text) in [
            (0, ""),
            (512, "512 B"),
            (4096, "4 KiB"),
            (16 << 20, "16 MiB"),
            (1 << 30, "1 GiB"),
            (3 << 29, "1536 MiB"),
            ((16 << 20) + 1, "16.0 MiB"),
            (192 << 30, "192 GiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn a_table_aligns_its_columns() {
        let rows = [["a".to_owned(), "7".to_owned()], [String::new(), "1234".to_owned()]];
        assert_eq!(
            table(["NAME", ">COUNT"], rows.into_iter()),
            "NAME  COUNT\na         7\n-      1234\n"
        );
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(
            facts([("Name", "a\u{1b}[2J".to_owned()), ("Gone", String::new())]),
            "Name:  a\u{fffd}[2J\n"
        );
    }
}
