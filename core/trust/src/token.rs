//! Capabilities as Biscuit tokens (version 2; biscuit-auth/biscuit, SPECIFICATIONS.md).
//!
//! ```text
//! block 0, signed by an administrator   principal("ed25519/…");
//!   the grant, as facts                 grant("operation", "deploy"); all("level");
//!                                       ceiling("services", 4); until(…);
//!                                       check if time($now), $now < …;
//! block 1, 2, …, by the holder          check all without("level") or
//!   the narrowing, as checks              asked("level", $v), {"user"}.contains($v);
//!                                       the same as facts, for display
//! a request, by the node                operation …: asked("operation", "deploy");
//!                                       asked("level", "user"); without("traffic"); …
//!                                       amount("services", 3); time(…);
//! ```
//!
//! A block sees the facts of block 0, its own and the node's, so that appended blocks can only
//! narrow. Tokens are untrusted: their length and the cost of evaluating them are limited.

use crate::UnixTime;
use crate::grant::{Dimension, Grant, GrantError, ModulePattern, bits};
use crate::key::{PublicKey, SecretKey, Seed};
use crate::request::{AccessRequest, Missing, RESOURCES};
use biscuit_auth::builder::{BlockBuilder, Check, Fact, Term, fact, string};
use biscuit_auth::error::{FailedCheck, Logic, Token as BiscuitError};
use biscuit_auth::{
    Algorithm, AuthorizerBuilder, AuthorizerLimits, Biscuit, KeyPair, PrivateKey, UnverifiedBiscuit,
};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

mod blocks;
mod bounds;

/// Longest token in text form, in characters: a grant of some dozen values, narrowed several times.
pub const LENGTH_MAX: usize = 16_384;
/// Largest number of blocks: an administrator's, and a chain of delegations.
pub const BLOCKS_MAX: usize = 16;
/// Time limit of one evaluation; the bounds of blocks keep it far below.
const TIME_MAX: Duration = Duration::from_millis(100);
/// Limit of facts in one evaluation: those of the grant, of the request, and those that rules
/// derive.
const FACTS_MAX: u64 = 2048;
const ITERATIONS_MAX: u64 = 32;
/// Largest number of prefixes in one evaluation.
const PREFIXES_MAX: usize = 64;

/// Error of parsing, verifying or making a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token has more than [`LENGTH_MAX`] characters.
    #[error("the token has {0} characters; at most {LENGTH_MAX} are taken")]
    TooLong(usize),
    /// The token has more than [`BLOCKS_MAX`] blocks.
    #[error("the token has {0} blocks; at most {BLOCKS_MAX} are taken: ask for a new one")]
    TooManyBlocks(usize),
    /// A block could take too long to evaluate.
    #[error("block {block} of the token is too complex: {what}")]
    TooComplex {
        /// Number of the block.
        block: usize,
        /// Description of the excess.
        what: String,
    },
    /// The text is not a Biscuit token, or is damaged.
    #[error("this is no token: {0}; `tam token new` makes one")]
    NotAToken(String),
    /// The token's encoding differs from the canonical one.
    #[error("the token was changed since it was made, if only in its spelling; copy it again")]
    Spelling,
    /// No administrator of this node has signed the token.
    #[error(
        "no administrator of this node has signed the token, or it was changed since; `tam token inspect` shows it"
    )]
    NotOurs,
    /// Block 0 names no principal, or contains facts that this version does not know.
    #[error("the token's grant is not understood: {0}")]
    NotAGrant(String),
    /// The token is sealed and cannot be narrowed.
    #[error("the token is sealed: it can be used, and not be narrowed")]
    Sealed,
    /// The grant cannot be written into a token.
    #[error(transparent)]
    Grant(#[from] GrantError),
}

/// Reason why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// Rights that the token does not have, each once.
    Missing(Vec<Missing>),
    /// A check that is not part of a narrowing in this module's form failed.
    Check {
        /// Number of the block; `None` for the node's own checks.
        block: Option<u32>,
        /// The check, as Datalog.
        rule: String,
    },
    /// Evaluation exceeds its limits.
    Limits(String),
    /// A block of the token, its principal or its administrator is revoked.
    Revoked,
}

