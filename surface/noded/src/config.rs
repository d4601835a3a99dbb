//! The node file: ports and settings, in TOML.

use node::PortSpec;
use serde::Deserialize;
use std::path::PathBuf;
use units::Name;

/// A commented node file, for `tam node` without one.
pub const SAMPLE_CONFIG: &str = r#"# A Tamandua node: tam node --config FILE
name = "r1"

# "auto": plain forwarding leaves the kernel's way only where the kernel would
# add nothing (no netfilter, no IPsec, no extra routing rules, no queueing
# discipline). "always" and "never" are the operator's explicit choice.
fast_path = "auto"

# Where modules are kept: a directory in OCI layout.
# store = "/var/lib/tamandua/store"

# The core that runs modules; the last one when this is left out. The daemon leaves it
# to them, if there is another.
# guest_core = 1

# Flows whose rule and route each CPU remembers, 146 bytes each; more of them than
# this cost several times as much per packet. At most 4194304; 0 is 8192 without more.
# flow_cache = 65536

# Counters for Prometheus at http://ADDRESS/metrics, in the namespace of the node: read-only,
# for everyone who reaches it. Without this they are on the API's socket only.
# [metrics]
# listen = "127.0.0.1:9464"

# A port is a network device. Its name is used in rules: "in left".
[[port]]
name = "left"
device = "eth1"
# mode = "auto"     # how packets come in: "native" (XDP in the driver), "generic" (XDP in the
                    # stack), or the best that there is, which 'tam show' names

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
"#;

/// Largest node file, in bytes: 64 ports with all settings take a tenth.
const FILE_LENGTH_MAX: usize = 256 << 10;

/// What a node file says.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeFile {
    /// The node's name.
    pub name: Name,
    /// When plain forwarding takes the fast path.
    #[serde(default)]
    pub fast_path: FastPath,
    /// Where modules are kept.
    #[serde(default = "default_store")]
    pub store: PathBuf,
    /// The core that runs modules; the last one when there is none.
    #[serde(default)]
    pub guest_core: Option<usize>,
    /// Flows whose rule and route each CPU remembers beside the most recent ones.
    #[serde(default)]
    pub flow_cache: FlowCache,
    /// Where counters are read over TCP; nowhere when there is none.
    #[serde(default)]
    pub metrics: Option<Metrics>,
    /// Ports that are in line, two and two.
    #[serde(default, deserialize_with = "pairs")]
    pub bridge: Vec<[Name; 2]>,
    /// The ports, in the order of their numbers.
    #[serde(default, rename = "port")]
    pub ports: Vec<PortSpec>,
}

/// Counters for Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// Address and TCP port.
    pub listen: std::net::SocketAddr,
}

/// When plain forwarding takes the fast path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FastPath {
    /// Where the kernel would add nothing.
    #[default]
    Auto,
    /// Always, whatever the kernel would add.
    Always,
    /// Never: the kernel forwards what no rule takes.
    Never,
}

impl FastPath {
    /// As in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

/// The room of the large flow cache on each CPU, in flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u32")]
pub struct FlowCache(pub u32);

impl Default for FlowCache {
    /// 9 MiB on each CPU.
    fn default() -> Self {
        Self(65_536)
    }
}

impl TryFrom<u32> for FlowCache {
    type Error = String;

    fn try_from(flows: u32) -> Result<Self, String> {
        const MAX: u32 = bpf::front_door::FLOWS_LARGE_MAX;
        if flows > MAX {
            return Err(format!(
                "a flow cache of {flows} flows is too large; at most {MAX} are allowed"
            ));
        }
        Ok(Self(flows))
    }
}

/// One pair of names, or a list of pairs.
fn pairs<'a, D: serde::Deserializer<'a>>(value: D) -> Result<Vec<[Name; 2]>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "two ports, [\"a\", \"b\"], or a list of such pairs")]
    enum Pairs {
        One([Name; 2]),
        Some(Vec<[Name; 2]>),
    }
    Ok(match Pairs::deserialize(value)? {
        Pairs::One(pair) => vec![pair],
        Pairs::Some(pairs) => pairs,
    })
}

fn default_store() -> PathBuf {
    PathBuf::from("/var/lib/tamandua/store")
}

/// Why a node file cannot be used. The operator's fault.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// More than [`FILE_LENGTH_MAX`].
    #[error("{file} has {length} bytes, a node file has at most {FILE_LENGTH_MAX}")]
    TooLong {
        /// The file.
        file: String,
        /// Its length.
        length: usize,
    },
    /// Not TOML, or with fields that do not exist.
    #[error("{file}, {source}{meant}")]
    Toml {
        /// The file.
        file: String,
        /// Line, column and what was expected.
        source: Box<toml::de::Error>,
        /// What was probably meant.
        meant: String,
    },
}

impl NodeFile {
    /// Parses a node file; `file` is its name in messages.
    ///
    /// # Errors
    /// With the line, and what was probably meant.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        if text.len() > FILE_LENGTH_MAX {
            return Err(ConfigError::TooLong { file: file.to_owned(), length: text.len() });
        }
        toml::from_str(text).map_err(|source| ConfigError::Toml {
            file: file.to_owned(),
            meant: meant(source.message()),
            source: Box::new(source),
        })
    }
}

/// A suggestion out of serde's "unknown field `x`, expected one of `a`, `b`".
fn meant(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let Some(found) = quoted.next().filter(|_| message.starts_with("unknown")) else {
        return String::new();
    };
    let near = abi::manifest::Meant::new(found, quoted);
    near.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_a_node_file() {
        let file = NodeFile::parse(SAMPLE_CONFIG, "sample").unwrap();
        assert_eq!((file.name.as_str(), file.ports.len()), ("r1", 2));
        assert_eq!(file.fast_path, FastPath::Auto);
    }

    #[test]
    fn a_bridge_is_a_pair_or_a_list_of_pairs() {
        let read = |text: &str| {
            let file = NodeFile::parse(&format!("name = \"r1\"\nbridge = {text}\n"), "node.toml");
            file.map(|file| file.bridge.len()).map_err(|error| error.to_string())
        };
        assert_eq!(read(r#"["a", "b"]"#), Ok(1));
        assert_eq!(read(r#"[["a", "b"], ["c", "d"]]"#), Ok(2));
        let said = read(r#"["a", "b", "c"]"#).unwrap_err();
        assert!(said.contains("line 2") && said.contains("two ports"), "{said}");
    }

    #[test]
    fn a_typing_error_has_its_line_and_a_suggestion() {
        let text = "name = \"r1\"\nfastpath = \"auto\"\n";
        let message = NodeFile::parse(text, "node.toml").unwrap_err().to_string();
        assert!(message.contains("line 2"), "{message}");
        assert!(message.contains("fast_path"), "{message}");
        let text = "name = \"R1\"\n";
        let message = NodeFile::parse(text, "node.toml").unwrap_err().to_string();
        assert!(message.contains("line 1") && message.contains("'R'"), "{message}");
    }
}
