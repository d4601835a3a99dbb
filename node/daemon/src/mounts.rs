//! Visibility of directories that outlive a daemon.
//!
//! Pins and the run directory are for the daemon that comes next. In a mount namespace with file
//! systems of its own (`ip netns exec` makes one) that daemon does not find them, and they are gone
//! with the last process there.

use anyhow::{Result, bail};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Directories in which a node keeps what outlives its daemon.
const KEPT_IN: [&str; 2] = [bpf::pin::BPFFS, api::RUN_DIRECTORY];
/// The machine's first process, or the container's.
const FIRST: u32 = 1;

/// Warns if the directories of this process are invisible to the rest of the machine.
pub(crate) fn warn_of_own() {
    if let Some(folder) = other_than(FIRST) {
        tracing::warn!(
            folder,
            "this mount namespace has a file system of its own there: what the node keeps for the \
             next daemon is gone with its last process, and a start or a takeover from elsewhere \
             begins anew. Enter the network namespace alone: nsenter --net=/run/netns/NAME \
             (docs/start/troubleshooting.md)"
        );
    }
}

/// Checks that this process sees what the running daemon keeps for it.
///
/// # Errors
/// The process has another file system there: what runs would be lost, not taken over.
pub(crate) fn check_shared_with(pid: u32) -> Result<()> {
    if let Some(folder) = other_than(pid) {
        bail!(
            "the daemon that runs (process {pid}) has another file system at {folder}, so nothing \
             of it could be taken over: start this one where that one sees, with \
             'nsenter --target {pid} --mount --net tam node --takeover …'"
        );
    }
    Ok(())
}

/// Returns the first folder where a process has another file system than this one.
fn other_than(pid: u32) -> Option<&'static str> {
    let root = format!("/proc/{pid}/root");
    KEPT_IN.into_iter().find(|folder| {
        // An absolute path would begin at this process's own root.
        let theirs = Path::new(&root).join(folder.trim_start_matches('/'));
        differs(Path::new(folder), &theirs)
    })
}

/// Returns true when both are there, and not the same.
fn differs(own: &Path, theirs: &Path) -> bool {
    match (own.metadata(), theirs.metadata()) {
        (Ok(own), Ok(theirs)) => (own.dev(), own.ino()) != (theirs.dev(), theirs.ino()),
        // Without the permission to inspect that process no problem is known.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_file_system_of_its_own_is_noticed() {
        assert!(differs(Path::new("/proc"), Path::new("/dev")));
        assert!(!differs(Path::new("/proc"), Path::new("/proc/self/root/proc")));
        assert!(!differs(Path::new("/proc"), Path::new("/nowhere")), "that says nothing");
        check_shared_with(std::process::id()).unwrap();
    }

    #[test]
    fn nothing_is_taken_over_from_another_mount_namespace() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // A private /run, as in a namespace that was prepared by hand.
        let script = "mount -t tmpfs none /run && mkdir -p /run/tamandua && echo ready && cat";
        let mut other = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut ready).unwrap();
        std::fs::create_dir_all(api::RUN_DIRECTORY).unwrap();
        let refusal = check_shared_with(other.id()).unwrap_err().to_string();
        drop(other.stdin.take());
        other.wait().unwrap();
        assert!(refusal.contains(api::RUN_DIRECTORY), "{refusal}");
    }
}
