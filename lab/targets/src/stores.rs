//! Any bytes as the documents of a module store in OCI layout: `index.json`, and an image manifest
//! that `index.json` leads to; and as a digest.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use module_store::{Digest, Store};
use tempfile::TempDir;

/// Names that a store is asked for; the last is the beginning of a digest.
const WANTED: [&str; 4] = ["monitor", "monitor:0.1.0", "sha256:", "sha256:00000000"];

/// Writes and reads a store. A directory in memory (`TMPDIR=/dev/shm`) makes it faster.
pub fn read(bytes: &[u8]) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = directory();
    let store = Store::open(directory).expect("it was made below and nothing removes it");
    fs::write(directory.join("index.json"), bytes).expect("the directory can be written");
    ask(&store);

    let digest = Digest::of(bytes);
    let blob = directory.join("blobs/sha256").join(digest.hex());
    fs::write(&blob, bytes).expect("the directory can be written");
    fs::write(directory.join("index.json"), index(&digest, bytes.len()))
        .expect("the directory can be written");
    assert_eq!(store.get(&digest).expect("a blob that is there and whole"), bytes);
    ask(&store);
    fs::remove_file(&blob).expect("it was written above");

    if let Ok(text) = str::from_utf8(bytes)
        && let Ok(digest) = text.parse::<Digest>()
    {
        assert_eq!(digest.to_string(), text);
    }
}

/// Lists and resolves: each entry listed as usable has a digest that resolves to itself.
fn ask(store: &Store) {
    for wanted in WANTED {
        if let Err(error) = store.resolve(wanted) {
            assert!(!error.to_string().is_empty());
        }
    }
    let Ok(listing) = store.list() else { return };
    for module in &listing.modules {
        assert_eq!(store.resolve(&module.digest.to_string()).ok(), Some(module.digest));
    }
}

fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<TempDir> = OnceLock::new();
    DIRECTORY
        .get_or_init(|| {
            let directory = TempDir::new().expect("a temporary directory can be made");
            Store::open(directory.path()).expect("an empty directory becomes a store");
            directory
        })
        .path()
}

/// Returns an index whose one image is the blob of this digest.
fn index(digest: &Digest, length: usize) -> String {
    format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{digest}","size":{length},"annotations":{{"org.opencontainers.image.ref.name":"monitor:0.1.0"}}}}]}}"#
    )
}
