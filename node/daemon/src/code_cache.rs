//! Compiled code on disk: a module is compiled once by a build of the node, not once by each
//! daemon.
//!
//! ```text
//!  STATE/code/DIGEST-BUILD-LEVELS     magic ‖ HMAC-SHA-256 ‖ compilation (`Compiled::to_bytes`)
//! ```
//!
//! Entries become machine code of a cell. Therefore each has an authentication tag, whose key is
//! derived from the node's own, and which covers the module's digest, the levels and the build:
//! this program, the versions of its compilers, and the processor's features. An entry that does
//! not verify is removed, and compiled again. The directory is accessible to its owner only,
//! bounded, and may be removed at any time.

use crate::{private, record};
use aws_lc_rs::hmac;
use cell::Compiled;
use module_store::Digest;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use trust::SecretKey;
use zeroize::Zeroizing;

/// The directory's name in that of the state.
const DIRECTORY: &str = "code";
/// Bytes of all files: of some thirty filters of 4 MB in Go, or thousands of small modules.
const BYTES_MAX: u64 = 512 << 20;
/// Files, however small.
const FILES_MAX: usize = 4_096;
/// Largest file in bytes, the limit of a compiler's answer.
const FILE_LENGTH_MAX: u64 = 240 << 20;
/// First bytes of each file, to be raised with its form.
const MAGIC: &[u8; 16] = b"tamandua code 1\n";
/// Purpose of the key.
const KEY_CONTEXT: &str = "tamandua compiled code 1";
/// Bytes of a tag.
const TAG_LENGTH: usize = 32;
/// First letters of a file that is being written.
const UNREADY: &str = "new.";

/// Files of the directory, by name.
#[derive(Default)]
struct Index {
    files: BTreeMap<String, Kept>,
    bytes: u64,
    /// Uses so far.
    uses: u64,
}

#[derive(Clone, Copy)]
struct Kept {
    bytes: u64,
    /// Number of its last use.
    used: u64,
}

impl Index {
    fn add(&mut self, name: String, bytes: u64) {
        self.remove(&name);
        self.uses += 1;
        self.bytes += bytes;
        self.files.insert(name, Kept { bytes, used: self.uses });
    }

    fn remove(&mut self, name: &str) {
        self.bytes -= self.files.remove(name).map_or(0, |kept| kept.bytes);
    }

    /// Takes out the files that were used least recently, as far as all are beyond the limits.
    fn evict(&mut self, files_max: usize, bytes_max: u64) -> Vec<String> {
        let mut evicted = Vec::new();
        while self.files.len() > files_max || self.bytes > bytes_max {
            let oldest = self.files.iter().min_by_key(|(_, kept)| kept.used);
            let Some(name) = oldest.map(|(name, _)| name.clone()) else { break };
            self.remove(&name);
            evicted.push(name);
        }
        evicted
    }
}

/// A node's compiled code on disk.
pub(crate) struct CodeCache {
    directory: PathBuf,
    key: hmac::Key,
    build: [u8; 32],
    index: Mutex<Index>,
}

impl CodeCache {
    /// Opens the cache of a node, and makes it where there is none. What another build has left
    /// is removed.
    ///
    /// # Errors
    /// The directory cannot be made or read.
    pub(crate) fn open(state: &Path, key: &SecretKey) -> io::Result<Self> {
        Self::of_build(state, &key.derive(KEY_CONTEXT), build()?)
    }

