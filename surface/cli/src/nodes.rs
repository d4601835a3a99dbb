//! Which node a command asks.

use crate::failure::Failure;
use api::{Client, ErrorCode, RUN_DIRECTORY};
use std::os::unix::net::UnixStream;
use units::Name;

/// The node that was named, or the only one that runs on this machine.
pub fn asked(node: Option<&Name>) -> Result<Client, Failure> {
    if let Some(node) = node {
        return Ok(Client::of(node));
    }
    let (running, dead) = found();
    match running.as_slice() {
        [node] => Ok(Client::of(node)),
        [] => Err(none(&dead)),
        [first, ..] => {
            let message = format!("several nodes run here: {}", list(&running));
            Err(Failure::new(ErrorCode::Usage, message)
                .help(format!("name one of them, as in --node {first}")))
        }
    }
}

/// The nodes of this machine that answer, and those that left a socket behind.
pub fn found() -> (Vec<Name>, Vec<Name>) {
    let Ok(entries) = std::fs::read_dir(RUN_DIRECTORY) else { return (Vec::new(), Vec::new()) };
    let mut names: Vec<Name> = entries
        .filter_map(|entry| Name::new(entry.ok()?.file_name().into_string().ok()?).ok())
        .filter(|name| api::socket_of(name).exists())
        .collect();
    names.sort();
    names.into_iter().partition(answers)
}

/// True when someone listens on the node's socket, or may: without the right
/// to ask, it counts as running.
pub fn answers(node: &Name) -> bool {
    match UnixStream::connect(api::socket_of(node)) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    }
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
