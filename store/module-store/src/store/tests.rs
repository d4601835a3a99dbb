//! Tests of the store, with damage, crashes and concurrent writers.

use tempfile::TempDir;

use super::*;

fn manifest(name: &str, version: &str) -> Manifest {
    let text = format!("abi = 1\nname = \"{name}\"\nversion = \"{version}\"\nwindow = 96\n");
    Manifest::parse(&text).unwrap()
}

fn store() -> (TempDir, Store) {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path().join("modules")).unwrap();
    (directory, store)
}

fn wasm(body: &str) -> Vec<u8> {
    wat::parse_str(format!("(module (func (export \"on_packet\") (result i32) {body}))")).unwrap()
}

/// Returns every file below a directory with its content, except the lock.
fn files_of(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for item in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        if item.file_type().unwrap().is_dir() {
            found.extend(files_of(&item.path()));
        } else if item.file_name() != ".lock" {
            found.push((item.path(), fs::read(item.path()).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn a_module_is_found_by_each_of_its_names() {
    let (_directory, store) = store();
    let bytes = wasm("i32.const 0");
    let digest = store.put(&bytes, &manifest("monitor", "0.1.0")).unwrap();
    assert_eq!(digest, Digest::of(&bytes));
    let hex = digest.hex();
    let prefixed = format!("sha256:{}", &hex[..10]);
    for name in ["monitor", "monitor:0.1.0", &digest.to_string(), &hex, &hex[..8], &prefixed] {
        assert_eq!(store.resolve(name).unwrap(), digest, "{name}");
    }
    assert_eq!(store.get(&digest).unwrap(), bytes);
    let again = Store::open(store.directory()).unwrap();
    assert_eq!(again.list().unwrap().modules[0].reference.as_deref(), Some("monitor:0.1.0"));
}

#[test]
fn a_missing_module_is_answered_with_similar_names() {
    let (_directory, store) = store();
    let digest = store.put(&wasm("i32.const 0"), &manifest("monitor", "0.1.0")).unwrap();
    let error = store.resolve("monitr").unwrap_err();
    assert!(error.is_not_found());
    assert!(error.to_string().ends_with("did you mean 'monitor:0.1.0'?"), "{error}");
    for absent in ["monitor:0.2.0", "", "../../etc/passwd", &digest.hex()[..7], "00000000"] {
        assert!(store.resolve(absent).unwrap_err().is_not_found(), "{absent}");
    }
    let short = format!("sha256:{}", &digest.hex()[..7]);
    assert!(matches!(store.resolve(&short), Err(StoreError::PrefixTooShort { .. })));
    assert!(store.get(&Digest::of(b"other")).unwrap_err().is_not_found());
}

#[test]
fn a_name_of_two_versions_is_not_guessed() {
    let (_directory, store) = store();
    store.put(&wasm("i32.const 0"), &manifest("monitor", "0.1.0")).unwrap();
    let second = store.put(&wasm("i32.const 1"), &manifest("monitor", "0.2.0")).unwrap();
    let message = store.resolve("monitor").unwrap_err().to_string();
    assert!(message.contains("monitor:0.1.0, monitor:0.2.0"), "{message}");
    assert_eq!(store.resolve("monitor:0.2.0").unwrap(), second);
}

#[test]
fn a_later_push_takes_the_name_and_the_first_keeps_its_digest() {
    let (_directory, store) = store();
    let manifest = manifest("monitor", "0.1.0");
    let first = store.put(&wasm("i32.const 0"), &manifest).unwrap();
    let second = store.put(&wasm("i32.const 1"), &manifest).unwrap();
    assert_eq!(store.resolve("monitor").unwrap(), second);
    assert_eq!(store.resolve(&first.to_string()).unwrap(), first);
    assert_eq!(store.put(&wasm("i32.const 0"), &manifest).unwrap(), first);
    assert_eq!(store.resolve("monitor").unwrap(), first);
    assert_eq!(store.list().unwrap().modules.len(), 2);
}

#[test]
fn put_keeping_names_takes_only_a_free_name() {
    let (_directory, store) = store();
    let [first, second] = ["i32.const 0", "i32.const 1"].map(wasm);
    let wanted = manifest("monitor", "0.1.0");
    let beside = |bytes: &[u8]| store.put_keeping_names(None, bytes, &wanted).unwrap();
    let (one, two) = (beside(&first), beside(&second));
    assert_eq!(store.resolve("monitor:0.1.0").unwrap(), one, "the name was free");
    assert_eq!(store.get(&two).unwrap(), second, "by its digest it is there");
    assert_eq!(store.resolve(&two.to_string()).unwrap(), two);
    let before = files_of(store.directory());
    assert_eq!([beside(&first), beside(&second)], [one, two]);
    assert_eq!(files_of(store.directory()), before);
    // A put by name takes the name over.
    store.put(&second, &wanted).unwrap();
    assert_eq!(store.resolve("monitor").unwrap(), two);
    assert_eq!(store.get(&one).unwrap(), first);
}

#[test]
fn putting_twice_changes_nothing() {
    let (_directory, store) = store();
    let (bytes, manifest) = (wasm("i32.const 0"), manifest("monitor", "0.1.0"));
    store.put(&bytes, &manifest).unwrap();
    let before = files_of(store.directory());
    store.put(&bytes, &manifest).unwrap();
    assert_eq!(files_of(store.directory()), before);
    assert_eq!(before.len(), 5, "oci-layout, index, manifest, config, module");
}

#[test]
fn every_flipped_byte_is_noticed_and_a_push_heals() {
    let (_directory, store) = store();
    let (bytes, manifest) = (wasm("i32.const 0"), manifest("monitor", "0.1.0"));
    let digest = store.put(&bytes, &manifest).unwrap();
    let path = store.directory.blob_path(&digest);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&path, damaged).unwrap();
        let message = store.get(&digest).unwrap_err().to_string();
        assert!(message.contains(&digest.hex()) && message.contains("damaged"), "{message}");
    }
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(matches!(store.get(&digest), Err(StoreError::Damaged { .. })));
    store.put(&bytes, &manifest).unwrap();
    assert_eq!(store.get(&digest).unwrap(), bytes);
}

#[test]
fn a_damaged_image_does_not_hide_the_others() {
    let (_directory, store) = store();
    store.put(&wasm("i32.const 0"), &manifest("monitor", "0.1.0")).unwrap();
    let good = store.put(&wasm("i32.const 1"), &manifest("touch", "0.1.0")).unwrap();
    let image = store.list().unwrap().modules[0].image;
    fs::write(store.directory.blob_path(&image), b"{}").unwrap();
    assert!(matches!(store.resolve("monitor"), Err(StoreError::Damaged { .. })));
    assert_eq!(store.resolve("touch").unwrap(), good);
    let listing = store.list().unwrap();
    assert_eq!((listing.modules.len(), listing.refused.len()), (1, 1));
    store.remove(&image).unwrap();
    assert!(store.resolve("monitor").unwrap_err().is_not_found());
}

#[test]
fn a_writer_that_crashes_at_any_moment_leaves_a_consistent_store() {
    let (_directory, store) = store();
    let first = store.put(&wasm("i32.const 0"), &manifest("monitor", "0.1.0")).unwrap();
    let before = files_of(store.directory());
    let (bytes, next) = (wasm("i32.const 1"), manifest("touch", "0.1.0"));
    let second = store.put(&bytes, &next).unwrap();
    let after = files_of(store.directory());
    let documents = layout::documents(&bytes, &next).unwrap();
    let blobs = [&bytes, &documents.config, &documents.image].map(|blob| Digest::of(blob));

    // Order of writing: each state between two renames has to be a consistent store.
    for written in 0..=blobs.len() {
        for (path, _) in &after {
            fs::remove_file(path).unwrap();
        }
        for (path, bytes) in &before {
            fs::write(path, bytes).unwrap();
        }
        for blob in &blobs[..written] {
            let path = store.directory.blob_path(blob);
            let (_, bytes) = after.iter().find(|(known, _)| *known == path).unwrap();
            fs::write(&path, bytes).unwrap();
        }
        let partial = store.directory().join(".partial");
        fs::create_dir_all(&partial).unwrap();
        fs::write(partial.join("unfinished"), b"half").unwrap();

        let reopened = Store::open(store.directory()).unwrap();
        let listing = reopened.list().unwrap();
        assert!(listing.refused.is_empty(), "{:?}", listing.refused);
        assert_eq!(reopened.resolve("monitor").unwrap(), first);
        assert!(reopened.resolve("touch").unwrap_err().is_not_found());
        assert_eq!(reopened.put(&bytes, &next).unwrap(), second);
        assert_eq!(files_of(store.directory()), after, "nothing half done is left");
    }
}

#[test]
fn writers_at_the_same_time_lose_nothing() {
    let (_directory, store) = store();
    std::thread::scope(|scope| {
        // Readers without the lock never see a name that points at nothing.
        scope.spawn(|| {
            for _ in 0..300 {
                let listing = store.list().unwrap();
                assert!(listing.refused.is_empty(), "{:?}", listing.refused);
            }
        });
        for thread in 0..4 {
            let directory = store.directory();
            scope.spawn(move || {
                let store = Store::open(directory).unwrap();
                for version in 0..5 {
                    let body = format!("i32.const {version}");
                    let shared = manifest("shared", &format!("0.{version}.0"));
                    store.put(&wasm(&body), &shared).unwrap();
                    let own = manifest(&format!("own-{thread}"), &format!("0.{version}.0"));
                    let body = format!("i32.const {}", 100 * (thread + 1) + version);
                    store.put(&wasm(&body), &own).unwrap();
                }
            });
        }
    });
    let listing = store.list().unwrap();
    assert_eq!((listing.modules.len(), listing.refused.len()), (5 + 4 * 5, 0));
    for module in listing.modules {
        assert_eq!(store.get(&module.digest).unwrap().len() as u64, module.bytes);
    }
}

#[test]
fn stores_made_at_the_same_time_are_one() {
    let directory = TempDir::new().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let path = directory.path();
            scope.spawn(move || {
                let store = Store::open(path).unwrap();
                let own = manifest(&format!("own-{thread}"), "0.1.0");
                store.put(&wasm(&format!("i32.const {thread}")), &own).unwrap();
            });
        }
    });
    assert_eq!(Store::open(directory.path()).unwrap().list().unwrap().modules.len(), 4);
}

