//! Images in the forms of other tools, each read from a directory and pulled from a registry with
//! the same content: both yield the same module, or the same refusal.
//!
//! The forms are those of docker buildx, oras, wasm-to-oci, and of what docker/buildx#1509,
//! engineerd/wasm-to-oci#45, containerd/runwasi#1101 and higress-group/higress#4014 report.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use module_store::layout::{INDEX_TYPE, MANIFEST_TYPE};
use module_store::{Digest, Store};
use oci_client::{Client, Pulled, Reference, RepositoryError, Settings, directory, pull};
use serde_json::{Value, json};
use tempfile::TempDir;
use trust::{ImageDigest, Signature};

use super::world::{Reply, World, key, module, signer};

const EMPTY: &str = "application/vnd.oci.empty.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const TAR_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const TAR: &str = "application/vnd.oci.image.layer.v1.tar";
const WASM: &str = "application/wasm";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

/// Directory in OCI layout under construction.
struct Layout(TempDir);

impl Layout {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        std::fs::create_dir_all(folder.path().join("blobs/sha256")).unwrap();
        std::fs::write(folder.path().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)
            .unwrap();
        Self(folder)
    }

    fn blob(&self, bytes: &[u8], media_type: &str) -> Value {
        let digest = Digest::of(bytes);
        std::fs::write(self.0.path().join("blobs/sha256").join(digest.hex()), bytes).unwrap();
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    }

    fn document(&self, document: &Value, media_type: &str) -> Value {
        self.blob(document.to_string().as_bytes(), media_type)
    }

    /// Adds an image of these layers; `architecture` makes its manifest distinct.
    fn image_for(&self, architecture: &str, layers: &[Value]) -> Value {
        let config = json!({"architecture": architecture, "os": "linux"});
        let config = self.document(&config, CONFIG);
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": layers
        });
        self.document(&manifest, MANIFEST_TYPE)
    }

    fn image(&self, layers: &[Value]) -> Value {
        self.image_for("amd64", layers)
    }

    /// Adds an artifact in the form of oras.
    fn artifact(&self, layers: &[Value]) -> Value {
        let config = self.blob(b"{}", EMPTY);
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": layers,
            "artifactType": "application/vnd.example.filter"
        });
        self.document(&manifest, MANIFEST_TYPE)
    }

    fn index(&self, entries: &[Value]) -> Value {
        let index = json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries});
        self.document(&index, INDEX_TYPE)
    }

    fn attestation(&self, of: &Value) -> Value {
        let statement = json!({"_type": "https://in-toto.io/Statement/v0.1"});
        let layer = self.document(&statement, "application/vnd.in-toto+json");
        let mut entry = on(self.image(&[layer]), "unknown", "unknown");
        entry["annotations"] = json!({
            "vnd.docker.reference.digest": of["digest"],
            "vnd.docker.reference.type": "attestation-manifest"
        });
        entry
    }

    fn packed(&self, wasm: &[u8]) -> Value {
        self.blob(&gzip(&tar("plugin.wasm", wasm)), TAR_GZIP)
    }

    /// Makes an entry the only one, with the name `v1`.
    fn top(&self, entry: &Value) {
        let mut entry = entry.clone();
        entry["annotations"]["org.opencontainers.image.ref.name"] = json!("v1");
        self.entries(&[entry]);
    }

    fn entries(&self, entries: &[Value]) {
        let index = json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries});
        std::fs::write(self.0.path().join("index.json"), index.to_string()).unwrap();
    }

    fn store(&self) -> Store {
        Store::open(self.0.path()).unwrap()
    }
}

/// Sets the platform of an entry.
fn on(mut entry: Value, system: &str, architecture: &str) -> Value {
    entry["platform"] = json!({"os": system, "architecture": architecture});
    entry
}