impl std::error::Error for Denied {}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(missing) => {
                f.write_str("the capability lacks ")?;
                for (at, right) in missing.iter().enumerate() {
                    write!(f, "{}{right}", if at == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
            Self::Check { block: Some(block), rule } => {
                write!(f, "block {block} of the capability says: {rule}")
            }
            Self::Check { block: None, rule } => write!(f, "the node says: {rule}"),
            Self::Revoked => f.write_str("the capability was revoked"),
            Self::Limits(what) => write!(f, "the capability cannot be evaluated: {what}"),
        }
    }
}

/// Revocation id of one block of one token. The holder of a token has the ids of all its blocks;
/// revoking a block revokes every token that was derived from it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RevocationId(Vec<u8>);

impl TryFrom<String> for RevocationId {
    type Error = TokenError;
    fn try_from(text: String) -> Result<Self, TokenError> {
        text.parse()
    }
}

impl From<RevocationId> for String {
    fn from(id: RevocationId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for RevocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for RevocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for RevocationId {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        match hex::decode(text) {
            // Length of a signature: 64 bytes (Ed25519) to 72 (ECDSA in DER).
            Ok(bytes) if (64..=72).contains(&bytes.len()) => Ok(Self(bytes)),
            _ => Err(TokenError::NotAToken("a revocation id is a signature, in hex".into())),
        }
    }
}

/// Token whose administrator's signature has been verified.
#[derive(Clone, Debug)]
pub struct Token {
    biscuit: Biscuit,
    administrator: PublicKey,
    principal: PublicKey,
    grant: Grant,
    /// Narrowing of each appended block; `None` for blocks in another form.
    narrowings: Vec<Option<Grant>>,
    /// Upper bound of the steps of evaluating it.
    steps: u64,
}

impl Token {
    /// Makes a token. `next` is the seed of a fresh key, by which the holder appends a block.
    ///
    /// # Errors
    /// The grant cannot be written into a token.
    pub fn mint(
        root: &SecretKey,
        principal: PublicKey,
        grant: &Grant,
        next: &Seed,
    ) -> Result<Self, TokenError> {
        let mut block = facts_of(grant)?;
        block = block
            .fact(fact("principal", &[string(&principal.to_string())]))
            .map_err(not_a_token)?;
        if let Some(until) = grant.until {
            block = block.check(until_check(until)?).map_err(not_a_token)?;
        }
        let symbols = biscuit_auth::datalog::SymbolTable::new();
        let built = Biscuit::builder().merge(block).build_with_key_pair(
            &pair(&root.seed())?,
            symbols,
            &pair(next)?,
        );
        Self::known(built.map_err(not_a_token)?, root.public())
    }

    /// Parses a token and verifies that one of the administrators in `roots` has signed it.
    ///
    /// # Errors
    /// The text is no token, exceeds a limit, or is not signed by any of them.
    pub fn verify(text: &str, roots: &[PublicKey]) -> Result<Self, TokenError> {
        let held = HeldToken::parse(text)?;
        for root in roots {
            let key = biscuit_auth::PublicKey::from_bytes(root.as_bytes(), Algorithm::Ed25519);
            if let Ok(biscuit) =
                held.biscuit.clone().verify(key.map_err(|error| not_a_token(error.into()))?)
            {
                return Self::known(biscuit, *root);
            }
        }
        Err(TokenError::NotOurs)
    }

