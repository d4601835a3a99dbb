//! Output files that a user names.
//!
//! ```text
//! path ─▶ nothing there, or a regular file ─▶ temporary file beside it, synced, renamed
//!      ├▶ symbolic link, device, pipe, mount point ─▶ opened and written into
//!      └▶ directory, socket ─▶ refused by the kernel
//! ```
//!
//! Only a regular file is ever replaced: a device node or a link that a user names is where the
//! bytes are to go, not a name that is to become a file.

use crate::failure::Failure;
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

/// Permissions of a new file before the user's umask (POSIX, creat(2) by common tools).
const NEW_MODE: u32 = 0o666;
/// Permission bits that a replaced file passes on: not set-user-ID and its like, which somebody
/// granted to the old bytes.
const KEPT_MODE: u32 = 0o777;

/// Writes a file that a user named: atomically where it is a regular one.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    put(path, bytes).map_err(|error| failed(path, &error))
}

/// Writes like [`write`], but returns the kernel's error.
pub fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match replaceable(path)? {
        Replaceable::Nothing => replace(path, None, bytes),
        Replaceable::Regular(old) => replace(path, Some(&old), bytes),
        Replaceable::No => write_into(path, bytes),
    }
}

/// Opens a file that a user named for incremental writing, such as a capture. Truncates it.
pub fn open(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| failed(path, &error))
}

/// Returns true if files may be created and removed beside this one: not beside devices, pipes and
/// the descriptors in `/dev/fd`.
pub fn allows_siblings(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Ok(found) => found.is_file() && !path.starts_with("/dev") && !path.starts_with("/proc"),
        Err(_) => true,
    }
}

/// State of a path that may be replaced.
enum Replaceable {
    /// No file: a new one may be made.
    Nothing,
    /// Regular file, not reached by a symbolic link.
    Regular(Metadata),
    /// Any other object, which must not be replaced.
    No,
}

fn replaceable(path: &Path) -> io::Result<Replaceable> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => Ok(Replaceable::Regular(found)),
        Ok(_) => Ok(Replaceable::No),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Replaceable::Nothing),
        Err(error) => Err(error),
    }
}

fn replace(path: &Path, old: Option<&Metadata>, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = tempfile::Builder::new()
        .permissions(Permissions::from_mode(NEW_MODE))
        .tempfile_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    if let Some(old) = old {
        // The file keeps its owner when root writes it. A user who may not change the owner becomes
        // it.
        let _ = fchown(file.as_file(), Some(old.uid()), Some(old.gid()));
        file.as_file().set_permissions(Permissions::from_mode(old.mode() & KEPT_MODE))?;
    }
    file.as_file().sync_all()?;
    match file.persist(path) {
        // The path is a mount point, as container engines make them.
        Err(error) if error.error.kind() == io::ErrorKind::ResourceBusy => write_into(path, bytes),
        persisted => persisted.map(drop).map_err(|error| error.error),
    }
}

fn write_into(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    // Devices and pipes have nothing to sync.
    if file.metadata()?.is_file() { file.sync_all() } else { Ok(()) }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::io(format!("writing {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FileType, Mode, mknodat};
    use std::os::unix::fs::{FileTypeExt, symlink};

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_regular_file_is_replaced_as_a_whole_and_keeps_its_permissions() {
        let folder = folder();
        let path = folder.path().join("file");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let mut reader = File::open(&path).unwrap();
        write(&path, b"new").unwrap();
        assert_eq!((std::fs::read(&path).unwrap().as_slice(), mode(&path)), (&b"new"[..], 0o640));
        // A process that had the file open still reads the old one.
        let mut before = String::new();
        io::Read::read_to_string(&mut reader, &mut before).unwrap();
        assert_eq!(before, "old");
        let fresh = folder.path().join("fresh");
        write(&fresh, b"x").unwrap();
        std::fs::write(folder.path().join("by-another-tool"), "x").unwrap();
        assert_eq!(mode(&fresh), mode(&folder.path().join("by-another-tool")), "the umask counts");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "nothing else is left");
    }

    #[test]
    fn a_symbolic_link_stays_one_and_leads_to_the_bytes() {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("target"), "a long old content").unwrap();
        symlink("target", at("link")).unwrap();
        symlink("link", at("again")).unwrap();
        symlink("fresh", at("dangling")).unwrap();
        write(&at("again"), b"new").unwrap();
        write(&at("dangling"), b"made").unwrap();
        assert_eq!(std::fs::read(at("target")).unwrap(), b"new");
        assert_eq!(std::fs::read(at("fresh")).unwrap(), b"made");
        for link in ["link", "again", "dangling"] {
            assert!(at(link).symlink_metadata().unwrap().is_symlink(), "{link}");
        }
    }

    #[test]
    fn writing_to_a_device_keeps_it_a_device_and_reports_its_error() {
        write(Path::new("/dev/null"), b"bytes").unwrap();
        let full = write(Path::new("/dev/full"), b"bytes").unwrap_err();
        assert!(full.message.starts_with("writing /dev/full: "), "{}", full.message);
        for device in ["/dev/null", "/dev/full"] {
            let found = std::fs::symlink_metadata(device).unwrap();
            assert!(found.file_type().is_char_device(), "{device}");
        }
        let link = folder();
        let link = link.path().join("full");
        symlink("/dev/full", &link).unwrap();
        write(&link, b"bytes").unwrap_err();
        assert!(link.symlink_metadata().unwrap().is_symlink());
    }

    #[test]
    fn a_pipe_gets_the_bytes() {
        let folder = folder();
        let path = folder.path().join("pipe");
        let at = rustix::fs::CWD;
        mknodat(at, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let reader = {
            let path = path.clone();
            std::thread::spawn(move || std::fs::read(path).unwrap())
        };
        write(&path, b"through the pipe").unwrap();
        assert_eq!(reader.join().unwrap(), b"through the pipe");
        assert!(path.symlink_metadata().unwrap().file_type().is_fifo());
    }

    #[test]
    fn unwritable_files_are_refused_and_unchanged() {
        let folder = folder();
        let error = write(folder.path(), b"x").unwrap_err();
        assert!(error.message.contains("directory"), "{}", error.message);
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        write(&socket, b"x").unwrap_err();
        assert!(socket.symlink_metadata().unwrap().file_type().is_socket());
        write(&folder.path().join("no/such/folder"), b"x").unwrap_err();
    }

    #[test]
    fn no_file_is_put_beside_devices_and_pipes() {
        let folder = folder();
        assert!(allows_siblings(&folder.path().join("fresh")));
        for alone in ["/dev/null", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
            assert!(!allows_siblings(Path::new(alone)), "{alone}");
        }
    }
}
