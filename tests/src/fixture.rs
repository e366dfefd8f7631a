//! Trees of sysfs in one text file each, `tests/fixtures/<vendor>/<gpu>-<driver>-<kernel>.tree`:
//!
//! ```text
//! # A comment.
//! [devices/pci0000:3a/0000:3b:00.0]          entries below this directory
//! class = 0x030200                           a file: this text and a new line
//! description = low_gm_size: 128MB\nfence: 4  \n, \t and \\ are escapes
//! remove !                                   a file that can only be written
//! reset_gpu @                                a file that does harm when it is read:
//!                                            a FIFO, on which its reader hangs
//! driver -> /bus/pci/drivers/nvidia          a link, from the root of the tree
//! virtfn0 -> ../0000:3b:00.4                 or as the kernel gives it
//! power/                                     an empty directory
//!
//! [devices/pci0000:3a/0000:3b:00.5] like devices/pci0000:3a/0000:3b:00.4
//! iommu_group -> /kernel/iommu_groups/62     all that the other has, but this
//! ```
//!
//! Directories above an entry come by themselves.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use nix::sys::stat::Mode;

/// A tree that can be laid out below a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    entries: BTreeMap<String, Entry>,
}

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A directory.
    Dir,
    /// A file with this content.
    File(String),
    /// A file that can only be written.
    WriteOnly,
    /// A file that nobody may read: a FIFO, on which a reader hangs.
    Trap,
    /// A link; a target that begins with `/` counts from the tree's root.
    Link(String),
}

/// A file that describes no tree.
#[derive(Debug, thiserror::Error)]
#[error("{}:{line}: {what}", file.display())]
pub struct FixtureError {
    file: PathBuf,
    line: usize,
    what: String,
}

impl Tree {
    /// Reads the file of a tree.
    ///
    /// # Errors
    /// Names the file, the line and what is wrong with it.
    pub fn load(file: &Path) -> Result<Self, FixtureError> {
        let error = |line, what: String| FixtureError { file: file.to_owned(), line, what };
        let text = fs::read_to_string(file).map_err(|why| error(0, why.to_string()))?;
        Self::parse(&text).map_err(|(line, what)| error(line, what))
    }

    /// Parses the text of a tree.
    ///
    /// # Errors
    /// The line, 0 for the whole, and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut tree = Self::default();
        let mut section = Section::default();
        for (number, line) in text.lines().enumerate() {
            let fail = |what: String| (number + 1, what);
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(header) = line.strip_prefix('[') {
                section.close(&mut tree).map_err(|what| (section.line, what))?;
                section = Section::open(header, &tree, number + 1).map_err(fail)?;
            } else {
                let (path, entry) = parse_entry(line).map_err(fail)?;
                section.add(path, entry).map_err(fail)?;
            }
        }
        section.close(&mut tree).map_err(|what| (section.line, what))?;
        tree.check_links().map_err(|what| (0, what))?;
        Ok(tree)
    }

    /// Puts an entry in, with the directories above it.
    ///
    /// # Errors
    /// When there is another one, or something above it is no directory.
    pub fn put(&mut self, path: &str, entry: Entry) -> Result<(), String> {
        check_path(path)?;
        for (end, _) in path.match_indices('/') {
            let above = path.get(..end).unwrap_or_default();
            let there = self.entries.entry(above.to_owned()).or_insert(Entry::Dir);
            if *there != Entry::Dir {
                return Err(format!("{path:?} lies below {above:?}, which is no directory"));
            }
        }
        match self.entries.insert(path.to_owned(), entry.clone()) {
            Some(old) if (&old, &entry) != (&Entry::Dir, &Entry::Dir) => {
                Err(format!("{path:?} is there already"))
            }
            _ => Ok(()),
        }
    }

    /// The entries, by path.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(path, entry)| (path.as_str(), entry))
    }

    /// Makes the tree below an empty directory.
    ///
    /// # Errors
    /// Names what could not be made.
    pub fn lay_out(&self, root: &Path) -> io::Result<()> {
        for (path, entry) in &self.entries {
            let at = root.join(path);
            let made = match entry {
                Entry::Dir => fs::create_dir(&at),
                Entry::File(text) => fs::write(&at, text),
                Entry::WriteOnly => fs::write(&at, "")
                    .and_then(|()| fs::set_permissions(&at, fs::Permissions::from_mode(0o200))),
                Entry::Trap => nix::unistd::mkfifo(&at, Mode::S_IRUSR).map_err(io::Error::from),
                Entry::Link(target) => symlink(relative(path, target), &at),
            };
            made.map_err(|why| io::Error::new(why.kind(), format!("{}: {why}", at.display())))?;
        }
        Ok(())
    }

    /// A link that leads nowhere is a slip of the pen.
    fn check_links(&self) -> Result<(), String> {
        for (path, entry) in &self.entries {
            if let Entry::Link(target) = entry {
                let end = resolve(path, target)
                    .ok_or_else(|| format!("link {path:?} leads out of the tree: {target:?}"))?;
                if !end.is_empty() && !self.entries.contains_key(&end) {
                    return Err(format!("link {path:?} leads to {end:?}, which is not there"));
                }
            }
        }
        Ok(())
    }
}

