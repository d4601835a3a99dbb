//! Grants: the rights of a principal, as an extent in each dimension, ceilings, and an end.
//!
//! The same type describes what an administrator grants and what a holder leaves of it when passing
//! a token on. A token grants the intersection of all its blocks.

use crate::UnixTime;
pub use crate::dimension::{Dimension, Kind};
use crate::request::{AccessRequest, Amounts, Missing, Operation, RESOURCES, RequestedModule};
use crate::signer::Signer;
use abi::Level;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Longest value in a grant, in bytes; the text of a digest has 71.
pub const VALUE_LENGTH_MAX: usize = 128;
/// Largest number of values in one dimension; keeps a token at a few kilobytes.
pub const VALUES_MAX: usize = 64;

/// Pattern of modules: `sha256:…`, `name:monitor`, `name:mon*`, `signer:ed25519/…`,
/// `signer:secp256r1/…`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModulePattern {
    /// Module with this digest.
    Digest([u8; 32]),
    /// Modules with this name.
    Name(String),
    /// Modules whose name begins with this text.
    NameBegins(String),
    /// Modules signed by this key.
    Signer(Signer),
}

impl ModulePattern {
    fn matches(&self, module: &RequestedModule) -> bool {
        match self {
            Self::Digest(digest) => *digest == module.digest,
            Self::Name(name) => *name == module.name,
            Self::NameBegins(start) => module.name.starts_with(start.as_str()),
            Self::Signer(key) => module.signers.contains(key),
        }
    }
}

impl fmt::Display for ModulePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digest(digest) => write!(f, "sha256:{}", hex::encode(digest)),
            Self::Name(name) => write!(f, "name:{name}"),
            Self::NameBegins(start) => write!(f, "name:{start}*"),
            Self::Signer(key) => write!(f, "signer:{key}"),
        }
    }
}

impl FromStr for ModulePattern {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let wrong = || GrantError::Value {
            dimension: Dimension::Module,
            value: text.chars().take(VALUE_LENGTH_MAX).collect(),
            wanted: "sha256: and 64 hexadecimal digits, name:NAME, name:START*, signer:ed25519/… or signer:secp256r1/…",
        };
        let (kind, value) = text.split_once(':').ok_or_else(wrong)?;
        match kind {
            "sha256" => {
                let mut digest = [0; 32];
                hex::decode_to_slice(value, &mut digest).map_err(|_| wrong())?;
                Ok(Self::Digest(digest))
            }
            "signer" => value.parse().map(Self::Signer).map_err(|_| wrong()),
            "name" => match value.strip_suffix('*') {
                Some(start) if is_word(start) || start.is_empty() => {
                    Ok(Self::NameBegins(start.to_owned()))
                }
                None if is_word(value) => Ok(Self::Name(value.to_owned())),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }
}

/// Set of values that a grant covers in one dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent<T> {
    /// All values, also those that do not exist yet.
    All,
    /// Listed values.
    Only(BTreeSet<T>),
}

impl<T: Ord> Extent<T> {
    /// Returns the empty extent.
    #[must_use]
    pub const fn none() -> Self {
        Self::Only(BTreeSet::new())
    }

    /// Returns the extent of the given values.
    pub fn only(values: impl IntoIterator<Item = T>) -> Self {
        Self::Only(values.into_iter().collect())
    }

    pub(crate) fn covers(&self, matches: impl Fn(&T) -> bool) -> bool {
        match self {
            Self::All => true,
            Self::Only(values) => values.iter().any(matches),
        }
    }
}

/// Upper limits of amounts, in the order of [`RESOURCES`]; `None` for no limit.
pub type Ceilings = Amounts;

/// Rights of a principal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Operations allowed.
    pub operations: Extent<Operation>,
    /// Sessions whose services and rules may be used.
    pub sessions: Extent<String>,
    /// Modules that may be used.
    pub modules: Extent<ModulePattern>,
    /// Kinds of services that may be started.
    pub kinds: Extent<Kind>,
    /// Levels at which services may run.
    pub levels: Extent<Level>,
    /// Host functions that modules may import.
    pub functions: Extent<String>,
    /// Prefixes that rules may match.
    pub traffic: Extent<IpNet>,
    /// Upper limits of what a session may have.
    pub ceilings: Ceilings,
    /// End of the grant, exclusive; `None` for no end.
    pub until: Option<UnixTime>,
}

