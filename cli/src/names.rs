//! Completion candidates: names fetched from the nodes of this machine when a shell completes.
//!
//! ```text
//! shell ─▶ COMPLETE=bash tam -- words ─▶ clap_complete ─▶ an argument's candidates ─▶ node
//! ```
//!
//! Names are those of the node that `--node` names on the command line so far; without it, of all
//! nodes of this machine that answer within [`ASK_TIME_MAX`], each once. Nothing here fails:
//! without an answer there are no candidates.

use crate::commands::key;
use crate::nodes;
use api::{Client, ClientError};
use clap::{Arg, Command};
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use units::Name;

/// Most nodes that are asked for one completion: a lab of a screen.
const NODES_ASKED_MAX: usize = 16;
/// Most candidates of one completion: more are no help to anybody.
const CANDIDATES_MAX: usize = 1000;
/// Longest wait for all nodes together, kept short because a user waits.
const ASK_TIME_MAX: Duration = Duration::from_secs(1);

type Candidates = Vec<CompletionCandidate>;

/// Kind of names that an argument takes.
struct Names {
    /// The argument's name in its command.
    argument: &'static str,
    /// The only command in which it has this meaning; empty: every one.
    command: &'static str,
    /// True where a file may be named instead.
    or_file: bool,
    candidates: fn() -> Candidates,
}

const fn names(argument: &'static str, candidates: fn() -> Candidates) -> Names {
    Names { argument, command: "", or_file: false, candidates }
}

const ARGUMENTS: [Names; 20] = [
    names("asked_node", of_nodes),
    names("service", of_services),
    names("then", of_services),
    names("session", of_sessions),
    names("level", of_levels),
    Names { command: "move", ..names("to", of_levels) },
    Names { command: "capture", ..names("ports", of_ports) },
    Names { command: "capture", ..names("rule", of_rules) },
    Names { command: "why", ..names("port", of_ports) },
    Names { command: "add", ..names("out", of_ports) },
    Names { command: "remove", ..names("id", of_rules) },
    Names { command: "deploy", ..names("on_failure", of_failure_policies) },
    Names { command: "deploy", ..names("over", of_over_policies) },
    Names { command: "rollback", ..names("generation", of_generations) },
    Names { command: "exec", ..names("inside", of_hosts) },
    Names { command: "deploy", or_file: true, ..names("module", of_modules) },
    Names { or_file: true, ..names("lab", of_labs) },
    Names { or_file: true, ..names("key", of_keys) },
    Names { command: "bench", ..names("name", of_benchmarks) },
    Names { command: "reproduce", ..names("figures", of_figures) },
];

/// Returns the command line with completion of what its arguments name.
pub fn with_names(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let command = command.mut_args(|argument| with_candidates(argument, &name));
    command.mut_subcommands(with_names)
}

fn with_candidates(argument: Arg, command: &str) -> Arg {
    let fits = |it: &&Names| {
        it.argument == argument.get_id() && (it.command.is_empty() || it.command == command)
    };
    let Some(&Names { or_file, candidates, .. }) = ARGUMENTS.iter().find(fits) else {
        return argument;
    };
    argument.add(ArgValueCompleter::new(move |current: &OsStr| {
        let begun = current.as_encoded_bytes();
        let mut found = candidates();
        found.retain(|it| it.get_value().as_encoded_bytes().starts_with(begun));
        if or_file {
            found.extend(PathCompleter::any().complete(current));
        }
        found
    }))
}

/// Returns the nodes that run here and those of `nodes.toml`.
fn of_nodes() -> Candidates {
    let running = nodes::found().0;
    let mut names: BTreeSet<String> = running.iter().map(Name::to_string).collect();
    names.extend(nodes::all_written_down());
    candidates(names)
}

/// Returns the services that run here.
fn of_services() -> Candidates {
    asked_here(|client| Ok(client.services()?.services.into_iter().map(|it| it.name).collect()))
}

/// Returns the sessions of the nodes here.
fn of_sessions() -> Candidates {
    asked_here(|client| Ok(client.sessions()?.sessions.into_iter().map(|it| it.name).collect()))
}

/// Returns the ports of the nodes here.
fn of_ports() -> Candidates {
    asked_here(|client| Ok(client.node()?.ports.into_iter().map(|it| it.name).collect()))
}

/// Returns the numbers of rules.
fn of_rules() -> Candidates {
    asked_here(|client| Ok(client.rules()?.rules.into_iter().map(|it| it.id.to_string()).collect()))
}

/// Returns the modules in the stores of the nodes here, as `NAME:VERSION`.
fn of_modules() -> Candidates {
    fn tag(module: api::ModuleStored) -> String {
        format!("{}:{}", module.name, module.version)
    }
    asked_here(|client| Ok(client.modules()?.modules.into_iter().map(tag).collect()))
}

/// Returns the labs that are up.
fn of_labs() -> Candidates {
    candidates(topology::list().unwrap_or_default())
}

/// Returns the user's own keys.
fn of_keys() -> Candidates {
    candidates(key::names().unwrap_or_default())
}

/// Returns the benchmarks.
fn of_benchmarks() -> Candidates {
    candidates(bench::list().iter().map(|bench| bench.name.to_owned()))
}

/// Returns the papers' figures.
fn of_figures() -> Candidates {
    let figures = bench::reproduce::figures().iter().map(|figure| figure.name.to_owned());
    candidates(figures.chain(["all".to_owned()]))
}

/// Returns the generations that the nodes here keep.
fn of_generations() -> Candidates {
    asked_here(|client| {
        let kept = client.desired()?.generations.into_iter();
        Ok(kept.map(|it| it.generation.to_string()).collect())
    })
}

