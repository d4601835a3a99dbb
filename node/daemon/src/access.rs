//! Authentication of callers, before a request reaches the daemon.
//!
//! ```text
//!  UNIX socket, its owner ─ no token ─▶ Operator
//!       either, with a token ─ valid ──▶ Holder ─▶ authorize: what the token lacks
//!  TCP with TLS ─────────── no token ─▶ Anyone
//! ```
//!
//! A token is verified once and cached; revocation and grants are checked for each request
//! (authorize).

use crate::answer::{Answer, error};
use crate::pace::{Pace, Source};
use api::ErrorCode;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64ct::{Base64, Encoding};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use trust::{AccessRequest, Denied, PublicKey, RevocationId, Token, TokenError, UnixTime};
use units::Nanos;

/// Verified tokens that are cached: those of some hundred clients. Others are verified again, at
/// 0.2 ms each.
const HOLDERS_MAX: usize = 1024;

/// Time reserved for a request whose token is not known yet: decoding it, and checking a signature
/// for each of its blocks.
const UNKNOWN: Nanos = Nanos(1_000_000);
/// Upper bound of a step of a token's evaluation ([`Token::steps`]).
const STEP: Nanos = Nanos(30);
/// Processor time that the evaluations of one token may take for one request, and for those that
/// wait beside it: some hundred ordinary evaluations, so that a list of modules can be filtered.
const REQUEST_TIME_MAX: Nanos = Nanos::from_millis(100);

/// Advice to a caller without a capability.
pub(crate) const SEND_ONE: &str =
    "send one: `tam --token FILE`; an administrator of the node makes it (`tam token new`)";

/// Authenticated caller of a request.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// Owner of the UNIX socket, who may do everything.
    Operator,
    /// Holder of a capability.
    Holder(Arc<Holder>),
    /// Unauthenticated caller.
    Anyone,
}

/// Token that an administrator of this node has signed.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) token: Token,
    /// Revocation ids of its blocks.
    pub(crate) ids: Vec<RevocationId>,
    /// Nanoseconds of its evaluations since [`Holder::take_used`].
    used: AtomicU64,
    /// Nanoseconds of its last request.
    last: AtomicU64,
}

impl Holder {
    fn new(token: Token) -> Self {
        let last = AtomicU64::new(token.steps().saturating_mul(STEP.0));
        Self { ids: token.revocation_ids(), token, used: AtomicU64::new(0), last }
    }

    /// Evaluates the token, and records the time that it takes.
    pub(crate) fn authorize(&self, ask: &AccessRequest, now: UnixTime) -> Result<(), Denied> {
        if self.used.load(Ordering::Relaxed) > REQUEST_TIME_MAX.0 {
            let most = REQUEST_TIME_MAX.0 / 1_000_000;
            return Err(Denied::Limits(format!("its evaluations took more than {most} ms")));
        }
        let begun = Instant::now();
        let result = self.token.authorize(ask, now);
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.used.fetch_add(took, Ordering::Relaxed);
        result
    }

    /// Returns the expected time of a request with this token: that of its last one.
    fn expected(&self) -> Nanos {
        Nanos(self.last.load(Ordering::Relaxed))
    }

    /// Returns the time of its evaluations since the last call.
    pub(crate) fn take_used(&self) -> Nanos {
        let used = self.used.swap(0, Ordering::Relaxed);
        self.last.store(used, Ordering::Relaxed);
        Nanos(used)
    }
}

/// Socket by which a request arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// UNIX socket, which only its owner can open.
    Own,
    /// Network.
    Remote,
}

/// Verifier of tokens, shared by all sockets.
#[derive(Debug)]
pub(crate) struct Gate {
    administrators: Vec<PublicKey>,
    /// Set if the node file allows callers without a capability to run some modules.
    pub(crate) anyone: bool,
    verified: Mutex<BTreeMap<[u8; 32], Arc<Holder>>>,
    pace: Mutex<Pace>,
}

/// Processor time reserved by a request for its token.
#[derive(Debug)]
pub(crate) struct Reservation {
    source: Source,
    reserved: Nanos,
}

