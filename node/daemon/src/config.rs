//! The node file: ports, settings, and what shall run, in TOML.
//!
//! ```text
//! text ─ parse ─▶ NodeFile ─▶ ports, settings ─▶ the daemon
//!                     └─ Wanted: services and rules, each with its position in the text
//! ```
//!
//! The form is the same for `tam node`, `tam apply` and the routers of labs
//! (docs/reference/node-file.md). Other modules decide which module a name means, and whether the
//! node can have all this.

mod associations;

pub use associations::AssociationsText;

use node::OnFailure;
use node::budget::Budget;
use node::rule::Stage;
use node::{Action, Match, PortSpec};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use trust::{ModulePattern, PublicKey, Signer};
use units::Name;

mod repository;
mod sessions;
mod sizes;
mod words;

use repository::Repositories;
pub use repository::{Repository, Source as RepositorySource};
pub use sessions::SessionText;
pub use sizes::{FlowCache, LedgerEvery};
pub use words::plain;

/// Commented node file, used by `tam node` without a file.
pub const SAMPLE_CONFIG: &str = r#"# A Tamandua node: tam node --config FILE
name = "r1"

# "auto": plain forwarding leaves the kernel's way only where the kernel would
# add nothing (no netfilter, no IPsec, no extra routing rules, no queueing
# discipline). "always" and "never" are the operator's explicit choice.
fast_path = "auto"

# Where modules are kept: a directory in OCI layout.
# store = "/var/lib/tamandua/store"

# Where the node keeps what shall run on it, for its next start.
# state = "/var/lib/tamandua/r1"

# The core that runs modules; the last one when this is left out. The daemon leaves it
# to them, if there is another.
# guest_core = 1

# Flows whose rule and route each CPU remembers, 146 bytes each; more of them than
# this cost several times as much per packet. At most 4194304; 0 is 8192 without more.
# flow_cache = 65536

# What principals use is written into the ledger every so many seconds, 1 to 3600.
# ledger_every = 10

# Counters for Prometheus at http://ADDRESS/metrics, in the namespace of the node: read-only,
# for everyone who reaches it. Without this they are on the API's socket only.
# [metrics]
# listen = "127.0.0.1:9464"

# Whom the node believes: modules run that one of the signers has signed ("tam key new me",
# "tam sign MODULE.wasm --key me"), and tokens count that one of the administrators has
# ("tam token new"). With two administrators, one can be lost.
# [trust]
# signers = ["ed25519/..."]   # or unsigned = "accept": run modules whoever made them
# administrators = ["ed25519/..."]
# anyone = ["name:ping"]      # modules that run without a token, in the best-effort session

# Where modules come from that somebody deploys by their digest and that are not in the store:
# asked in this order. A node is known by its key ("tam show" there).
# [[repository]]
# registry = "registry.example:5000/modules"
# [[repository]]
# node = "192.0.2.2:7443"
# key = "ed25519/..."
# token = "neighbour.token"   # beside this file; what it grants there: read, and the modules

# The API over TCP, with TLS, for those who have a token; "tam show" names the key by which
# clients know the node. Without this it is on its UNIX socket only.
# [api]
# listen = "192.0.2.1:7443"

# Packets that call modules, of those who shake hands with a token: UDP ports at addresses of the
# node's own (docs/guides/associations.md).
# [associations]
# listen = ["192.0.2.1:7443"]

# A port is a network device. Its name is used in rules: "in left".
[[port]]
name = "left"
device = "eth1"
# mode = "auto"     # how packets come in: "native" (XDP in the driver), "generic" (XDP in the
                    # stack), "tc" (behind it, for services of streams alone), or the best that
                    # there is, which 'tam show' names

[[port]]
name = "right"
device = "eth2"

# A TUN device carries IP packets; one that is not there is made, and removed at the end.
# [[port]]
# name = "vpn"
# kind = "tun"

# Two ports in line, without addresses: what enters one leaves by the other unchanged, but
# for what a rule takes. More than one pair: [["a", "b"], ["c", "d"]].
# bridge = ["left", "right"]     # in front of the first [[port]]

