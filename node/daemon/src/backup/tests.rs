//! Backups that are whole, and all that are not.

use super::*;
use api::{NodeBackup, SCHEMA_VERSION};
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;

fn backup() -> NodeBackup {
    NodeBackup {
        schema_version: SCHEMA_VERSION,
        node: "r1".to_owned(),
        version: "0.1.0".to_owned(),
        generation: 7,
        state: serde_json::json!({ "bpf": true, "services": {}, "rules": [] }),
        node_file: Some("0a".to_owned()),
        capabilities: [(3, "{}".to_owned())].into(),
        revoked: vec!["ed25519/00".to_owned()],
        latest_time: 1_800_000_000,
        state_directory: "/var/lib/tamandua/r1".to_owned(),
        store_directory: "/var/lib/tamandua/store".to_owned(),
    }
}

fn entries() -> Vec<(Entry, Vec<u8>)> {
    let blob = format!("blobs/sha256/{}", "0a".repeat(32));
    vec![
        (Entry::Key, b"a key".to_vec()),
        (Entry::Ledger("00000001.ledger".to_owned()), vec![1; 784]),
        (Entry::Store("oci-layout".to_owned()), b"{}".to_vec()),
        (Entry::Store(blob), vec![0; 3]),
    ]
}

fn written() -> Vec<u8> {
    let mut archive = Archive::begin(Vec::new(), &backup()).unwrap();
    for (entry, bytes) in entries() {
        archive.add(&entry, &bytes).unwrap();
    }
    archive.end().unwrap()
}

#[test]
fn what_was_written_is_read_and_restored() {
    let contents = read(written().as_slice()).unwrap();
    assert_eq!(contents.backup, backup());
    assert_eq!(contents.files, entries().into_iter().collect());
    let folder = tempfile::tempdir().unwrap();
    let places = Places { state: folder.path().join("state"), store: folder.path().join("store") };
    restore(&contents, &places).unwrap();
    let journal = Journal::open(&places.state, &"r1".parse().unwrap()).unwrap();
    let newest = journal.newest().unwrap().unwrap();
    assert_eq!((newest.generation, newest.state), (7, DesiredState::default()));
    assert_eq!(journal.node_file().unwrap(), backup().node_file);
    assert_eq!(journal.capabilities().unwrap(), backup().capabilities);
    assert_eq!(journal.revoked().unwrap().into_iter().collect::<Vec<_>>(), backup().revoked);
    assert_eq!(journal.latest_time().unwrap(), backup().latest_time);
    let key = places.state.join(KEY_FILE);
    assert_eq!(fs::read(&key).unwrap(), b"a key");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for private in ["state.redb", "ledger/00000001.ledger", KEY_FILE] {
        assert_eq!(mode(&places.state.join(private)), 0o600, "{private}");
    }
    assert_eq!(mode(&places.state.join("ledger")), 0o700);
    assert_eq!(fs::read(places.state.join("ledger/00000001.ledger")).unwrap(), vec![1; 784]);
    let again = restore(&contents, &places).unwrap_err();
    assert!(matches!(again, RestoreError::Occupied { .. }), "{again}");
}