fn tar(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_cksum();
    builder.append_data(&mut header, name, bytes).unwrap();
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns the responses of a registry with the content of a directory.
fn answers(folder: &Path) -> HashMap<String, Reply> {
    let index: Value =
        serde_json::from_slice(&std::fs::read(folder.join("index.json")).unwrap()).unwrap();
    let mut answers = HashMap::new();
    for file in std::fs::read_dir(folder.join("blobs/sha256")).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let digest = format!("sha256:{}", path.file_name().unwrap().to_str().unwrap());
        answers.insert(format!("blobs/{digest}"), Reply::ok(&bytes));
        answers.insert(format!("manifests/{digest}"), Reply::ok(&bytes));
    }
    for entry in index["manifests"].as_array().unwrap() {
        let Some(name) = entry["annotations"]["org.opencontainers.image.ref.name"].as_str() else {
            continue;
        };
        let digest = entry["digest"].as_str().unwrap();
        let reply = answers[&format!("manifests/{digest}")].clone();
        let reply = reply.with("Content-Type", entry["mediaType"].as_str().unwrap());
        answers.insert(format!("manifests/{name}"), reply);
    }
    answers
}

async fn pulled(layout: &Layout, suffix: &str) -> Result<Pulled, RepositoryError> {
    let world = Arc::new(World::default());
    world.answers("one.test", answers(layout.0.path()));
    let reference: Reference = format!("one.test/monitor{suffix}").parse().unwrap();
    let client = Client::new(world, &reference.registry, Settings::default());
    pull(&client, &reference, None).await
}

/// Reads the module `v1` from the directory, and pulls it from a registry.
async fn both(layout: &Layout) -> [Result<Pulled, RepositoryError>; 2] {
    [directory::read(&layout.store(), "v1"), pulled(layout, ":v1").await]
}

/// Test case: its name, and a function that makes its entry from a module.
type Case = (&'static str, fn(&Layout, &[u8]) -> Value);

/// Images that contain the module, in all supported forms.
const TAKEN: [Case; 19] = [
    ("buildx with provenance", |l, wasm| {
        let image = on(l.image(&[l.packed(wasm)]), "linux", "amd64");
        l.index(&[image.clone(), l.attestation(&image)])
    }),
    ("buildx for wasi/wasm with provenance", |l, wasm| {
        let image = on(l.image(&[l.packed(wasm)]), "wasi", "wasm");
        l.index(&[l.attestation(&image), image])
    }),
    ("an attestation without the annotation", |l, wasm| {
        let image = on(l.image(&[l.packed(wasm)]), "linux", "amd64");
        let statement = l.blob(b"{}", "application/vnd.in-toto+json");
        l.index(&[image, on(l.image(&[statement]), "unknown", "unknown")])
    }),
    ("an index of one image for amd64", |l, wasm| {
        l.index(&[on(l.image(&[l.packed(wasm)]), "linux", "amd64")])
    }),
    ("one image for amd64 and arm64", |l, wasm| {
        let image = l.image(&[l.packed(wasm)]);
        l.index(&["amd64", "arm64"].map(|architecture| on(image.clone(), "linux", architecture)))
    }),
    ("two images of one layer", |l, wasm| {
        let image = |architecture: &str| {
            on(l.image_for(architecture, &[l.packed(wasm)]), "linux", architecture)
        };
        l.index(&[image("amd64"), image("arm64")])
    }),
    ("an image beside one without a module", |l, wasm| {
        let other = l.image_for("arm64", &[l.blob(b"text", "text/plain")]);
        let image = on(l.image(&[l.packed(wasm)]), "linux", "amd64");
        l.index(&[on(other, "linux", "arm64"), image])
    }),
    ("an index whose other images were not copied", |l, wasm| {
        let missing = json!({
            "mediaType": MANIFEST_TYPE, "digest": Digest::of(b"not here"), "size": 8
        });
        l.index(&[on(missing, "linux", "arm64"), on(l.image(&[l.packed(wasm)]), "linux", "amd64")])
    }),
    ("an index in an index", |l, wasm| l.index(&[l.index(&[l.image(&[l.packed(wasm)])])])),
    ("oras", |l, wasm| l.artifact(&[l.blob(wasm, WASM)])),
    ("oras with two files", |l, wasm| {
        l.artifact(&[l.blob(wasm, WASM), l.blob(b"# readme", "text/markdown")])
    }),
    ("three layers, the module last", |l, wasm| {
        let other = |name: &str| l.blob(&gzip(&tar(name, b"x")), TAR_GZIP);
        l.image(&[other("spec.yaml"), other("README.md"), l.packed(wasm)])
    }),
    ("a manifest without a media type", |l, wasm| {
        let (config, layer) = (l.document(&json!({}), CONFIG), l.blob(wasm, WASM));
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]});
        l.document(&manifest, MANIFEST_TYPE)
    }),
    ("a list of docker's", |l, wasm| {
        let layer = l.blob(&gzip(&tar("./plugin.wasm", wasm)), DOCKER_LAYER);
        let config = l.blob(b"{}", "application/vnd.docker.container.image.v1+json");
        let manifest = json!({
            "schemaVersion": 2, "mediaType": DOCKER_MANIFEST, "config": config, "layers": [layer]
        });
        let image = on(l.document(&manifest, DOCKER_MANIFEST), "linux", "amd64");
        let list = json!({"schemaVersion": 2, "mediaType": DOCKER_LIST, "manifests": [image]});
        l.document(&list, DOCKER_LIST)
    }),
    ("gzip in two members", |l, wasm| {
        let tar = tar("plugin.wasm", wasm);
        let members = [gzip(&tar[..300]), gzip(&tar[300..])].concat();
        l.image(&[l.blob(&members, TAR_GZIP)])
    }),
    ("an archive that is compressed against its type", |l, wasm| {
        l.image(&[l.blob(&gzip(&tar("plugin.wasm", wasm)), TAR)])
    }),
    ("an archive that is not compressed against its type", |l, wasm| {
        l.image(&[l.blob(&tar("plugin.wasm", wasm), TAR_GZIP)])
    }),
    ("wasm-to-oci", |l, wasm| {
        let layer = l.blob(wasm, "application/vnd.wasm.content.layer.v1+wasm");
        l.image(&[layer])
    }),
    ("descriptors with data", |l, wasm| {
        let mut layer = l.blob(wasm, WASM);
        layer["data"] = json!("AGFzbQ==");
        l.artifact(&[layer])
    }),
];