#[test]
fn removing_a_module_keeps_blobs_that_others_need() {
    let (_directory, store) = store();
    let empty = files_of(store.directory());
    let shared = wasm("i32.const 0");
    let digest = store.put(&shared, &manifest("monitor", "0.1.0")).unwrap();
    store.put(&shared, &manifest("alias", "0.1.0")).unwrap();
    let other = store.put(&wasm("i32.const 1"), &manifest("touch", "0.1.0")).unwrap();
    let mut names = store.remove(&digest).unwrap();
    names.sort();
    assert_eq!(names, ["alias:0.1.0", "monitor:0.1.0"]);
    assert!(store.get(&digest).unwrap_err().is_not_found());
    assert!(store.remove(&digest).unwrap_err().is_not_found());
    assert!(store.get(&other).is_ok());
    store.remove(&other).unwrap();
    assert_eq!(files_of(store.directory()), empty, "nothing is left behind");
}

#[test]
fn a_directory_with_something_else_is_left_alone() {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("letter.txt"), b"dear").unwrap();
    let error = Store::open(directory.path()).unwrap_err();
    assert!(matches!(error, StoreError::NotAStore { .. }), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);

    let directory = TempDir::new().unwrap();
    let layout = r#"{"imageLayoutVersion":"9.0.0"}"#;
    fs::write(directory.path().join("oci-layout"), layout).unwrap();
    assert!(matches!(Store::open(directory.path()), Err(StoreError::NotAStore { .. })));
}

