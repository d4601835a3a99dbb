//! A ledger's files: a directory of segments, to which one process appends.
//!
//! ```text
//!  STATE/ledger/
//!      00000001.ledger     segments, as core/ledger has them; only the last one grows
//!      00000002.ledger
//!      lock                held by whoever appends
//! ```
//!
//! Readings for which [`Files::append`] has returned are on the disk. After an error it is not
//! known what is there: the files are to be opened again, which reads them. Whoever only reads
//! needs no lock.

use crate::private;
use ledger::receipt::RECORDS_MAX;
use ledger::record::FRAME_LENGTH;
use ledger::{
    Appended, Damage, End, Ledger, LedgerId, Overflow, Period, Reading, Receipt, ReceiptError,
    Replay, Totals, Usage,
};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use trust::{PublicKey, SecretKey, UnixTime};

/// Name of a segment, behind its index.
const SUFFIX: &str = "ledger";
/// Digits of the shortest index.
const DIGITS: usize = 8;
/// Larger than any segment: a file beyond that is none.
const FILE_LENGTH_MAX: u64 = 64 << 20;
const _: () = assert!(FILE_LENGTH_MAX > ledger::chain::SEGMENT_LENGTH_MAX as u64);
/// Readings of principals are confidential.
const MODE: u32 = 0o600;

/// Reason for a ledger not being read or written.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The file system refused. The host's fault.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Operation that was tried.
        action: &'static str,
        /// File that it was tried with.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The files have bytes that no node wrote.
    #[error(
        "the ledger in {} is damaged: {damage}; keep it as evidence (mv {0} {0}.damaged): the node then begins another one",
        directory.display()
    )]
    Damaged {
        /// Directory of the ledger.
        directory: PathBuf,
        /// Description of the damage, and its place.
        damage: Box<Damage>,
    },
    /// Another process appends to the ledger: a fault of the operator.
    #[error("{} is in use by another process; each node needs a directory of its own", directory.display())]
    InUse {
        /// Directory of the ledger.
        directory: PathBuf,
    },
    /// The file was changed while it was read.
    #[error("{} is no segment of a ledger; `tam ledger verify` says where the damage is", path.display())]
    NotASegment {
        /// The file.
        path: PathBuf,
    },
    /// A sum overflows.
    #[error(transparent)]
    Overflow(Overflow),
    /// The receipt does not exist.
    #[error(transparent)]
    Receipt(ReceiptError),
}

/// A ledger to which this process appends.
#[derive(Debug)]
pub struct Files {
    directory: PathBuf,
    key: Arc<SecretKey>,
    ledger: Ledger,
    /// The last segment.
    file: Option<File>,
    /// Held as long as this is there.
    _lock: Lock,
}

/// Lock by which no other process appends to these files.
#[derive(Debug)]
struct Lock(File);

impl Lock {
    fn take(directory: &Path) -> Result<Self, FilesError> {
        let path = directory.join("lock");
        let file = private::create(&path).map_err(io("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(_) => Err(FilesError::InUse { directory: directory.to_owned() }),
        }
    }
}

/// A process that this one begins has its files until it becomes another program, and with this
/// file the lock, too: so closing the file is not enough.
impl Drop for Lock {
    fn drop(&mut self) {
        // Where this fails, the lock goes with the last process that has the file.
        let _ = self.0.unlock();
    }
}

impl Files {
    /// Opens the ledger of a directory for appending, and truncates an incomplete record; creates
    /// one with this id if there is none.
    ///
    /// # Errors
    /// The ledger cannot be read, is damaged, another node's, or in use.
    pub fn open(directory: &Path, key: Arc<SecretKey>, id: LedgerId) -> Result<Self, FilesError> {
        private::directory(directory).map_err(io("make the directory", directory))?;
        let lock = Lock::take(directory)?;
        let end = verify(directory, &key.public(), |_, _| ())?;
        if let Some(torn) = &end.torn {
            let path = path_of(directory, torn.segment);
            tracing::warn!(
                path = %path.display(), bytes = torn.bytes,
                "the last batch of the ledger is incomplete, as after a power cut: it is removed"
            );
            cut(directory, &path, torn.offset)?;
        }
        let ledger = end.ledger.unwrap_or_else(|| Ledger::new(id, key.public()));
        let file = match ledger.segment() {
            (0, _) => None,
            (segment, _) => {
                let path = path_of(directory, segment);
                Some(File::options().write(true).open(&path).map_err(io("open", &path))?)
            }
        };
        Ok(Self { directory: directory.to_owned(), key, ledger, file, _lock: lock })
    }