    fn known(biscuit: Biscuit, administrator: PublicKey) -> Result<Self, TokenError> {
        let understood = |error: BiscuitError| TokenError::NotAGrant(error.to_string());
        // Queries without scopes see block 0, and nothing that was appended.
        let mut world = limited(AuthorizerBuilder::new()).build(&biscuit).map_err(understood)?;
        let principals: Vec<(String,)> =
            world.query("data($key) <- principal($key)").map_err(understood)?;
        let [(principal,)] = principals.as_slice() else {
            let count = principals.len();
            return Err(TokenError::NotAGrant(format!("it names {count} principals")));
        };
        let principal =
            principal.parse().map_err(|error| TokenError::NotAGrant(format!("{error}")))?;
        let only: Vec<(String, String)> =
            world.query("data($of, $value) <- grant($of, $value)").map_err(understood)?;
        let all: Vec<(String,)> = world.query("data($of) <- all($of)").map_err(understood)?;
        let ceilings: Vec<(String, i64)> =
            world.query("data($of, $most) <- ceiling($of, $most)").map_err(understood)?;
        let ends: Vec<Fact> = world.query("data($end) <- until($end)").map_err(understood)?;
        let ends = ends.iter().flat_map(|end| &end.predicate.terms).filter_map(date_of);
        let until = ends.min();
        let grant = Grant { until, ..grant_of(only, all.into_iter().map(|(of,)| of), ceilings)? };
        let blocks = blocks::decode(&biscuit.to_vec().map_err(not_a_token)?)?;
        let (narrowings, steps) = (blocks::narrowings(&blocks), bounds::check(&blocks)?);
        Ok(Self { administrator, principal, grant, narrowings, steps, biscuit })
    }

    /// Returns the administrator that signed the token.
    #[must_use]
    pub const fn administrator(&self) -> PublicKey {
        self.administrator
    }

    /// Returns the principal that the token is for, and whose account pays.
    #[must_use]
    pub const fn principal(&self) -> PublicKey {
        self.principal
    }

    /// Returns the administrator's grant; later blocks may narrow it.
    #[must_use]
    pub const fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Returns the earliest end of any block, as far as blocks are in this module's form. Checks in
    /// another form are evaluated with each request.
    #[must_use]
    pub fn ends(&self) -> Option<UnixTime> {
        self.appended().filter_map(|left| left.until).chain(self.grant.until).min()
    }

    /// Returns true if the token may grant a module of this digest, of which nothing else is known
    /// yet, as far as blocks are in this module's form. `false` is final; `true` has to be
    /// confirmed when name and signers are known.
    #[must_use]
    pub fn could_cover_module(&self, digest: &[u8; 32]) -> bool {
        self.grant.could_cover(digest) && self.appended().all(|left| left.could_cover(digest))
    }

    /// Returns true if rules may match this prefix, as far as blocks are in this module's form.
    /// Used to find which of a rule's prefixes is missing.
    #[must_use]
    pub fn covers_traffic(&self, prefix: &IpNet) -> bool {
        let covers = |grant: &Grant| grant.traffic.covers(|may| may.contains(prefix));
        covers(&self.grant) && self.appended().all(covers)
    }

    /// Returns the revocation ids of all blocks.
    #[must_use]
    pub fn revocation_ids(&self) -> Vec<RevocationId> {
        self.biscuit.revocation_identifiers().into_iter().map(RevocationId).collect()
    }

    /// Checks that every block allows the request at this time.
    ///
    /// # Errors
    /// The missing rights by name, or the check that failed.
    pub fn authorize(&self, request: &AccessRequest, now: UnixTime) -> Result<(), Denied> {
        let missing = self.grant.missing(request, now);
        if !missing.is_empty() {
            return Err(Denied::Missing(missing));
        }
        // Prefixes are independent of each other: a long list is evaluated in chunks.
        let traffic: Vec<String> = request.traffic.iter().map(bits).collect();
        if traffic.is_empty() {
            return self.evaluate(request, &[], now);
        }
        traffic.chunks(PREFIXES_MAX).try_for_each(|part| self.evaluate(request, part, now))
    }

