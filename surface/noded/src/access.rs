//! Who asks, before the daemon hears of it.
//!
//! ```text
//!  UNIX socket, its owner ─ no token ─▶ Operator
//!       either, with one ─ verified ──▶ Holder ─▶ authorize: what the token lacks
//!  TCP with TLS ─────────── no token ─▶ Anyone
//! ```
//!
//! A token is verified once and kept; whether it is revoked, and what it grants, is asked for each
//! request (authorize).

use crate::http::{Answer, error};
use api::ErrorCode;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64ct::{Base64, Encoding};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use trust::{PublicKey, RevocationId, Token, TokenError};

/// Tokens that are kept verified: those of some hundred clients. More are verified again, 0.2 ms
/// each.
const HOLDERS_MAX: usize = 1024;

/// What somebody without a capability can do.
pub(crate) const SEND_ONE: &str =
    "send one: `tam --token FILE`; an administrator of the node makes it (`tam token new`)";

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// Who owns the UNIX socket: may do everything.
    Operator,
    /// Who holds a capability.
    Holder(Arc<Holder>),
    /// Nobody that the node knows.
    Anyone,
}

/// A token that an administrator of this node has signed.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) token: Token,
    /// Of its blocks.
    pub(crate) ids: Vec<RevocationId>,
}

/// Where a request comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the UNIX socket, which only its owner can open.
    Own,
    /// Over the network.
    Remote,
}

/// Verifies tokens; shared by all places where requests come in.
#[derive(Debug)]
pub(crate) struct Gate {
    administrators: Vec<PublicKey>,
    /// Whether there is something that those may who have no capability.
    pub(crate) anyone: bool,
    verified: Mutex<BTreeMap<[u8; 32], Arc<Holder>>>,
}

impl Gate {
    /// One that believes these administrators.
    pub(crate) const fn new(administrators: Vec<PublicKey>, anyone: bool) -> Self {
        Self { administrators, anyone, verified: Mutex::new(BTreeMap::new()) }
    }

    /// Who sends a request with these headers.
    pub(crate) fn caller(&self, headers: &HeaderMap, place: Place) -> Answer<Caller> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (value, second) = (values.next(), values.next());
        let Some(value) = value else {
            return Ok(match place {
                Place::Own => Caller::Operator,
                Place::Remote => Caller::Anyone,
            });
        };
        let (Some(text), None) = (value.to_str().ok().and_then(token_of), second) else {
            let help = "send 'Authorization: Bearer TOKEN', once, or the token as the password of any user; `tam token new` makes one";
            let message = "the request's authorization is no token";
            return Err(error(ErrorCode::Usage, message, Some(help)));
        };
        self.holder(&text).map(Caller::Holder).map_err(|problem| {
            let code = api::code_of_token(&problem);
            let help = (problem == TokenError::NotOurs).then_some(
                "a node believes the administrators of its node file: [trust] administrators",
            );
            error(code, problem.to_string(), help)
        })
    }

    /// Who holds this token.
    pub(crate) fn holder(&self, text: &str) -> Result<Arc<Holder>, TokenError> {
        let key: [u8; 32] = Sha256::digest(text).into();
        let verified = || self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holder) = verified().get(&key) {
            return Ok(Arc::clone(holder));
        }
        let token = Token::verify(text, &self.administrators)?;
        let holder = Arc::new(Holder { ids: token.revocation_ids(), token });
        let mut verified = verified();
        if verified.len() >= HOLDERS_MAX {
            verified.clear();
        }
        verified.insert(key, Arc::clone(&holder));
        Ok(holder)
    }
}

/// The token in a header: as such, or as a password, for clients of registries (RFC 7617).
fn token_of(value: &str) -> Option<String> {
    if let Some(token) = value.strip_prefix("Bearer ") {
        return Some(token.to_owned());
    }
    let pair = Base64::decode_vec(value.strip_prefix("Basic ")?).ok()?;
    let pair = String::from_utf8(pair).ok()?;
    pair.split_once(':').map(|(_, password)| password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use trust::{Grant, SecretKey, Seed};

    fn key(number: u8) -> SecretKey {
        SecretKey::from_seed(&Seed::new([number; 32]))
    }

    fn headers(value: &str) -> HeaderMap {
        [(AUTHORIZATION, value.parse().unwrap())].into_iter().collect()
    }

    fn token(root: u8) -> String {
        let next = Seed::new([9; 32]);
        Token::mint(&key(root), key(2).public(), &Grant::all(), &next)
            .unwrap()
            .held()
            .unwrap()
            .to_string()
    }

    #[test]
    fn without_a_token_it_depends_on_the_place_and_with_one_it_does_not() {
        let gate = Gate::new(vec![key(1).public()], false);
        let none = HeaderMap::new();
        assert!(matches!(gate.caller(&none, Place::Own), Ok(Caller::Operator)));
        assert!(matches!(gate.caller(&none, Place::Remote), Ok(Caller::Anyone)));
        let bearer = headers(&format!("Bearer {}", token(1)));
        let basic = Base64::encode_string(format!("me:{}", token(1)).as_bytes());
        let basic = headers(&format!("Basic {basic}"));
        for (headers, place) in
            [(&bearer, Place::Own), (&bearer, Place::Remote), (&basic, Place::Remote)]
        {
            let caller = gate.caller(headers, place).unwrap();
            assert!(
                matches!(&caller, Caller::Holder(holder) if holder.token.principal() == key(2).public()),
                "{caller:?}"
            );
        }
    }

    #[test]
    fn what_is_no_good_token_is_never_nobody() {
        let gate = Gate::new(vec![key(1).public()], false);
        let codes = |value: &str| gate.caller(&headers(value), Place::Own).unwrap_err().code;
        assert_eq!(codes(&format!("Bearer {}", token(3))), ErrorCode::Refused);
        assert_eq!(codes("Bearer "), ErrorCode::Usage);
        assert_eq!(codes("Basic YTpi"), ErrorCode::Usage);
        assert_eq!(codes("Basic ****"), ErrorCode::Usage);
        assert_eq!(codes("Digest a"), ErrorCode::Usage);
        assert_eq!(codes(&format!("Bearer {}", "A".repeat(20_000))), ErrorCode::Limit);
        let mut twice = headers(&format!("Bearer {}", token(1)));
        twice.append(AUTHORIZATION, "Bearer x".parse().unwrap());
        assert_eq!(gate.caller(&twice, Place::Own).unwrap_err().code, ErrorCode::Usage);
    }

    #[test]
    fn a_flipped_bit_makes_it_nobodys() {
        let gate = Gate::new(vec![key(1).public()], false);
        let good = token(1);
        gate.caller(&headers(&format!("Bearer {good}")), Place::Remote).unwrap();
        for at in 0..good.len() {
            let mut bytes = good.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let text = String::from_utf8(bytes).unwrap();
            // The last character of base64 has bits that say nothing.
            if trust::HeldToken::parse(&text).is_ok_and(|held| held.to_string() == good) {
                continue;
            }
            let refused = gate.caller(&headers(&format!("Bearer {text}")), Place::Remote);
            assert!(refused.is_err(), "character {at}");
        }
    }
}
