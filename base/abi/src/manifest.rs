//! Manifest: a module's declarations, as TOML in its custom section.
//!
//! [`Manifest::parse`] is the only way from text to a [`Manifest`]; every limit is applied there.
//! The grammar is in docs/reference/module-abi.md.

pub(crate) mod error;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toml::de::{DeTable, DeValue};
use units::Name;

use crate::fields::{Fields, line_at};
use crate::host::Need;
use crate::layout::{
    ABI_VERSION, MANIFEST_LENGTH_MAX, MEMORY_PAGES_MAX, VERSION_LENGTH_MAX, WINDOW_LENGTH_MAX,
};
pub use crate::meant::Meant;
use crate::parameter;
pub use crate::parameter::{
    PARAMETER_TEXT_MAX, PARAMETERS_MAX, Parameter, ParameterError, ParameterType, ParameterValue,
};
use crate::pools;
pub use crate::pools::{Event, KeyField, Lanes, Pool};
pub use error::ManifestError;

/// Longest interval of `on_timer`, in milliseconds: one hour.
pub const TIMER_MS_MAX: u32 = 3_600_000;
/// Longest name of a drop reason, in bytes: it is one cell of a table.
pub const REASON_LENGTH_MAX: usize = 64;

/// Longest text of a refusal, in bytes: it is one line of an error.
pub const REFUSAL_LENGTH_MAX: usize = 128;

/// Declarations of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the ABI, always [`ABI_VERSION`].
    pub abi: u32,
    /// Name of the module.
    pub name: Name,
    /// Version of the module, `MAJOR.MINOR.PATCH` with an optional `-suffix`.
    pub version: String,
    /// Bytes of the packet's head that the module sees, at most [`WINDOW_LENGTH_MAX`].
    pub window: u32,
    /// Version of the memory layout; modules of equal versions may take over each other's memory.
    pub state_version: u32,
    /// Number of instances that share the packets; the sum of all pools, where there are any.
    pub lanes: Lanes,
    /// Pools of lanes, in the order of their names; empty: every lane handles every event.
    pub pools: Vec<Pool>,
    /// Fields that identify a flow; empty: the metadata's `flow_hash`.
    pub flows_by: Vec<KeyField>,
    /// Levels at which the module can run, best first; never empty.
    pub levels: Vec<Level>,
    /// Limit of memory growth in pages of 64 KiB, if the module sets one.
    pub memory_pages_max: Option<u32>,
    /// Interval of `on_timer`, in milliseconds.
    pub timer_ms: Option<u32>,
    /// Permissions that the module needs.
    pub needs: Vec<Need>,
    /// Description in one line, or empty.
    pub description: String,
    /// Parameters that an operator may set.
    pub parameters: BTreeMap<Name, Parameter>,
    /// Names of the module's drop reasons.
    pub reasons: BTreeMap<u16, String>,
    /// Meanings of the numbers that `on_start` returns when it refuses to start.
    #[serde(default)]
    pub refusals: BTreeMap<u16, String>,
}

/// Level at which an instance runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// XDP, in the driver.
    Nic,
    /// tc, in the kernel's stack.
    Kernel,
    /// Sandbox in user space.
    User,
    /// Back-end node.
    Cluster,
}

/// Every field of the manifest's top level.
const FIELDS: &[&str] = &[
    "abi",
    "name",
    "version",
    "window",
    "state_version",
    "lanes",
    "pools",
    "flows_by",
    "levels",
    "memory_pages_max",
    "timer_ms",
    "needs",
    "description",
    "parameters",
    "reasons",
    "refusals",
];
/// Every field of a parameter.
const PARAMETER_FIELDS: &[&str] = &["type", "default", "description"];
/// Longest description, in bytes: a line, not a page.
const DESCRIPTION_LENGTH_MAX: usize = 256;

impl Manifest {
    /// Makes the manifest of a stream module that has none, named as its toolchain named it.
    #[must_use]
    pub(crate) fn of_streams(name: Option<&str>) -> Self {
        let name = name.map(|name| {
            let name = name.rsplit('/').next().unwrap_or_default();
            name.strip_suffix(".wasm").unwrap_or(name).to_ascii_lowercase().replace('_', "-")
        });
        let name = name.and_then(|name| Name::new(name).ok());
        Self {
            abi: ABI_VERSION,
            name: name.unwrap_or_else(|| Name::new("filter").expect("a name")),
            version: "0.0.0".to_owned(),
            window: 0,
            state_version: 0,
            lanes: Lanes::Count(1),
            pools: Vec::new(),
            flows_by: Vec::new(),
            levels: vec![Level::User],
            memory_pages_max: None,
            timer_ms: None,
            needs: Vec::new(),
            description: String::new(),
            parameters: BTreeMap::new(),
            reasons: BTreeMap::new(),
            refusals: BTreeMap::new(),
        }
    }

