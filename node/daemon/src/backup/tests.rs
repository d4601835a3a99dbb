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
fn every_byte_counts() {
    let good = written();
    let wanted = read(good.as_slice()).unwrap();
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        // Beside the files a tar has padding and fields that say nothing of what is in them.
        if let Ok(contents) = read(bytes.as_slice()) {
            assert_eq!(contents, wanted, "byte {at}");
        }
    }
    for length in 0..good.len() {
        if let Ok(contents) = read(&good[..length]) {
            assert_eq!(contents, wanted, "{length} bytes");
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        prop_assert!(read(bytes.as_slice()).is_err());
    }
}