# What shall run. The node begins with it, "tam apply FILE" changes it later.
# [[service]]
# module = "monitor.wasm"      # beside this file, or a name or digest in the store
# parameters = { dscp = 10 }
# rules = ["proto icmp", "proto udp dport 53"]
#
# [[rule]]
# match = "proto tcp dport 23"
# action = "drop"              # or "forward", "service NAME", "out PORT"
"#;

/// Largest file, in bytes: as many rules as a node has, with long matches.
pub const FILE_LENGTH_MAX: usize = 8 << 20;
/// Directory under which nodes keep stores and states.
const STATE_DIRECTORY: &str = "/var/lib/tamandua";

/// Contents of a node file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFile {
    /// Name of the node.
    pub name: Name,
    /// Condition for plain forwarding on the fast path.
    pub fast_path: FastPath,
    /// Directory of the module store.
    pub store: PathBuf,
    /// Directory of the node's desired state.
    pub state: PathBuf,
    /// Core that runs modules; the last one if `None`.
    pub guest_core: Option<usize>,
    /// Number of flows whose rule and route each CPU caches beside the most recent ones.
    pub flow_cache: FlowCache,
    /// Interval at which usage is written to the ledger.
    pub ledger_every: LedgerEvery,
    /// Address of the Prometheus counters over TCP; not served if `None`.
    pub metrics: Option<Metrics>,
    /// Address of the API over TCP; not served if `None`.
    pub api: Option<Api>,
    /// Administrators and signers that the node trusts.
    pub trust: TrustText,
    /// Addresses at which the node accepts associations; none if `None`.
    pub associations: Option<AssociationsText>,
    /// Repositories of modules that the node does not hold, in the order in which they are asked.
    pub repositories: Vec<Repository>,
    /// Pairs of bridged ports.
    pub bridge: Bridge,
    /// Ports, in the order of their numbers.
    pub ports: Vec<PortSpec>,
    /// Desired sessions, services and rules.
    pub wanted: Wanted,
}

/// Desired sessions, services and rules of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Set if services may run below user level.
    pub bpf: bool,
    /// Desired sessions.
    pub sessions: Vec<Spanned<SessionText>>,
    /// Desired services.
    pub services: Vec<Spanned<ServiceText>>,
    /// Rules that belong to no service.
    pub rules: Vec<Spanned<RuleText>>,
    source: Source,
}

/// File name and text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    file: String,
    text: String,
}

/// Syntax of a file. Keys that a node needs are optional, since a file to be applied may lack them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    name: Option<Name>,
    fast_path: Option<Spanned<FastPath>>,
    store: Option<Spanned<PathBuf>>,
    state: Option<Spanned<PathBuf>>,
    guest_core: Option<Spanned<usize>>,
    flow_cache: Option<Spanned<FlowCache>>,
    ledger_every: Option<Spanned<LedgerEvery>>,
    metrics: Option<Spanned<Metrics>>,
    api: Option<Spanned<Api>>,
    trust: Option<Spanned<TrustText>>,
    associations: Option<Spanned<AssociationsText>>,
    repository: Option<Spanned<Repositories>>,
    bridge: Option<Spanned<Bridge>>,
    bpf: Option<bool>,
    port: Option<Spanned<Vec<PortSpec>>>,
    #[serde(default)]
    session: Vec<Spanned<SessionText>>,
    #[serde(default)]
    service: Vec<Spanned<ServiceText>>,
    #[serde(default)]
    rule: Vec<Spanned<RuleText>>,
}

/// Syntax of a service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceText {
    /// Name of the service; the module's if `None`.
    #[serde(default)]
    pub name: Option<Spanned<Name>>,
    /// File, or a name or digest in the store.
    pub module: Spanned<String>,
    /// Parameters by name.
    #[serde(default)]
    pub parameters: Option<Spanned<BTreeMap<String, ParameterText>>>,
    /// Session that pays.
    #[serde(default)]
    pub session: Option<Spanned<Name>>,
    /// Level at which to run.
    #[serde(default)]
    pub level: Option<Spanned<abi::Level>>,
    /// Services after it in the graph, in the order of edges.
    #[serde(default)]
    pub then: Option<Spanned<Vec<Name>>>,
    /// Limit of its usage below user level.
    #[serde(default)]
    pub budget: Budget,
    /// Failure policy.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Rules that are added and removed with the service.
    #[serde(default)]
    pub rules: Vec<Spanned<String>>,
    /// Priority of these rules.
    #[serde(default)]
    pub priority: Option<u16>,
    /// Stage of these rules.
    #[serde(default)]
    pub stage: Option<Stage>,
}