impl Gate {
    /// Creates a gate that trusts these administrators.
    pub(crate) const fn new(administrators: Vec<PublicKey>, anyone: bool) -> Self {
        Self {
            administrators,
            anyone,
            verified: Mutex::new(BTreeMap::new()),
            pace: Mutex::new(Pace::new()),
        }
    }

    /// Returns the caller of a request with these headers.
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

    /// Reserves the time to verify a token, before it is decoded, if the headers have one. Returns
    /// the delay of the request.
    pub(crate) fn reserve_unknown(
        &self,
        now: Nanos,
        headers: &HeaderMap,
        source: Source,
    ) -> Answer<Option<(Reservation, Nanos)>> {
        let has_token = headers.contains_key(AUTHORIZATION);
        has_token.then(|| self.reserve(now, source, UNKNOWN)).transpose()
    }

    /// Reserves the time of a request by this holder, and returns what verifying the token did not
    /// use. Returns the delay of the request.
    pub(crate) fn reserve_known(
        &self,
        now: Nanos,
        verified: &Reservation,
        took: Nanos,
        holder: &Holder,
    ) -> Answer<(Reservation, Nanos)> {
        self.settle(now, verified, took);
        self.reserve(now, verified.source, holder.expected())
    }

    /// Charges the time of a request by this holder in place of its reservation.
    pub(crate) fn settle_request(&self, now: Nanos, request: &Reservation, holder: &Holder) {
        self.settle(now, request, holder.take_used());
    }

    fn settle(&self, now: Nanos, reservation: &Reservation, used: Nanos) {
        let Reservation { source, reserved } = *reservation;
        self.pace().settle(now, source, reserved, used);
    }

    fn reserve(&self, now: Nanos, source: Source, cost: Nanos) -> Answer<(Reservation, Nanos)> {
        match self.pace().reserve(now, source, cost) {
            Ok(delay) => Ok((Reservation { source, reserved: cost }, delay)),
            Err(delay) => {
                let seconds = delay.0.div_ceil(1_000_000_000);
                let message =
                    "evaluating your capabilities takes more time than one sender has on this node";
                let help = format!(
                    "try again in {seconds} s, with fewer requests at a time or a capability of \
                     fewer checks"
                );
                Err(error(ErrorCode::Limit, message, Some(&help)))
            }
        }
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the holder of this token, verified now or earlier.
    pub(crate) fn holder(&self, text: &str) -> Result<Arc<Holder>, TokenError> {
        let key: [u8; 32] = Sha256::digest(text).into();
        let verified = || self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holder) = verified().get(&key) {
            return Ok(Arc::clone(holder));
        }
        let token = Token::verify(text, &self.administrators)?;
        let holder = Arc::new(Holder::new(token));
        let mut verified = verified();
        if verified.len() >= HOLDERS_MAX {
            verified.clear();
        }
        verified.insert(key, Arc::clone(&holder));
        Ok(holder)
    }
}

