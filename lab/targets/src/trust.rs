//! Any bytes as tokens and keys: an accepted one is written as it was, and a token grants nothing
//! without an administrator's signature.

use ::trust::token::LENGTH_MAX;
use ::trust::{
    AccessRequest, Grant, HeldToken, Operation, PublicKey, SecretKey, Seed, Token, UnixTime,
};

fn seed(byte: u8) -> Seed {
    Seed::from([byte; 32])
}

fn administrator() -> SecretKey {
    SecretKey::from_seed(&seed(1))
}

pub fn token(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let held = match HeldToken::parse(text) {
        Ok(held) => held,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(held.blocks().len(), held.revocation_ids().len());
    assert!(held.to_string().len() <= LENGTH_MAX);
    let stranger = SecretKey::from_seed(&seed(2)).public();
    assert!(Token::verify(text, &[stranger]).is_err());
    if let Ok(token) = Token::verify(text, &[administrator().public()]) {
        let ask = AccessRequest::to(Operation::Administer);
        let may = token.authorize(&ask, UnixTime(0));
        // An accepted token permits what its grant says, and nothing that was appended.
        assert!(may.is_err() || token.grant().missing(&ask, UnixTime(0)).is_empty());
        if let Ok(narrowed) = held.narrow(&Grant::none(), &seed(3)) {
            let narrowed = Token::verify(&narrowed.to_string(), &[administrator().public()]);
            assert!(narrowed.is_ok_and(|token| token.authorize(&ask, UnixTime(0)).is_err()));
        }
    }
}

pub fn token_seeds() -> Vec<Vec<u8>> {
    let mint = |grant: &Grant| {
        let principal = SecretKey::from_seed(&seed(4)).public();
        Token::mint(&administrator(), principal, grant, &seed(5)).and_then(|token| token.held())
    };
    let all = mint(&Grant::all()).expect("a grant of everything can be written");
    let end = Grant { until: Some(UnixTime(1)), ..Grant::none() };
    let narrowed = all.narrow(&end, &seed(6)).expect("two blocks are not too many");
    vec![all.to_string().into_bytes(), narrowed.to_string().into_bytes()]
}

pub fn key(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Ok(key) = text.parse::<PublicKey>() {
        assert_eq!(key.to_string(), text.to_ascii_lowercase());
    }
    if let Ok(key) = PublicKey::from_pem(text) {
        assert_eq!(PublicKey::from_pem(&key.to_pem()), Ok(key));
        assert_eq!(key.to_string().parse(), Ok(key));
    }
    match SecretKey::from_pem(text, None) {
        Ok(key) => {
            let again = SecretKey::from_pem(&key.to_pem(None), None);
            assert!(again.is_ok_and(|again| again.public() == key.public()));
            assert!(key.public().has_signed(text.as_bytes(), &key.sign(text.as_bytes())));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub fn key_seeds() -> Vec<Vec<u8>> {
    let key = administrator();
    let public = key.public();
    let sealed = key.to_pem(Some(("passphrase", &[7; 32])));
    let texts = [key.to_pem(None).to_string(), sealed.to_string(), public.to_pem()];
    texts.into_iter().chain([public.to_string()]).map(String::into_bytes).collect()
}
