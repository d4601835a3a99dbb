//! Files and directories of the node's state that only its user may read: they show what runs for
//! which principal, and its usage.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Permissions of a file.
const FILE_MODE: u32 = 0o600;
/// Permissions of a directory.
const DIRECTORY_MODE: u32 = 0o700;
/// Permission bits of group and others.
const OTHERS: u32 = 0o077;

/// Makes a directory, with those above it, and takes one that is there from everybody else. Those
/// above it stay as they are.
pub(crate) fn directory(path: &Path) -> io::Result<()> {
    if let Some(above) = path.parent() {
        std::fs::create_dir_all(above)?;
    }
    match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => take(path),
        made => made,
    }
}

/// Opens a file to be written, and makes it if it is not there.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
    // The mode is for a new file only.
    take(path)?;
    Ok(file)
}

/// Takes a file or directory from everybody but its owner: a version before this one let them
/// read it.
pub(crate) fn take(path: &Path) -> io::Result<()> {
    let mode = std::fs::metadata(path)?.permissions().mode();
    if mode & OTHERS == 0 {
        return Ok(());
    }
    std::fs::set_permissions(path, Permissions::from_mode(mode & 0o7777 & !OTHERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn new_and_existing_files_and_directories_become_private_to_their_owner() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("a/new"), folder.path().join("old"));
        directory(&new).unwrap();
        std::fs::create_dir(&old).unwrap();
        std::fs::set_permissions(&old, Permissions::from_mode(0o755)).unwrap();
        directory(&old).unwrap();
        assert_eq!((mode(&new), mode(&old)), (0o700, 0o700));
        let file = new.join("file");
        create(&file).unwrap();
        assert_eq!(mode(&file), 0o600);
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        create(&file).unwrap();
        assert_eq!(mode(&file), 0o600);
    }
}
