//! Tests of signatures in a store: found with their module, stored, damaged, removed.

use std::fs;

use abi::Manifest;
use tempfile::TempDir;
use trust::{SecretKey, Seed};

use super::*;
use crate::Store;

fn key(byte: u8) -> SecretKey {
    SecretKey::from_seed(&Seed::from([byte; 32]))
}

fn signer(byte: u8) -> Signer {
    key(byte).public().into()
}

fn manifest(name: &str) -> Manifest {
    Manifest::parse(&format!("abi = 1\nname = \"{name}\"\nversion = \"0.1.0\"\nwindow = 96\n"))
        .unwrap()
}

/// Makes a store with one module; returns the module's digest and its image's.
fn store() -> (TempDir, Store, Digest, Digest) {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let module = store.put(b"\0asm a module", &manifest("monitor")).unwrap();
    let image = *store.images_of(&module).unwrap().first().unwrap();
    (directory, store, module, image)
}

fn sign(store: &Store, image: &Digest, by: u8) {
    let signature = Signature::new(&key(by), &ImageDigest(*image.bytes()), "monitor");
    store.put_signature(image, &signature).unwrap();
}

#[test]
fn a_module_is_read_with_all_its_signers() {
    let (_directory, store, module, image) = store();
    let known = [signer(1), signer(2)].into();
    assert_eq!(store.verified(&module, &known).unwrap().verified, Verified::default());
    for by in [1, 2, 3, 1] {
        sign(&store, &image, by);
    }
    let read = store.verified(&module, &known).unwrap();
    assert_eq!(read.wasm, b"\0asm a module");
    assert_eq!(read.verified.signers, known);
    assert_eq!(read.verified.strangers, [signer(3)].into());
    assert_eq!(store.signatures(&image).unwrap().len(), 3);
    // Signatures are not listed as modules.
    let listing = store.list().unwrap();
    assert_eq!((listing.modules.len(), listing.refused.len()), (1, 0));
    assert_eq!(store.resolve("monitor").unwrap(), module);
}

#[test]
fn a_signature_of_one_module_is_none_of_another() {
    let (_directory, store, _, image) = store();
    sign(&store, &image, 1);
    let signature = store.signatures(&image).unwrap().remove(0);
    let other = store.put(b"\0asm another", &manifest("touch")).unwrap();
    let other_image = *store.images_of(&other).unwrap().first().unwrap();
    store.put_signature(&other_image, &signature).unwrap();
    let read = store.verified(&other, &[signer(1)].into()).unwrap();
    assert!(read.verified.signers.is_empty());
    assert_eq!(read.verified.refused.len(), 1);
}

#[test]
fn every_flipped_byte_of_a_signed_module_and_its_documents_is_refused() {
    let (directory, store, module, image) = store();
    sign(&store, &image, 1);
    let known = [signer(1)].into();
    let mut files = 0;
    for file in fs::read_dir(directory.path().join("blobs/sha256")).unwrap() {
        let path = file.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        // The config is neither signed nor run.
        let is_config = String::from_utf8_lossy(&bytes).starts_with("{\"architecture\"");
        for at in (0..bytes.len()).filter(|_| !is_config) {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            fs::write(&path, changed).unwrap();
            let accepted =
                store.verified(&module, &known).is_ok_and(|read| !read.verified.signers.is_empty());
            assert!(!accepted, "byte {at} of {}", path.display());
        }
        fs::write(&path, bytes).unwrap();
        files += 1;
    }
    assert_eq!(files, 6, "module, config, image; payload, config, image of the signature");
    assert_eq!(store.verified(&module, &known).unwrap().verified.signers, known);
}

#[test]
fn the_bytes_returned_are_those_that_were_hashed() {
    let (directory, store, module, image) = store();
    sign(&store, &image, 1);
    let read = store.verified(&module, &[signer(1)].into()).unwrap();
    fs::write(directory.path().join("blobs/sha256").join(module.hex()), b"\0asm swapped").unwrap();
    assert_eq!(Digest::of(&read.wasm), read.digest);
    assert!(matches!(store.verified(&module, &BTreeSet::new()), Err(StoreError::Damaged { .. })));
}