    fn evaluate(
        &self,
        request: &AccessRequest,
        traffic: &[String],
        now: UnixTime,
    ) -> Result<(), Denied> {
        let limits = |error: BiscuitError| Denied::Limits(error.to_string());
        let facts = request_facts(request, traffic, now);
        if facts.len() as u64 > bounds::REQUEST_FACTS {
            return Err(Denied::Limits(format!("the request has {} facts", facts.len())));
        }
        let with = |builder: AuthorizerBuilder, fact| builder.fact(fact);
        let builder = facts.into_iter().try_fold(AuthorizerBuilder::new(), with);
        let builder = builder.and_then(|builder| builder.policy("allow if true"));
        let builder = limited(builder.map_err(limits)?);
        let mut world = builder.build(&self.biscuit).map_err(limits)?;
        let checks = match world.authorize() {
            Ok(_) => return Ok(()),
            Err(BiscuitError::FailedLogic(
                Logic::Unauthorized { checks, .. } | Logic::NoMatchingPolicy { checks },
            )) => checks,
            Err(error) => return Err(limits(error)),
        };
        let mut missing = BTreeSet::new();
        for check in &checks {
            let FailedCheck::Block(check) = check else { continue };
            missing.extend(
                self.left_by(check.block_id).into_iter().flat_map(|it| it.missing(request, now)),
            );
        }
        if !missing.is_empty() {
            return Err(Denied::Missing(missing.into_iter().collect()));
        }
        Err(match checks.into_iter().next() {
            Some(FailedCheck::Block(check)) => {
                Denied::Check { block: Some(check.block_id), rule: check.rule }
            }
            Some(FailedCheck::Authorizer(check)) => Denied::Check { block: None, rule: check.rule },
            None => Denied::Limits("no policy agrees".into()),
        })
    }

    /// Returns the narrowing of an appended block, if it is in this module's form.
    fn left_by(&self, block: u32) -> Option<&Grant> {
        let at = usize::try_from(block).ok().filter(|at| *at > 0)?;
        self.narrowings.get(at)?.as_ref()
    }

    /// Returns the narrowings of all appended blocks that are in this module's form.
    fn appended(&self) -> impl Iterator<Item = &Grant> {
        self.narrowings.iter().skip(1).flatten()
    }

    /// Returns the steps that one [`Self::authorize`] takes at most for each chunk of its prefixes,
    /// of at most 30 ns each.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the token as its holder has it.
    ///
    /// # Errors
    /// The text would be longer than [`LENGTH_MAX`].
    pub fn held(&self) -> Result<HeldToken, TokenError> {
        HeldToken::parse(&self.biscuit.to_base64().map_err(not_a_token)?)
    }
}

/// Token whose administrator is not known here, with the operations that a holder needs.
#[derive(Clone, Debug)]
pub struct HeldToken {
    biscuit: UnverifiedBiscuit,
}

impl HeldToken {
    /// Parses a token. Verifies only its form.
    ///
    /// # Errors
    /// The text is no token, or exceeds a limit.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let text = text.strip_prefix("biscuit:").unwrap_or(text);
        if text.len() > LENGTH_MAX {
            return Err(TokenError::TooLong(text.len()));
        }
        let biscuit = UnverifiedBiscuit::from_base64(text).map_err(not_a_token)?;
        // Protocol Buffers allow many encodings of one message. Only the canonical one is accepted,
        // so that the bytes of a token are unique.
        if biscuit.to_base64().map_err(not_a_token)? != text {
            return Err(TokenError::Spelling);
        }
        if biscuit.block_count() > BLOCKS_MAX {
            return Err(TokenError::TooManyBlocks(biscuit.block_count()));
        }
        bounds::check(&blocks::decode(&biscuit.to_vec().map_err(not_a_token)?)?)?;
        Ok(Self { biscuit })
    }

    /// Appends a block with narrower rights, for use or delegation. `next` is the seed of a fresh
    /// key.
    ///
    /// # Errors
    /// The grant cannot be written, the token is sealed, or it would exceed a limit.
    pub fn narrow(&self, to: &Grant, next: &Seed) -> Result<Self, TokenError> {
        let block = checks_of(to)?.merge(facts_of(to)?);
        let narrowed = self.biscuit.append_with_keypair(&pair(next)?, block);
        let narrowed = narrowed.map_err(|error| match error {
            BiscuitError::AppendOnSealed => TokenError::Sealed,
            error => not_a_token(error),
        })?;
        Self::parse(&narrowed.to_base64().map_err(not_a_token)?)
    }

