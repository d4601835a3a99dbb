//! Capabilities as Biscuit tokens (version 2; biscuit-auth/biscuit, SPECIFICATIONS.md).
//!
//! ```text
//! block 0, signed by an administrator   principal("ed25519/…");
//!   what is granted, as facts           grant("operation", "deploy"); all("level");
//!                                       ceiling("services", 4); until(…);
//!                                       check if time($now), $now < …;
//! block 1, 2, …, by whoever holds it    check all without("level") or
//!   what is left of it, as checks         asked("level", $v), {"user"}.contains($v);
//!                                       the same as facts, for whoever reads it
//! a request, by the node                operation …: asked("operation", "deploy");
//!                                       asked("level", "user"); without("traffic"); …
//!                                       amount("services", 3); time(…);
//! ```
//!
//! A block sees the facts of block 0, its own and the node's, so that appended ones only narrow.
//! Tokens come from outside: their length, and what evaluating them can take, have limits.

use crate::UnixTime;
use crate::ask::{Ask, Missing, RESOURCES};
use crate::grant::{Dimension, Grant, GrantError, ModulePattern, bits};
use crate::key::{PublicKey, SecretKey, Seed};
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

/// Longest token, as text: a grant of some dozen values, narrowed several times.
pub const LENGTH_MAX: usize = 16_384;
/// Most blocks: an administrator's, and a chain of delegations.
pub const BLOCKS_MAX: usize = 16;
/// What evaluation may take; the bounds of blocks keep it far below.
const TIME_MAX: Duration = Duration::from_millis(100);
/// Facts: a grant's, a request's, and what rules make of them.
const FACTS_MAX: u64 = 2048;
const ITERATIONS_MAX: u64 = 32;
/// Prefixes of one evaluation.
const PREFIXES_MAX: usize = 64;

/// Why there is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// More than [`LENGTH_MAX`].
    #[error("the token has {0} characters; at most {LENGTH_MAX} are taken")]
    TooLong(usize),
    /// More than [`BLOCKS_MAX`].
    #[error("the token has {0} blocks; at most {BLOCKS_MAX} are taken: ask for a new one")]
    TooManyBlocks(usize),
    /// A block that could take long to evaluate.
    #[error("block {block} of the token is too complex: {what}")]
    TooComplex {
        /// Which one.
        block: usize,
        /// What there is too much of.
        what: String,
    },
    /// Not a Biscuit, or a damaged one.
    #[error("this is no token: {0}; `tam token new` makes one")]
    NotAToken(String),
    /// A token, spelled otherwise than those who make tokens spell it.
    #[error("the token was changed since it was made, if only in its spelling; copy it again")]
    Spelling,
    /// Nobody that this node trusts has signed it.
    #[error(
        "no administrator of this node has signed the token, or it was changed since; `tam token inspect` shows it"
    )]
    NotOurs,
    /// Block 0 says nothing about whom it is for, or what this version does not know.
    #[error("the token's grant is not understood: {0}")]
    NotAGrant(String),
    /// It was sealed.
    #[error("the token is sealed: it can be used, and not be narrowed")]
    Sealed,
    /// What was to be written cannot be.
    #[error(transparent)]
    Grant(#[from] GrantError),
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// Rights that the token does not have, each once.
    Missing(Vec<Missing>),
    /// What a block says, where that is no grant of ours.
    Check {
        /// Which one; `None` for the node's own.
        block: Option<u32>,
        /// The check, as Datalog.
        rule: String,
    },
    /// It takes more than a token may.
    Limits(String),
    /// One of its blocks, its principal or its administrator is revoked.
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

/// Names one block of one token: who has a token has all of its ids, and who revokes a block
/// revokes everything that was made of it.
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
            // A signature.
            Ok(bytes) if (64..=72).contains(&bytes.len()) => Ok(Self(bytes)),
            _ => Err(TokenError::NotAToken("a revocation id is a signature, in hex".into())),
        }
    }
}

