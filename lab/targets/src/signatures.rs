//! Any bytes as signature payloads and files: accepted signatures are by a known signer, about this
//! image.

use module_store::signatures::{layers, of_layer};
use trust::signature::{PAYLOAD_LENGTH_MAX, signers, subject};
use trust::{ImageDigest, SecretKey, Seed, Signature, SignatureFile};

const IMAGE: ImageDigest = ImageDigest([7; 32]);

fn key(byte: u8) -> SecretKey {
    SecretKey::from_seed(&Seed::from([byte; 32]))
}

pub fn read(bytes: &[u8]) {
    let known = [key(1).public().into()].into();
    let of = |signature: Signature| signers(&IMAGE, &[signature], &known).signers.len();
    // Signed by a known key: it counts only if the payload is about the image.
    let said = subject(bytes);
    let signed =
        Signature { payload: bytes.to_vec(), bytes: key(1).sign(bytes).into(), claimed: None };
    assert_eq!(of(signed) == 1, said == Ok(IMAGE));
    match said {
        Ok(_) => assert!(bytes.len() <= PAYLOAD_LENGTH_MAX),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    // The same bytes as a signature are none.
    let good = Signature::new(&key(1), &IMAGE, "monitor");
    let is_it = good.bytes == bytes;
    assert_eq!(of(Signature { bytes: bytes.to_vec(), ..good }) == 1, is_it);

    if let Ok(text) = str::from_utf8(bytes)
        && let Ok(file) = text.parse::<SignatureFile>()
    {
        assert_eq!(file.to_string(), text);
        let stranger = [key(9).public().into()].into();
        assert!(signers(&IMAGE, file.signatures(), &stranger).signers.is_empty());
    }
    if let Ok(image) = serde_json::from_slice(bytes) {
        for layer in layers(&image) {
            if let Some(signature) = of_layer(layer, bytes.to_vec()) {
                assert_eq!(of(signature), 0);
            }
        }
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let signature = Signature::new(&key(1), &IMAGE, "monitor");
    let mut file = SignatureFile::default();
    file.add(signature.clone()).expect("one is not too many");
    file.add(Signature::new(&key(2), &IMAGE, "monitor")).expect("two are not too many");
    let image = module_store::signatures::SignatureImage::with(&signature, None);
    let image = image.ok().flatten().expect("it is new").image;
    vec![signature.payload, signature.bytes, file.to_string().into_bytes(), image]
}