impl Grant {
    /// Returns the unlimited grant of an administrator.
    #[must_use]
    pub const fn all() -> Self {
        Self {
            operations: Extent::All,
            sessions: Extent::All,
            modules: Extent::All,
            kinds: Extent::All,
            levels: Extent::All,
            functions: Extent::All,
            traffic: Extent::All,
            ceilings: Ceilings::NONE,
            until: None,
        }
    }

    /// Returns the grant of nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            operations: Extent::none(),
            sessions: Extent::none(),
            modules: Extent::none(),
            kinds: Extent::none(),
            levels: Extent::none(),
            functions: Extent::none(),
            traffic: Extent::none(),
            ceilings: Ceilings::NONE,
            until: None,
        }
    }

    /// Returns true if a module of this digest may be granted when its name and signers are known.
    pub(crate) fn could_cover(&self, digest: &[u8; 32]) -> bool {
        self.modules.covers(|may| match may {
            ModulePattern::Digest(wanted) => wanted == digest,
            ModulePattern::Name(_) | ModulePattern::NameBegins(_) | ModulePattern::Signer(_) => {
                true
            }
        })
    }

    /// Returns the rights that the request needs and the grant lacks; empty if it is allowed.
    #[must_use]
    pub fn missing(&self, request: &AccessRequest, now: UnixTime) -> Vec<Missing> {
        let mut missing = Vec::new();
        let mut lack = |dimension, what: String| missing.push(Missing { dimension, what });
        if !self.operations.covers(|may| *may == request.operation) {
            lack(Dimension::Operation, request.operation.to_string());
        }
        if let Some(session) = &request.session
            && !self.sessions.covers(|may| may == session)
        {
            lack(Dimension::Session, session.clone());
        }
        if let Some(module) = &request.module {
            if !self.modules.covers(|may| may.matches(module)) {
                lack(Dimension::Module, format!("name:{}", module.name));
            }
            if let Some(kind) = module.kind
                && !self.kinds.covers(|may| *may == kind)
            {
                lack(Dimension::Kind, kind.name().to_owned());
            }
        }
        for level in &request.levels {
            if !self.levels.covers(|may| may == level) {
                lack(Dimension::Level, level.name().to_owned());
            }
        }
        for function in &request.functions {
            if !self.functions.covers(|may| may == function) {
                lack(Dimension::Function, function.clone());
            }
        }
        for prefix in &request.traffic {
            if !self.traffic.covers(|may| may.contains(prefix)) {
                lack(Dimension::Traffic, prefix.to_string());
            }
        }
        for (at, (resource, unit)) in RESOURCES.iter().enumerate() {
            if let (Some(asked), Some(most)) = (request.amounts.0[at], self.ceilings.0[at])
                && asked > most
            {
                let what = format!("{resource}: {asked} {unit}, {most} at most");
                lack(Dimension::Ceiling, what);
            }
        }
        if let Some(until) = self.until
            && now >= until
        {
            lack(Dimension::Until, format!("{} s ago", now.0 - until.0));
        }
        missing
    }
}

/// Error of a grant that cannot be written or parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The dimension does not have this value.
    #[error("'{value}' is no {dimension}; it is {wanted}")]
    Value {
        /// Dimension of the value.
        dimension: Dimension,
        /// Value given.
        value: String,
        /// Description of valid values.
        wanted: &'static str,
    },
    /// A dimension has more than [`VALUES_MAX`] values.
    #[error(
        "{count} values for {dimension}; a grant has at most {VALUES_MAX}: use a pattern, or two tokens"
    )]
    TooMany {
        /// Dimension of the values.
        dimension: Dimension,
        /// Number of values.
        count: usize,
    },
}

/// Returns true if the text consists of the characters of module and session names, which need no
/// escapes in a token.
pub(crate) fn is_word(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= VALUE_LENGTH_MAX && text.bytes().all(is_part)
}

/// Dimension of a grant in text form.
pub(crate) struct Values {
    pub(crate) dimension: Dimension,
    /// Values; `None` for all.
    pub(crate) values: Option<Vec<String>>,
}