/// Syntax of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleText {
    /// Packets that the rule matches.
    pub r#match: Match,
    /// Action on matching packets.
    pub action: ActionText,
    /// Priority; higher wins.
    #[serde(default)]
    pub priority: Option<u16>,
    /// Session that pays.
    #[serde(default)]
    pub session: Option<Name>,
    /// Stage at which the rule is evaluated.
    #[serde(default)]
    pub stage: Option<Stage>,
}

/// Action of a rule: `forward`, `drop`, `service NAME` or `out PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ActionText(pub Action);

impl TryFrom<String> for ActionText {
    type Error = node::rule::ActionError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}

/// Value of a parameter: text, or a number or truth value, which is converted to text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterText(pub String);

impl<'de> Deserialize<'de> for ParameterText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Value;
        impl Visitor<'_> for Value {
            type Value = ParameterText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text in quotes, a whole number, true or false")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ParameterText, E> {
                Ok(ParameterText(text.to_owned()))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<ParameterText, E> {
                Ok(ParameterText(number.to_string()))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<ParameterText, E> {
                Ok(ParameterText(number.to_string()))
            }
            fn visit_bool<E: de::Error>(self, value: bool) -> Result<ParameterText, E> {
                Ok(ParameterText(value.to_string()))
            }
        }
        deserializer.deserialize_any(Value)
    }
}

/// Counters for Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// Address and TCP port.
    pub listen: std::net::SocketAddr,
}

/// The API over TCP, with TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Api {
    /// Address and TCP port.
    pub listen: std::net::SocketAddr,
}

/// Trust settings of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustText {
    /// Keys whose tokens are accepted. Several, so that one can be lost.
    #[serde(default, deserialize_with = "administrators")]
    pub administrators: Vec<PublicKey>,
    /// Modules that every caller may run, without a token, in the best-effort session.
    #[serde(default, deserialize_with = "patterns")]
    pub anyone: BTreeSet<ModulePattern>,
    /// Keys whose signatures of modules are accepted.
    #[serde(default, deserialize_with = "signers")]
    pub signers: BTreeSet<Signer>,
    /// Treatment of modules without an accepted signature.
    #[serde(default)]
    pub unsigned: Unsigned,
}

/// Treatment of modules without an accepted signature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unsigned {
    /// Unsigned modules are refused.
    #[default]
    Refuse,
    /// Unsigned modules run: the operator trusts everyone who may deploy.
    Accept,
}

/// Most signers of one node: each is tried for every signature that does not name its own.
const SIGNERS_MAX: usize = 64;

fn signers<'de, D: Deserializer<'de>>(value: D) -> Result<BTreeSet<Signer>, D::Error> {
    let texts = Vec::<String>::deserialize(value)?;
    if texts.len() > SIGNERS_MAX {
        let problem = format!("a node believes at most {SIGNERS_MAX} signers");
        return Err(de::Error::custom(problem));
    }
    texts.iter().map(|text| text.parse().map_err(de::Error::custom)).collect()
}

/// Most administrators of one node.
const ADMINISTRATORS_MAX: usize = 16;

fn administrators<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<PublicKey>, D::Error> {
    let keys = Vec::<PublicKey>::deserialize(value)?;
    if keys.len() > ADMINISTRATORS_MAX {
        let problem = format!("a node believes at most {ADMINISTRATORS_MAX} administrators");
        return Err(de::Error::custom(problem));
    }
    Ok(keys)
}