    fn of_build(state: &Path, key: &Zeroizing<[u8; 32]>, build: [u8; 32]) -> io::Result<Self> {
        let directory = state.join(DIRECTORY);
        private::directory(&directory)?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &**key);
        let cache = Self { directory, key, build, index: Mutex::default() };
        let mut found = Vec::new();
        for file in fs::read_dir(&cache.directory)? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            let facts = file.metadata()?;
            match facts.is_file() && name.contains(&cache.mark()) && !name.starts_with(UNREADY) {
                true => found.push((facts.modified()?, name, facts.len())),
                false => fs::remove_file(file.path())?,
            }
        }
        found.sort();
        let mut index = cache.index();
        found.into_iter().for_each(|(_, name, bytes)| index.add(name, bytes));
        drop(index);
        cache.make_room(FILES_MAX, BYTES_MAX);
        Ok(cache)
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Part of a file's name that says which build made it.
    fn mark(&self) -> String {
        let build: String = self.build[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("-{build}-")
    }

    fn name(&self, module: &Digest, bpf: bool) -> String {
        format!("{}{}{}", module.hex(), self.mark(), if bpf { "all" } else { "user" })
    }

    /// Returns everything that a tag covers but the compilation.
    fn facts(&self, module: &Digest, bpf: bool) -> Vec<u8> {
        [&MAGIC[..], &self.build, module.bytes(), &[u8::from(bpf)]].concat()
    }

    /// Returns whether there is a file for a module; it may turn out not to verify.
    pub(crate) fn has(&self, module: &Digest, bpf: bool) -> bool {
        self.index().files.contains_key(&self.name(module, bpf))
    }

    /// Reads a module's code; `None` when there is none that verifies.
    pub(crate) fn get(&self, module: &Digest, bpf: bool) -> Option<Compiled> {
        let name = self.name(module, bpf);
        let path = self.directory.join(&name);
        match self.read(&path, &self.facts(module, bpf)) {
            Ok(compiled) => {
                let mut index = self.index();
                if let Some(kept) = index.files.get(&name).copied() {
                    index.add(name, kept.bytes);
                }
                Some(compiled)
            }
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "compiled code is not used: it is removed, and the module compiled anew");
                self.remove(&name);
                None
            }
        }
    }

    fn read(&self, path: &Path, facts: &[u8]) -> io::Result<Compiled> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        if length > FILE_LENGTH_MAX {
            return Err(wrong("it is too long"));
        }
        let mut bytes = Vec::with_capacity(length as usize);
        (&file).take(FILE_LENGTH_MAX).read_to_end(&mut bytes)?;
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| wrong("it has another form"))?;
        let cut = || wrong("it is cut off");
        let (tag, compilation) = rest.split_at_checked(TAG_LENGTH).ok_or_else(cut)?;
        hmac::verify(&self.key, &[facts, compilation].concat(), tag)
            .map_err(|_| wrong("it is damaged, or somebody else has written it"))?;
        // For the order in which files go, after the next start.
        let now = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        let used = Timestamps { last_access: now(UTIME_OMIT), last_modification: now(UTIME_NOW) };
        let _ = futimens(&file, &used);
        Compiled::from_bytes(compilation)
    }

    /// Keeps a module's code, if its compilation is whole.
    pub(crate) fn put(&self, module: &Digest, bpf: bool, compiled: &Compiled) {
        let (name, facts) = (self.name(module, bpf), self.facts(module, bpf));
        match compiled.to_bytes().and_then(|bytes| self.write(&name, &facts, bytes)) {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                self.index().add(name, bytes);
                self.make_room(FILES_MAX, BYTES_MAX);
            }
            Err(error) => {
                let directory = self.directory.display();
                tracing::warn!(%directory, %error, "compiled code is not kept: a daemon after this one has to compile the module again");
            }
        }
    }

    fn write(
        &self,
        name: &str,
        facts: &[u8],
        compilation: Option<Vec<u8>>,
    ) -> io::Result<Option<u64>> {
        let Some(compilation) = compilation else { return Ok(None) };
        let length = (MAGIC.len() + TAG_LENGTH + compilation.len()) as u64;
        if length > FILE_LENGTH_MAX {
            return Ok(None);
        }
        let mut tag = hmac::Context::with_key(&self.key);
        tag.update(facts);
        tag.update(&compilation);
        let unready = self.directory.join(format!("{UNREADY}{name}"));
        let written = private::create(&unready).and_then(|mut file| {
            file.write_all(MAGIC)?;
            file.write_all(tag.sign().as_ref())?;
            file.write_all(&compilation)
        });
        let named = written.and_then(|()| fs::rename(&unready, self.directory.join(name)));
        if named.is_err() {
            let _ = fs::remove_file(&unready);
        }
        named.map(|()| Some(length))
    }

    fn make_room(&self, files_max: usize, bytes_max: u64) {
        let evicted = self.index().evict(files_max, bytes_max);
        evicted.iter().for_each(|name| self.remove(name));
    }

    fn remove(&self, name: &str) {
        self.index().remove(name);
        // One that is gone already, or stays: it is verified when it is read.
        let _ = fs::remove_file(self.directory.join(name));
    }
}

