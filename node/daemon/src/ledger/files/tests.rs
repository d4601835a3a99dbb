//! The files of a ledger, also when the process that writes them dies, or the disk is full.

use super::*;
use ledger::{Account, Amounts, Field, MeterId};
use std::process::{Command, Stdio};
use trust::Seed;

/// Says to a copy of this program where to write; see [`a_process_that_writes_until_it_is_killed`].
const WRITES_TO: &str = "TAM_LEDGER_WRITES_TO";
/// The same test does 1,000 kills in a soak run.
const SOAK: &str = "TAM_SOAK";

fn key() -> Arc<SecretKey> {
    Arc::new(SecretKey::from_seed(&Seed::new([1; 32])))
}

fn open(directory: &Path) -> Result<Files, FilesError> {
    Files::open(directory, key(), LedgerId([2; 16]))
}

fn reading(meter: u8, packets: u64) -> Reading {
    let principal = SecretKey::from_seed(&Seed::new([meter; 32])).public();
    let account = Account { principal, session: "best-effort".parse().unwrap() };
    let reading = Amounts::NONE.with(Field::PacketsIn, packets);
    Reading { account, service: None, meter: MeterId([meter; 16]), reading, is_last: false }
}

fn used(directory: &Path) -> (u64, u64) {
    let (mut packets, mut records) = (0, 0);
    verify(directory, &key().public(), |_, usage| {
        packets += usage.used.get(Field::PacketsIn);
        records += 1;
    })
    .unwrap();
    (packets, records)
}

#[test]
fn a_ledger_is_read_by_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("ledger");
    open(&directory).unwrap().append(UnixTime(1), &[reading(1, 1)]).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    for file in std::fs::read_dir(&directory).unwrap() {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[test]
fn what_was_appended_is_there_after_it_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("ledger");
    for count in 1..=5 {
        let mut files = open(&directory).unwrap();
        let readings = [reading(3, count * 10), reading(4, count)];
        files.append(UnixTime(count), &readings).unwrap();
        // The daemon before died, and its last word is given again.
        assert!(files.append(UnixTime(count), &readings).unwrap().bytes.is_empty());
    }
    assert_eq!(used(&directory), (55, 10));
    let period = Period { since: UnixTime(2), until: UnixTime(4) };
    let totals = totals(&directory, u64::MAX, period).unwrap();
    let sums: Vec<u64> = totals.iter().map(|(_, sum)| sum.used.get(Field::PacketsIn)).collect();
    assert_eq!(sums.iter().sum::<u64>(), 22);
    let mut numbers = Vec::new();
    scan(&directory, 4, 11, |number, _| {
        numbers.push(number);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(numbers, [4, 5, 7, 8, 10]);
    let whose = SecretKey::from_seed(&Seed::new([3; 32])).public();
    let made = (UnixTime(9), LedgerId([2; 16]));
    let receipt = receipt(&directory, u64::MAX, &key(), made.1, made.0, (&whose, 2)).unwrap();
    let records = receipt.verify(&key().public()).unwrap();
    let numbers: Vec<u64> = records.iter().map(|usage| usage.own_number).collect();
    assert_eq!((numbers, receipt.next()), (vec![2, 3, 4], 5));
}

#[test]
fn a_ledger_in_use_and_one_of_another_node_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = open(folder.path()).unwrap();
    files.append(UnixTime(1), &[reading(3, 1)]).unwrap();
    assert!(matches!(open(folder.path()), Err(FilesError::InUse { .. })));
    drop(files);
    // Also while this process begins others, which have its files for a moment.
    std::thread::scope(|scope| {
        let begins = scope.spawn(|| {
            for _ in 0..300 {
                Command::new("/bin/true").status().unwrap();
            }
        });
        while !begins.is_finished() {
            drop(open(folder.path()).unwrap());
        }
    });
    let other = Arc::new(SecretKey::from_seed(&Seed::new([9; 32])));
    let refused = Files::open(folder.path(), other, LedgerId([2; 16])).unwrap_err();
    assert!(matches!(refused, FilesError::Damaged { .. }), "{refused}");
}

#[test]
fn a_damaged_ledger_is_refused_with_its_place_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = open(folder.path()).unwrap();
    files.append(UnixTime(1), &[reading(3, 1), reading(4, 1)]).unwrap();
    drop(files);
    let path = path_of(folder.path(), 1);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[FRAME_LENGTH + 200] ^= 4;
    std::fs::write(&path, &bytes).unwrap();
    let Err(FilesError::Damaged { damage, .. }) = open(folder.path()) else { panic!("it opened") };
    assert_eq!((damage.segment, damage.offset, damage.frame), (1, FRAME_LENGTH, 1));
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[test]
fn a_file_that_ends_anywhere_has_the_batches_that_were_written_as_a_whole_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let mut ends = vec![(0, (0, 0))];
    for count in 1..=3 {
        let readings = [reading(3, count * 10), reading(4, count)];
        open(&whole).unwrap().append(UnixTime(count), &readings).unwrap();
        let length = std::fs::metadata(path_of(&whole, 1)).unwrap().len() as usize;
        ends.push((length, used(&whole)));
    }
    assert_eq!(ends.last().unwrap().1, (33, 6));
    let bytes = std::fs::read(path_of(&whole, 1)).unwrap();
    let directory = folder.path().join("cut");
    std::fs::create_dir(&directory).unwrap();
    let path = path_of(&directory, 1);
    for length in 0..=bytes.len() {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let (end, whole) = ends.iter().rev().find(|(end, _)| *end <= length).unwrap();
        drop(open(&directory).unwrap());
        let left = std::fs::metadata(&path).map_or(0, |file| file.len() as usize);
        assert_eq!(left, *end, "the rest of {length} bytes is cut off");
        assert_eq!(used(&directory), *whole, "{length} of {} bytes", bytes.len());
        // At the edges of frames: the meters are billed from there.
        if length % FRAME_LENGTH < 2 {
            let readings = [reading(3, 30), reading(4, 3)];
            open(&directory).unwrap().append(UnixTime(9), &readings).unwrap();
            assert_eq!(used(&directory).0, 33, "{length} bytes");
        }
        let _ = std::fs::remove_file(&path);
    }
}