/// The entries below one directory.
#[derive(Default)]
struct Section {
    line: usize,
    dir: String,
    entries: BTreeMap<String, Entry>,
    /// What was taken from another directory may be given anew.
    taken: BTreeMap<String, Entry>,
}

impl Section {
    fn open(header: &str, tree: &Tree, line: usize) -> Result<Self, String> {
        let wrong = || "write [directory] or [directory] like other/directory".to_owned();
        let (dir, rest) = header.split_once(']').ok_or_else(wrong)?;
        check_path(dir)?;
        let mut section = Self { line, dir: dir.to_owned(), ..Self::default() };
        match rest.trim() {
            "" => {}
            rest => {
                let other = rest.strip_prefix("like ").ok_or_else(wrong)?.trim();
                let below = format!("{other}/");
                let found = tree.entries().filter_map(|(path, entry)| {
                    Some((path.strip_prefix(&below)?.to_owned(), entry.clone()))
                });
                section.taken = found.collect();
                if section.taken.is_empty() {
                    return Err(format!("there is nothing below {other:?} yet"));
                }
            }
        }
        Ok(section)
    }

    fn add(&mut self, path: &str, entry: Entry) -> Result<(), String> {
        check_path(path)?;
        let below = format!("{path}/");
        self.taken.retain(|taken, _| taken != path && !taken.starts_with(&below));
        match self.entries.insert(path.to_owned(), entry) {
            None => Ok(()),
            Some(_) => Err(format!("{path:?} is there already")),
        }
    }

    fn close(&mut self, tree: &mut Tree) -> Result<(), String> {
        if self.dir.is_empty() {
            return match self.entries.keys().next() {
                Some(path) => Err(format!("{path:?} stands before the first [directory]")),
                None => Ok(()),
            };
        }
        if !tree.entries.contains_key(&self.dir) {
            tree.put(&self.dir, Entry::Dir)?;
        }
        for (path, entry) in self.taken.iter().chain(&self.entries) {
            tree.put(&format!("{}/{path}", self.dir), entry.clone())?;
        }
        Ok(())
    }
}

fn parse_entry(line: &str) -> Result<(&str, Entry), String> {
    if let Some((path, target)) = line.split_once(" -> ") {
        return Ok((path, Entry::Link(target.trim().to_owned())));
    }
    if let Some(path) = line.strip_suffix('/') {
        return Ok((path, Entry::Dir));
    }
    if let Some(path) = line.strip_suffix(" !") {
        return Ok((path, Entry::WriteOnly));
    }
    if let Some(path) = line.strip_suffix(" @") {
        return Ok((path, Entry::Trap));
    }
    match line.split_once(" =") {
        Some((path, text)) if text.is_empty() || text.starts_with(' ') => {
            let mut text = unescape(text.strip_prefix(' ').unwrap_or_default())?;
            text.push('\n');
            Ok((path, Entry::File(text)))
        }
        _ => Err(format!(
            "{line:?} is no entry: write name = text, name !, name @, name -> target, or name/"
        )),
    }
}

