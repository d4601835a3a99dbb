//! Key of the node, which identifies it to principals, clients and other nodes.
//!
//! ```text
//!  STATE/node.key.pem      PKCS#8 (RFC 5958, RFC 8410), not encrypted, readable by its owner only
//! ```
//!
//! The key is made when a node starts for the first time, and never replaced: what it has signed is
//! worth as much as the file. A file that cannot be used ends the start, before anything that
//! runs is touched; a new key in its place would be another node.

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::geteuid;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use trust::key::FILE_LENGTH_MAX;
use trust::{KeyError, SecretKey, Seed};
use zeroize::Zeroizing;

/// Name of the file in the state directory.
const FILE: &str = "node.key.pem";
/// Permissions: only the owner can read it.
const MODE: u32 = 0o600;

/// Cause for which a node has no key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeKeyError {
    /// The file system refused. The host's fault.
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    /// The kernel has no random bytes. The host's fault.
    #[error("the kernel gives no random bytes for the node's key: {0}")]
    Random(getrandom::Error),
    /// Something else is in the file. The operator's fault, or the host's.
    #[error(
        "the node's key in {} cannot be used: {problem}; restore it from a copy, or move it away (mv {0} {0}.damaged): the node then makes a new key, and is another node to those who knew the old one",
        path.display()
    )]
    Damaged { path: PathBuf, problem: KeyError },
    /// Others can read it, or have it. The operator's fault.
    #[error(
        "the node's key in {} belongs to user {owner} and has the permissions {mode:04o}: only the user who runs the node may read it (chown {user} {0}; chmod 600 {0}); if somebody else has read it, move it away: the node then makes a new one",
        path.display()
    )]
    Exposed { path: PathBuf, owner: u32, mode: u32, user: u32 },
}

/// Reads the node's key, and makes one where there is none.
///
/// # Errors
/// The key cannot be read or made, is damaged, or others could have read it.
pub(crate) fn open(state: &Path) -> Result<SecretKey, NodeKeyError> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o755).create(state).map_err(io("make the directory", state))?;
    let path = state.join(FILE);
    match File::open(&path) {
        Ok(file) => return read(&path, &file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io("open", &path)(error)),
    }
    make(&path, state)?;
    let file = File::open(&path).map_err(io("open", &path))?;
    read(&path, &file)
}

fn read(path: &Path, file: &File) -> Result<SecretKey, NodeKeyError> {
    let found = file.metadata().map_err(io("look at", path))?;
    let (owner, mode, user) = (found.uid(), found.mode() & 0o7777, geteuid().as_raw());
    if owner != user || mode & 0o077 != 0 {
        return Err(NodeKeyError::Exposed { path: path.to_owned(), owner, mode, user });
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_LENGTH_MAX + 1));
    let limit = FILE_LENGTH_MAX as u64 + 1;
    file.take(limit).read_to_end(&mut bytes).map_err(io("read", path))?;
    let text = Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned());
    let damaged = |problem| NodeKeyError::Damaged { path: path.to_owned(), problem };
    SecretKey::from_pem(&text, None).map_err(damaged)
}

/// Creates a key under a temporary name, and renames it once it is on the disk, so that a file with
/// the final name is complete. A key that another process created meanwhile is kept.
fn make(path: &Path, state: &Path) -> Result<(), NodeKeyError> {
    let mut seed = Seed::default();
    getrandom::fill(seed.as_mut()).map_err(NodeKeyError::Random)?;
    let pem = SecretKey::from_seed(&seed).to_pem(None);
    let unready = path.with_extension(format!("pem.{}", std::process::id()));
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(&unready)
        .map_err(io("make", &unready))?;
    let written = file.write_all(pem.as_bytes()).and_then(|()| file.sync_all());
    let named = written.map_err(io("write", &unready)).and_then(|()| {
        match renameat_with(CWD, &unready, CWD, path, RenameFlags::NOREPLACE) {
            Err(error) if error != rustix::io::Errno::EXIST => Err(io("name", path)(error.into())),
            _ => Ok(()),
        }
    });
    // Gone already if it has its name.
    let _ = std::fs::remove_file(&unready);
    named?;
    let directory = File::open(state).map_err(io("open", state))?;
    directory.sync_all().map_err(io("sync", state))
}

fn io(action: &'static str, path: &Path) -> impl Fn(io::Error) -> NodeKeyError {
    move |source| NodeKeyError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_made_once_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("a/b");
        let first = open(&state).unwrap();
        let path = state.join(FILE);
        let written = std::fs::read(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, MODE);
        assert_eq!(open(&state).unwrap().public(), first.public());
        assert_eq!(std::fs::read(&path).unwrap(), written);
        assert_eq!(state.read_dir().unwrap().count(), 1, "nothing is left beside it");
        let other = folder.path().join("other");
        assert_ne!(open(&other).unwrap().public(), first.public());
    }

    #[test]
    fn a_node_key_made_concurrently_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let first = open(folder.path()).unwrap();
        make(&folder.path().join(FILE), folder.path()).unwrap();
        assert_eq!(open(folder.path()).unwrap().public(), first.public());
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn a_node_key_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path()).unwrap();
        let path = folder.path().join(FILE);
        for mode in [0o640, 0o604, 0o622, 0o610] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let refused = open(folder.path()).unwrap_err();
            assert!(matches!(refused, NodeKeyError::Exposed { mode: m, .. } if m == mode));
            assert!(refused.to_string().contains("chmod 600"), "{refused}");
        }
        set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        open(folder.path()).unwrap();
    }

    #[test]
    fn a_damaged_node_key_is_refused_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path()).unwrap();
        let path = folder.path().join(FILE);
        let long = "x".repeat(FILE_LENGTH_MAX + 9);
        for text in ["", "-----BEGIN PRIVATE KEY-----\n", &long] {
            std::fs::write(&path, text).unwrap();
            let refused = open(folder.path()).unwrap_err();
            assert!(matches!(refused, NodeKeyError::Damaged { .. }), "{refused}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
