//! Repositories of modules that the node does not hold (`[[repository]]`).
//!
//! ```toml
//! [[repository]]                              [[repository]]
//! registry = "registry.example:5000/modules"  node = "192.0.2.2:7443"
//! auth_file = "registry.json"                 key = "ed25519/…"
//!                                             token = "neighbour.token"
//! ```
//!
//! Files with secrets are only named here. They are read for each use, so that they can be replaced
//! while the node runs.

use oci_client::Registry;
use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeSet;
use std::path::PathBuf;
use trust::PublicKey;

/// Most repositories of one node: a site, its neighbours and some registries. Each may cost its
/// timeout for every module that none of them has.
pub const REPOSITORIES_MAX: usize = 8;

/// Source of modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// Registry or node.
    pub source: Source,
    /// File of a token, which is sent with each request.
    pub token: Option<PathBuf>,
}

/// Registry or node that is asked for modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// OCI registry.
    Registry {
        /// Host and L4 port.
        registry: Registry,
        /// Name in the registry under which modules are found by their digest.
        name: String,
        /// Set to connect without TLS.
        plain_http: bool,
        /// File with a user's name and password, in docker's format.
        auth_file: Option<PathBuf>,
    },
    /// Another node.
    Node {
        /// Host and L4 port.
        address: Registry,
        /// Public key that identifies the node.
        key: PublicKey,
    },
}

impl Repository {
    /// Returns the name used in messages.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.source {
            Source::Registry { registry, name, .. } => format!("{registry}/{name}"),
            Source::Node { address, .. } => format!("the node at {address}"),
        }
    }

    /// Returns the key of a node; `None` for a registry.
    #[must_use]
    pub const fn key(&self) -> Option<PublicKey> {
        match &self.source {
            Source::Registry { .. } => None,
            Source::Node { key, .. } => Some(*key),
        }
    }

    const fn address(&self) -> &Registry {
        match &self.source {
            Source::Registry { registry, .. } => registry,
            Source::Node { address, .. } => address,
        }
    }
}

/// Repositories of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Repositories(pub(super) Vec<Repository>);

impl<'de> Deserialize<'de> for Repositories {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        let all = Vec::<Repository>::deserialize(value)?;
        if all.len() > REPOSITORIES_MAX {
            let problem = format!(
                "{} repositories are too many, a node asks at most {REPOSITORIES_MAX}; one of them can be the parent of others",
                all.len()
            );
            return Err(de::Error::custom(problem));
        }
        let mut nodes = BTreeSet::new();
        for repository in all.iter().filter(|repository| repository.key().is_some()) {
            if !nodes.insert(repository.address().to_string()) {
                let name = repository.name();
                let problem = format!("{name} is there twice; each node is asked once");
                return Err(de::Error::custom(problem));
            }
        }
        Ok(Self(all))
    }
}

/// Syntax of a repository.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    registry: Option<String>,
    #[serde(default)]
    plain_http: bool,
    auth_file: Option<PathBuf>,
    node: Option<String>,
    key: Option<PublicKey>,
    token: Option<PathBuf>,
}

impl<'de> Deserialize<'de> for Repository {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        Self::try_from(Text::deserialize(value)?).map_err(de::Error::custom)
    }
}

impl TryFrom<Text> for Repository {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        let Text { registry, plain_http, auth_file, node, key, token } = text;
        let source = match (registry, node, key) {
            (Some(registry), None, None) => {
                if token.is_some() && auth_file.is_some() {
                    return Err("a registry is shown a token or a password, not both: leave out token or auth_file".to_owned());
                }
                of_registry(&registry, plain_http, auth_file)?
            }
            (None, Some(_), _) if plain_http => {
                return Err("a node is asked with TLS always: leave out plain_http".to_owned());
            }
            (None, Some(_), _) if auth_file.is_some() => {
                return Err("a node is shown a token: token = \"FILE\" in the place of auth_file"
                    .to_owned());
            }
            (None, Some(node), Some(key)) => Source::Node { address: of_node(&node)?, key },
            (None, Some(_), None) => {
                return Err("a node is known by its key: add key = \"ed25519/…\", as `tam show` says it there".to_owned());
            }
            (Some(_), None, Some(_)) => {
                return Err("a registry is known by its certificate: leave out key, or write node = in the place of registry =".to_owned());
            }
            (Some(_), Some(_), _) => {
                return Err("a repository is a registry or a node, not both: write two".to_owned());
            }
            (None, None, _) => {
                return Err("a repository has registry = \"HOST[:PORT]/NAME\", or node = \"HOST:PORT\" and key = \"ed25519/…\"".to_owned());
            }
        };
        Ok(Self { source, token })
    }
}