/// Names this program with its compilers on this processor: code of another is not taken.
fn build() -> io::Result<[u8; 32]> {
    let program = fs::metadata(crate::deploy::PROGRAM)?;
    let mut hash = Sha256::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    hash.update(record::fingerprint().map_err(io::Error::other)?);
    for fact in [program.dev(), program.ino(), program.len()] {
        hash.update(fact.to_le_bytes());
    }
    for time in [program.mtime(), program.mtime_nsec(), program.ctime(), program.ctime_nsec()] {
        hash.update(time.to_le_bytes());
    }
    Ok(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a compilation without programs whose code is these bytes.
    fn compiled(code: &[u8]) -> Compiled {
        // No image, no programs.
        Compiled::from_bytes(&[&[2, 0, 0, 0, 0, 0], code].concat()).unwrap()
    }

    fn cache(state: &Path, key: u8, build: u8) -> CodeCache {
        CodeCache::of_build(state, &Zeroizing::new([key; 32]), [build; 32]).unwrap()
    }

    fn files(state: &Path) -> Vec<PathBuf> {
        let files = fs::read_dir(state.join(DIRECTORY)).unwrap();
        files.map(|file| file.unwrap().path()).collect()
    }

    #[test]
    fn code_is_there_for_the_next_daemon_of_the_same_node_and_build_only() {
        let state = tempfile::tempdir().unwrap();
        let (module, other) = (Digest::of(b"module"), Digest::of(b"other"));
        let first = cache(state.path(), 1, 1);
        assert!(!first.has(&module, true));
        first.put(&module, true, &compiled(b"code"));
        let next = cache(state.path(), 1, 1);
        let got = next.get(&module, true).unwrap();
        assert_eq!(got.to_bytes().unwrap(), compiled(b"code").to_bytes().unwrap());
        assert!(!next.has(&module, false) && !next.has(&other, true));
        // A file under another module's name, or for other levels.
        let path = files(state.path()).remove(0);
        for (digest, bpf) in [(other, true), (module, false)] {
            let copy = state.path().join(DIRECTORY).join(next.name(&digest, bpf));
            fs::copy(&path, &copy).unwrap();
            assert!(next.get(&digest, bpf).is_none());
            assert!(!copy.exists(), "it is removed");
        }
        let stranger = cache(state.path(), 2, 1);
        assert!(stranger.has(&module, true) && stranger.get(&module, true).is_none());
        first.put(&module, true, &compiled(b"code"));
        assert!(!cache(state.path(), 1, 2).has(&module, true));
        assert_eq!(files(state.path()).len(), 0, "what another build left is removed");
    }

    #[test]
    fn damaged_code_is_never_taken() {
        let state = tempfile::tempdir().unwrap();
        let module = Digest::of(b"module");
        let cache = cache(state.path(), 1, 1);
        cache.put(&module, true, &compiled(b"code"));
        let path = files(state.path()).remove(0);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&path, &bytes).unwrap();
            assert!(cache.get(&module, true).is_none(), "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert!(cache.get(&module, true).is_none(), "{at} bytes");
        }
        fs::write(&path, &whole).unwrap();
        assert!(cache.get(&module, true).is_some());
    }

    #[test]
    fn files_used_least_recently_go_first_and_the_directory_is_its_owners() {
        use std::os::unix::fs::PermissionsExt;
        let state = tempfile::tempdir().unwrap();
        let modules = [b"a", b"b", b"c"].map(|bytes| Digest::of(bytes));
        let cache = cache(state.path(), 1, 1);
        modules.iter().for_each(|module| cache.put(module, true, &compiled(&[7; 100])));
        cache.get(&modules[0], true).unwrap();
        cache.make_room(2, u64::MAX);
        assert_eq!(modules.map(|module| cache.has(&module, true)), [true, false, true]);
        cache.make_room(9, 200);
        assert_eq!(modules.map(|module| cache.has(&module, true)), [true, false, false]);
        let left = files(state.path());
        assert_eq!(left.len(), 1);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&left[0]), mode(&state.path().join(DIRECTORY))), (0o600, 0o700));
    }
}