#[test]
fn a_restore_that_fails_leaves_nothing() {
    let mut contents = read(written().as_slice()).unwrap();
    contents.backup.state = serde_json::json!({ "services": 3 });
    let folder = tempfile::tempdir().unwrap();
    let places = Places { state: folder.path().join("state"), store: folder.path().join("store") };
    let error = restore(&contents, &places).unwrap_err();
    assert!(matches!(error, RestoreError::State(_)), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn only_files_of_a_backup_are_read_and_only_where_they_belong() {
    for path in [
        "../node.key.pem",
        "/etc/passwd",
        "ledger/../../x.ledger",
        "ledger/.ledger",
        "store/blobs/sha256/../../../x",
        "store/other",
        "other",
    ] {
        assert_eq!(Entry::of(path), None, "{path}");
    }
    for (entry, _) in entries() {
        assert_eq!(Entry::of(&entry.path()), Some(entry));
    }
}

#[test]
fn a_backup_with_any_byte_changed_missing_or_added_is_refused() {
    let good = written();
    assert!(read(good.as_slice()).is_ok());
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        // Also of padding, and of fields that say nothing of what is in the files.
        assert!(read(bytes.as_slice()).is_err(), "byte {at}");
    }
    for length in 0..good.len() {
        assert!(read(&good[..length]).is_err(), "{length} bytes");
    }
    for more in [vec![0], vec![0; 1024], b"more".to_vec(), good.clone()] {
        let bytes = [good.as_slice(), &more].concat();
        assert!(read(bytes.as_slice()).is_err(), "{} bytes more", more.len());
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        prop_assert!(read(bytes.as_slice()).is_err());
    }
}

type File<'a> = (tar::EntryType, &'a str, &'a [u8]);

/// Returns a tar archive of entries whose paths are stored unchanged.
fn tarred(entries: &[File<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, path, bytes) in entries {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o600);
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        builder.append(&header, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Returns a backup with a state, a key and other files, and edited digests.
fn with_sums(more: &[File<'_>], edit: impl FnOnce(String) -> String) -> Vec<u8> {
    use sha2::{Digest, Sha256};
    let state = serde_json::to_vec(&backup()).unwrap();
    let file = tar::EntryType::Regular;
    let mut all: Vec<File<'_>> = vec![(file, "backup.json", &state), (file, KEY_FILE, b"a key")];
    all.extend_from_slice(more);
    let line = |(_, path, bytes): &File<'_>| {
        let digest = Sha256::digest(bytes);
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{digest}  {path}\n")
    };
    let sums = edit(all.iter().map(line).collect());
    all.push((file, "SHA256SUMS", sums.as_bytes()));
    tarred(&all)
}

#[test]
fn nothing_is_read_that_leaves_the_folders_or_is_no_plain_file() {
    use tar::EntryType as T;
    let blob = format!("store/blobs/sha256/{}", "0a".repeat(32));
    assert!(read(with_sums(&[(T::Regular, &blob, b"")], |sums| sums).as_slice()).is_ok());
    for (kind, path) in [
        (T::Regular, "../node.key.pem"),
        (T::Regular, "/etc/passwd"),
        (T::Regular, "./backup.json"),
        (T::Regular, "store/../node.key.pem"),
        (T::Regular, "store//index.json"),
        (T::Regular, "store/blobs/sha256/0a"),
        (T::Regular, "ledger/1.ledger.new"),
        (T::Regular, "ledger/a.ledger"),
        (T::Regular, "ledger/../1.ledger"),
        (T::Regular, "backup.json "),
        (T::Regular, "store/\u{1b}[2J"),
        (T::Symlink, "ledger/1.ledger"),
        (T::Link, "store/index.json"),
        (T::Directory, "ledger/1.ledger"),
        (T::Char, "store/oci-layout"),
        (T::Fifo, blob.as_str()),
    ] {
        let error = read(with_sums(&[(kind, path, b"")], |sums| sums).as_slice()).unwrap_err();
        let shown = path.escape_debug();
        let says =
            format!("this is no backup: '{shown}' has no place in one; `tam backup` makes one");
        assert_eq!(error.to_string(), says, "{kind:?}");
    }
}

#[test]
fn what_is_missing_or_twice_or_not_what_was_written_is_named() {
    let file = tar::EntryType::Regular;
    let segment: [File<'_>; 1] = [(file, "ledger/1.ledger", b"a record")];
    let sums = "the backup is damaged: 'SHA256SUMS' is not what was written; use another copy";
    type Edit = fn(String) -> String;
    let cases: [(Edit, &str); 7] = [
        (|sums| sums.replacen("  ", " ", 1), sums),
        (|sums| sums.lines().skip(1).map(|it| format!("{it}\n")).collect(), sums),
        (|sums| sums.clone() + &sums, sums),
        // A line twice in the place of another one.
        (|sums| format!("{}\n", sums.lines().next().unwrap_or_default()).repeat(3), sums),
        (|sums| sums + "00  store/index.json\n", "'store/index.json' is missing; use another copy"),
        (|sums| sums.replace("  ledger/1", "  ledger/2"), "'ledger/2.ledger' is missing"),
        (|sums| sums.to_uppercase(), "'BACKUP.JSON' is missing"),
    ];
    for (edit, says) in cases {
        let said = read(with_sums(&segment, edit).as_slice()).unwrap_err().to_string();
        assert!(said.contains(says), "{said}\n{says}");
    }
    let other = |sums: String| {
        let (before, line) = sums.trim_end().rsplit_once('\n').unwrap();
        format!("{before}\n{}{}\n", if line.starts_with('0') { '1' } else { '0' }, &line[1..])
    };
    let said = read(with_sums(&segment, other).as_slice()).unwrap_err().to_string();
    assert!(said.contains("damaged: 'ledger/1.ledger' is not what was written"), "{said}");
    let twice = [segment[0], segment[0]];
    let said = read(with_sums(&twice, |sums| sums).as_slice()).unwrap_err().to_string();
    assert!(said.contains("'ledger/1.ledger' has no place in one"), "{said}");

    let state = serde_json::to_vec(&backup()).unwrap();
    let (state, empty) = ((file, "backup.json", state.as_slice()), (file, "SHA256SUMS", &b""[..]));
    for (entries, says) in [
        (vec![], "'SHA256SUMS' is missing"),
        (vec![empty], "'backup.json' is missing"),
        (vec![state], "'SHA256SUMS' is missing"),
        (vec![empty, state], "'backup.json' has no place in one"),
        (vec![(file, "SHA256SUMS", &b"\xff"[..])], "'SHA256SUMS' is not what was written"),
    ] {
        let said = read(tarred(&entries).as_slice()).unwrap_err().to_string();
        assert!(said.contains(says), "{said}\n{says}");
    }
}

#[test]
fn a_file_that_says_that_it_is_too_large_is_refused_before_it_is_read() {
    let mut header = tar::Header::new_ustar();
    header.set_path("store/index.json").unwrap();
    header.set_entry_type(tar::EntryType::Regular);
    for (size, is_too_large) in [(FILE_LENGTH_MAX + 1, true), (FILE_LENGTH_MAX, false)] {
        header.set_size(size);
        header.set_cksum();
        let error = read(header.as_bytes().as_slice()).unwrap_err();
        assert_eq!(matches!(error, ArchiveError::TooLarge(_)), is_too_large, "{error}");
    }
}

#[test]
fn a_node_is_restored_whole_or_not_at_all_and_nothing_is_written_over() {
    let contents = read(written().as_slice()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let places = Places { state: folder.path().join("state"), store: folder.path().join("store") };
    let left = || -> Vec<String> {
        let entries = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    fs::create_dir(&places.store).unwrap();
    fs::write(places.store.join("index.json"), b"{}").unwrap();
    let said = restore(&contents, &places).unwrap_err().to_string();
    assert!(said.contains("store is there already and is not empty; move it away"), "{said}");
    fs::remove_file(places.store.join("index.json")).unwrap();
    let mut nameless = contents.clone();
    nameless.backup.node = "R 1".to_owned();
    let said = restore(&nameless, &places).unwrap_err().to_string();
    assert!(said.starts_with("the state in the backup is not understood: "), "{said}");
    assert_eq!(left(), ["store"]);

    // Nothing can be put in the place of a link, nor of a directory that is mounted.
    fs::remove_dir(&places.store).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), &places.store).unwrap();
    for expected in [&["store"][..], &["state", "store"]] {
        let error = restore(&contents, &places).unwrap_err();
        assert!(matches!(error, RestoreError::Io { action: "make", .. }), "{error}");
        assert_eq!(left(), expected);
        let _ = fs::create_dir(&places.state);
    }
    assert_eq!(fs::read_dir(&places.state).unwrap().count(), 0, "it was empty before");
    fs::remove_file(&places.store).unwrap();
    // Leftovers of an earlier attempt do no harm.
    fs::create_dir_all(folder.path().join("state.restoring/ledger")).unwrap();
    restore(&contents, &places).unwrap();
    assert_eq!(left(), ["state", "store"]);
}