#[test]
fn a_malformed_index_is_an_error_with_its_path() {
    let (_directory, store) = store();
    let path = store.directory().join("index.json");
    for bad in ["", "{", "[]", r#"{"schemaVersion":2,"manifests":[{"digest":"sha256:../.."}]}"#] {
        fs::write(&path, bad).unwrap();
        let error = store.list().unwrap_err();
        assert!(matches!(error, StoreError::Document { .. }), "{error}");
        assert!(error.to_string().contains("index.json"));
    }
}

#[test]
fn index_fields_of_other_tools_are_preserved() {
    let (_directory, store) = store();
    let path = store.directory().join("index.json");
    let foreign = format!(
        r#"{{"schemaVersion":2,"annotations":{{"a":"b"}},"manifests":[{{"mediaType":"{}","digest":"{}","size":2,"platform":{{"os":"linux"}}}}]}}"#,
        layout::INDEX_TYPE,
        Digest::of(b"{}")
    );
    fs::write(&path, foreign).unwrap();
    store.put(&wasm("i32.const 0"), &manifest("monitor", "0.1.0")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(index["annotations"]["a"], "b");
    assert_eq!(index["manifests"][0]["platform"]["os"], "linux");
    let listing = store.list().unwrap();
    assert_eq!((listing.modules.len(), listing.refused.len()), (1, 1));
}

#[test]
fn a_module_beyond_the_limit_is_refused() {
    let (_directory, store) = store();
    let bytes = vec![0; usize::try_from(MODULE_LENGTH_MAX).unwrap() + 1];
    let error = store.put(&bytes, &manifest("monitor", "0.1.0")).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
}

/// Checked by hand with skopeo 1.9.3: `skopeo copy oci:DIR:monitor:0.1.0 oci:OTHER:monitor:0.1.0`
/// copies the module, and this store lists it in OTHER.
#[test]
fn the_documents_are_those_of_the_wasm_artifact_layout() {
    let (_directory, store) = store();
    let bytes = wasm("i32.const 0");
    let digest = store.put(&bytes, &manifest("monitor", "0.1.0")).unwrap();
    let read = |digest: &str| -> serde_json::Value {
        let path = store.directory.blob_path(&digest.parse().unwrap());
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    };
    let path = store.directory().join("index.json");
    let index: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let entry = &index["manifests"][0];
    assert_eq!(entry["annotations"]["org.opencontainers.image.ref.name"], "monitor:0.1.0");
    assert_eq!(entry["annotations"]["io.tamandua.abi"], "1");
    let image = read(entry["digest"].as_str().unwrap());
    assert_eq!(image["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    assert_eq!(image["config"]["mediaType"], "application/vnd.wasm.config.v0+json");
    assert_eq!(image["layers"][0]["mediaType"], "application/wasm");
    assert_eq!(image["layers"][0]["digest"], digest.to_string());
    assert_eq!(image["layers"][0]["size"], bytes.len());
    let config = read(image["config"]["digest"].as_str().unwrap());
    assert_eq!(config["architecture"], "wasm");
    assert_eq!(config["os"], "wasip1");
    assert_eq!(config["layerDigests"][0], digest.to_string());
}