impl Grant {
    /// Returns the extents as they are written in tokens.
    pub(crate) fn values(&self) -> Result<Vec<Values>, GrantError> {
        fn of<T>(
            dimension: Dimension,
            extent: &Extent<T>,
            text: impl Fn(&T) -> String,
        ) -> Result<Values, GrantError> {
            let Extent::Only(values) = extent else {
                return Ok(Values { dimension, values: None });
            };
            if values.len() > VALUES_MAX {
                return Err(GrantError::TooMany { dimension, count: values.len() });
            }
            Ok(Values { dimension, values: Some(values.iter().map(text).collect()) })
        }
        fn words(dimension: Dimension, extent: &Extent<String>) -> Result<(), GrantError> {
            let Extent::Only(values) = extent else { return Ok(()) };
            let Some(value) = values.iter().find(|value| !is_word(value)) else { return Ok(()) };
            let wanted = "letters, digits, '-', '_' and '.'";
            Err(GrantError::Value { dimension, value: value.clone(), wanted })
        }
        words(Dimension::Session, &self.sessions)?;
        words(Dimension::Function, &self.functions)?;
        Ok(vec![
            of(Dimension::Operation, &self.operations, |it| it.name().to_owned())?,
            of(Dimension::Session, &self.sessions, Clone::clone)?,
            of(Dimension::Module, &self.modules, ToString::to_string)?,
            of(Dimension::Kind, &self.kinds, |it| it.name().to_owned())?,
            of(Dimension::Level, &self.levels, |it| it.name().to_owned())?,
            of(Dimension::Function, &self.functions, Clone::clone)?,
            of(Dimension::Traffic, &self.traffic, bits)?,
        ])
    }

    /// Sets one dimension from its text form in a token.
    pub(crate) fn set(
        &mut self,
        dimension: Dimension,
        values: Option<Vec<String>>,
    ) -> Result<(), GrantError> {
        fn of<T: Ord>(
            values: Option<Vec<String>>,
            parse: impl Fn(&str) -> Option<T>,
            dimension: Dimension,
            wanted: &'static str,
        ) -> Result<Extent<T>, GrantError> {
            let Some(values) = values else { return Ok(Extent::All) };
            let parse =
                |value: String| parse(&value).ok_or(GrantError::Value { dimension, value, wanted });
            values.into_iter().map(parse).collect::<Result<_, _>>().map(Extent::Only)
        }
        let word = |text: &str| is_word(text).then(|| text.to_owned());
        let kind = |text: &str| Kind::ALL.into_iter().find(|it| it.name() == text);
        match dimension {
            Dimension::Operation => {
                self.operations = of(values, Operation::of, dimension, "one of this version's")?;
            }
            Dimension::Session => self.sessions = of(values, word, dimension, "a name")?,
            Dimension::Module => {
                let pattern = |text: &str| text.parse().ok();
                self.modules = of(values, pattern, dimension, "a digest, name or signer")?;
            }
            Dimension::Kind => {
                self.kinds = of(values, kind, dimension, "infrastructure or application")?;
            }
            Dimension::Level => {
                let level = |text: &str| Level::ALL.iter().copied().find(|it| it.name() == text);
                self.levels = of(values, level, dimension, "nic, kernel, user or cluster")?;
            }
            Dimension::Function => self.functions = of(values, word, dimension, "a name")?,
            Dimension::Traffic => {
                self.traffic = of(values, of_bits, dimension, "a prefix's version and bits")?;
            }
            Dimension::Ceiling | Dimension::Until => {}
        }
        Ok(())
    }
}

/// Returns a prefix as IP version and bits, `4:000010100000001`. A prefix lies within another if
/// and only if its text begins with that one's, which Datalog can express.
pub(crate) fn bits(prefix: &IpNet) -> String {
    let (version, bits) = match prefix {
        IpNet::V4(net) => (4, format!("{:032b}", net.network().to_bits())),
        IpNet::V6(net) => (6, format!("{:0128b}", net.network().to_bits())),
    };
    format!("{version}:{}", &bits[..usize::from(prefix.prefix_len())])
}

/// Parses the text form of a prefix; `None` if it is invalid.
#[must_use]
pub fn of_bits(text: &str) -> Option<IpNet> {
    let (version, bits) = text.split_once(':')?;
    let length = u8::try_from(bits.len()).ok()?;
    let value = if bits.is_empty() { 0 } else { u128::from_str_radix(bits, 2).ok()? };
    let is_binary = bits.bytes().all(|byte| matches!(byte, b'0' | b'1'));
    let address = match version {
        "4" if length <= 32 => {
            let value = u32::try_from(value).ok()?.checked_shl(u32::from(32 - length));
            std::net::Ipv4Addr::from_bits(value.unwrap_or(0)).into()
        }
        "6" if length <= 128 => {
            let value = value.checked_shl(u32::from(128 - length));
            std::net::Ipv6Addr::from_bits(value.unwrap_or(0)).into()
        }
        _ => return None,
    };
    if is_binary { IpNet::new(address, length).ok() } else { None }
}