#[tokio::test(start_paused = true)]
async fn images_of_other_tools_are_taken_from_a_directory_as_from_a_registry() {
    let wasm = module("1.0.0");
    for (name, entry) in TAKEN {
        let layout = Layout::new();
        layout.top(&entry(&layout, &wasm));
        for pulled in both(&layout).await {
            let pulled = pulled.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(pulled.digest, Digest::of(&wasm), "{name}");
            // The module is stored, in any form, and found by its digest.
            let folder = TempDir::new().unwrap();
            let store = Store::open(folder.path()).unwrap();
            pulled.store(&store).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(store.get(&pulled.digest).unwrap(), wasm, "{name}");
        }
        // Its only module needs no name.
        let alone = directory::read(&layout.store(), "").unwrap();
        assert_eq!(alone.digest, Digest::of(&wasm), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn images_without_a_clear_module_are_refused_with_the_reason() {
    let cases: [(Case, &str); 10] = [
        (
            ("oras without a type", |l, wasm| l.artifact(&[l.blob(wasm, TAR)])),
            "oras push FILE:application/wasm",
        ),
        (
            ("the module is not in the last layer", |l, wasm| {
                l.image(&[l.packed(wasm), l.blob(&gzip(&tar("README.md", b"x")), TAR_GZIP)])
            }),
            "there is no file plugin.wasm in it",
        ),
        (
            ("zstd", |l, _| {
                l.image(&[l.blob(b"\x28\xb5\x2f\xfd", &TAR_GZIP.replace("gzip", "zstd"))])
            }),
            "zstd",
        ),
        (
            ("two modules", |l, wasm| {
                l.artifact(&[l.blob(wasm, WASM), l.blob(&module("2.0.0"), WASM)])
            }),
            "the image holds no module: it has the layers application/wasm, application/wasm",
        ),
        (
            ("different modules for two platforms", |l, wasm| {
                let image = |wasm: &[u8], architecture: &str| {
                    on(l.image(&[l.packed(wasm)]), "linux", architecture)
                };
                l.index(&[image(wasm, "amd64"), image(&module("2.0.0"), "arm64")])
            }),
            "leads to several modules: sha256:",
        ),
        (
            ("attestations alone", |l, wasm| {
                l.index(&[l.attestation(&l.image(&[l.packed(wasm)]))])
            }),
            "no image with a module",
        ),
        (
            ("a layer whose size lies", |l, wasm| {
                let mut layer = l.blob(wasm, WASM);
                layer["size"] = json!(wasm.len() - 1);
                l.image(&[layer])
            }),
            "says",
        ),
        (
            ("a layer that is shorter than it says", |l, wasm| {
                let mut layer = l.packed(wasm);
                layer["size"] = json!(layer["size"].as_u64().unwrap() + 1);
                l.image(&[layer])
            }),
            "",
        ),
        (
            ("a manifest whose size lies", |l, wasm| {
                let mut image = l.image(&[l.packed(wasm)]);
                image["size"] = json!(7);
                l.index(&[image])
            }),
            "but its descriptor says 7",
        ),
        (
            ("an image that is not there", |l, _| {
                let digest = Digest::of(b"not here");
                l.index(&[json!({"mediaType": MANIFEST_TYPE, "digest": digest, "size": 8})])
            }),
            "does not have",
        ),
    ];
    for ((name, entry), says) in cases {
        let layout = Layout::new();
        layout.top(&entry(&layout, &module("1.0.0")));
        for result in both(&layout).await {
            let error = result.map(|pulled| pulled.digest).expect_err(name).to_string();
            assert!(error.contains(says), "{name}: {error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_signature_of_any_of_the_indexes_counts_while_it_is_pulled() {
    let wasm = module("1.0.0");
    // The image, the nested index, and the outer index.
    for signed in 0..3 {
        let layout = Layout::new();
        let image = layout.image(&[layout.packed(&wasm)]);
        let inner = layout.index(std::slice::from_ref(&image));
        let outer = layout.index(std::slice::from_ref(&inner));
        layout.top(&outer);
        let digest: Digest =
            [&image, &inner, &outer][signed]["digest"].as_str().unwrap().parse().unwrap();
        let about = ImageDigest(*digest.bytes());
        let signature = Signature::new(&key(1), &about, "monitor");
        layout.store().put_signature(&digest, &signature).unwrap();
        for pulled in both(&layout).await {
            let pulled = pulled.unwrap();
            assert_eq!(pulled.verified(&[signer(1)].into()).signers, [signer(1)].into());
            assert_eq!(pulled.image, digest);
            // The signature is about the archive or the index, so not about the stored image.
            assert!(!pulled.keeps_signatures() && pulled.own_signatures().is_empty());
        }
    }
}

#[test]
fn images_of_a_directory_are_distinguished_by_name() {
    let layout = Layout::new();
    let named = |version: &str, name: &str| {
        let mut image = layout.image(&[layout.packed(&module(version))]);
        image["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        image
    };
    let [one, two] = [named("1.0.0", "a:1"), named("2.0.0", "a:2")];
    let digest = one["digest"].as_str().unwrap().to_owned();
    layout.entries(&[one, two]);
    let store = layout.store();
    let read = |name: &str| directory::read(&store, name).map(|pulled| pulled.digest);
    let says = |name: &str| read(name).unwrap_err().to_string();
    assert_eq!(read("a:2").unwrap(), Digest::of(&module("2.0.0")));
    assert_eq!(read(&digest).unwrap(), Digest::of(&module("1.0.0")), "by the image's digest");
    assert_eq!(read(&digest[7..19]).unwrap(), Digest::of(&module("1.0.0")));
    assert!(says("a").contains("'a' matches several modules: a:1, a:2"), "{}", says("a"));
    assert!(says("").contains("has several modules: a:1, a:2"), "{}", says(""));
    assert!(says("b").contains("there is no module 'b'"), "{}", says("b"));
    layout.entries(&[]);
    let empty = directory::read(&layout.store(), "").unwrap_err().to_string();
    assert!(empty.contains("there is no module in"), "{empty}");
}
