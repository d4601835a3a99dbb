//! Tests with modified tokens: 10,000, or a million with `TAM_SOAK=1`. None is accepted.

use base64ct::{Base64Url, Encoding as _};
use targets::mutation::Mutations;
use trust::{AccessRequest, Extent, Grant, HeldToken, Operation, SecretKey, Seed, Token, UnixTime};

const COUNT: u32 = 10_000;
const COUNT_SOAK: u32 = 1_000_000;
const SEED: u64 = 20_261_124;

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&Seed::new([number; 32]))
}

/// Returns tokens of the administrator: for everything, for reading, and narrowed; the last one is
/// by somebody who is no administrator.
fn tokens() -> Vec<Vec<u8>> {
    let reads = Grant { operations: Extent::only([Operation::Read]), ..Grant::all() };
    let mint = |by: u8, grant: &Grant| {
        let seed = Seed::new([by + 40; 32]);
        Token::mint(&key(by), key(9).public(), grant, &seed).unwrap().held().unwrap()
    };
    let narrowed = |held: &HeldToken| held.narrow(&reads, &Seed::new([50; 32])).unwrap();
    let (all, theirs) = (mint(1, &Grant::all()), mint(2, &Grant::all()));
    let twice = narrowed(&narrowed(&all));
    let held = [narrowed(&all), all, mint(1, &reads), twice, theirs];
    held.iter().map(|held| Base64Url::decode_vec(&held.to_string()).unwrap()).collect()
}

fn verified(bytes: &[u8]) -> Option<Token> {
    Token::verify(&Base64Url::encode_string(bytes), &[key(1).public()]).ok()
}

#[test]
fn of_ten_thousand_changed_tokens_none_is_accepted() {
    let tokens = tokens();
    let good: Vec<bool> = tokens.iter().map(|bytes| verified(bytes).is_some()).collect();
    assert_eq!(good, [true, true, true, true, false]);
    let count = if std::env::var_os("TAM_SOAK").is_some() { COUNT_SOAK } else { COUNT };
    let mut mutations = Mutations::new(SEED);
    let (mut changed, mut accepted) = (0, Vec::new());
    while changed < count {
        let bytes = mutations.next(&tokens);
        if tokens.contains(&bytes) {
            continue;
        }
        changed += 1;
        if let Some(token) = verified(&bytes) {
            let ask = AccessRequest::to(Operation::Administer);
            accepted.push((changed, token.authorize(&ask, UnixTime(0)).is_ok()));
        }
    }
    assert_eq!(accepted, [], "of {count} with the seed {SEED}: which, and may they everything");
}