    /// Parses a manifest.
    ///
    /// # Errors
    /// The text is no TOML, of another ABI version, lacks a required field, has an unknown
    /// one, or one outside its limits.
    pub fn parse(text: &str) -> Result<Self, ManifestError> {
        if text.len() > MANIFEST_LENGTH_MAX {
            return Err(ManifestError::TooLong { length: text.len() });
        }
        let table = DeTable::parse(text).map_err(|error| ManifestError::Toml {
            line: line_at(text, error.span().map_or(0, |span| span.start)),
            reason: error.message().into(),
        })?;
        let fields = Fields::new(text, table.get_ref(), "the manifest".into());
        // The version comes first: another version may have other fields.
        let abi = fields.integer("abi")?.ok_or_else(|| fields.missing("abi", "abi = 1"))?;
        if abi != i64::from(ABI_VERSION) {
            return Err(ManifestError::Abi { found: abi });
        }
        fields.known(FIELDS)?;
        let timer_ms = fields.number("timer_ms", 1, TIMER_MS_MAX)?;
        let (lanes, pools) = pools::lanes(&fields, timer_ms.is_some())?;
        Ok(Self {
            abi: ABI_VERSION,
            name: name(&fields)?,
            version: version(&fields)?,
            window: fields
                .number("window", 0, WINDOW_LENGTH_MAX)?
                .ok_or_else(|| fields.missing("window", "window = 64"))?,
            state_version: fields.number("state_version", 0, u32::MAX)?.unwrap_or(1),
            lanes,
            pools,
            flows_by: pools::flows_by(&fields)?,
            levels: levels(&fields)?,
            memory_pages_max: fields.number("memory_pages_max", 1, MEMORY_PAGES_MAX)?,
            timer_ms,
            needs: fields.choices("needs", Need::ALL, |need| need.name())?,
            description: fields.line("description", DESCRIPTION_LENGTH_MAX)?.unwrap_or_default(),
            parameters: parameters(&fields)?,
            reasons: numbered(&fields, "reasons", 0, REASON_LENGTH_MAX)?,
            refusals: numbered(&fields, "refusals", 1, REFUSAL_LENGTH_MAX)?,
        })
    }

    /// Parses a manifest from the bytes of a custom section.
    ///
    /// # Errors
    /// Same as [`parse`](Self::parse); also, the bytes are not UTF-8.
    pub fn parse_bytes(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > MANIFEST_LENGTH_MAX {
            return Err(ManifestError::TooLong { length: bytes.len() });
        }
        let text = core::str::from_utf8(bytes)
            .map_err(|error| ManifestError::NotText { position: error.valid_up_to() })?;
        Self::parse(text)
    }

    /// Returns the value of every parameter: the operator's where there is one, else the default.
    ///
    /// # Errors
    /// A name is unknown, a text is no value of its type, or a parameter without
    /// default is missing.
    pub fn values(
        &self,
        given: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<Name, ParameterValue>, ParameterError> {
        parameter::values(&self.name, &self.parameters, given)
    }
}

impl Level {
    /// Every level, lowest first.
    pub const ALL: &'static [Self] = &[Self::Nic, Self::Kernel, Self::User, Self::Cluster];

    /// Returns the word in the manifest and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nic => "nic",
            Self::Kernel => "kernel",
            Self::User => "user",
            Self::Cluster => "cluster",
        }
    }
}

impl core::fmt::Display for Level {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}

fn name(fields: &Fields<'_>) -> Result<Name, ManifestError> {
    let name = fields.text("name")?.ok_or_else(|| fields.missing("name", "name = \"monitor\""))?;
    Name::new(name).map_err(|source| ManifestError::Name { line: fields.line_of("name"), source })
}

fn version(fields: &Fields<'_>) -> Result<String, ManifestError> {
    let version =
        fields.text("version")?.ok_or_else(|| fields.missing("version", "version = \"0.1.0\""))?;
    if is_version(version) {
        return Ok(version.into());
    }
    Err(ManifestError::Version {
        line: fields.line_of("version"),
        version: version.chars().take(VERSION_LENGTH_MAX).collect(),
    })
}

