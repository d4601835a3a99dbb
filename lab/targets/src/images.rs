//! Any bytes as registries' documents: manifests, indexes, archives, challenges; and as references.

use module_store::layout::{INDEX_TYPE, MANIFEST_TYPE, documents};
use module_store::{Digest, MODULE_LENGTH_MAX};
use oci_client::Reference;
use oci_client::auth::Challenge;
use oci_client::image::{self, Document, Packing};
use oci_client::unpack;

pub fn read(bytes: &[u8]) {
    let contains = |digest: &Digest| {
        let text = digest.to_string();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
            // A text may be written with escapes.
            || bytes.contains(&b'\\')
    };
    for said in [None, Some(MANIFEST_TYPE), Some(INDEX_TYPE), Some("text/plain")] {
        match image::read(bytes, said) {
            Ok(Document::Image(image)) => {
                assert!(said != Some(INDEX_TYPE) && contains(&image.layer.digest));
            }
            Ok(Document::Index(entries)) => {
                assert!(said != Some(MANIFEST_TYPE));
                assert!(entries.iter().all(|entry| contains(&entry.digest)));
            }
            Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
        }
    }
    if let Ok(module) = unpack::module(bytes.to_vec(), Packing::Tar) {
        assert!(module.len() as u64 <= MODULE_LENGTH_MAX);
    }
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Ok(reference) = text.parse::<Reference>() {
        assert_eq!(reference.to_string().parse(), Ok(reference));
    }
    for challenge in Challenge::all_of(text) {
        assert!(!matches!(challenge, Challenge::Bearer { realm, .. } if realm.len() > text.len()));
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let manifest = "abi = 1\nname = \"monitor\"\nversion = \"0.1.0\"\nwindow = 96\n";
    let manifest = abi::Manifest::parse(manifest).expect("it is whole");
    let made = documents(b"\0asm", &manifest).expect("texts become JSON");
    let digest = made.entry.digest;
    let index = format!(
        r#"{{"schemaVersion":2,"mediaType":"{INDEX_TYPE}","manifests":[{{"mediaType":"{MANIFEST_TYPE}","digest":"{digest}","size":7,"platform":{{"os":"wasip1","architecture":"wasm"}}}}]}}"#
    );
    let mut archive = vec![0; 2048];
    archive[..11].copy_from_slice(b"plugin.wasm");
    archive[124..136].copy_from_slice(b"00000000004\0");
    archive[156] = b'0';
    archive[148..156].fill(b' ');
    let sum: u32 = archive[..512].iter().map(|byte| u32::from(*byte)).sum();
    archive[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive[512..516].copy_from_slice(b"\0asm");
    let challenge =
        br#"Bearer realm="https://auth.test/token",service="one",scope="repository:a:pull""#;
    let references = ["localhost:5000/team/monitor:0.1.0", "[::1]:5000/m"];
    let mut seeds = vec![made.image, index.into_bytes(), archive, challenge.to_vec()];
    seeds.extend(references.map(|text| text.as_bytes().to_vec()));
    seeds.push(format!("ghcr.io/monitor@{digest}").into_bytes());
    seeds
}
