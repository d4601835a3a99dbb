//! Compatibility with cosign: its signature of a golden module, byte for byte (vectors/cosign).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use module_store::Digest;
use module_store::layout::{Image, documents};
use module_store::signatures::{layers, of_layer};
use trust::signature::signers;
use trust::{ImageDigest, Signature, Signer};

fn file(name: &str) -> Vec<u8> {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read(root.join("vectors").join(name)).unwrap()
}

/// Returns the golden module's image, cosign's signature of it, and the key.
fn cosigned() -> (ImageDigest, Signature, BTreeSet<Signer>) {
    let wasm = file("v1/abi/monitor.wasm");
    let checked = abi::Unverified(&wasm).check().unwrap();
    let image = documents(&wasm, &checked.manifest).unwrap().entry.digest;
    let holder: Image = serde_json::from_slice(&file("cosign/image.json")).unwrap();
    let payload = file("cosign/payload.json");
    let layer = layers(&holder).next().unwrap();
    assert_eq!(layer.digest, Digest::of(&payload));
    let signature = of_layer(layer, payload).unwrap();
    let key = Signer::from_pem(&String::from_utf8(file("cosign/cosign.pub")).unwrap()).unwrap();
    (ImageDigest(*image.bytes()), signature, [key].into())
}

#[test]
fn cosigns_signature_of_a_module_is_good() {
    let (image, signature, known) = cosigned();
    assert_eq!(signers(&image, &[signature], &known).signers, known);
}

#[test]
fn every_changed_bit_of_cosigns_payload_and_signature_is_refused() {
    let (image, signature, known) = cosigned();
    let is_good = |signature: Signature| !signers(&image, &[signature], &known).signers.is_empty();
    for bit in 0..signature.payload.len() * 8 {
        let mut changed = signature.clone();
        changed.payload[bit / 8] ^= 1 << (bit % 8);
        assert!(!is_good(changed), "bit {bit} of the payload");
    }
    for bit in 0..signature.bytes.len() * 8 {
        let mut changed = signature.clone();
        changed.bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(!is_good(changed), "bit {bit} of the signature");
    }
}