fn of_registry(text: &str, plain_http: bool, auth_file: Option<PathBuf>) -> Result<Source, String> {
    let wrong = |why: &str| {
        format!(
            "'{}' is no place of a registry: {why}; write HOST[:PORT]/NAME",
            text.escape_debug()
        )
    };
    let (host, name) =
        text.split_once('/').ok_or_else(|| wrong("a registry has modules under a name"))?;
    let registry = host.parse().map_err(wrong)?;
    if !oci_client::address::is_name(name) {
        return Err(wrong("names are lower-case letters, digits, '.', '_', '-' and '/'"));
    }
    Ok(Source::Registry { registry, name: name.to_owned(), plain_http, auth_file })
}

fn of_node(text: &str) -> Result<Registry, String> {
    let wrong = |why: &str| {
        format!(
            "'{}' is no node's address: {why}; write HOST:PORT, as in [api] listen there",
            text.escape_debug()
        )
    };
    let address: Registry = text.parse().map_err(wrong)?;
    if address.port.is_none() {
        return Err(wrong("it has no port"));
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeFile;

    const KEY: &str = "ed25519/d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

    fn read(repositories: &str) -> Result<Vec<Repository>, String> {
        let text = format!("name = \"r1\"\n{repositories}");
        let file = NodeFile::parse(&text, "node.toml").map_err(|error| error.to_string())?;
        Ok(file.repositories)
    }

    #[test]
    fn registries_and_nodes_are_read_in_their_order() {
        let text = format!(
            "[[repository]]\nregistry = \"localhost:5000/team\"\nplain_http = true\nauth_file = \"a.json\"\n\
             [[repository]]\nnode = \"[2001:db8::1]:7443\"\nkey = \"{KEY}\"\ntoken = \"t\"\n\
             [[repository]]\nregistry = \"ghcr.io/a/b\"\n"
        );
        let all = read(&text).unwrap();
        let names: Vec<String> = all.iter().map(Repository::name).collect();
        assert_eq!(names, ["localhost:5000/team", "the node at [2001:db8::1]:7443", "ghcr.io/a/b"]);
        assert_eq!(all[1].key(), Some(KEY.parse().unwrap()));
        assert_eq!(all[1].token, Some(PathBuf::from("t")));
        assert!(
            matches!(&all[0].source, Source::Registry { plain_http: true, name, .. } if name == "team")
        );
    }

    #[test]
    fn a_mistake_has_its_line_and_what_to_do() {
        let node = format!("node = \"10.0.0.1:1\"\nkey = \"{KEY}\"\n");
        for (text, says) in [
            ("", "registry ="),
            ("registry = \"a.b/m\"\nnode = \"c:1\"", "not both"),
            ("registry = \"no host/a\"", "HOST[:PORT]"),
            ("registry = \"a.b\"", "under a name"),
            ("registry = \"a.b/UPPER\"", "lower-case"),
            ("registry = \"a.b/m\"\ntoken = \"t\"\nauth_file = \"f\"", "not both"),
            (&format!("registry = \"a.b/m\"\nkey = \"{KEY}\""), "certificate"),
            ("node = \"10.0.0.1:7443\"", "key ="),
            (&format!("node = \"10.0.0.1\"\nkey = \"{KEY}\""), "no port"),
            (&format!("{node}plain_http = true"), "TLS"),
            (&format!("{node}auth_file = \"f\""), "token"),
            ("registery = \"a.b\"", "'registry'"),
            (&format!("{node}[[repository]]\n{node}"), "twice"),
        ] {
            let problem = read(&format!("[[repository]]\n{text}\n")).unwrap_err();
            assert!(problem.contains("line ") && problem.contains(says), "{text}: {problem}");
        }
        let many = "[[repository]]\nregistry = \"a.b/m\"\n".repeat(REPOSITORIES_MAX + 1);
        assert!(read(&many).unwrap_err().contains("at most 8"));
    }

    #[test]
    fn an_applied_file_may_not_change_the_repositories() {
        let text = "name = \"r1\"\n[[repository]]\nregistry = \"a.b/m\"\n";
        let node = NodeFile::parse(text, "node.toml").unwrap();
        assert!(node.parse_wanted(text, "edge.toml").is_ok());
        assert!(node.parse_wanted("", "edge.toml").is_ok());
        let other = node.parse_wanted(&text.replace("a.b", "c.d"), "edge.toml").unwrap_err();
        assert!(other.to_string().contains("line 2") && other.to_string().contains("restart"));
    }
}
