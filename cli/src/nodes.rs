//! Selection of the node that a command asks: one of this machine, or one of the user's
//! `nodes.toml`.
//!
//! ```text
//! ~/.config/tamandua/nodes.toml      [edge1]
//!                                    address = "192.0.2.1:7443"
//!                                    key = "ed25519/…"            what `tam show` says there
//!                                    token = "alice.token"        beside this file, or a whole path
//! ```

use crate::failure::Failure;
use crate::output::escaped;
use crate::user_files::{configuration, held_token, read_file, toml_problem};
use api::client::RemoteNode;
use api::{Client, ErrorCode, RUN_DIRECTORY};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use units::Name;

/// Returns the node that a value of `TAM_NODE` names; an empty one names none.
///
/// # Errors
/// The value is no name of a node.
fn default_node(value: Option<OsString>) -> Result<Option<Name>, Failure> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    let value = value.to_string_lossy();
    Name::new(&*value).map(Some).map_err(|error| {
        let value = escaped(&value);
        Failure::new(ErrorCode::Usage, format!("TAM_NODE is '{value}', no name of a node: {error}"))
            .help("unset TAM_NODE, or export the name of a node that `tam list` can ask")
    })
}

/// Returns a client of the named node, of the one that `TAM_NODE` names, or of the only one that
/// runs on this machine.
pub fn asked(node: Option<&Name>) -> Result<Client, Failure> {
    let default = match node {
        Some(_) => None,
        None => default_node(std::env::var_os("TAM_NODE"))?,
    };
    if let Some(node) = node.or(default.as_ref()) {
        return match known(node)? {
            Some(client) => Ok(client),
            // A folder of somebody else's cannot be looked into: the connection says so.
            None if api::socket_of(node).try_exists().unwrap_or(true) => Ok(Client::of(node)),
            None => Err(unknown(node, found().0, all_written_down())),
        };
    }
    let (running, dead) = found();
    match running.as_slice() {
        [node] => Ok(Client::of(node)),
        [] => Err(none(&dead)),
        [first, ..] => {
            let message = format!("several nodes run here: {}", list(&running));
            Err(Failure::new(ErrorCode::Usage, message)
                .help(format!("name one of them: --node {first}, or export TAM_NODE={first}")))
        }
    }
}

/// Entry of `nodes.toml`: a node of the network.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    /// Host and TCP port.
    address: String,
    /// Public key of the node.
    key: trust::PublicKey,
    /// Path of the capability's file.
    token: Option<PathBuf>,
}

/// Largest file of nodes, in bytes: some hundreds of them.
const NODES_LENGTH_MAX: u64 = 1 << 20;

/// Returns a client of a node in `nodes.toml`; `None` when it has no such entry.
fn known(node: &Name) -> Result<Option<Client>, Failure> {
    let Some((node, token)) = written_down(node)? else { return Ok(None) };
    let client = Client::remote(node);
    Ok(Some(match token {
        Some(token) => client.with_token(token),
        None => client,
    }))
}

/// Returns the entry of a node in `nodes.toml`, with its token.
pub fn written_down(node: &Name) -> Result<Option<(RemoteNode, Option<String>)>, Failure> {
    let Ok(directory) = configuration() else { return Ok(None) };
    let path = directory.join("nodes.toml");
    if !path.exists() {
        return Ok(None);
    }
    let bytes = read_file(&path, NODES_LENGTH_MAX)?;
    let wrong = |problem: String| {
        let message = format!("{}: {problem}", path.display());
        Failure::new(ErrorCode::Usage, message).help("each node has an address and a key, as in [edge1] address = \"192.0.2.1:7443\", key = \"ed25519/…\"")
    };
    let text = String::from_utf8(bytes).map_err(|_| wrong("it is not UTF-8 text".to_owned()))?;
    let mut nodes: BTreeMap<Name, Known> =
        toml::from_str(&text).map_err(|error| wrong(toml_problem(&text, &error)))?;
    let Some(Known { address, key, token }) = nodes.remove(node) else { return Ok(None) };
    let token = token.map(|file| held_token(&directory.join(file)).map(|token| token.to_string()));
    Ok(Some((RemoteNode { address, key }, token.transpose()?)))
}