/// Returns true for Semantic Versioning 2.0.0 without build metadata, which an OCI tag cannot hold.
fn is_version(version: &str) -> bool {
    let (core, suffix) = match version.split_once('-') {
        Some((core, suffix)) => (core, Some(suffix)),
        None => (version, None),
    };
    let is_number = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_digit())
            && (part == "0" || !part.starts_with('0'))
    };
    let is_word = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    version.len() <= VERSION_LENGTH_MAX
        && core.split('.').count() == 3
        && core.split('.').all(is_number)
        && suffix.is_none_or(|suffix| suffix.split('.').all(is_word))
}

fn levels(fields: &Fields<'_>) -> Result<Vec<Level>, ManifestError> {
    if fields.value("levels").is_none() {
        return Ok(vec![Level::User]);
    }
    let levels = fields.choices("levels", Level::ALL, |level| level.name())?;
    if levels.is_empty() {
        let line = fields.line_of("levels");
        return Err(ManifestError::Empty { line, field: "levels".into() });
    }
    Ok(levels)
}

fn parameters(fields: &Fields<'_>) -> Result<BTreeMap<Name, Parameter>, ManifestError> {
    let Some(table) = fields.table("parameters")? else { return Ok(BTreeMap::new()) };
    if table.len() > PARAMETERS_MAX {
        return Err(ManifestError::Parameters { count: table.len() });
    }
    let one = |key: &str| {
        let line = table.line_of(key);
        let name = Name::new(key).map_err(|source| ManifestError::Name { line, source })?;
        let fields = table.table(key)?.ok_or_else(|| table.missing("type", "type = \"u8\""))?;
        Ok((name.clone(), parameter(&name, &fields)?))
    };
    table.keys().map(one).collect()
}

fn parameter(name: &Name, fields: &Fields<'_>) -> Result<Parameter, ManifestError> {
    fields.known(PARAMETER_FIELDS)?;
    let word = fields.text("type")?.ok_or_else(|| fields.missing("type", "type = \"u8\""))?;
    let known = || ParameterType::ALL.iter().map(|(_, word)| *word);
    let Some((kind, _)) = ParameterType::ALL.iter().find(|(_, known)| *known == word) else {
        return Err(ManifestError::Choice {
            line: fields.line_of("type"),
            field: "type".into(),
            value: word.chars().take(32).collect(),
            meant: Meant::new(word, known()),
        });
    };
    let refused = || ManifestError::Default {
        line: fields.line_of("default"),
        parameter: name.clone(),
        wanted: kind.wanted(),
    };
    let default = match (kind, fields.value("default")) {
        (_, None) => None,
        (ParameterType::Bool, Some(DeValue::Boolean(value))) => Some(ParameterValue::Bool(*value)),
        (ParameterType::Bool, Some(_)) => return Err(refused()),
        (ParameterType::Text | ParameterType::Ipv4 | ParameterType::Ipv6, Some(value)) => {
            let text = value.as_str().ok_or_else(refused)?;
            Some(kind.parse(text).ok_or_else(refused)?)
        }
        (_, Some(_)) => {
            let number = fields.integer("default")?.ok_or_else(refused)?;
            Some(kind.parse(&number.to_string()).ok_or_else(refused)?)
        }
    };
    let description = fields.line("description", DESCRIPTION_LENGTH_MAX)?.unwrap_or_default();
    Ok(Parameter { kind: *kind, default, description })
}

/// Reads a table of texts of at most `length_max` bytes by number, from `first` on.
fn numbered(
    fields: &Fields<'_>,
    name: &str,
    first: u16,
    length_max: usize,
) -> Result<BTreeMap<u16, String>, ManifestError> {
    let Some(table) = fields.table(name)? else { return Ok(BTreeMap::new()) };
    let mut lines = BTreeMap::new();
    for key in table.keys() {
        let line = table.line_of(key);
        let number: u16 = key.parse().ok().filter(|number| *number >= first).ok_or_else(|| {
            let (table, key) = (name.into(), key.chars().take(32).collect());
            ManifestError::Number { line, table, key, first }
        })?;
        let text = table.line(key, length_max)?.unwrap_or_default();
        if lines.insert(number, text).is_some() {
            let (field, value) = (name.into(), key.into());
            return Err(ManifestError::Twice { line, field, value });
        }
    }
    Ok(lines)
}
