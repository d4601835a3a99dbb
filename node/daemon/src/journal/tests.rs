//! The journal against a disk that fails, loses what was not synced, and changes bytes.

use super::*;
use node::RuleSpec;
use proptest::prelude::*;
use redb::StorageBackend;
use std::sync::{Arc, Mutex, MutexGuard};
use tempfile::TempDir;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A state that is told from others by its number of rules.
fn state(rules: usize) -> DesiredState {
    let mut state = DesiredState::default();
    let rule = |n: usize| {
        let text = format!("proto udp dport {}", n % 65_535 + 1);
        RuleSpec::new(text.parse().unwrap(), node::Action::Drop)
    };
    state.add_rules((0..rules).map(rule).collect(), None);
    state
}

fn numbered(generation: u64) -> Record {
    Record::new(generation, "a test", state(generation as usize % 50))
}

fn opened(directory: &TempDir) -> Journal {
    Journal::open(directory.path(), &name("r1")).unwrap()
}

#[test]
fn what_was_written_is_there_at_the_next_start_and_the_oldest_make_room() {
    let directory = TempDir::new().unwrap();
    assert_eq!(opened(&directory).newest().unwrap(), None);
    for generation in 1..=GENERATIONS_MAX as u64 + 10 {
        let mut journal = opened(&directory);
        let file = format!("file {generation}");
        journal.write(&numbered(generation), Some(&file), None).unwrap();
        drop(journal);
        let journal = opened(&directory);
        let newest = journal.newest().unwrap().unwrap();
        assert_eq!((newest.generation, &newest.state), (generation, &numbered(generation).state));
        assert_eq!(journal.node_file().unwrap().unwrap(), file);
    }
    let journal = opened(&directory);
    let kept: Vec<u64> = journal.list().unwrap().into_iter().map(|(it, _)| it).collect();
    let newest = GENERATIONS_MAX as u64 + 10;
    assert_eq!(kept, (11..=newest).rev().collect::<Vec<_>>());
    assert_eq!(journal.read(11).unwrap().state, numbered(11).state);
    assert!(matches!(journal.read(10), Err(JournalError::NoGeneration { wanted: 10 })));
}

#[test]
fn large_states_leave_room_for_fewer_and_one_to_go_back_to_stays() {
    let directory = TempDir::new().unwrap();
    let mut journal = opened(&directory);
    journal.write(&numbered(1), None, None).unwrap();
    let large = state(16_384);
    for generation in 2..30 {
        let mut record = Record::new(generation, "much", large.clone());
        record.head.unconfirmed_over = Some(1);
        journal.write(&record, None, None).unwrap();
    }
    let kept: Vec<u64> = journal.list().unwrap().into_iter().map(|(it, _)| it).collect();
    assert!(kept.len() < 28 && kept.contains(&1) && kept[0] == 29, "{kept:?}");
    let length = std::fs::metadata(&journal.path).unwrap().len();
    assert!(length < 4 * BYTES_MAX, "{length} bytes");
}

#[test]
fn a_journal_is_read_by_its_owner_alone_also_one_of_an_earlier_version() {
    use std::fs::{Permissions, metadata, set_permissions};
    use std::os::unix::fs::PermissionsExt;
    let directory = TempDir::new().unwrap();
    drop(opened(&directory));
    let path = directory.path().join("state.redb");
    let mode = || metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    drop(opened(&directory));
    assert_eq!(mode(), 0o600);
}

#[test]
fn a_journal_is_one_nodes_and_one_process_has_it() {
    let directory = TempDir::new().unwrap();
    let journal = opened(&directory);
    let open = |node: &str| Journal::open(directory.path(), &name(node)).unwrap_err();
    assert!(matches!(open("r1"), JournalError::InUse { .. }));
    drop(journal);
    let said = open("r2").to_string();
    assert!(said.contains("node 'r1'") && said.contains("state = "), "{said}");
    let journal = opened(&directory);
    let transaction = journal.opened().unwrap().begin_write().unwrap();
    transaction.open_table(FACTS).unwrap().insert("format", "2").unwrap();
    transaction.commit().unwrap();
    drop(journal);
    let said = open("r1").to_string();
    assert!(said.contains("newer version"), "{said}");
}