/// Returns the names of all nodes in `nodes.toml`; none where the file is wrong.
pub fn all_written_down() -> Vec<String> {
    let file = configuration().map(|folder| folder.join("nodes.toml"));
    let bytes = file.and_then(|file| read_file(&file, NODES_LENGTH_MAX)).unwrap_or_default();
    let text = String::from_utf8(bytes).unwrap_or_default();
    let nodes: BTreeMap<Name, Known> = toml::from_str(&text).unwrap_or_default();
    nodes.into_keys().map(|name| name.to_string()).collect()
}

/// Returns the nodes of this machine that answer, and those that left a socket behind.
pub fn found() -> (Vec<Name>, Vec<Name>) {
    let Ok(entries) = std::fs::read_dir(RUN_DIRECTORY) else { return (Vec::new(), Vec::new()) };
    let mut names: Vec<Name> = entries
        .filter_map(|entry| Name::new(entry.ok()?.file_name().into_string().ok()?).ok())
        .filter(|name| api::socket_of(name).exists())
        .collect();
    names.sort();
    names.into_iter().partition(answers)
}

/// Returns true if a process listens on the node's socket, or may: without the right to ask, it
/// counts as running.
pub fn answers(node: &Name) -> bool {
    match UnixStream::connect(api::socket_of(node)) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    }
}

/// Returns the failure for a name that is no node's; `running` and `written_down` are those of
/// this machine and of `nodes.toml`.
fn unknown(node: &Name, running: Vec<Name>, written_down: Vec<String>) -> Failure {
    let running = running.into_iter().map(|name| name.to_string());
    let mut names: Vec<String> = running.chain(written_down).collect();
    names.sort();
    names.dedup();
    let meant = abi::manifest::Meant::new(node.as_str(), names.iter().map(String::as_str));
    let message = match names.is_empty() {
        true => format!("no node '{node}' runs on this machine"),
        false => format!("no node '{node}' runs on this machine or is in nodes.toml{meant}"),
    };
    Failure::new(ErrorCode::Unreachable, message)
        .help("start it with `tam node --config FILE`, or a lab with `tam lab up FILE`")
}

fn none(dead: &[Name]) -> Failure {
    let failure = Failure::new(ErrorCode::Unreachable, "no node runs on this machine");
    match dead {
        [] => failure.help("start one with `tam node --config FILE`, or a lab with `tam lab up FILE`"),
        [node, ..] => failure.help(format!(
            "{} left its socket behind: start it again, or remove the rest with `tam node --cleanup {node}`",
            list(dead)
        )),
    }
}

fn list(names: &[Name]) -> String {
    names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_node_is_a_name_or_nothing() {
        let named = |value: &str| default_node(Some(value.into()));
        assert_eq!(default_node(None).unwrap(), None);
        assert_eq!(named("").unwrap(), None);
        assert_eq!(named("edge1").unwrap(), Some(Name::new("edge1").unwrap()));
        let message = named("a\u{1b}[2J").unwrap_err().message;
        assert!(message.starts_with("TAM_NODE is ") && !message.contains('\u{1b}'), "{message}");
    }

    #[test]
    fn a_name_that_is_no_nodes_is_refused_with_the_nearest_or_with_all() {
        let unknown = |name: &str, running: &[&str], known: &[&str]| {
            let running = running.iter().map(|name| Name::new(*name).unwrap()).collect();
            let known = known.iter().map(|name| (*name).to_owned()).collect();
            super::unknown(&Name::new(name).unwrap(), running, known).message
        };
        let near = unknown("frist-r1", &["first-r1", "other"], &[]);
        assert!(
            near.contains("no node 'frist-r1'") && near.contains("did you mean 'first-r1'?"),
            "{near}"
        );
        let far = unknown("xyz", &["first-r1"], &["edge1"]);
        assert!(far.contains("known: edge1, first-r1"), "{far}");
        let none = unknown("xyz", &[], &[]);
        assert!(
            none.contains("no node 'xyz' runs on this machine") && !none.contains("nodes.toml"),
            "{none}"
        );
    }
}