/// A token that an administrator has signed.
#[derive(Clone, Debug)]
pub struct Token {
    biscuit: Biscuit,
    administrator: PublicKey,
    principal: PublicKey,
    grant: Grant,
    /// What each block leaves of the grant, as far as it says so in our words.
    narrowings: Vec<Option<Grant>>,
    /// Steps that evaluating it takes at most.
    steps: u64,
}

impl Token {
    /// A new one. `next` is a fresh key's seed, with which the holder narrows it.
    ///
    /// # Errors
    /// When the grant cannot be written.
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

    /// By its text, which one of these administrators must have signed.
    ///
    /// # Errors
    /// When it is none, or too large, or signed by nobody of them.
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
        // Queries see block 0 and nothing that was appended.
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

    /// Who has signed it.
    #[must_use]
    pub const fn administrator(&self) -> PublicKey {
        self.administrator
    }

    /// Whom it is for, and who pays.
    #[must_use]
    pub const fn principal(&self) -> PublicKey {
        self.principal
    }

    /// What the administrator granted; later blocks may have left less.
    #[must_use]
    pub const fn grant(&self) -> &Grant {
        &self.grant
    }

    /// When the first of its blocks ends, as far as they say so in our words; what a block says
    /// otherwise is asked with each request.
    #[must_use]
    pub fn ends(&self) -> Option<UnixTime> {
        self.appended().filter_map(|left| left.until).chain(self.grant.until).min()
    }

    /// Whether it may grant a module of this digest, of which nothing else is known yet, as far as
    /// its blocks say so in our words: no is certain, and yes is to be asked again when its name
    /// and signers are known.
    #[must_use]
    pub fn could_cover_module(&self, digest: &[u8; 32]) -> bool {
        self.grant.could_cover(digest) && self.appended().all(|left| left.could_cover(digest))
    }

    /// Whether rules may match this, as far as its blocks say so in our words: which of a rule's
    /// prefixes is to be asked for.
    #[must_use]
    pub fn covers_traffic(&self, prefix: &IpNet) -> bool {
        let covers = |grant: &Grant| grant.traffic.covers(|may| may.contains(prefix));
        covers(&self.grant) && self.appended().all(covers)
    }

    /// Of each of its blocks.
    #[must_use]
    pub fn revocation_ids(&self) -> Vec<RevocationId> {
        self.biscuit.revocation_identifiers().into_iter().map(RevocationId).collect()
    }

    /// Whether all of it agrees to this at this time.
    ///
    /// # Errors
    /// The rights that are missing, by name, or what a block says.
    pub fn authorize(&self, ask: &Ask, now: UnixTime) -> Result<(), Denied> {
        let missing = self.grant.missing(ask, now);
        if !missing.is_empty() {
            return Err(Denied::Missing(missing));
        }
        // Prefixes each stand for themselves: a long list is asked for in parts.
        let traffic: Vec<String> = ask.traffic.iter().map(bits).collect();
        if traffic.is_empty() {
            return self.evaluate(ask, &[], now);
        }
        traffic.chunks(PREFIXES_MAX).try_for_each(|part| self.evaluate(ask, part, now))
    }