fn patterns<'de, D: Deserializer<'de>>(value: D) -> Result<BTreeSet<ModulePattern>, D::Error> {
    let texts = Vec::<String>::deserialize(value)?;
    if texts.len() > trust::grant::VALUES_MAX {
        let problem = format!("at most {} patterns", trust::grant::VALUES_MAX);
        return Err(de::Error::custom(problem));
    }
    texts.iter().map(|text| text.parse().map_err(de::Error::custom)).collect()
}

/// Condition for plain forwarding on the fast path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FastPath {
    /// Fast path where the kernel would add nothing.
    #[default]
    Auto,
    /// Fast path always, whatever the kernel would add.
    Always,
    /// No fast path: the kernel forwards what no rule takes.
    Never,
}

impl FastPath {
    /// Returns the name used in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

/// Pairs of bridged ports: one pair of names, or a list of pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bridge(pub Vec<[Name; 2]>);

impl<'de> Deserialize<'de> for Bridge {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "two ports, [\"a\", \"b\"], or a list of such pairs")]
        enum Pairs {
            One([Name; 2]),
            Some(Vec<[Name; 2]>),
        }
        Ok(Self(match Pairs::deserialize(value)? {
            Pairs::One(pair) => vec![pair],
            Pairs::Some(pairs) => pairs,
        }))
    }
}

/// Cause for which a file cannot be used: a fault of the operator.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is longer than [`FILE_LENGTH_MAX`].
    #[error("{file} has {length} bytes, a node file has at most {FILE_LENGTH_MAX}")]
    TooLong {
        /// Name of the file.
        file: String,
        /// Length in bytes.
        length: usize,
    },
    /// The file does not name the node.
    #[error("{file} names no node; write name = \"r1\" in its first line")]
    NoName {
        /// Name of the file.
        file: String,
    },
    /// Module store and state would share one directory.
    #[error("{file}: store and state are both {}; give the state a directory of its own", directory.display())]
    OneDirectory {
        /// Name of the file.
        file: String,
        /// Directory of both.
        directory: PathBuf,
    },
    /// The node refuses something at one position of the file.
    #[error("{file}, line {line}, column {column}: {problem}")]
    At {
        /// Name of the file.
        file: String,
        /// Line number, counted from 1.
        line: usize,
        /// Column in characters, counted from 1.
        column: usize,
        /// Problem, and its remedy.
        problem: String,
    },
}

