//! The journal against a disk that fails, loses what was not synced, and changes bytes.

use super::*;
use node::RuleSpec;
use proptest::prelude::*;
use redb::{StorageBackend, TableHandle};
use std::sync::{Arc, Mutex, MutexGuard};
use tempfile::TempDir;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Returns a state that differs from others by its number of rules.
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
fn fewer_generations_of_large_states_are_kept_but_always_the_confirmed_one() {
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
fn an_unreadable_journal_is_reported_and_never_taken_for_empty() {
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
    fn a_damaged_journal_is_refused_or_reads_as_written(places in prop::collection::vec((0u64..1_000_000, 1u8..=255), 1..4)) {
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

    /// Records every disk image that a power failure may leave now: each write since the last sync
    /// is there or not, in any combination; a torn one is there in its first half.
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
    let state = read_record(database, newest).unwrap().1.unwrap();
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
        // The journal continues from there.
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

/// Puts bytes in the place of a generation's head or state, as a fault of ours or of the disk might.
fn overwrite(
    journal: &Journal,
    table: TableDefinition<'_, u64, &[u8]>,
    generation: u64,
    bytes: Option<&[u8]>,
) {
    let transaction = journal.opened().unwrap().begin_write().unwrap();
    let mut opened = transaction.open_table(table).unwrap();
    match bytes {
        Some(bytes) => drop(opened.insert(generation, bytes).unwrap()),
        None => drop(opened.remove(generation).unwrap()),
    }
    drop(opened);
    transaction.commit().unwrap();
}

fn in_memory(generations: u64) -> Journal {
    let mut journal = Journal::in_memory(&name("r1"));
    for generation in 1..=generations {
        journal.write(&numbered(generation), None, None).unwrap();
    }
    journal
}

#[test]
fn a_generation_that_is_not_what_was_written_is_named_and_the_others_are_read() {
    let state = |json: &[u8]| [Sha256::digest(json).as_slice(), json].concat();
    let mut flipped = state(b"{}");
    flipped[DIGEST_LENGTH] ^= 1;
    let short = state(b"")[..DIGEST_LENGTH - 1].to_vec();
    for (table, bytes, says) in [
        (STATES, Some(short), "generation 2: it is cut off"),
        (STATES, Some(Vec::new()), "generation 2: it is cut off"),
        (STATES, Some(flipped), "generation 2: its bytes are not those that were written"),
        (STATES, Some(state(b"")), "generation 2: EOF while parsing"),
        (STATES, Some(state(b"{\"rules\":7}")), "generation 2: invalid type: integer `7`"),
        (STATES, None, "generation 2: half of it is missing"),
        (HEADS, Some(b"{\"cause\":".to_vec()), "generation 2: EOF while parsing"),
        (HEADS, Some(b"{}".to_vec()), "generation 2: missing field `cause`"),
        (HEADS, None, "generation 2: half of it is missing"),
    ] {
        let journal = in_memory(3);
        overwrite(&journal, table, 2, bytes.as_deref());
        let error = journal.read(2).unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, JournalError::Damaged { .. }), "{said}");
        assert!(said.contains(says) && said.contains("restore it from a copy"), "{said}\n{says}");
        for other in [1, 3] {
            assert_eq!(journal.read(other).unwrap().state, numbered(other).state);
        }
        let listed = journal.list().map(|list| list.len()).map_err(|error| error.to_string());
        match (table.name() == "heads", bytes) {
            (true, Some(_)) => assert!(listed.unwrap_err().contains("generation 2: ")),
            (true, None) => assert_eq!(listed, Ok(2)),
            _ => assert_eq!(listed, Ok(3)),
        }
    }
    let missing = in_memory(3).read(4).unwrap_err().to_string();
    assert!(missing.starts_with("there is no generation 4 of this node's state"), "{missing}");
}

#[test]
fn a_head_of_an_earlier_version_says_nothing_of_what_that_did_not_know() {
    let journal = in_memory(1);
    overwrite(&journal, HEADS, 1, Some(b"{\"cause\":\"deploy a\",\"services\":1,\"rules\":2}"));
    let head = journal.read(1).unwrap().head;
    assert_eq!((head.cause.as_str(), head.services, head.rules), ("deploy a", 1, 2));
    assert_eq!((head.unconfirmed_over, head.sessions, head.bytes), (None, 0, 0));
}

#[test]
fn a_journal_says_its_form_and_its_node_and_the_latest_time_is_a_number() {
    let directory = TempDir::new().unwrap();
    drop(opened(&directory));
    let set = |key: &str, value: Option<&str>| {
        let database = open(&directory.path().join("state.redb")).unwrap();
        let transaction = database.begin_write().unwrap();
        let mut facts = transaction.open_table(FACTS).unwrap();
        match value {
            Some(value) => drop(facts.insert(key, value).unwrap()),
            None => drop(facts.remove(key).unwrap()),
        }
        drop(facts);
        transaction.commit().unwrap();
    };
    for (key, wrong, right, says) in [
        ("format", None, "1", "is damaged: it does not say its format;"),
        ("format", Some("2"), "1", "(form 2, this one knows 1); run that version"),
        ("format", Some("01"), "1", "(form 01, this one knows 1); run that version"),
        ("node", None, "r1", "is damaged: it does not say its node;"),
        ("node", Some("r2"), "r1", "is the state of node 'r2'; give each node a directory"),
    ] {
        set(key, wrong);
        let said = Journal::open(directory.path(), &name("r1")).unwrap_err().to_string();
        assert!(said.contains(says), "{said}");
        set(key, Some(right));
    }
    assert_eq!(opened(&directory).latest_time().unwrap(), 0, "none was kept yet");
    set(trusted::LATEST_TIME, Some("yesterday\n"));
    let said = opened(&directory).latest_time().unwrap_err().to_string();
    assert!(said.contains("its latest time is 'yesterday\\n'"), "{said}");
}

#[test]
fn a_record_takes_the_place_of_its_generation_and_of_all_behind_it() {
    let mut journal = in_memory(5);
    let record = Record::new(3, "another", state(40));
    journal.write(&record, None, None).unwrap();
    let kept: Vec<(u64, String)> =
        journal.list().unwrap().into_iter().map(|(it, head)| (it, head.cause)).collect();
    let causes = [(3, "another"), (2, "a test"), (1, "a test")];
    assert_eq!(kept, causes.map(|(it, cause)| (it, cause.to_owned())));
    assert_eq!(journal.newest().unwrap().unwrap().state, state(40));
    // The same once more is the same.
    journal.write(&record, None, None).unwrap();
    assert_eq!(journal.list().unwrap().len(), 3);
}

#[test]
fn capabilities_and_the_node_file_are_kept_beside_changing_states() {
    let mut journal = in_memory(1);
    assert_eq!(journal.capabilities().unwrap(), CapabilityTexts::new());
    assert_eq!((journal.revoked().unwrap(), journal.versions().unwrap()), (BTreeSet::new(), None));
    let texts = |numbers: &[u32]| -> CapabilityTexts {
        numbers.iter().map(|number| (*number, format!("capability {number}"))).collect()
    };
    journal.write(&numbered(2), Some("0a"), Some(&texts(&[1, 2, 7]))).unwrap();
    journal.write(&numbered(3), None, None).unwrap();
    assert_eq!(journal.capabilities().unwrap(), texts(&[1, 2, 7]), "not those of before: none");
    assert_eq!(journal.node_file().unwrap().as_deref(), Some("0a"));
    journal.write(&numbered(4), Some("0b"), Some(&texts(&[2, 3]))).unwrap();
    assert_eq!(journal.capabilities().unwrap(), texts(&[2, 3]));
    journal.revoke(&["b".to_owned(), "a".to_owned()].into(), 70).unwrap();
    journal.revoke(&["a".to_owned(), "c".to_owned()].into(), 80).unwrap();
    journal.keep_versions("versions").unwrap();
    journal.keep_time(90).unwrap();
    journal.write(&numbered(1), None, Some(&texts(&[]))).unwrap();
    assert_eq!(journal.revoked().unwrap(), ["a", "b", "c"].map(str::to_owned).into());
    assert_eq!(journal.versions().unwrap().as_deref(), Some("versions"));
    assert_eq!(
        (journal.latest_time().unwrap(), journal.node_file().unwrap().unwrap()),
        (90, "0b".into())
    );
    assert_eq!(journal.capabilities().unwrap(), CapabilityTexts::new());
}

#[test]
fn wherever_the_power_fails_a_revocation_is_whole_and_the_state_as_it_was() {
    let disk = disk_with(2);
    disk.platter().collect = true;
    let revoked = |database: &Database, number: u64| {
        trusted::try_write(database, |transaction| {
            let mut table = transaction.open_table(trusted::REVOKED)?;
            for part in ["a", "b"] {
                table.insert(format!("{number:02} {part}").as_str(), ())?;
            }
            trusted::keep_time(transaction, number)
        })
    };
    let database = disk.open().unwrap();
    for number in 1..=6 {
        revoked(&database, number).unwrap();
        disk.platter().acknowledged = number as usize;
    }
    drop(database);
    let failures = std::mem::take(&mut disk.platter().failures);
    assert!(failures.len() > 40, "{} points", failures.len());
    for (point, (left, acknowledged)) in failures.into_iter().enumerate() {
        let database = Disk::of(left).open().unwrap();
        let found = trusted::read_revoked(&database).unwrap().len() as u64;
        let acknowledged = acknowledged as u64;
        let either = [2 * acknowledged, 2 * acknowledged + 2];
        assert!(either.contains(&found), "point {point}: {found}, {acknowledged} were written");
        let time = read_fact(&database, trusted::LATEST_TIME).unwrap();
        let expected = (found > 0).then(|| (found / 2).to_string());
        assert_eq!(time, expected, "point {point}: with its time");
        assert_eq!(newest_state(&database), (2, numbered(2).state), "point {point}");
    }
}

#[test]
fn after_an_error_the_file_is_opened_anew_without_what_was_refused() {
    let directory = TempDir::new().unwrap();
    let mut journal = opened(&directory);
    for generation in 1..=4 {
        journal.write(&numbered(generation), None, None).unwrap();
    }
    let fail = |journal: &mut Journal| {
        let disk = disk_with(3);
        journal.database = Some(disk.open().unwrap());
        disk.platter().fails_after = Some((0, 28));
    };
    // The fourth reaches the disk, and its caller gets an error.
    fail(&mut journal);
    let error = journal.write(&numbered(4), None, None).unwrap_err();
    assert!(error.to_string().starts_with("cannot write "), "{error}");
    assert_eq!(journal.newest().unwrap().unwrap().generation, 3);

    fail(&mut journal);
    assert!(journal.revoke(&["a".to_owned()].into(), 7).is_err());
    let away = directory.path().join("away");
    std::fs::rename(&journal.path, &away).unwrap();
    let said = journal.newest().unwrap_err().to_string();
    assert!(said.contains("it could not be opened again after an error"), "{said}");
    let said = journal.write(&numbered(4), None, None).unwrap_err().to_string();
    assert!(said.starts_with("cannot open "), "{said}");
    std::fs::rename(&away, &journal.path).unwrap();
    journal.write(&numbered(4), None, None).unwrap();
    assert_eq!(journal.newest().unwrap().unwrap().generation, 4);
    assert_eq!(journal.revoked().unwrap(), BTreeSet::new());
}

proptest! {
    /// Removed generations: all from the record's number on, then the oldest beyond a limit.
    #[test]
    fn the_newest_generations_are_kept_within_the_limits(
        sizes in prop::collection::vec(prop_oneof![0..BYTES_MAX / 8, Just(u64::MAX)], 0..100),
        at in 0u64..120,
        needed in prop::option::of(0u64..100),
        bytes in 0..BYTES_MAX / 2,
    ) {
        let kept: Vec<(u64, u64)> = (0..).zip(sizes).collect();
        let mut record = Record::new(at, "a test", DesiredState::default());
        record.head.unconfirmed_over = needed;
        let gone: BTreeSet<u64> = dropped(&kept, &record, bytes).into_iter().collect();
        let stays: Vec<(u64, u64)> =
            kept.iter().copied().filter(|(it, _)| !gone.contains(it)).collect();
        prop_assert!(stays.iter().all(|(it, _)| *it < at));
        if let Some(needed) = needed.filter(|it| *it < at && (*it as usize) < kept.len()) {
            prop_assert!(!gone.contains(&needed), "it may have to go back to {}", needed);
        }
        let free = |it: u64| Some(it) != needed;
        let others: Vec<u64> = stays.iter().filter(|(it, _)| free(*it)).map(|it| it.1).collect();
        prop_assert!(stays.len() <= GENERATIONS_MAX);
        prop_assert!(others.iter().try_fold(bytes, |sum, it| sum.checked_add(*it)).unwrap() <= BYTES_MAX);
        // No generation is dropped that fits the limits.
        let older = kept.iter().rev().filter(|(it, _)| *it < at);
        let (mut count, mut sum) = (1, bytes);
        for &(it, bytes) in older {
            if gone.contains(&it) {
                prop_assert!(count >= GENERATIONS_MAX || sum.saturating_add(bytes) > BYTES_MAX);
            } else {
                (count, sum) = (count + 1, sum.saturating_add(bytes));
            }
        }
    }
}