    fn evaluate(&self, ask: &Ask, traffic: &[String], now: UnixTime) -> Result<(), Denied> {
        let limits = |error: BiscuitError| Denied::Limits(error.to_string());
        let facts = request(ask, traffic, now);
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
                self.left_by(check.block_id).into_iter().flat_map(|it| it.missing(ask, now)),
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

    /// Returns what an appended block leaves, as it says itself.
    fn left_by(&self, block: u32) -> Option<&Grant> {
        let at = usize::try_from(block).ok().filter(|at| *at > 0)?;
        self.narrowings.get(at)?.as_ref()
    }

    /// Returns what each appended block leaves, of those that say so.
    fn appended(&self) -> impl Iterator<Item = &Grant> {
        self.narrowings.iter().skip(1).flatten()
    }

    /// Returns the steps that one [`Self::authorize`] takes at most for each chunk of its prefixes,
    /// of at most 30 ns each.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// As its holder has it.
    ///
    /// # Errors
    /// When it became too long.
    pub fn held(&self) -> Result<HeldToken, TokenError> {
        HeldToken::parse(&self.biscuit.to_base64().map_err(not_a_token)?)
    }
}

/// A token whose administrator is not known here: what a holder can do with it.
#[derive(Clone, Debug)]
pub struct HeldToken {
    biscuit: UnverifiedBiscuit,
}

impl HeldToken {
    /// By its text. Nothing is verified but its form.
    ///
    /// # Errors
    /// When it is none, or too large.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let text = text.strip_prefix("biscuit:").unwrap_or(text);
        if text.len() > LENGTH_MAX {
            return Err(TokenError::TooLong(text.len()));
        }
        let biscuit = UnverifiedBiscuit::from_base64(text).map_err(not_a_token)?;
        // Protocol Buffers have many spellings of one message, and a token has one: no other bytes
        // than those that were made are taken.
        if biscuit.to_base64().map_err(not_a_token)? != text {
            return Err(TokenError::Spelling);
        }
        if biscuit.block_count() > BLOCKS_MAX {
            return Err(TokenError::TooManyBlocks(biscuit.block_count()));
        }
        bounds::check(&blocks::decode(&biscuit.to_vec().map_err(not_a_token)?)?)?;
        Ok(Self { biscuit })
    }

    /// One that may less, to use or to pass on. `next` is a fresh key's seed.
    ///
    /// # Errors
    /// When the grant cannot be written, or the token is sealed or would become too large.
    pub fn narrow(&self, to: &Grant, next: &Seed) -> Result<Self, TokenError> {
        let block = checks_of(to)?.merge(facts_of(to)?);
        let narrowed = self.biscuit.append_with_keypair(&pair(next)?, block);
        let narrowed = narrowed.map_err(|error| match error {
            BiscuitError::AppendOnSealed => TokenError::Sealed,
            error => not_a_token(error),
        })?;
        Self::parse(&narrowed.to_base64().map_err(not_a_token)?)
    }

    /// What each block says, as Datalog.
    #[must_use]
    pub fn blocks(&self) -> Vec<String> {
        let source = |at| self.biscuit.print_block_source(at).unwrap_or_default();
        (0..self.biscuit.block_count()).map(source).collect()
    }

    /// Of each of its blocks.
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

/// What a grant says, for whoever reads it.
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

/// What a grant leaves, as checks.
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

/// One dimension of a narrowing.
fn extent_check(dimension: Dimension, only: &[String]) -> Result<Check, BiscuitError> {
    let begins = |value: &String| {
        dimension == Dimension::Traffic || dimension == Dimension::Module && value.ends_with('*')
    };
    let (starts, exact): (Vec<&String>, Vec<&String>) = only.iter().partition(|it| begins(it));
    // A request has one module and several names for it: one of them has to fit.
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

/// What a node says of a request.
fn request(ask: &Ask, traffic: &[String], now: UnixTime) -> Vec<Fact> {
    let mut asked: BTreeMap<Dimension, Vec<String>> = BTreeMap::new();
    let mut note = |dimension, value: String| asked.entry(dimension).or_default().push(value);
    note(Dimension::Operation, ask.operation.name().to_owned());
    ask.session.iter().for_each(|session| note(Dimension::Session, session.clone()));
    if let Some(module) = &ask.module {
        note(Dimension::Module, ModulePattern::Digest(module.digest).to_string());
        note(Dimension::Module, ModulePattern::Name(module.name.clone()).to_string());
        for key in &module.signers {
            note(Dimension::Module, ModulePattern::Signer(*key).to_string());
        }
        module.kind.iter().for_each(|kind| note(Dimension::Kind, kind.name().to_owned()));
    }
    ask.levels.iter().for_each(|level| note(Dimension::Level, level.name().to_owned()));
    ask.functions.iter().for_each(|function| note(Dimension::Function, function.clone()));
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
        facts.push(match ask.amounts.0[at] {
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