    /// Returns the blocks as Datalog source.
    #[must_use]
    pub fn blocks(&self) -> Vec<String> {
        let source = |at| self.biscuit.print_block_source(at).unwrap_or_default();
        (0..self.biscuit.block_count()).map(source).collect()
    }

    /// Returns the revocation ids of all blocks.
    #[must_use]
    pub fn revocation_ids(&self) -> Vec<RevocationId> {
        self.biscuit.revocation_identifiers().into_iter().map(RevocationId).collect()
    }
}

impl fmt::Display for HeldToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.biscuit.to_base64().map_err(|_| fmt::Error)?)
    }
}

fn not_a_token(error: BiscuitError) -> TokenError {
    TokenError::NotAToken(error.to_string())
}

fn pair(seed: &Seed) -> Result<KeyPair, TokenError> {
    let key = PrivateKey::from_bytes(seed.as_ref(), Algorithm::Ed25519);
    Ok(KeyPair::from(&key.map_err(|error| not_a_token(error.into()))?))
}

fn limited(builder: AuthorizerBuilder) -> AuthorizerBuilder {
    builder.set_limits(AuthorizerLimits {
        max_facts: FACTS_MAX,
        max_iterations: ITERATIONS_MAX,
        max_time: TIME_MAX,
    })
}

