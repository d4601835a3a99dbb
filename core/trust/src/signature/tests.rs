//! Tests of module signatures: valid ones, and each reason to refuse one.

use super::*;
use crate::Seed;
use proptest::prelude::*;

const IMAGE: ImageDigest = ImageDigest([0x5f; 32]);

fn key(byte: u8) -> SecretKey {
    SecretKey::from_seed(&Seed::from([byte; 32]))
}

fn signer(byte: u8) -> Signer {
    key(byte).public().into()
}

fn payload(critical: &str) -> Vec<u8> {
    format!(r#"{{"critical":{critical},"optional":null}}"#).into_bytes()
}

fn critical(identity: &str, digest: &str, kind: &str) -> String {
    format!(
        r#"{{"identity":{{"docker-reference":"{identity}"}},"image":{{"docker-manifest-digest":"{digest}"}},"type":"{kind}"}}"#
    )
}

fn good() -> String {
    critical("monitor", &IMAGE.to_string(), TYPE)
}

#[test]
fn the_payload_equals_that_of_cosign() {
    let signature = Signature::new(&key(1), &IMAGE, "monitor");
    assert_eq!(
        String::from_utf8(signature.payload.clone()).unwrap(),
        String::from_utf8(payload(&good())).unwrap()
    );
    assert_eq!(signature.signer_among(&IMAGE, &[signer(2), signer(1)]), Ok(signer(1)));
    assert_eq!(subject(&signature.payload), Ok(IMAGE));
}

#[test]
fn optional_fields_of_cosign_are_accepted() {
    for text in [
        format!(r#"{{"critical":{},"optional":{{"creator":"cosign","timestamp":1}}}}"#, good()),
        format!(r#"{{"critical":{}}}"#, good()),
        format!(" {{\n\"critical\" : {} }}\n", good()),
    ] {
        assert_eq!(subject(text.as_bytes()), Ok(IMAGE), "{text}");
    }
}

#[test]
fn a_payload_of_another_kind_is_refused_with_the_reason() {
    let digest = IMAGE.to_string();
    let upper = digest.replace("5f", "5F");
    let deep = format!("{}1{}", "[".repeat(400), "]".repeat(400));
    let twice = format!(r#"{{"critical":{0},"critical":{0}}}"#, good());
    let extra = good().replace("\"type\"", "\"expires\":1,\"type\"");
    let type_twice = good().replace("\"type\"", "\"type\":\"x\",\"type\"");
    let digest_twice = good().replace(
        "{\"docker-manifest",
        "{\"docker-manifest-digest\":\"sha256:00\",\"docker-manifest",
    );
    let cases: [(Vec<u8>, &str); 15] = [
        (vec![], "EOF"),
        (b"null".to_vec(), "invalid type"),
        (b"[]".to_vec(), "invalid length"),
        (vec![0xff, 0xfe], "expected value"),
        (twice.into_bytes(), "duplicate field `critical`"),
        (payload(&type_twice), "duplicate field `type`"),
        (payload(&digest_twice), "duplicate field `docker-manifest-digest`"),
        (payload(&extra), "unknown field `expires`"),
        (payload("{}"), "missing field `identity`"),
        (format!(r#"{{"critical":{},"more":1}}"#, good()).into_bytes(), "unknown field `more`"),
        (
            payload(&critical("m", &digest, "atomic container signature")),
            "atomic container signature",
        ),
        (payload(&critical("m", &digest[7..], TYPE)), "is no digest"),
        (payload(&critical("m", &upper, TYPE)), "is no digest"),
        ([payload(&good()), b"{}".to_vec()].concat(), "trailing characters"),
        (payload(&deep), "invalid type"),
    ];
    for (bytes, says) in cases {
        let error = subject(&bytes).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
    let long = payload(&critical(&"m".repeat(PAYLOAD_LENGTH_MAX), &digest, TYPE));
    assert!(matches!(subject(&long), Err(SignatureError::TooLong { .. })));
    let escapes = payload(&critical("m", &digest, "\\u001b[2J"));
    assert!(!subject(&escapes).unwrap_err().to_string().contains('\u{1b}'));
}

#[test]
fn a_signature_about_another_image_or_of_a_stranger_does_not_count() {
    let signature = Signature::new(&key(1), &IMAGE, "monitor");
    let other = ImageDigest([1; 32]);
    let error = signature.signer_among(&other, &[signer(1)]).unwrap_err();
    assert_eq!(error, SignatureError::OtherImage { found: IMAGE, wanted: other });
    let error = signature.signer_among(&IMAGE, &[signer(2)]).unwrap_err();
    assert!(
        error.to_string().ends_with(&format!("; the signature names {}", signer(1))),
        "{error}"
    );
    let unnamed = Signature { claimed: None, ..signature.clone() };
    assert_eq!(unnamed.signer_among(&IMAGE, &[signer(1)]), Ok(signer(1)));
    assert_eq!(unnamed.signer_among(&IMAGE, &[]), Err(SignatureError::NotKnown(None)));
    let forged = Signature { claimed: Some(signer(2)), ..signature };
    assert_eq!(forged.signer_among(&IMAGE, &[]), Err(SignatureError::Forged(Box::new(signer(2)))));
}

#[test]
fn all_signers_are_found_beside_invalid_signatures() {
    let mut all: Vec<Signature> = (1..4).map(|by| Signature::new(&key(by), &IMAGE, "m")).collect();
    all.push(Signature::new(&key(1), &ImageDigest([9; 32]), "m"));
    let known = [signer(1), signer(2), signer(7)].into();
    let verified = signers(&IMAGE, &all, &known);
    assert_eq!(verified.signers, [signer(1), signer(2)].into());
    assert_eq!(verified.strangers, [signer(3)].into());
    assert_eq!(verified.refused.len(), 1);
    let many = vec![all[3].clone(); SIGNATURES_MAX + 5];
    let verified = signers(&IMAGE, &many, &known);
    assert_eq!(
        verified.refused.len(),
        SIGNATURES_MAX + 1,
        "no more is looked at, and that is said"
    );
}

#[test]
fn a_signature_file_with_any_changed_byte_is_refused() {
    let mut file = SignatureFile::default();
    file.add(Signature::new(&key(1), &IMAGE, "monitor")).unwrap();
    let text = file.to_string();
    assert_eq!(text.parse(), Ok(file));
    let known = [signer(1)].into();
    let mut accepted = 0;
    for at in 0..text.len() {
        for byte in 0..=255 {
            let mut bytes = text.clone().into_bytes();
            if std::mem::replace(&mut bytes[at], byte) == byte {
                continue;
            }
            let Ok(text) = String::from_utf8(bytes) else { continue };
            let Ok(file) = text.parse::<SignatureFile>() else { continue };
            accepted += signers(&IMAGE, file.signatures(), &known).signers.len();
        }
    }
    assert_eq!(accepted, 0);
}

#[test]
fn a_file_collects_signers_and_a_new_build_replaces_signatures() {
    let mut file = SignatureFile::default();
    for by in [1, 2, 1] {
        file.add(Signature::new(&key(by), &IMAGE, "monitor")).unwrap();
    }
    assert_eq!(file.signatures().len(), 2);
    let rebuilt = ImageDigest([6; 32]);
    file.add(Signature::new(&key(2), &rebuilt, "monitor")).unwrap();
    assert_eq!(file.signatures().len(), 2);
    let known = [signer(1), signer(2)].into();
    assert_eq!(signers(&rebuilt, file.signatures(), &known).signers, [signer(2)].into());
    for by in 3..=SIGNATURES_MAX as u8 {
        file.add(Signature::new(&key(by), &IMAGE, "monitor")).unwrap();
    }
    let more = file.add(Signature::new(&key(99), &IMAGE, "monitor"));
    assert_eq!(more, Err(SignatureError::TooMany(SIGNATURES_MAX + 1)));
    assert_eq!(file.to_string().parse(), Ok(file));
}

#[test]
fn an_invalid_signature_file_is_refused() {
    let text = r#"{"signatures":[]}"#;
    assert_eq!(format!("{text}\n").parse(), Ok(SignatureFile::default()));
    for bad in [
        "",
        text,
        "{}\n",
        "[]\n",
        "{\"signatures\":[{}]}\n",
        "{\"signatures\":[],\"signatures\":[]}\n",
        "{\"signatures\":[],\"x\":1}\n",
        "{ \"signatures\":[]}\n",
        "{\"signatures\":null}\n",
        "{\"signatures\":[{\"payload\":\"A\",\"signature\":\"\"}]}\n",
    ] {
        assert!(bad.parse::<SignatureFile>().is_err(), "{bad}");
    }
    let long = " ".repeat(file::FILE_LENGTH_MAX + 1);
    assert!(matches!(long.parse::<SignatureFile>(), Err(SignatureError::TooLong { .. })));
}

proptest! {
    #[test]
    fn only_signatures_of_known_keys_over_this_image_count(
        by in 1..9u8, image in any::<[u8; 32]>(), other in any::<[u8; 32]>(), known in proptest::collection::btree_set(1..9u8, 0..8),
        change in any::<(bool, prop::sample::Index, u8)>(),
    ) {
        let known: BTreeSet<u8> = known;
        let keys: BTreeSet<Signer> = known.iter().copied().map(signer).collect();
        let signature = Signature::new(&key(by), &ImageDigest(image), "m");
        let of = |signature: &Signature, image| signers(&ImageDigest(image), std::slice::from_ref(signature), &keys).signers;
        prop_assert_eq!(of(&signature, image).len(), usize::from(known.contains(&by)));
        prop_assert_eq!(of(&signature, other).len(), usize::from(known.contains(&by) && other == image));
        let (in_payload, at, flip) = change;
        let mut changed = signature.clone();
        let bytes = if in_payload { &mut changed.payload } else { &mut changed.bytes };
        let at = at.index(bytes.len());
        bytes[at] ^= flip.max(1);
        prop_assert!(of(&changed, image).is_empty());
    }
}