/// Returns the token in a header: as such, or as a password, for clients of registries (RFC 7617).
/// The scheme is case-insensitive, and more than one blank may follow it (RFC 9110, 11.1, 11.4).
fn token_of(value: &str) -> Option<String> {
    let (scheme, credentials) = value.split_once(' ')?;
    let credentials = credentials.trim_matches(' ');
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(credentials.to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = Base64::decode_vec(credentials).ok()?;
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
    fn without_a_token_the_socket_decides_who_calls_and_with_one_the_token() {
        let gate = Gate::new(vec![key(1).public()], false);
        let none = HeaderMap::new();
        assert!(matches!(gate.caller(&none, Place::Own), Ok(Caller::Operator)));
        assert!(matches!(gate.caller(&none, Place::Remote), Ok(Caller::Anyone)));
        let bearer = headers(&format!("Bearer {}", token(1)));
        let basic = Base64::encode_string(format!("me:{}", token(1)).as_bytes());
        let odd = headers(&format!("bEARER   {}", token(1)));
        let [basic, lower] = ["Basic", "basic"].map(|it| headers(&format!("{it} {basic}")));
        for (headers, place) in [
            (&bearer, Place::Own),
            (&bearer, Place::Remote),
            (&odd, Place::Remote),
            (&basic, Place::Remote),
            (&lower, Place::Own),
        ] {
            let caller = gate.caller(headers, place).unwrap();
            assert!(
                matches!(&caller, Caller::Holder(holder) if holder.token.principal() == key(2).public()),
                "{caller:?}"
            );
        }
    }

    #[test]
    fn an_invalid_token_is_refused_and_not_treated_as_no_token() {
        let gate = Gate::new(vec![key(1).public()], false);
        let codes = |value: &str| gate.caller(&headers(value), Place::Own).unwrap_err().code;
        assert_eq!(codes(&format!("Bearer {}", token(3))), ErrorCode::Refused);
        assert_eq!(codes("Bearer "), ErrorCode::Usage);
        assert_eq!(codes("Bearer"), ErrorCode::Usage);
        assert_eq!(codes(&format!("Bearer{}", token(1))), ErrorCode::Usage);
        assert_eq!(codes("Basic YTpi"), ErrorCode::Usage);
        assert_eq!(codes("Basic ****"), ErrorCode::Usage);
        assert_eq!(codes("Digest a"), ErrorCode::Usage);
        assert_eq!(codes(&format!("Bearer {}", "A".repeat(20_000))), ErrorCode::Limit);
        let mut twice = headers(&format!("Bearer {}", token(1)));
        twice.append(AUTHORIZATION, "Bearer x".parse().unwrap());
        assert_eq!(gate.caller(&twice, Place::Own).unwrap_err().code, ErrorCode::Usage);
    }

    #[test]
    fn a_token_with_a_changed_character_is_refused() {
        let gate = Gate::new(vec![key(1).public()], false);
        let good = token(1);
        gate.caller(&headers(&format!("Bearer {good}")), Place::Remote).unwrap();
        for at in 0..good.len() {
            let mut bytes = good.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let text = String::from_utf8(bytes).unwrap();
            // The last character of base64 has unused bits.
            if trust::HeldToken::parse(&text).is_ok_and(|held| held.to_string() == good) {
                continue;
            }
            let refused = gate.caller(&headers(&format!("Bearer {text}")), Place::Remote);
            assert!(refused.is_err(), "character {at}");
        }
    }

    #[test]
    fn a_capability_that_takes_long_waits_and_others_do_not() {
        let gate = Gate::new(vec![key(1).public()], false);
        let headers = headers(&format!("Bearer {}", token(1)));
        let Ok(Caller::Holder(holder)) = gate.caller(&headers, Place::Remote) else { panic!() };
        let [slow, other] =
            ["192.0.2.1", "192.0.2.2"].map(|it| Source::Network(it.parse().unwrap()));
        let now = Nanos(0);
        holder.used.store(10_000_000, Ordering::Relaxed);
        holder.take_used();
        // Many requests at a time, of which none has been served yet.
        let request = |source| {
            let (verified, before) = gate.reserve_unknown(now, &headers, source)?.unwrap();
            let (_, after) = gate.reserve_known(now, &verified, Nanos(1000), &holder)?;
            Answer::Ok(before.0 + after.0)
        };
        let waits: Vec<u64> = (0..1000).map_while(|_| request(slow).ok()).collect();
        assert_eq!(waits[0], 0);
        assert!(waits.len() < 1000 && waits[waits.len() - 1] > 1_000_000_000, "{waits:?}");
        let refused = request(slow).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Limit);
        assert!(refused.help.unwrap().starts_with("try again in "), "and says when");
        assert_eq!(request(other).unwrap(), 0);
        assert!(
            gate.reserve_unknown(now, &HeaderMap::new(), slow).unwrap().is_none(),
            "the operator"
        );
    }

    #[test]
    fn a_request_evaluates_for_so_long_and_no_longer() {
        let gate = Gate::new(vec![key(1).public()], false);
        let holder = gate.holder(&token(1)).unwrap();
        let ask = AccessRequest::to(trust::Operation::Read);
        assert_eq!(holder.authorize(&ask, UnixTime(0)), Ok(()));
        assert!(holder.used.load(Ordering::Relaxed) > 0, "it is noted");
        holder.used.store(REQUEST_TIME_MAX.0 + 1, Ordering::Relaxed);
        assert!(matches!(holder.authorize(&ask, UnixTime(0)), Err(Denied::Limits(_))));
        holder.take_used();
        assert_eq!(holder.authorize(&ask, UnixTime(0)), Ok(()));
    }
}
