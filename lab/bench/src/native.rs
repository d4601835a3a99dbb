//! C programs that this binary carries (`c/`), unpacked to executable files.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result};
use tempfile::TempPath;

/// Writes a program to a file that is deleted when the path is dropped, which may be as soon as it
/// runs.
pub(crate) fn unpacked(program: &[u8], name: &str) -> Result<TempPath> {
    let about = || format!("unpacking {name}");
    let mut file = tempfile::Builder::new().prefix(name).tempfile().with_context(about)?;
    file.write_all(program).with_context(about)?;
    let rights = std::fs::Permissions::from_mode(0o700);
    file.as_file().set_permissions(rights).with_context(about)?;
    Ok(file.into_temp_path())
}
