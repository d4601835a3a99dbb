//! Tests of signers' keys, with the ECDSA vector of RFC 6979.

use super::*;
use crate::{SecretKey, Seed};
use p256::ecdsa::Signature;

/// Vector of RFC 6979, appendix A.2.5: compressed public key, and the signature of "sample" with
/// SHA-256.
const KEY: &str = "secp256r1/0360fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6";
const R: &str = "efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716";
const S: &str = "f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8";

fn der() -> Vec<u8> {
    let bytes = hex::decode(format!("{R}{S}")).unwrap();
    Signature::from_slice(&bytes).unwrap().to_der().as_bytes().to_vec()
}

#[test]
fn a_p256_signature_is_good_for_its_bytes_only() {
    let key: Signer = KEY.parse().unwrap();
    assert_eq!(key.to_string(), KEY);
    assert!(key.has_signed(b"sample", &der()));
    assert!(!key.has_signed(b"Sample", &der()));
    for at in 0..der().len() * 8 {
        let mut bytes = der();
        bytes[at / 8] ^= 1 << (at % 8);
        assert!(!key.has_signed(b"sample", &bytes), "bit {at}");
    }
    let longer = [der(), vec![0]].concat();
    for bad in [&b""[..], &der()[1..], &longer, &hex::decode(format!("{R}{S}")).unwrap()] {
        assert!(!key.has_signed(b"sample", bad));
    }
}

#[test]
fn a_signer_reads_back_as_text_and_as_a_file() {
    let ours = Signer::from(SecretKey::from_seed(&Seed::from([1; 32])).public());
    let theirs: Signer = KEY.parse().unwrap();
    for signer in [ours, theirs] {
        assert_eq!(signer.to_string().parse(), Ok(signer));
        assert_eq!(Signer::from_pem(&signer.to_pem()), Ok(signer));
    }
    assert!(ours < theirs && !ours.has_signed(b"sample", &der()));
}

#[test]
fn other_keys_are_refused_by_name() {
    // `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384 | openssl pkey -pubout`
    const P384: &str = "-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEyBCpaJuy2OLAVYDbYdrpfmIk9STvBM/W
HPrVVykFCgboEmqTStoax0Pd7xWnsr1o19Obb8vTmjmk/5sHZ5GJNDbMGyt0D9cX
a62jLBq0bdB9fsw16EHslVwMQDkUkfqj
-----END PUBLIC KEY-----
";
    let kind = Signer::from_pem(P384).unwrap_err();
    assert_eq!(kind, KeyError::OtherKind("ECDSA, not P-256".into()));
    let uncompressed = format!("{P256_PREFIX}04{}{}", "60".repeat(32), "79".repeat(32));
    let off_curve = format!("{P256_PREFIX}05{}", "60".repeat(32));
    for bad in [
        "",
        "secp256r1/",
        "secp256r1/00",
        &KEY[1..],
        &KEY[..KEY.len() - 1],
        &uncompressed,
        &off_curve,
    ] {
        assert!(bad.parse::<Signer>().is_err(), "{bad}");
    }
    assert!(Signer::from_pem("x").is_err());
    assert_eq!(
        Signer::from_pem(&"x".repeat(FILE_LENGTH_MAX + 1)),
        Err(KeyError::TooLong(FILE_LENGTH_MAX + 1))
    );
}