impl NodeFile {
    /// Parses a node file; `file` is its name in messages.
    ///
    /// # Errors
    /// The file is invalid; the error has the line, and what was probably meant.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let source = Source { file: file.to_owned(), text: text.to_owned() };
        let found = source.read()?;
        let Some(name) = found.name else { return Err(ConfigError::NoName { file: source.file }) };
        let own = |path: Option<Spanned<PathBuf>>, usual: &str| {
            path.map_or_else(|| Path::new(STATE_DIRECTORY).join(usual), Spanned::into_inner)
        };
        let (store, state) = (own(found.store, "store"), own(found.state, name.as_str()));
        if store == state {
            return Err(ConfigError::OneDirectory { file: source.file, directory: state });
        }
        Ok(Self {
            name,
            fast_path: found.fast_path.map(Spanned::into_inner).unwrap_or_default(),
            store,
            state,
            guest_core: found.guest_core.map(Spanned::into_inner),
            flow_cache: found.flow_cache.map(Spanned::into_inner).unwrap_or_default(),
            ledger_every: found.ledger_every.map(Spanned::into_inner).unwrap_or_default(),
            bridge: found.bridge.map(Spanned::into_inner).unwrap_or_default(),
            metrics: found.metrics.map(Spanned::into_inner),
            api: found.api.map(Spanned::into_inner),
            trust: found.trust.map(Spanned::into_inner).unwrap_or_default(),
            associations: found.associations.map(Spanned::into_inner),
            repositories: found.repository.map(|it| it.into_inner().0).unwrap_or_default(),
            ports: found.port.map(Spanned::into_inner).unwrap_or_default(),
            wanted: Wanted {
                bpf: found.bpf.unwrap_or(true),
                sessions: found.session,
                services: found.service,
                rules: found.rule,
                source,
            },
        })
    }

    /// Parses a file that is to be applied to the node that this one started. Settings beside
    /// sessions, services and rules may be missing, but must not differ from the node's.
    ///
    /// # Errors
    /// The file is invalid; the error has the line, and what was probably meant.
    pub fn parse_wanted(&self, text: &str, file: &str) -> Result<Wanted, ConfigError> {
        let source = Source { file: file.to_owned(), text: text.to_owned() };
        let found = source.read()?;
        if let Some(name) = found.name.filter(|name| *name != self.name) {
            let problem =
                format!("this is the file of node '{name}', and the node is '{}'", self.name);
            return Err(source.at(source.find("name"), problem));
        }
        let restart = |what: &str, here: String, there: String| {
            format!(
                "{what} is {here} here and {there} on the node, which reads it when it starts; restart the node with this file, or leave it out here"
            )
        };
        if let Some(here) = found.fast_path.filter(|it| *it.get_ref() != self.fast_path) {
            let (here, span) = (here.get_ref().name(), here.span());
            let there = self.fast_path.name().to_owned();
            return Err(source.at(span, restart("fast_path", here.to_owned(), there)));
        }
        let paths = [("store", found.store, &self.store), ("state", found.state, &self.state)];
        for (what, here, there) in paths {
            if let Some(here) = here.filter(|it| it.get_ref() != there) {
                let (shown, there) =
                    (here.get_ref().display().to_string(), there.display().to_string());
                return Err(source.at(here.span(), restart(what, shown, there)));
            }
        }
        if let Some(here) = found.guest_core.filter(|it| Some(*it.get_ref()) != self.guest_core) {
            let there = self.guest_core.map_or_else(|| "left out".to_owned(), |c| c.to_string());
            let problem = restart("guest_core", here.get_ref().to_string(), there);
            return Err(source.at(here.span(), problem));
        }
        if let Some(here) = found.metrics.filter(|it| Some(*it.get_ref()) != self.metrics) {
            let there = self.metrics.map_or_else(|| "nowhere".to_owned(), |m| m.listen.to_string());
            let problem = restart("metrics", here.get_ref().listen.to_string(), there);
            return Err(source.at(here.span(), problem));
        }
        if let Some(here) = found.api.filter(|it| Some(*it.get_ref()) != self.api) {
            let there = self.api.map_or_else(|| "nowhere".to_owned(), |it| it.listen.to_string());
            let problem = restart("api", here.get_ref().listen.to_string(), there);
            return Err(source.at(here.span(), problem));
        }
        if let Some(here) = found.trust.filter(|it| *it.get_ref() != self.trust) {
            let problem = "[trust] is not that of the node, which takes it when it starts; restart the node with this file, or leave it out here";
            return Err(source.at(here.span(), problem.to_owned()));
        }
        let theirs =
            found.associations.filter(|it| Some(it.get_ref()) != self.associations.as_ref());
        if let Some(here) = theirs {
            let problem = "[associations] is not that of the node, which takes it when it starts; restart the node with this file, or leave it out here";
            return Err(source.at(here.span(), problem.to_owned()));
        }
        if let Some(here) = found.repository.filter(|it| it.get_ref().0 != self.repositories) {
            let problem = "the repositories are not those of the node, which takes them when it starts; restart the node with this file, or leave them out here";
            return Err(source.at(here.span(), problem.to_owned()));
        }
        if let Some(here) = found.flow_cache.filter(|it| *it.get_ref() != self.flow_cache) {
            let there = self.flow_cache.0.to_string();
            let problem = restart("flow_cache", here.get_ref().0.to_string(), there);
            return Err(source.at(here.span(), problem));
        }
        if let Some(here) = found.ledger_every.filter(|it| *it.get_ref() != self.ledger_every) {
            let there = self.ledger_every.0.to_string();
            let problem = restart("ledger_every", here.get_ref().0.to_string(), there);
            return Err(source.at(here.span(), problem));
        }
        if let Some(here) = found.bridge.filter(|it| *it.get_ref() != self.bridge) {
            let problem = "the bridged pairs are not those of the node, which takes them when it starts; restart the node with this file, or leave them out here";
            return Err(source.at(here.span(), problem.to_owned()));
        }
        if let Some(here) = found.port.filter(|it| *it.get_ref() != self.ports) {
            let problem = "the ports are not those of the node, which takes them when it starts; restart the node with this file, or leave the ports out here";
            return Err(source.at(here.span(), problem.to_owned()));
        }
        Ok(Wanted {
            bpf: found.bpf.unwrap_or(true),
            sessions: found.session,
            services: found.service,
            rules: found.rule,
            source,
        })
    }
}

