//! Tests of keys: vectors of RFC 8032, round trips through files, and invalid keys.

use super::*;

fn secret(byte: u8) -> SecretKey {
    SecretKey::from_seed(&Zeroizing::new([byte; 32]))
}

/// Vectors of RFC 8032, section 7.1: seed, public key, message, signature.
const VECTORS: [[&str; 4]; 3] = [
    [
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ],
    [
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ],
    [
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ],
];

#[test]
fn keys_and_signatures_are_those_of_the_rfc() {
    for [seed, public, message, signature] in VECTORS {
        let bytes = hex::decode(seed).unwrap().try_into().unwrap();
        let key = SecretKey::from_seed(&Zeroizing::new(bytes));
        assert_eq!(key.public().to_string(), format!("ed25519/{public}"));
        let message = hex::decode(message).unwrap();
        let signed = key.sign(&message);
        assert_eq!(hex::encode(signed), signature);
        assert!(key.public().has_signed(&message, &signed));
        for bit in 0..512 {
            let mut flipped = signed;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.public().has_signed(&message, &flipped), "bit {bit}");
        }
        assert!(!secret(1).public().has_signed(&message, &signed));
    }
}

#[test]
fn a_public_key_is_one_word_and_a_pem_file() {
    let key = secret(7).public();
    assert_eq!(key.to_string().parse(), Ok(key));
    assert_eq!(PublicKey::from_pem(&key.to_pem()), Ok(key));
    for wrong in ["", "ed25519/", "ed25519/00", "rsa/00", &key.to_string()[..71]] {
        let refused = wrong.parse::<PublicKey>().unwrap_err();
        assert!(refused.to_string().contains("64 hexadecimal digits"), "{refused}");
    }
}

#[test]
fn a_key_whose_signatures_prove_nothing_is_refused() {
    // The neutral element, and a point of order 8.
    let weak = ["01", "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"];
    for digits in weak {
        let text = format!("{PREFIX}{digits:0<64}");
        assert_eq!(text.parse::<PublicKey>(), Err(KeyError::Weak), "{text}");
    }
}

#[test]
fn a_secret_key_comes_back_from_its_file_and_only_with_its_passphrase() {
    let key = secret(9);
    let plain = key.to_pem(None);
    assert!(plain.starts_with("-----BEGIN PRIVATE KEY-----\n"), "{}", *plain);
    assert_eq!(SecretKey::from_pem(&plain, None).unwrap().public(), key.public());

    let sealed = key.to_pem(Some(("tapirs", &[3; 32])));
    assert!(sealed.starts_with("-----BEGIN ENCRYPTED PRIVATE KEY-----\n"), "{}", *sealed);
    let open = |passphrase| SecretKey::from_pem(&sealed, passphrase);
    assert_eq!(open(Some("tapirs")).unwrap().public(), key.public());
    assert_eq!(open(Some("tapir")).unwrap_err(), KeyError::WrongPassphrase);
    assert_eq!(open(None).unwrap_err(), KeyError::NeedsPassphrase);
}

#[test]
fn other_kinds_of_keys_are_named() {
    let public = secret(1).public().to_pem();
    let refused = SecretKey::from_pem(&public, None).unwrap_err();
    assert!(refused.to_string().contains("does not contain a key"), "{refused}");
    // openssl genpkey -algorithm X25519
    let other = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VuBCIEIHBgAVBYR3AnTIYtvWJBvbN2gl1SHZzuVWQvt9GqfNhH\n-----END PRIVATE KEY-----\n";
    let refused = SecretKey::from_pem(other, None).unwrap_err();
    assert_eq!(refused, KeyError::OtherKind("X25519".into()));
    let long = "x".repeat(FILE_LENGTH_MAX + 1);
    assert_eq!(SecretKey::from_pem(&long, None).unwrap_err(), KeyError::TooLong(long.len()));
    assert_eq!(PublicKey::from_pem(&long), Err(KeyError::TooLong(long.len())));
}

#[test]
fn a_file_that_would_take_all_memory_to_open_is_refused() {
    let open = |log_n, p| {
        let cost = pkcs8::pkcs5::scrypt::Params::new(log_n, 8, p, 32).unwrap();
        let scheme = pbes2::Parameters::scrypt_aes256cbc(cost, &[0; 16], &[0; 16]).unwrap();
        // Ciphertext of two blocks that no passphrase decrypts.
        let sealed = EncryptedPrivateKeyInfo {
            encryption_algorithm: scheme.into(),
            encrypted_data: &[0; 32],
        };
        let document = SecretDocument::encode_msg(&sealed).unwrap();
        let pem = document.to_pem(EncryptedPrivateKeyInfo::PEM_LABEL, LineEnding::LF).unwrap();
        SecretKey::from_pem(&pem, Some("x")).unwrap_err()
    };
    assert_eq!(open(10, 1), KeyError::WrongPassphrase);
    // 1 GiB, and a fourth of it 60,000 times.
    assert!(matches!(open(20, 1), KeyError::Expensive(_)));
    assert!(matches!(open(18, 60_000), KeyError::Expensive(_)));
}

#[test]
fn a_secret_key_is_never_printed() {
    let key = secret(5);
    let printed = format!("{key:?}");
    assert!(!printed.contains(&hex::encode([5; 32])), "{printed}");
    assert!(printed.contains(&key.public().to_string()));
}

#[test]
fn derived_keys_differ_by_key_and_purpose_and_are_the_same_each_time() {
    let [one, other] = [1, 2].map(|byte| SecretKey::from_seed(&Seed::new([byte; 32])));
    assert_eq!(one.derive("a"), one.derive("a"));
    assert_ne!(one.derive("a"), one.derive("b"));
    assert_ne!(one.derive("a"), other.derive("a"));
    assert_ne!(*one.derive("a"), [1; 32]);
}