#[test]
fn signatures_go_with_their_module() {
    let (directory, store, module, image) = store();
    let other = store.put(b"\0asm another", &manifest("touch")).unwrap();
    sign(&store, &image, 1);
    sign(&store, store.images_of(&other).unwrap().first().unwrap(), 1);
    assert_eq!(store.remove(&module).unwrap(), ["monitor:0.1.0"]);
    assert_eq!(store.verified(&other, &[signer(1)].into()).unwrap().verified.signers.len(), 1);
    store.remove(&other).unwrap();
    assert_eq!(fs::read_dir(directory.path().join("blobs/sha256")).unwrap().count(), 0);
}

#[test]
fn fields_of_other_tools_beside_a_signature_are_preserved() {
    let (_directory, store, _, image) = store();
    sign(&store, &image, 1);
    let mut there = signature_image(&store.directory, &image).unwrap().unwrap();
    there.layers[0].annotations.insert("dev.sigstore.cosign/bundle".into(), "{}".into());
    there.layers[0].annotations.remove(SIGNER);
    let signature = Signature::new(&key(2), &ImageDigest(*image.bytes()), "monitor");
    let made = SignatureImage::with(&signature, Some(there)).unwrap().unwrap();
    let made: Image = serde_json::from_slice(&made.image).unwrap();
    assert_eq!(made.layers.len(), 2);
    assert_eq!(made.layers[0].annotations["dev.sigstore.cosign/bundle"], "{}");
    let again = SignatureImage::with(&signature, Some(made)).unwrap();
    assert!(again.is_none(), "it is there already");
}

#[test]
fn an_image_of_another_tool_keeps_its_digest_and_its_signatures() {
    let (_directory, store, module, _) = store();
    let wasm = b"\0asm a module";
    let mut foreign = Image::new(
        Descriptor::of("application/vnd.wasm.config.v1+json", b"{}"),
        vec![Descriptor::of("application/vnd.wasm.content.layer.v1+wasm", wasm)],
    );
    foreign.media_type = None;
    let foreign = serde_json::to_vec(&foreign).unwrap();
    assert_eq!(store.put_image(&foreign, b"{}", wasm, &manifest("monitor")).unwrap(), module);
    sign(&store, &Digest::of(&foreign), 1);
    assert_eq!(store.images_of(&module).unwrap().len(), 2);
    assert_eq!(store.verified(&module, &[signer(1)].into()).unwrap().verified.signers.len(), 1);
    let other = store.put_image(&foreign, b"{}", b"\0asm other", &manifest("monitor"));
    assert!(matches!(other, Err(StoreError::NoModule { .. })));
}

#[test]
fn a_catalogue_maps_each_blob_to_its_module() {
    let (_directory, store, module, image) = store();
    let before = store.directory.stamp().unwrap();
    sign(&store, &image, 1);
    assert_ne!(store.directory.stamp().unwrap(), before);
    let catalogue = store.catalogue().unwrap();
    let signature = *catalogue.named(&name(&image)).unwrap();
    let payload = Digest::of(&store.signatures(&image).unwrap()[0].payload);
    for blob in [module, image, signature, payload] {
        assert_eq!(catalogue.blob(&blob).unwrap().module, module);
    }
    assert!(catalogue.blob(&image).unwrap().manifest_type.is_some());
    assert_eq!(catalogue.named("monitor:0.1.0"), Some(&image));
    assert_eq!(catalogue.image_of(&module), Some(&image));
    assert_eq!(catalogue.blob(&Digest::of(b"other")), None);
}

#[test]
fn one_more_module_does_not_have_the_others_read_again() {
    let (directory, store, module, image) = store();
    assert!(store.catalogue().unwrap().blob(&module).is_some());
    let file = store.directory.blob_path(&image);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, b"{}").unwrap();
    let second = store.put(b"\0asm second", &manifest("second")).unwrap();
    // Immutable: a digest names the same content for ever.
    let catalogue = store.catalogue().unwrap();
    assert!([module, second].iter().all(|it| catalogue.blob(it).is_some()));
    assert_eq!(store.images_of(&module).unwrap(), [image].into());
    // Full reads see the files on disk.
    assert_eq!(store.list().unwrap().refused.len(), 1);
    let anew = Store::open(directory.path()).unwrap();
    assert!(anew.catalogue().unwrap().blob(&module).is_none(), "a damaged image is left out");
    std::fs::write(&file, bytes).unwrap();
    // Changes by another process are visible as well.
    anew.remove(&second).unwrap();
    let catalogue = store.catalogue().unwrap();
    assert!(catalogue.blob(&module).is_some() && catalogue.blob(&second).is_none());
}