impl Wanted {
    /// Returns the modules of a file that is to be applied, as files or names.
    ///
    /// # Errors
    /// The file is no valid node file.
    pub fn modules(text: &str, file: &str) -> Result<Vec<NamedModule>, ConfigError> {
        let source = Source { file: file.to_owned(), text: text.to_owned() };
        let services = source.read()?.service;
        let modules = services.into_iter().map(|service| {
            let module = service.into_inner().module;
            let place = source.at(module.span(), String::new()).to_string();
            NamedModule { place, module: module.into_inner() }
        });
        Ok(modules.collect())
    }

    /// Returns the name of the node that a file is for, if it has one.
    ///
    /// # Errors
    /// The file is no valid node file.
    pub fn node_of(text: &str, file: &str) -> Result<Option<Name>, ConfigError> {
        let source = Source { file: file.to_owned(), text: text.to_owned() };
        Ok(source.read()?.name)
    }

    /// Returns true if the file asks for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let none = self.sessions.is_empty() && self.services.is_empty();
        none && self.rules.is_empty() && self.bpf
    }

    /// Returns an error at a position of the file.
    #[must_use]
    pub fn at(&self, span: Range<usize>, problem: impl Into<String>) -> ConfigError {
        self.source.at(span, problem.into())
    }
}

/// Module that a file names, with its position there.
#[derive(Debug)]
pub struct NamedModule {
    /// File, name or digest.
    pub module: String,
    /// File, line and column, as the beginning of a message.
    place: String,
}

impl NamedModule {
    /// Returns the problem as a message with the position of the module's name.
    #[must_use]
    pub fn at(&self, problem: &str) -> String {
        format!("{}{problem}", self.place)
    }
}

/// Returns true if a module is given by its file rather than by a name or digest.
#[must_use]
pub fn is_file(module: &str) -> bool {
    module.ends_with(".wasm") || module.contains('/')
}

impl Source {
    fn read(&self) -> Result<FileText, ConfigError> {
        let length = self.text.len();
        if length > FILE_LENGTH_MAX {
            return Err(ConfigError::TooLong { file: self.file.clone(), length });
        }
        let found: FileText = toml::from_str(&self.text).map_err(|error| {
            let problem = words::problem(&self.text, &error, &top_fields());
            self.at(error.span().unwrap_or_default(), problem)
        })?;
        // TOML's reader knows the position of a list, but not of its elements.
        for rule in found.service.iter().flat_map(|service| &service.get_ref().rules) {
            let parsed = rule.get_ref().parse::<Match>();
            parsed.map_err(|error| self.at(rule.span(), error.to_string()))?;
        }
        Ok(found)
    }

    /// Returns the position of a top-level key; the beginning of the file if it is not found.
    fn find(&self, key: &str) -> Range<usize> {
        let at = self.text.lines().find(|line| line.trim_start().starts_with(key));
        let at = at.map_or(0, |line| line.as_ptr() as usize - self.text.as_ptr() as usize);
        at..at
    }

    fn at(&self, span: Range<usize>, problem: String) -> ConfigError {
        let before = self.text.get(..span.start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        ConfigError::At { file: self.file.clone(), line, column, problem }
    }
}

/// Returns the fields of a file's top level, as its reader lists them in a refusal.
fn top_fields() -> Vec<String> {
    let refused = toml::from_str::<FileText>("\"?\" = 1").err();
    let message = refused.map_or_else(String::new, |error| error.message().to_owned());
    message.split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
