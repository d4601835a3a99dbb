//! Tests of the suite and its primitives against vectors of other implementations and of known
//! attacks.

use super::*;
use crate::secret::{Forged, nonce_of, open_with};
use serde_json::Value;
use std::path::Path;

fn vectors(name: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors");
    let text = std::fs::read(folder.join(name)).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn bytes(of: &Value, key: &str) -> Vec<u8> {
    hex::decode(of[key].as_str().unwrap_or_else(|| panic!("{key} of {of}"))).unwrap()
}

fn bytes32(of: &Value, key: &str) -> [u8; 32] {
    bytes(of, key).try_into().unwrap()
}

/// Builds one side of a vector with the primitives of this crate.
fn side(vector: &Value, who: &str) -> Builder<'static> {
    let key = StaticKey::new(Secret::new(&bytes32(vector, &format!("{who}_static"))));
    let ephemeral = Secret::new(&bytes32(vector, &format!("{who}_ephemeral")));
    let primitives = Primitives { ephemeral, static_public: key.public };
    let prologue = bytes(vector, &format!("{who}_prologue")).leak();
    Builder::with_resolver(suite(SUITE), Box::new(primitives))
        .local_private_key(key.secret.as_bytes().to_vec().leak())
        .unwrap()
        .prologue(prologue)
        .unwrap()
}

#[test]
fn handshakes_are_those_of_other_implementations_byte_by_byte() {
    let vectors = vectors("noise/xx_25519_aesgcm_sha256.json");
    assert_eq!(vectors.len(), 2);
    for vector in vectors {
        let mut sides = [
            side(&vector, "init").build_initiator().unwrap(),
            side(&vector, "resp").build_responder().unwrap(),
        ];
        let messages = vector["messages"].as_array().unwrap();
        for (number, message) in messages.iter().take(3).enumerate() {
            let (payload, expected) = (bytes(message, "payload"), bytes(message, "ciphertext"));
            let (mut sent, mut read) = (vec![0; 500], vec![0; 500]);
            let (from, to) = (number % 2, 1 - number % 2);
            let length = sides[from].write_message(&payload, &mut sent).unwrap();
            assert_eq!(sent[..length], expected, "message {number}");
            let length = sides[to].read_message(&expected, &mut read).unwrap();
            assert_eq!(read[..length], payload);
        }
        if vector.get("handshake_hash").is_some() {
            assert_eq!(sides[0].get_handshake_hash(), bytes(&vector, "handshake_hash"));
        }
        traffic_is_theirs(&mut sides[0], &messages[3..]);
    }
}

/// Compares the messages after the handshake: split keys, and counters from 0 in each direction.
fn traffic_is_theirs(side: &mut HandshakeState, messages: &[Value]) {
    let (initiator, responder) = side.dangerously_get_raw_split();
    assert!(!messages.is_empty());
    for (number, message) in messages.iter().enumerate() {
        // The responder sends first, since the initiator sent message 3.
        let key = AeadKey::new(if number % 2 == 0 { &responder } else { &initiator });
        let mut text = bytes(message, "payload");
        let tag = key.seal(number as u64 / 2, &[], &mut text);
        text.extend_from_slice(&tag);
        assert_eq!(text, bytes(message, "ciphertext"), "message {number} after the handshake");
    }
}

#[test]
fn x25519_agrees_with_wycheproof_and_refuses_keys_of_small_order() {
    let (mut right, mut refused) = (0, 0);
    for test in vectors("wycheproof/x25519.json") {
        let mut side =
            X25519 { secret: Secret::new(&[0; 32]), public: [0; 32], static_public: [0; 32] };
        side.set(&bytes(&test, "private"));
        let mut shared = [0; 56];
        let result = side.dh(&bytes(&test, "public"), &mut shared);
        if test.get("zero").is_some() {
            assert_eq!(result, Err(snow::Error::Dh), "{test}");
            refused += 1;
        } else {
            assert_eq!((result, &shared[..32]), (Ok(()), &bytes(&test, "shared")[..]), "{test}");
            right += 1;
        }
    }
    assert_eq!((right, refused), (RIGHT, 518 - RIGHT));
}

/// Number of tests with a non-zero shared secret, of wycheproof's 518 tests of X25519.
const RIGHT: usize = 487;

#[test]
fn aes_256_gcm_is_that_of_wycheproof() {
    let mut results = [0, 0];
    for test in vectors("wycheproof/aes_256_gcm.json") {
        let (key, nonce) = (bytes32(&test, "key"), bytes(&test, "iv").try_into().unwrap());
        let (clear, plain) = (bytes(&test, "aad"), bytes(&test, "msg"));
        let (mut text, tag) = (bytes(&test, "ct"), bytes(&test, "tag").try_into().unwrap());
        let opened = open_with(&key, nonce, &clear, &mut text, tag);
        let is_valid = test["result"] == "valid";
        assert_eq!(opened, if is_valid { Ok(()) } else { Err(Forged) }, "{test}");
        assert!(!is_valid || text == plain, "{test}");
        results[usize::from(is_valid)] += 1;
    }
    assert_eq!(results, [27, 39]);
}

#[test]
fn ed25519_agrees_with_wycheproof() {
    let mut results = [0, 0];
    for test in vectors("wycheproof/ed25519.json") {
        let key = trust::PublicKey::from_bytes(&bytes32(&test, "key"));
        let signature: Option<[u8; 64]> = bytes(&test, "sig").try_into().ok();
        let holds = key.is_ok_and(|key| {
            signature.is_some_and(|signature| key.has_signed(&bytes(&test, "msg"), &signature))
        });
        assert_eq!(holds, test["result"] == "valid", "{test}");
        results[usize::from(holds)] += 1;
    }
    assert_eq!(results, [63, 88]);
}

#[test]
fn an_ephemeral_key_is_used_once() {
    let mut drawn = Drawn(Some(Secret::new(&[1; 32])));
    let mut key = [0; 32];
    assert_eq!(drawn.try_fill_bytes(&mut key), Ok(()));
    assert_eq!(drawn.try_fill_bytes(&mut key), Err(snow::Error::Rng));
}

#[test]
fn the_nonce_of_a_counter_is_that_of_noise() {
    assert_eq!(nonce_of(0x0102), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
}