#[test]
fn what_cannot_be_read_is_said_and_never_taken_for_nothing() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("state.redb");
    for bytes in [&b""[..], b"no journal", &[0; 100_000]] {
        std::fs::write(&path, bytes).unwrap();
        let error = Journal::open(directory.path(), &name("r1")).unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, JournalError::Damaged { .. }), "{said}");
        assert!(said.contains("damaged") && said.contains("move it away"), "{said}");
    }
    // Half a file that was being made counts for nothing.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(path.with_extension("new"), b"half").unwrap();
    assert_eq!(opened(&directory).newest().unwrap(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Bits that change on the disk are seen, or do not matter.
    #[test]
    fn a_damaged_journal_is_refused_or_right(places in prop::collection::vec((0u64..1_000_000, 1u8..=255), 1..4)) {
        let directory = TempDir::new().unwrap();
        let mut journal = opened(&directory);
        for generation in 1..=3 {
            journal.write(&numbered(generation), None, None).unwrap();
        }
        let path = journal.path.clone();
        drop(journal);
        let mut bytes = std::fs::read(&path).unwrap();
        let used = bytes.len() as u64;
        for (at, change) in places {
            bytes[(at % used) as usize] ^= change;
        }
        std::fs::write(&path, bytes).unwrap();
        match Journal::open(directory.path(), &name("r1")).and_then(|journal| journal.newest()) {
            // Another generation than the last only if the last was never acknowledged: never.
            Ok(found) => prop_assert_eq!(found.map(|it| it.state), Some(numbered(3).state)),
            Err(error) => prop_assert!(matches!(error, JournalError::Damaged { .. } | JournalError::Newer { .. } | JournalError::OtherNode { .. }), "{}", error),
        }
    }
}

/// A disk: what programs read, and what is left of it when the power fails.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<Mutex<Platter>>);

#[derive(Debug, Default)]
struct Platter {
    seen: Vec<u8>,
    synced: Vec<u8>,
    /// Writes and lengths since the last sync.
    unsynced: Vec<Write>,
    /// Every state in which the power may fail: after each operation, with some of what was not
    /// synced.
    failures: Vec<(Vec<u8>, usize)>,
    collect: bool,
    /// Generations that were acknowledged so far.
    acknowledged: usize,
    /// Operations until the disk fails, and how.
    fails_after: Option<(usize, i32)>,
    dice: u64,
}

#[derive(Clone, Debug)]
enum Write {
    Bytes(u64, Vec<u8>),
    Length(u64),
}

impl Write {
    fn to(&self, disk: &mut Vec<u8>) {
        match self {
            Self::Bytes(at, bytes) => {
                let at = *at as usize;
                disk.resize(disk.len().max(at + bytes.len()), 0);
                disk[at..at + bytes.len()].copy_from_slice(bytes);
            }
            Self::Length(length) => disk.resize(*length as usize, 0),
        }
    }
}

impl Platter {
    fn operation(&mut self) -> Result<(), io::Error> {
        match &mut self.fails_after {
            Some((0, errno)) => Err(io::Error::from_raw_os_error(*errno)),
            Some((left, _)) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn write(&mut self, write: Write) {
        write.to(&mut self.seen);
        self.unsynced.push(write);
        self.power_could_fail();
    }

    /// Each write since the last sync is on the disk or is not, in any order; a torn one is
    /// there in its first half.
    fn power_could_fail(&mut self) {
        if !self.collect {
            return;
        }
        let mut left = self.synced.clone();
        for write in self.unsynced.clone() {
            self.dice ^= self.dice << 13;
            self.dice ^= self.dice >> 7;
            self.dice ^= self.dice << 17;
            match (self.dice % 3, write) {
                (0, write) => write.to(&mut left),
                (1, Write::Bytes(at, bytes)) => {
                    Write::Bytes(at, bytes[..bytes.len() / 2].to_vec()).to(&mut left);
                }
                _ => {}
            }
        }
        self.failures.push((left, self.acknowledged));
    }
}

impl Disk {
    fn of(bytes: Vec<u8>) -> Self {
        let platter = Platter {
            synced: bytes.clone(),
            seen: bytes,
            dice: 88_172_645_463_325_252,
            ..Platter::default()
        };
        Self(Arc::new(Mutex::new(platter)))
    }

    fn platter(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap()
    }

    fn open(&self) -> Result<Database, redb::DatabaseError> {
        builder().create_with_backend(self.clone())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.platter().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let platter = self.platter();
        let from = offset as usize;
        match platter.seen.get(from..from + out.len()) {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        let mut platter = self.platter();
        platter.operation()?;
        platter.write(Write::Length(len));
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        let mut platter = self.platter();
        platter.operation()?;
        platter.synced = platter.seen.clone();
        platter.unsynced.clear();
        platter.power_could_fail();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        let mut platter = self.platter();
        platter.operation()?;
        platter.write(Write::Bytes(offset, data.to_vec()));
        Ok(())
    }
}

/// A journal with some generations on such a disk.
fn disk_with(generations: u64) -> Disk {
    let disk = Disk::of(Vec::new());
    let database = disk.open().unwrap();
    init(&database, &name("r1")).unwrap();
    for generation in 1..=generations {
        write(&database, &numbered(generation), None, None).unwrap();
    }
    drop(database);
    disk
}

fn newest_state(database: &Database) -> (u64, DesiredState) {
    let newest = read_newest(database).unwrap().unwrap();
    let (_, state) = read_record(database, newest).unwrap().unwrap();
    let (digest, json) = state.split_at(DIGEST_LENGTH);
    assert_eq!(Sha256::digest(json).as_slice(), digest);
    (newest, serde_json::from_slice(json).unwrap())
}

#[test]
fn wherever_the_power_fails_the_last_acknowledged_state_or_the_next_is_there() {
    let disk = disk_with(2);
    disk.platter().collect = true;
    disk.platter().acknowledged = 2;
    let database = disk.open().unwrap();
    for generation in 3..=9 {
        write(&database, &numbered(generation), None, None).unwrap();
        disk.platter().acknowledged = generation as usize;
    }
    drop(database);
    let failures = std::mem::take(&mut disk.platter().failures);
    assert!(failures.len() > 50, "{} points", failures.len());
    for (number, (left, acknowledged)) in failures.into_iter().enumerate() {
        let database =
            Disk::of(left).open().unwrap_or_else(|error| panic!("point {number}: {error}"));
        let (newest, state) = newest_state(&database);
        let acknowledged = acknowledged as u64;
        assert!((acknowledged..=acknowledged + 1).contains(&newest), "point {number}: {newest}");
        assert_eq!(state, numbered(newest).state, "point {number}");
        // And it goes on from there.
        write(&database, &numbered(newest + 1), None, None).unwrap();
        assert_eq!(newest_state(&database).0, newest + 1);
    }
}

#[test]
fn a_disk_that_is_full_or_fails_refuses_the_change_and_keeps_what_was() {
    const ENOSPC: i32 = 28;
    const EIO: i32 = 5;
    const EROFS: i32 = 30;
    for errno in [ENOSPC, EIO, EROFS] {
        let mut refused = 0;
        for operations in 0..200 {
            let disk = disk_with(3);
            let database = disk.open().unwrap();
            disk.platter().fails_after = Some((operations, errno));
            let written = write(&database, &numbered(4), None, None);
            drop(database);
            disk.platter().fails_after = None;
            // As the journal does after an error.
            let database = disk.open().unwrap();
            if written.is_ok() {
                assert_eq!(newest_state(&database).0, 4);
                break;
            }
            refused += 1;
            let error = of_redb("write", Path::new("state.redb"))(written.unwrap_err());
            let expected = io::Error::from_raw_os_error(errno).to_string();
            assert!(error.to_string().contains(&expected), "{error}");
            truncate(&database, 4).unwrap();
            assert_eq!(newest_state(&database), (3, numbered(3).state));
            write(&database, &numbered(4), None, None).unwrap();
            assert_eq!(newest_state(&database).0, 4);
        }
        assert!(refused > 3, "the disk failed {refused} times only");
    }
}
