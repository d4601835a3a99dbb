//! Backups: a backup that is read equals the one written, and each of its files has a valid path.

use daemon::backup::{Archive, Entry, read};

pub fn backup(bytes: &[u8]) {
    let contents = match read(bytes) {
        Ok(contents) => contents,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let mut again = Archive::begin(Vec::new(), &contents.backup).expect("it was read");
    for (entry, bytes) in &contents.files {
        assert_eq!(Entry::of(&entry.path()).as_ref(), Some(entry));
        again.add(entry, bytes).expect("it was read");
    }
    let again = again.end().expect("memory takes all of it");
    assert!(read(again.as_slice()).is_ok_and(|again| again == contents));
}

pub fn backup_seeds() -> Vec<Vec<u8>> {
    let state = serde_json::json!({
        "schema_version": 1, "node": "r1", "version": "0.1.0", "generation": 1, "state": {}, "node_file": null,
        "capabilities": {}, "revoked": [], "latest_time": 0,
        "state_directory": "/s", "store_directory": "/m",
    });
    let state = serde_json::from_value(state).expect("these are its fields");
    let mut archive = Archive::begin(Vec::new(), &state).expect("memory takes it");
    for entry in [Entry::Key, Entry::Store("oci-layout".to_owned())] {
        archive.add(&entry, b"{}").expect("memory takes it");
    }
    vec![archive.end().expect("memory takes it")]
}
