//! Record of what runs, for a daemon that adopts it after this one has died.
//!
//! ```text
//!  /run/tamandua/NODE/
//!      lock            held by the daemon
//!      api.sock        its API
//!      running.json    this record, replaced as a whole with each change of what runs
//!      restore.json    what was changed on devices: `ports`
//!      cell-PID.sock   where a cell is found
//! ```
//!
//! The record states what runs, not what shall run: it lies on a memory file system, like what it
//! describes, and is gone with the machine. It is written after a change, and before anybody is
//! notified of it.

mod recorder;

pub(crate) use recorder::Recorder;

use crate::ledger::Meters;
use anyhow::{Context, Result};
use api::SessionCounts;
use node::PortSpec;
use node::state::{Snapshot, SnapshotView};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tokio::time::Duration;
use units::{Bytes, Name, Packets, SessionId};

/// Version of the record. It must be raised when fields change their meaning.
const VERSION: u32 = 1;

/// Record of what runs, as it is written; [`Record`] is what is read.
#[derive(Debug, Serialize)]
pub(crate) struct RecordView<'a> {
    pub(crate) fingerprint: &'a str,
    pub(crate) namespace: u64,
    pub(crate) followed: Option<&'a str>,
    pub(crate) clock_zero_ns: u64,
    pub(crate) ports: &'a [PortSpec],
    pub(crate) cell: Option<u32>,
    pub(crate) node: &'a SnapshotView<'a>,
    pub(crate) closed: &'a BTreeMap<Name, (Packets, Bytes)>,
    pub(crate) fuel_closed: &'a BTreeMap<Name, u64>,
    pub(crate) lost_with_cells: u64,
    pub(crate) sessions_before: &'a BTreeMap<SessionId, SessionCounts>,
    pub(crate) speed: Option<session::in_kernel::Speed>,
    pub(crate) meters: &'a Meters,
    pub(crate) has_packet_ports: bool,
}

/// Record of what runs, as it is read.
#[derive(Debug, Deserialize)]
pub(crate) struct Record {
    /// Fingerprint of what the next daemon must share with programs, maps and cell
    /// ([`fingerprint`]).
    pub(crate) fingerprint: String,
    /// Inode of the node's network namespace; 0 if unknown.
    #[serde(default)]
    pub(crate) namespace: u64,
    /// Digest of the node file's desired state when it was last followed.
    #[serde(default)]
    pub(crate) followed: Option<String>,
    /// Zero of the node's clock on the machine's monotonic clock, in nanoseconds.
    pub(crate) clock_zero_ns: u64,
    pub(crate) ports: Vec<PortSpec>,
    /// Process id of the cell.
    pub(crate) cell: Option<u32>,
    pub(crate) node: Snapshot,
    /// Packets and bytes of removed rules, by session.
    pub(crate) closed: BTreeMap<Name, (Packets, Bytes)>,
    /// Fuel of removed services, by session.
    pub(crate) fuel_closed: BTreeMap<Name, u64>,
    /// Packets that dead cells left in their rings.
    pub(crate) lost_with_cells: u64,
    /// Usage of sessions in dead cells.
    #[serde(default)]
    pub(crate) sessions_before: BTreeMap<SessionId, SessionCounts>,
    /// Speed of modules below user level.
    #[serde(default)]
    pub(crate) speed: Option<session::in_kernel::Speed>,
    /// Meters of all accounts.
    #[serde(default)]
    pub(crate) meters: Meters,
    /// Set if the node has packet ports, which cannot be adopted.
    #[serde(default)]
    pub(crate) has_packet_ports: bool,
}

fn path(node: &Name) -> PathBuf {
    path_in(&crate::run_directory(node))
}

/// Returns the path of the record in a node's run directory.
pub(crate) fn path_in(directory: &Path) -> PathBuf {
    directory.join("running.json")
}

/// Returns the path of the file that is written next: it holds the record before the last.
fn unready(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Replaces the contents of a file atomically for its readers. The two files exchange their names:
/// some file systems flush a file that is renamed onto another, or truncated, to the disk at once
/// (ext4's `auto_da_alloc`), and this one is useless after a crash of the machine.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let unready = unready(path);
    // The file contains parameters of services, which are confidential.
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(&unready)?;
    file.write_all_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)?;
    match renameat_with(CWD, &unready, CWD, path, RenameFlags::EXCHANGE) {
        // The first record, or a file system that cannot exchange names.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => std::fs::rename(&unready, path),
        exchanged => Ok(exchanged?),
    }
}

