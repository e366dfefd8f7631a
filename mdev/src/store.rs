//! Small files that must be whole: one JSON file an entry, written to a
//! temporary file, synced, renamed, and the folder synced.
//!
//! With the layer in [`crate::sys`] this is the only code that touches files.
#![allow(clippy::disallowed_methods)] // the store is the named exception

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    marker::PhantomData,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

/// A folder of entries of one kind, by UUID.
#[derive(Debug)]
pub struct Store<T> {
    dir: PathBuf,
    entries: PhantomData<fn(T) -> T>,
}

/// Why the store failed.
#[derive(Debug, thiserror::Error)]
#[error("{action} {}", path.display())]
pub struct StoreError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl StoreError {
    /// The file or folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What a folder held.
#[derive(Debug)]
pub struct Loaded<T> {
    /// The entries.
    pub entries: Vec<(Uuid, T)>,
    /// Files that hold none, each with the reason; they are left as they are.
    pub broken: Vec<(PathBuf, String)>,
}

impl<T: Serialize + DeserializeOwned> Store<T> {
    /// Opens a folder, making it (mode 0700) where it is missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let dir = dir.into();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(|source| StoreError { action: "cannot make", path: dir.clone(), source })?;
        Ok(Self { dir, entries: PhantomData })
    }

    /// Reads all entries. A broken file isolates itself.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn load(&self) -> Result<Loaded<T>, StoreError> {
        let failed = |source| StoreError { action: "cannot read", path: self.dir.clone(), source };
        let mut loaded = Loaded { entries: Vec::new(), broken: Vec::new() };
        for file in fs::read_dir(&self.dir).map_err(failed)? {
            let path = file.map_err(failed)?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let entry = match stem.map(crate::model::parse_uuid) {
                Some(Ok(uuid)) => fs::read(&path)
                    .map_err(|error| error.to_string())
                    .and_then(|text| {
                        serde_json::from_slice(&text).map_err(|error| error.to_string())
                    })
                    .map(|entry| (uuid, entry)),
                _ => Err("its name is no UUID".to_owned()),
            };
            match entry {
                Ok(entry) => loaded.entries.push(entry),
                Err(why) => loaded.broken.push((path, why)),
            }
        }
        Ok(loaded)
    }

    /// Writes an entry, replacing an older one.
    ///
    /// # Errors
    /// When a step fails; the older entry is then still there.
    pub fn put(&self, uuid: Uuid, entry: &T) -> Result<(), StoreError> {
        let path = self.path(uuid);
        let temporary = path.with_extension("new");
        let write = || -> io::Result<()> {
            let text = serde_json::to_vec(entry)?;
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&temporary)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            self.sync()
        };
        write().map_err(|source| StoreError { action: "cannot write", path: path.clone(), source })
    }

    /// Takes an entry away; a missing one is no error.
    ///
    /// # Errors
    /// When the file stays.
    pub fn remove(&self, uuid: Uuid) -> Result<(), StoreError> {
        let path = self.path(uuid);
        match fs::remove_file(&path).and_then(|()| self.sync()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError { action: "cannot remove", path, source: error })
            }
            _ => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn path(&self, uuid: Uuid) -> PathBuf {
        self.dir.join(format!("{uuid}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_file_isolates_itself() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::<String>::open(dir.path().join("claims")).unwrap();
        let uuid = Uuid::from_u128(7);
        store.put(uuid, &"kept".to_owned()).unwrap();
        let bad = dir.path().join("claims/00000000-0000-0000-0000-000000000009.json");
        fs::write(&bad, "{").unwrap();
        fs::write(dir.path().join("claims/stray.json"), "\"x\"").unwrap();
        fs::write(dir.path().join("claims/half.new"), "").unwrap();
        let loaded = store.load().unwrap();
        assert_eq!(loaded.entries, [(uuid, "kept".to_owned())]);
        assert_eq!(loaded.broken.len(), 2);
        assert_eq!(fs::read_to_string(&bad).unwrap(), "{", "a broken file was touched");
        store.remove(uuid).unwrap();
        store.remove(uuid).unwrap();
        assert!(store.load().unwrap().entries.is_empty());
    }
}