fn unescape(text: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('n')) => plain.push('\n'),
            ('\\', Some('t')) => plain.push('\t'),
            ('\\', Some('\\')) => plain.push('\\'),
            ('\\', _) => return Err(format!("{text:?}: the escapes are \\n, \\t and \\\\")),
            _ => plain.push(c),
        }
    }
    Ok(plain)
}

fn check_path(path: &str) -> Result<(), String> {
    if path.split('/').any(|element| matches!(element, "" | "." | "..") || element.contains(' ')) {
        return Err(format!(
            "{path:?} is no path below the tree: no '.', '..', spaces, or slashes at its ends"
        ));
    }
    Ok(())
}

/// Where a link leads, from the tree's root; `None` out of it.
fn resolve(path: &str, target: &str) -> Option<String> {
    if let Some(from_root) = target.strip_prefix('/') {
        return Some(from_root.to_owned());
    }
    let mut at: Vec<&str> = path.split('/').collect();
    at.pop();
    for element in target.split('/') {
        match element {
            ".." => drop(at.pop()?),
            "." | "" => {}
            name => at.push(name),
        }
    }
    Some(at.join("/"))
}

/// A target as the kernel would give it.
fn relative(path: &str, target: &str) -> String {
    match target.strip_prefix('/') {
        Some(from_root) => "../".repeat(path.matches('/').count()) + from_root,
        None => target.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        let (line, what) = Tree::parse(text).unwrap_err();
        format!("{line}: {what}")
    }

    #[test]
    fn a_tree_is_laid_out_as_written() {
        let tree = Tree::parse(
            "# one device and another\n[devices/a]\nclass = 0x03\ntext = one\\n\\ttwo\nremove !\n\
             empty =\npower/\nt/x/name = n\n\n[devices/b] like devices/a\nclass = 0x04\n\
             [bus]\nb -> /devices/b\na -> ../devices/a\n",
        )
        .unwrap();
        let root = tempfile::tempdir().unwrap();
        tree.lay_out(root.path()).unwrap();
        let read = |path: &str| fs::read_to_string(root.path().join(path)).unwrap();
        assert_eq!(read("devices/a/text"), "one\n\ttwo\n");
        assert_eq!(read("bus/a/class"), "0x03\n");
        assert_eq!(read("bus/b/class"), "0x04\n");
        assert_eq!(read("bus/b/t/x/name"), "n\n");
        assert_eq!(read("devices/a/empty"), "\n");
        assert!(root.path().join("devices/b/power").is_dir());
        let link = fs::read_link(root.path().join("bus/b")).unwrap();
        assert_eq!(link, Path::new("../devices/b"));
        let mode = fs::metadata(root.path().join("devices/a/remove")).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o200);
    }

    #[test]
    fn an_error_says_where_and_what() {
        assert!(fault("[a]\nnonsense").starts_with("2: \"nonsense\" is no entry"));
        assert!(fault("x = 1").contains("before the first [directory]"));
        assert_eq!(fault("[a]\nb = 1\n\nb = 2"), "4: \"b\" is there already");
        assert!(fault("[a]\nb = \\q").starts_with("2: \"\\\\q\": the escapes are"));
        assert!(fault("[a/../b]").starts_with("1: \"a/../b\" is no path"));
        assert!(fault("[a] like b").starts_with("1: there is nothing below \"b\""));
        assert!(fault("[a] unlike b").starts_with("1: write [directory]"));
        assert!(fault("[a]\nb = 1\n[a/b]\nc = 1").contains("which is no directory"));
        assert!(fault("[a]\nb -> /c").ends_with("leads to \"c\", which is not there"));
        assert!(fault("[a]\nb -> ../../c").contains("leads out of the tree"));
        let error = Tree::load(Path::new("no/such.tree")).unwrap_err().to_string();
        assert!(error.starts_with("no/such.tree:0: "), "{error}");
    }
}