/// Returns the fingerprint of everything that this program and the programs, maps and cells that it
/// starts must agree about. A daemon with another fingerprint cannot adopt them.
pub(crate) fn fingerprint() -> Result<String> {
    let engine = engine::Engine::new().context("creating the engine for modules")?;
    let mut hash = Sha256::new();
    hash.update(bpf::objects::FRONT_DOOR);
    hash.update(bpf::objects::STACK);
    for number in [VERSION, cell::PROTOCOL_VERSION, wasm_to_bpf::layout::VERSION] {
        hash.update(number.to_le_bytes());
    }
    hash.update(engine.compatibility().to_le_bytes());
    let streams = proxy_wasm::Engine::new().context("creating the engine for stream modules")?;
    hash.update(streams.compatibility().to_le_bytes());
    let digest = hash.finalize();
    Ok(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the inode of this process's network namespace; 0 if the kernel does not report it.
pub(crate) fn namespace() -> u64 {
    let namespace = namespaces::netns::NetNs::current().ok();
    namespace.and_then(|it| it.inode().ok()).unwrap_or(0)
}

impl RecordView<'_> {
    /// Replaces the record.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let bytes = serde_json::to_vec(self)?;
        replace(path, &bytes).with_context(|| format!("writing {}", path.display()))
    }
}

impl Record {
    /// Reads the record of an earlier daemon; `None` if there was none, or it ended cleanly.
    pub(crate) fn read(node: &Name) -> Result<Option<Self>> {
        let path = path(node);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        let record = serde_json::from_slice(&bytes)
            .with_context(|| format!("reading {}", path.display()))?;
        Ok(Some(record))
    }

    /// Removes the record, after what it describes has been taken down.
    pub(crate) fn remove(node: &Name) {
        let path = path(node);
        for path in [unready(&path), path] {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "the file of a node's running state was not removed: remove it by hand");
                }
                _ => {}
            }
        }
    }

    /// Returns the zero of the node's clock.
    pub(crate) fn clock_zero(&self) -> Instant {
        let passed = Duration::from_nanos(machine_ns().saturating_sub(self.clock_zero_ns));
        let now = Instant::now();
        now.checked_sub(passed).unwrap_or(now)
    }
}

/// Converts an instant to the machine's clock, which all processes share, in nanoseconds.
pub(crate) fn on_machine_clock(instant: Instant) -> u64 {
    let passed = u64::try_from(instant.elapsed().as_nanos()).unwrap_or(u64::MAX);
    machine_ns().saturating_sub(passed)
}

/// Returns the machine's monotonic clock, which all processes share, in nanoseconds.
pub(crate) fn machine_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_by_a_longer_and_a_shorter_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("running.json");
        for text in ["first", "the second is longer", "third", ""] {
            replace(&path, text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        let missing = folder.path().join("missing").join("running.json");
        assert!(replace(&missing, b"text").is_err());
    }

    #[test]
    fn the_zero_of_the_clock_survives_the_record() {
        let zero = Instant::now().checked_sub(Duration::from_secs(7)).unwrap();
        let read = written(zero);
        let apart = read.clock_zero().max(zero) - read.clock_zero().min(zero);
        assert!(apart < Duration::from_secs(1), "{apart:?}");
        assert_eq!(read.fingerprint.len(), 32);
    }

    /// Returns a record with a value in every field, written and read.
    fn written(zero: Instant) -> Record {
        let (name, counts) = ("gold".parse::<Name>().unwrap(), SessionCounts::default());
        let node = node::Node::new("r1".parse().unwrap(), Vec::new()).unwrap();
        let bytes = node.with_snapshot(|node| {
            let record = RecordView {
                fingerprint: &fingerprint().unwrap(),
                namespace: 9,
                followed: Some("0a"),
                clock_zero_ns: on_machine_clock(zero),
                ports: &[],
                cell: Some(7),
                node,
                closed: &BTreeMap::from([(name.clone(), (Packets(1), Bytes(2)))]),
                fuel_closed: &BTreeMap::from([(name.clone(), 3)]),
                lost_with_cells: 4,
                sessions_before: &BTreeMap::from([(SessionId(5), counts)]),
                speed: session::in_kernel::Speed::measured(2_000, units::Nanos(1_000)),
                meters: &Meters::default(),
                has_packet_ports: true,
            };
            serde_json::to_vec(&record).unwrap()
        });
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let read = written(Instant::now());
        assert_eq!((read.cell, read.lost_with_cells, read.has_packet_ports), (Some(7), 4, true));
        let (closed, fuel) = (read.closed.values().next(), read.fuel_closed.values().next());
        assert_eq!((closed, fuel), (Some(&(Packets(1), Bytes(2))), Some(&3)));
        assert!(read.sessions_before.contains_key(&SessionId(5)) && read.speed.is_some());
        assert!(matches!(read.node.cell(), node::state::CellState::Starting));
    }
}
