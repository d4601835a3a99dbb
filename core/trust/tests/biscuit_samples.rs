//! Official Biscuit samples: the library as configured here evaluates each as specified, and this
//! crate accepts none of them as a capability.

use base64ct::{Base64Url, Encoding as _};
use biscuit_auth::builder::Term;
use biscuit_auth::datalog::ExternFunc;
use biscuit_auth::error::{FailedCheck, Format, Logic, MatchedPolicy, Token as Failed};
use biscuit_auth::{Algorithm, AuthorizerBuilder, AuthorizerLimits, Biscuit, UnverifiedBiscuit};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use trust::{Grant, HeldToken, PublicKey, SecretKey, Seed, Token, TokenError};

/// Time limit, generous for a busy machine.
const TIME: Duration = Duration::from_secs(20);

struct Samples {
    root: [u8; 32],
    cases: Vec<Value>,
}

fn file(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/biscuit");
    std::fs::read(folder.join(name)).unwrap()
}

fn samples() -> Samples {
    let mut all: Value = serde_json::from_slice(&file("samples.json")).unwrap();
    let root = hex::decode(all["root_public_key"].as_str().unwrap()).unwrap();
    let cases = all["testcases"].as_array_mut().unwrap().drain(..).collect();
    Samples { root: root.try_into().unwrap(), cases }
}

/// External function that one sample calls.
fn compare(left: Term, right: Option<Term>) -> Result<Term, String> {
    match (left, right) {
        (left, None) => Ok(left),
        (Term::Str(left), Some(Term::Str(right))) => {
            let text = if left == right { "equal strings" } else { "different strings" };
            Ok(Term::Str(text.to_owned()))
        }
        _ => Err("unsupported operands".to_owned()),
    }
}

fn outcome(token: &Biscuit, code: &str) -> Result<usize, Failed> {
    let limits = AuthorizerLimits { max_time: TIME, ..AuthorizerLimits::default() };
    let builder = AuthorizerBuilder::new()
        .register_extern_func("test".to_owned(), ExternFunc::new(Arc::new(compare)))
        .set_limits(limits);
    builder.code(code)?.build(token)?.authorize()
}

/// Writes an outcome in the samples' JSON form. Of format errors only the kind is compared, since
/// the messages are those of one library.
fn document(outcome: Result<usize, Failed>) -> Value {
    let policy = |policy| match policy {
        MatchedPolicy::Allow(at) => json!({ "Allow": at }),
        MatchedPolicy::Deny(at) => json!({ "Deny": at }),
    };
    let check = |check| match check {
        FailedCheck::Block(it) => json!({ "Block": {
            "block_id": it.block_id, "check_id": it.check_id, "rule": it.rule,
        }}),
        FailedCheck::Authorizer(it) => json!({ "Authorizer": {
            "check_id": it.check_id, "rule": it.rule,
        }}),
    };
    let error = match outcome {
        Ok(at) => return json!({ "Ok": at }),
        Err(Failed::FailedLogic(Logic::Unauthorized { policy: matched, checks })) => {
            let checks: Vec<Value> = checks.into_iter().map(check).collect();
            json!({ "FailedLogic": { "Unauthorized": {
                "policy": policy(matched), "checks": checks,
            }}})
        }
        Err(Failed::FailedLogic(Logic::InvalidBlockRule(block, rule))) => {
            json!({ "FailedLogic": { "InvalidBlockRule": [block, rule] } })
        }
        Err(Failed::Execution(error)) => json!({ "Execution": format!("{error:?}") }),
        Err(Failed::Format(Format::Signature(_))) => json!({ "Format": "Signature" }),
        Err(Failed::Format(Format::BlockSignatureDeserializationError(_))) => {
            json!({ "Format": "BlockSignatureDeserializationError" })
        }
        Err(other) => json!(format!("{other:?}")),
    };
    json!({ "Err": error })
}

fn expected(result: &Value) -> Value {
    match result["Err"]["Format"].as_object() {
        Some(format) => json!({ "Err": { "Format": format.keys().next() } }),
        None => result.clone(),
    }
}

#[test]
fn each_official_sample_has_the_specified_outcome() {
    let samples = samples();
    let root = biscuit_auth::PublicKey::from_bytes(&samples.root, Algorithm::Ed25519).unwrap();
    let mut validations = 0;
    for case in &samples.cases {
        let name = case["filename"].as_str().unwrap();
        let token = Biscuit::from(file(name), root);
        for (title, validation) in case["validations"].as_object().unwrap() {
            validations += 1;
            let sample = format!("{name} {title}");
            let outcome = match &token {
                Ok(token) => {
                    let ids: Vec<String> =
                        token.revocation_identifiers().iter().map(hex::encode).collect();
                    assert_eq!(validation["revocation_ids"], json!(ids), "{sample}");
                    outcome(token, validation["authorizer_code"].as_str().unwrap())
                }
                Err(error) => Err(error.clone()),
            };
            assert_eq!(document(outcome), expected(&validation["result"]), "{sample}");
        }
    }
    assert_eq!((samples.cases.len(), validations), (38, 50));
}

#[test]
fn a_token_made_by_other_software_is_no_capability() {
    let samples = samples();
    let root = PublicKey::from_bytes(&samples.root).unwrap();
    for case in &samples.cases {
        let name = case["filename"].as_str().unwrap();
        // Three of them have no text form.
        if UnverifiedBiscuit::from(file(name)).is_err() {
            continue;
        }
        // Encoded as made: other languages' encoders agree.
        let text = Base64Url::encode_string(&file(name));
        let refused = Token::verify(&text, &[root]).unwrap_err();
        let is_meant = match refused {
            TokenError::NotAToken(_) | TokenError::NotOurs | TokenError::NotAGrant(_) => true,
            // Rules in appended blocks, and joins of more predicates than a capability needs.
            TokenError::TooComplex { .. } => true,
            _ => false,
        };
        assert!(is_meant, "{name}: {refused}");
        if let Ok(held) = HeldToken::parse(&text) {
            assert_eq!(held.to_string(), text, "{name}");
        }
    }
}

#[test]
fn a_token_in_another_spelling_is_none() {
    let key = |number| SecretKey::from_seed(&Seed::new([number; 32]));
    let token = Token::mint(&key(1), key(2).public(), &Grant::all(), &Seed::new([3; 32])).unwrap();
    let text = token.held().unwrap().to_string();
    let mut bytes = Base64Url::decode_vec(&text).unwrap();
    assert!(Token::verify(&text, &[key(1).public()]).is_ok());
    // Unknown field 1000, which Protocol Buffers decoders skip.
    bytes.extend([0xc0, 0x3e, 0x01]);
    let spelled = Base64Url::encode_string(&bytes);
    assert!(UnverifiedBiscuit::from_base64(&spelled).is_ok());
    let refused = Token::verify(&spelled, &[key(1).public()]).map(drop);
    assert_eq!(refused, Err(TokenError::Spelling));
}