/// Name of the test that starts itself again as the process that it kills.
const KILLED: &str = "ledger::files::tests::\
    nothing_is_lost_or_doubled_when_the_writer_is_killed_at_any_point";

/// Writes a ledger until the process is killed, and says each number that is on the disk.
fn write_until_killed(directory: &Path) {
    let mut files = open(directory).unwrap();
    let before =
        files.ledger().last_reading(MeterId([3; 16])).map_or(0, |it| it.get(Field::PacketsIn));
    for count in before + 1.. {
        let batch: Vec<Reading> =
            (3..3 + 1 + (count % 7) as u8).map(|it| reading(it, count)).collect();
        files.append(UnixTime(count), &batch).unwrap();
        println!("WRITTEN {count}");
    }
}

#[test]
fn nothing_is_lost_or_doubled_when_the_writer_is_killed_at_any_point() {
    if let Some(directory) = std::env::var_os(WRITES_TO) {
        return write_until_killed(Path::new(&directory));
    }
    let kills = if std::env::var_os(SOAK).is_some() { 1000 } else { 30 };
    let folder = tempfile::tempdir().unwrap();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let (mut said, mut records) = (0, 0);
    for kill in 0..kills {
        // Another ledger now and then: each is read as a whole after each kill.
        let directory = folder.path().join(format!("ledger-{}", kill / 50));
        if kill % 50 == 0 {
            records = 0;
        }
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", KILLED, "--nocapture", "--test-threads=1"])
            .env(WRITES_TO, &directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = io::BufRead::lines(BufReader::new(writer.stdout.take().unwrap()));
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let numbers = lines.map_while(Result::ok).filter_map(|line| {
            line.split("WRITTEN ").nth(1).and_then(|number| number.trim().parse::<u64>().ok())
        });
        // It is killed behind one of its next words, at whatever it does then.
        let mut numbers = numbers.skip((random >> 33) as usize % 20);
        said = numbers.next().expect("it writes");
        let wait = (random >> 50) % 1000;
        let since = std::time::Instant::now();
        while since.elapsed() < std::time::Duration::from_micros(wait) {
            std::hint::spin_loop();
        }
        writer.kill().unwrap();
        said = numbers.last().unwrap_or(said);
        writer.wait().unwrap();
        // What it had said is there; of meter 3 each number once.
        drop(open(&directory).unwrap());
        let (mut next, mut found) = (1, 0);
        verify(&directory, &key().public(), |_, usage| {
            if usage.meter == MeterId([3; 16]) {
                assert_eq!(
                    (usage.reading.get(Field::PacketsIn), usage.used.get(Field::PacketsIn)),
                    (next, 1)
                );
                next += 1;
            }
            found += 1;
        })
        .unwrap();
        assert!(next > said, "kill {kill}: {said} was on the disk, and the ledger ends at {next}");
        assert!(found > records, "kill {kill}");
        records = found;
    }
    println!("{kills} kills, in the last ledger {records} records, said was {said} at last");
}