/// Returns the hosts and routers of the labs that are up.
fn of_hosts() -> Candidates {
    let labs = topology::list().unwrap_or_default();
    let plans = labs.iter().filter_map(|lab| Some(topology::load(lab).ok()?.plan));
    let names: BTreeSet<String> =
        plans.flat_map(|plan| plan.nodes).map(|node| node.name.to_string()).collect();
    candidates(names)
}

/// Returns what may become of packets while their service is down.
fn of_failure_policies() -> Candidates {
    candidates(["open", "closed", "bypass"].map(str::to_owned))
}

/// Returns what may become of packets beyond a limit.
fn of_over_policies() -> Candidates {
    candidates(["drop", "raise"].map(str::to_owned))
}

/// Returns the levels that a service can run at in this version.
fn of_levels() -> Candidates {
    candidates(["nic", "kernel", "user"].map(str::to_owned))
}

fn candidates(names: impl IntoIterator<Item = String>) -> Candidates {
    names.into_iter().take(CANDIDATES_MAX).map(CompletionCandidate::new).collect()
}

/// Asks the node that the command line names, or every node that runs here.
fn asked_here(names: fn(&Client) -> Result<Vec<String>, ClientError>) -> Candidates {
    let asked_node = named_node(std::env::args());
    let clients = move || match asked_node {
        Some(node) => nodes::asked(Some(&node)).into_iter().collect(),
        None => nodes::found().0.iter().take(NODES_ASKED_MAX).map(Client::of).collect(),
    };
    asked(clients, names)
}

/// Returns the node that `--node` names in these words, whatever else is in them.
fn named_node(words: impl Iterator<Item = String>) -> Option<Name> {
    let mut words = words.skip_while(|word| word != "--node" && !word.starts_with("--node="));
    let first = words.next()?;
    let name = first.strip_prefix("--node=").map(str::to_owned).or_else(|| words.next())?;
    Name::new(&name).ok()
}

/// Asks all nodes at the same time; who does not answer in time is left out, and its thread ends
/// with this program.
fn asked(
    nodes: impl FnOnce() -> Vec<Client> + Send + 'static,
    names: fn(&Client) -> Result<Vec<String>, ClientError>,
) -> Candidates {
    let end = Instant::now() + ASK_TIME_MAX;
    let (answers, answered) = mpsc::channel();
    std::thread::spawn(move || {
        for client in nodes() {
            let answers = answers.clone();
            std::thread::spawn(move || answers.send(names(&client).unwrap_or_default()));
        }
    });
    let next = || answered.recv_timeout(end.saturating_duration_since(Instant::now())).ok();
    let all: BTreeSet<String> = std::iter::from_fn(next).flatten().collect();
    candidates(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use api::client::ANSWER_TIME_MAX;
    use clap::CommandFactory;
    use std::ffi::OsString;
    use std::os::unix::net::UnixListener;

    /// Completes the last word.
    fn completed(words: &[&str]) -> Vec<String> {
        let mut command = with_names(Arguments::command());
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let last = words.len() - 1;
        let found = clap_complete::engine::complete(&mut command, words, last, None).unwrap();
        found.into_iter().map(|it| it.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn what_an_argument_names_is_completed() {
        assert_eq!(completed(&["tam", "reproduce", "tamanoir-14"]), ["tamanoir-14"]);
        assert_eq!(completed(&["tam", "bench", "forw"]), ["forward"]);
        assert_eq!(completed(&["tam", "move", "monitor", "--to", "n"]), ["nic"]);
        assert_eq!(completed(&["tam", "deploy", "m.wasm", "--level", "k"]), ["kernel"]);
        assert_eq!(completed(&["tam", "deploy", "m.wasm", "--on-failure", "c"]), ["closed"]);
        assert!(completed(&["tam", "deploy", "m.wasm", "--lev"]).contains(&"--level".to_owned()));
    }

    #[test]
    fn the_node_that_the_command_line_names_is_found_in_it() {
        let named = |words: &str| {
            let node = named_node(words.split(' ').map(str::to_owned));
            node.map(|node| node.to_string())
        };
        assert_eq!(named("tam -- tam show --node r2 mon").as_deref(), Some("r2"));
        assert_eq!(named("tam -- tam --node=r2 show mon").as_deref(), Some("r2"));
        for none in ["tam -- tam show mon", "tam -- tam show --node", "tam -- tam --node R!"] {
            assert_eq!(named(none), None, "{none}");
        }
    }

    #[test]
    fn a_node_that_hangs_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["hangs", "ended", "closes"].map(|name| folder.path().join(name));
        // The kernel accepts connections for it, and it never reads one.
        let _hangs = UnixListener::bind(&paths[0]).unwrap();
        let closes = UnixListener::bind(&paths[2]).unwrap();
        std::thread::spawn(move || closes.incoming().for_each(drop));
        let (still, asking) = mpsc::channel();
        std::thread::spawn(move || {
            let nodes = move || paths.map(Client::new).to_vec();
            let names = asked(nodes, |client| {
                Ok(client.services()?.services.into_iter().map(|it| it.name).collect())
            });
            still.send(names.len())
        });
        // Far less than a client's timeout, and far more than completion needs.
        assert_eq!(asking.recv_timeout(ANSWER_TIME_MAX / 2), Ok(0));
    }

    #[test]
    fn every_argument_of_the_table_is_one() {
        fn has(command: &Command, names: &Names) -> bool {
            let fits = names.command.is_empty() || command.get_name() == names.command;
            let has_it = command.get_arguments().any(|it| it.get_id() == names.argument);
            (fits && has_it) || command.get_subcommands().any(|below| has(below, names))
        }
        for names in &ARGUMENTS {
            let command = Arguments::command();
            assert!(has(&command, names), "{} of {}", names.argument, names.command);
        }
    }
}
