//! `tam node`: runs a node, or removes the remains of a dead one.

use super::Context;
use crate::failure::{Failure, Outcome};
use crate::style::Stream;
use api::{ErrorCode, SCHEMA_VERSION};
use clap::{Args, ValueEnum};
use daemon::LogFormat;
use serde_json::json;
use std::io::{self, Write};
use std::path::PathBuf;
use tracing_subscriber::EnvFilter;
use units::Name;

/// Arguments of `tam node`.
#[derive(Debug, Args)]
pub struct Node {
    /// The node file: its ports and settings
    #[arg(long, value_name = "FILE", conflicts_with = "cleanup")]
    config: Option<PathBuf>,
    /// Remove the remains of a dead node of this name
    #[arg(long, value_name = "NAME")]
    cleanup: Option<Name>,
    /// Run every service at user level: no module becomes a BPF program
    #[arg(long, requires = "config")]
    no_bpf: bool,
    /// Take over from the running daemon of this node, for an upgrade: the old one ends, and
    /// services and forwarding continue
    #[arg(long, requires = "config")]
    takeover: bool,
    /// Format of the log on standard error: text, or json for one object a line
    #[arg(long, value_name = "FORMAT", requires = "config", default_value = "text")]
    log_format: LogFormat,
    /// Allow or forbid the running node (--node NAME) to run modules as BPF programs; with "off"
    /// every service moves to user level and stays there
    #[arg(long, value_name = "on|off", conflicts_with_all = ["config", "cleanup"])]
    bpf: Option<Switch>,
}

/// Permission to run modules as BPF programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Modules may run as BPF programs.
    On,
    /// Modules run at user level only.
    Off,
}

impl Node {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        if let Some(name) = self.cleanup {
            return cleanup(&name, context);
        }
        if let Some(switch) = self.bpf {
            return set_bpf(switch == Switch::On, context);
        }
        let Some(config) = self.config else {
            return sample(context);
        };
        log_to_standard_error(self.log_format);
        let (bpf, take_over) = (!self.no_bpf, self.takeover);
        let log_format = self.log_format;
        daemon::run(daemon::Options { config, bpf, take_over, log_format })?;
        Ok(crate::failure::DONE)
    }
}

/// Prints a sample node file, when none is given.
fn sample(context: &Context<'_>) -> Outcome {
    let failure = Failure::new(ErrorCode::Usage, "a node needs a node file").help(
        "save this sample (tam node > node.toml), adapt it, then: tam node --config node.toml",
    );
    if !context.output.is_json() {
        context.output.print(daemon::SAMPLE_CONFIG.trim_end())?;
    }
    Err(failure)
}

fn set_bpf(enabled: bool, context: &Context<'_>) -> Outcome {
    let set = context.client()?.set_bpf(enabled)?;
    context.output.result(&set, || {
        let moving = match set.moving.as_slice() {
            [] => "no service moves".to_owned(),
            services => format!("moving: {}", services.join(", ")),
        };
        match set.enabled {
            true => format!("modules may run as BPF programs; {moving}"),
            false => format!("everything runs at user level; {moving}"),
        }
    })
}

fn cleanup(name: &Name, context: &Context<'_>) -> Outcome {
    if !daemon::is_known(name) {
        let message = format!("node '{name}' left nothing on this machine");
        let failure = Failure::new(ErrorCode::NotFound, message);
        return Err(failure.help("`tam doctor` lists the nodes with remains"));
    }
    let removed = daemon::cleanup(name)?;
    let document = json!({"schema_version": SCHEMA_VERSION, "node": name, "removed": removed});
    context
        .output
        .result(&document, || format!("removed of node {name}:\n  {}", removed.join("\n  ")))
}

/// Writer of a log whose events are written at once, each with a newline at its end: a newline in
/// between, which a module or a client chose, is escaped, so that it begins no line of the log.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = event.strip_suffix(b"\n").unwrap_or(event);
        let mut lines = text.split(|byte| *byte == b'\n');
        self.0.write_all(lines.next().unwrap_or_default())?;
        for line in lines {
            self.0.write_all(b"\\n")?;
            self.0.write_all(line)?;
        }
        self.0.write_all(&event[text.len()..])?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes the node's log to standard error; `TAM_LOG` chooses the level, as in `TAM_LOG=debug`.
///
/// A line in JSON has `timestamp` (RFC 3339, UTC), `level`, `message`, and the event's fields
/// beside them.
pub(crate) fn log_to_standard_error(format: LogFormat) {
    let filter = EnvFilter::try_from_env("TAM_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| OneLine(std::io::stderr()))
        .with_ansi(Stream::Errors.is_styled())
        .with_target(false)
        // A log line that a full disk refuses is lost; reporting it would panic (`eprintln!`).
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_of_the_log_whatever_is_in_it() {
        let mut log = OneLine(Vec::new());
        log.write_all(b"INFO one\n").unwrap();
        log.write_all(b"WARN file=\"a\nERROR forged\n\"\n").unwrap();
        log.write_all(b"no end").unwrap();
        let expected = "INFO one\nWARN file=\"a\\nERROR forged\\n\"\nno end";
        assert_eq!(String::from_utf8(log.0).unwrap(), expected);
    }
}