    /// Returns the ledger in memory.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Bills these readings: what has changed is on the disk when this returns.
    ///
    /// # Errors
    /// The bill cannot be written; then these files are to be opened again.
    pub fn append(
        &mut self,
        clock: UnixTime,
        readings: &[Reading],
    ) -> Result<Appended, FilesError> {
        let (_, length) = self.ledger.segment();
        let appended = self.ledger.append(&self.key, clock, readings);
        if appended.bytes.is_empty() {
            return Ok(appended);
        }
        let path = path_of(&self.directory, appended.segment);
        let at = if appended.begins { 0 } else { length as u64 };
        if appended.begins {
            let mut options = File::options();
            let made = options.write(true).create_new(true).mode(MODE).open(&path);
            self.file = Some(made.map_err(io("make", &path))?);
        }
        if let Some(file) = &self.file {
            let written = file.write_all_at(&appended.bytes, at).and_then(|()| file.sync_data());
            written.map_err(io("write", &path))?;
        }
        if appended.begins {
            sync_directory(&self.directory)?;
        }
        Ok(appended)
    }
}

/// Reads a whole ledger, with all hashes and signatures. `each` gets the number of each record.
///
/// # Errors
/// The ledger cannot be read, or is damaged, with the place.
pub fn verify(
    directory: &Path,
    node: &PublicKey,
    mut each: impl FnMut(u64, &Usage),
) -> Result<End, FilesError> {
    let segments = segments(directory)?;
    let last = segments.last().map(|(index, _)| *index);
    let mut replay = Replay::new(*node);
    for (index, path) in segments {
        let file = File::open(&path).map_err(io("open", &path))?;
        let mut bytes = Vec::new();
        file.take(FILE_LENGTH_MAX).read_to_end(&mut bytes).map_err(io("read", &path))?;
        replay.segment(index, &bytes, Some(index) == last, &mut each).map_err(|damage| {
            FilesError::Damaged { directory: directory.to_owned(), damage: Box::new(damage) }
        })?;
    }
    Ok(replay.end())
}

/// Gives the records from this frame on, and before that one, until `each` has enough. Nothing
/// is verified: that was done when the ledger was opened.
///
/// # Errors
/// The ledger cannot be read.
pub fn scan(
    directory: &Path,
    since: u64,
    until: u64,
    mut each: impl FnMut(u64, Usage) -> ControlFlow<()>,
) -> Result<(), FilesError> {
    let segments = segments(directory)?;
    let mut firsts = Vec::with_capacity(segments.len());
    for (_, path) in &segments {
        firsts.push(first_frame(path)?);
    }
    for (at, (_, path)) in segments.iter().enumerate() {
        let (first, next) = (firsts[at], firsts.get(at + 1).copied().unwrap_or(u64::MAX));
        if next <= since || first >= until {
            continue;
        }
        if scan_segment(path, first, since.max(first)..until.min(next), &mut each)?.is_break() {
            break;
        }
    }
    Ok(())
}

fn scan_segment(
    path: &Path,
    first: u64,
    frames: std::ops::Range<u64>,
    each: &mut impl FnMut(u64, Usage) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, FilesError> {
    let mut file = File::open(path).map_err(io("open", path))?;
    let at = (frames.start - first) * FRAME_LENGTH as u64;
    file.seek(SeekFrom::Start(at)).map_err(io("read", path))?;
    let mut file = BufReader::with_capacity(256 << 10, file);
    let mut frame = [0; FRAME_LENGTH];
    for number in frames {
        match file.read_exact(&mut frame) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            read => read.map_err(io("read", path))?,
        }
        let wrong = || FilesError::NotASegment { path: path.to_owned() };
        let (said, usage) = ledger::record::usage_in(&frame).map_err(|_| wrong())?;
        if said != number {
            return Err(wrong());
        }
        if let Some(usage) = usage
            && each(number, usage).is_break()
        {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// The number that the first frame of a segment has.
fn first_frame(path: &Path) -> Result<u64, FilesError> {
    let file = File::open(path).map_err(io("open", path))?;
    let mut number = [0; 8];
    file.read_exact_at(&mut number, 8).map_err(io("read", path))?;
    Ok(u64::from_le_bytes(number))
}

/// Returns what each account used in a period, as far as the ledger goes.
///
/// # Errors
/// The ledger cannot be read, or a sum overflows.
pub fn totals(directory: &Path, until: u64, period: Period) -> Result<Totals, FilesError> {
    let (mut totals, mut overflow) = (Totals::default(), None);
    scan(directory, 0, until, |_, usage| {
        if period.has(&usage) {
            overflow = totals.add(&usage).err();
        }
        if overflow.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    overflow.map_or(Ok(totals), |overflow| Err(FilesError::Overflow(overflow)))
}

/// Returns a receipt for a principal's records from `from` on, as many as it can hold.
///
/// # Errors
/// The ledger cannot be read, or there are no such records.
pub fn receipt(
    directory: &Path,
    until: u64,
    key: &SecretKey,
    id: LedgerId,
    made: UnixTime,
    (principal, from): (&PublicKey, u64),
) -> Result<Receipt, FilesError> {
    let mut records = Vec::new();
    scan(directory, 0, until, |_, usage| {
        if usage.account.principal == *principal && usage.own_number >= from {
            records.push(usage);
        }
        if records.len() == RECORDS_MAX {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    Receipt::make(key, id, made, records).map_err(FilesError::Receipt)
}

/// Returns the segments of a directory, by their index; none when there is no directory.
fn segments(directory: &Path) -> Result<Vec<(u64, PathBuf)>, FilesError> {
    let entries = match directory.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(io("read", directory))?,
    };
    let mut segments = Vec::new();
    for entry in entries {
        let path = entry.map_err(io("read", directory))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let digits = name.strip_suffix(SUFFIX).and_then(|name| name.strip_suffix('.'));
        if let Some(Ok(index)) = digits.map(str::parse::<u64>)
            && path == path_of(directory, index)
        {
            segments.push((index, path));
        }
    }
    segments.sort_unstable();
    Ok(segments)
}

fn path_of(directory: &Path, segment: u64) -> PathBuf {
    directory.join(format!("{segment:0DIGITS$}.{SUFFIX}"))
}

/// Truncates a segment to this length; removes it if nothing is left.
fn cut(directory: &Path, path: &Path, length: usize) -> Result<(), FilesError> {
    if length == 0 {
        std::fs::remove_file(path).map_err(io("remove", path))?;
        return sync_directory(directory);
    }
    let file = File::options().write(true).open(path).map_err(io("open", path))?;
    file.set_len(length as u64).and_then(|()| file.sync_all()).map_err(io("cut off", path))
}

fn sync_directory(directory: &Path) -> Result<(), FilesError> {
    let opened = File::open(directory).map_err(io("open", directory))?;
    opened.sync_all().map_err(io("sync", directory))
}

fn io(action: &'static str, path: &Path) -> impl Fn(io::Error) -> FilesError {
    move |source| FilesError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