fn integer(value: u64) -> Term {
    Term::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

/// Writes a grant as facts, for display.
fn facts_of(grant: &Grant) -> Result<BlockBuilder, TokenError> {
    let mut facts: Vec<Fact> = Vec::new();
    for values in grant.values()? {
        let of = string(values.dimension.name());
        match values.values {
            None => facts.push(fact("all", &[of])),
            Some(values) => {
                facts.extend(values.iter().map(|value| fact("grant", &[of.clone(), string(value)])))
            }
        }
    }
    for (at, (resource, _)) in RESOURCES.iter().enumerate() {
        if let Some(most) = grant.ceilings.0[at] {
            facts.push(fact("ceiling", &[string(resource), integer(most)]));
        }
    }
    facts.extend(grant.until.map(|until| fact("until", &[Term::Date(until.0)])));
    let with = |block: BlockBuilder, fact| block.fact(fact);
    facts.into_iter().try_fold(BlockBuilder::new(), with).map_err(not_a_token)
}

/// Writes a narrowing as checks.
fn checks_of(grant: &Grant) -> Result<BlockBuilder, TokenError> {
    let mut checks = Vec::new();
    for values in grant.values()? {
        let Some(only) = values.values else { continue };
        checks.push(extent_check(values.dimension, &only).map_err(not_a_token)?);
    }
    for (at, (resource, _)) in RESOURCES.iter().enumerate() {
        if let Some(most) = grant.ceilings.0[at] {
            let text = "check if without({of}) or amount({of}, $amount), $amount <= {most}";
            let mut check = Check::try_from(text).map_err(not_a_token)?;
            check.set("of", *resource).map_err(not_a_token)?;
            check.set("most", integer(most)).map_err(not_a_token)?;
            checks.push(check);
        }
    }
    if let Some(until) = grant.until {
        checks.push(until_check(until)?);
    }
    let with = |block: BlockBuilder, check| block.check(check);
    checks.into_iter().try_fold(BlockBuilder::new(), with).map_err(not_a_token)
}

fn until_check(until: UnixTime) -> Result<Check, TokenError> {
    let mut check = Check::try_from("check if time($now), $now < {until}").map_err(not_a_token)?;
    check.set("until", Term::Date(until.0)).map_err(not_a_token)?;
    Ok(check)
}

/// Writes the check of one dimension of a narrowing.
fn extent_check(dimension: Dimension, only: &[String]) -> Result<Check, BiscuitError> {
    let begins = |value: &String| {
        dimension == Dimension::Traffic || dimension == Dimension::Module && value.ends_with('*')
    };
    let (starts, exact): (Vec<&String>, Vec<&String>) = only.iter().partition(|it| begins(it));
    // A request has one module under several names (digest, name, signers): one of them has to
    // match.
    let kind = if dimension == Dimension::Module { "if" } else { "all" };
    let mut fits = Vec::new();
    if !exact.is_empty() {
        fits.push("{exact}.contains($value)".to_owned());
    }
    fits.extend((0..starts.len()).map(|at| format!("$value.starts_with({{start{at}}})")));
    let mut text = format!("check {kind} without({{of}})");
    if !fits.is_empty() {
        text += &format!(" or asked({{of}}, $value), {}", fits.join(" || "));
    }
    let mut check = Check::try_from(text.as_str())?;
    check.set("of", dimension.name())?;
    if !exact.is_empty() {
        check.set("exact", Term::Set(exact.into_iter().map(|it| string(it)).collect()))?;
    }
    for (at, start) in starts.into_iter().enumerate() {
        check.set(&format!("start{at}"), start.strip_suffix('*').unwrap_or(start).to_owned())?;
    }
    Ok(check)
}

/// Returns the facts that a node states about a request.
fn request_facts(request: &AccessRequest, traffic: &[String], now: UnixTime) -> Vec<Fact> {
    let mut asked: BTreeMap<Dimension, Vec<String>> = BTreeMap::new();
    let mut note = |dimension, value: String| asked.entry(dimension).or_default().push(value);
    note(Dimension::Operation, request.operation.name().to_owned());
    request.session.iter().for_each(|session| note(Dimension::Session, session.clone()));
    if let Some(module) = &request.module {
        note(Dimension::Module, ModulePattern::Digest(module.digest).to_string());
        note(Dimension::Module, ModulePattern::Name(module.name.clone()).to_string());
        for key in &module.signers {
            note(Dimension::Module, ModulePattern::Signer(*key).to_string());
        }
        module.kind.iter().for_each(|kind| note(Dimension::Kind, kind.name().to_owned()));
    }
    request.levels.iter().for_each(|level| note(Dimension::Level, level.name().to_owned()));
    request.functions.iter().for_each(|function| note(Dimension::Function, function.clone()));
    traffic.iter().for_each(|prefix| note(Dimension::Traffic, prefix.clone()));
    let mut facts = vec![fact("time", &[Term::Date(now.0)])];
    for dimension in Dimension::EXTENTS {
        let of = string(dimension.name());
        match asked.get(&dimension) {
            Some(values) => {
                facts.extend(values.iter().map(|value| fact("asked", &[of.clone(), string(value)])))
            }
            None => facts.push(fact("without", &[of])),
        }
    }
    for (at, (resource, _)) in RESOURCES.iter().enumerate() {
        let of = string(resource);
        facts.push(match request.amounts.0[at] {
            Some(amount) => fact("amount", &[of, integer(amount)]),
            None => fact("without", &[of]),
        });
    }
    facts
}

fn grant_of(
    only: Vec<(String, String)>,
    all: impl Iterator<Item = String>,
    ceilings: Vec<(String, i64)>,
) -> Result<Grant, TokenError> {
    let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (of, value) in only {
        values.entry(of).or_default().push(value);
    }
    let all: BTreeSet<String> = all.collect();
    let mut grant = Grant::none();
    for dimension in Dimension::EXTENTS {
        let values = values.remove(dimension.name()).unwrap_or_default();
        let is_all = all.contains(dimension.name());
        grant.set(dimension, if is_all { None } else { Some(values) })?;
    }
    for (of, most) in ceilings {
        if let Some(at) = RESOURCES.iter().position(|(resource, _)| *resource == of) {
            let most = u64::try_from(most).unwrap_or(0);
            let before = grant.ceilings.0[at].unwrap_or(u64::MAX);
            grant.ceilings.0[at] = Some(most.min(before));
        }
    }
    Ok(grant)
}

fn date_of(term: &Term) -> Option<UnixTime> {
    match term {
        Term::Date(seconds) => Some(UnixTime(*seconds)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
