//! Watcher that waits until a source of a project is saved.

use crate::failure::Failure;
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Time without a change after which a save counts as finished: an editor writes a file in several
/// steps.
const QUIET: Duration = Duration::from_millis(100);
/// File extensions of a project's sources.
const SOURCES: [&str; 6] = ["rs", "c", "h", "toml", "pcap", "pcapng"];
/// Most folders that are watched; a project of one service has a few.
const FOLDERS_MAX: usize = 1000;

/// Watched folders of a project.
pub struct Watch {
    project: PathBuf,
    watcher: RecommendedWatcher,
    folders: BTreeSet<PathBuf>,
    events: Receiver<notify::Result<Event>>,
}

impl Watch {
    /// Starts to watch a project.
    pub fn over(project: &Path) -> Result<Self, Failure> {
        let (sender, events) = channel();
        let watcher =
            notify::recommended_watcher(sender).map_err(|error| refused(project, &error))?;
        let folders = BTreeSet::new();
        let mut watch = Self { project: project.to_owned(), watcher, folders, events };
        watch.add_folders()?;
        Ok(watch)
    }

    /// Waits for the next change, then until no more follow for [`QUIET`].
    pub fn changed(&mut self) -> Result<(), Failure> {
        let gone = || {
            Failure::failed(
                "the kernel no longer reports changes of the project's files; start `tam dev` again",
            )
        };
        while !is_change(&self.events.recv().map_err(|_| gone())?) {}
        loop {
            match self.events.recv_timeout(QUIET) {
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            }
        }
        // A folder may be new.
        self.add_folders()
    }

    fn add_folders(&mut self) -> Result<(), Failure> {
        let mut open = vec![self.project.clone()];
        let mut seen = BTreeSet::new();
        while let Some(folder) = open.pop() {
            let entries = std::fs::read_dir(&folder)
                .map_err(|error| Failure::io(format!("reading {}", folder.display()), &error))?;
            open.extend(entries.flatten().map(|entry| entry.path()).filter(|path| is_folder(path)));
            seen.insert(folder);
            if seen.len() > FOLDERS_MAX {
                let message = format!(
                    "{} has more than {FOLDERS_MAX} folders: it is no service project",
                    self.project.display()
                );
                return Err(Failure::new(api::ErrorCode::Limit, message));
            }
        }
        for folder in seen.difference(&self.folders) {
            self.watcher
                .watch(folder, RecursiveMode::NonRecursive)
                .map_err(|error| refused(folder, &error))?;
        }
        self.folders = seen;
        Ok(())
    }
}

/// Returns true for a folder of sources: neither Cargo's target folder nor hidden.
fn is_folder(path: &Path) -> bool {
    let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    !name.starts_with('.') && name != "target" && path.is_dir() && !path.is_symlink()
}

fn is_change(event: &notify::Result<Event>) -> bool {
    let Ok(event) = event else { return true };
    !matches!(event.kind, EventKind::Access(_)) && event.paths.iter().any(|path| is_source(path))
}

fn is_source(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    SOURCES.contains(&extension)
}

fn refused(path: &Path, error: &notify::Error) -> Failure {
    Failure::failed(format!("watching {}: {error}", path.display()))
        .help("the kernel limits watches: sysctl fs.inotify; `tam dev --once` needs none")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_saved_source_is_a_change_and_a_module_is_none() {
        let project = tempfile::tempdir().unwrap();
        for folder in ["src", "target", ".git"] {
            fs::create_dir(project.path().join(folder)).unwrap();
        }
        let mut watch = Watch::over(project.path()).unwrap();
        assert_eq!(watch.folders.len(), 2, "{:?}", watch.folders);
        fs::write(project.path().join("fresh.wasm"), "module").unwrap();
        fs::write(project.path().join("target/a.rs"), "built").unwrap();
        let others: Vec<_> = std::iter::from_fn(|| watch.events.recv_timeout(QUIET).ok()).collect();
        assert!(!others.is_empty() && !others.iter().any(is_change), "{others:?}");

        fs::create_dir(project.path().join("captures")).unwrap();
        fs::write(project.path().join("src/lib.rs"), "saved").unwrap();
        watch.changed().unwrap();
        assert_eq!(watch.folders.len(), 3);
        fs::write(project.path().join("captures/new.pcap"), "saved").unwrap();
        watch.changed().unwrap();
    }
}
