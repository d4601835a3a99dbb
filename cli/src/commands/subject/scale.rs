//! Subject with thousands of sessions, and the memory and time of the node's processes.

use anyhow::{Context as _, Result};
use api::{ApplyRequest, Client, SessionRequest};
use bench::{Populated, Processes, SOURCE_PORT_FIRST};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Module that counts its packets and passes them.
const SMALL: &str = r#"(module
    (@custom "tamandua" "abi = 1\nname = \"small\"\nversion = \"0.1.0\"\nwindow = 64\nlevels = [\"user\"]\nmemory_pages_max = 1\n")
    (memory (export "memory") 1 1)
    (func (export "on_packet") (result i32)
      (i32.store (i32.const 0x9000) (i32.add (i32.load (i32.const 0x9000)) (i32.const 1)))
      (i32.const 0)))"#;
/// Session that reserves what no other session does.
const REST: &str = "rest";
/// Session that is created and removed beside the others.
const ONE: &str = "one-more";
/// Match of a protocol that nobody sends.
const UNUSED: &str = "proto 253";

pub(super) fn populate(client: &Client, port: &str, wanted: &Populated) -> Result<Duration> {
    let module = super::isolation::store(client, SMALL)?;
    let text = text(port, &module, wanted)?;
    let begun = Instant::now();
    client.apply(&ApplyRequest { text, file: "scale".to_owned(), ..ApplyRequest::default() })?;
    Ok(begun.elapsed())
}

fn text(port: &str, module: &str, wanted: &Populated) -> Result<String> {
    let Populated { sessions, block, blocks } = *wanted;
    let ports = |from: u32, until: u32| {
        let at = |number: u32| u32::from(SOURCE_PORT_FIRST) + number * u32::from(block);
        format!("in {port} proto udp sport {}-{}", at(from), at(until) - 1)
    };
    let mut text = format!("[[session]]\nname = \"{REST}\"\n");
    for number in 0..sessions {
        write!(
            text,
            "[[session]]\nname = \"s{number}\"\n\
             [[service]]\nname = \"s{number}\"\nmodule = \"{module}\"\nsession = \"s{number}\"\n\
             rules = [\"{}\"]\n",
            ports(number, number + 1)
        )?;
    }
    let rest = ports(sessions, blocks);
    write!(text, "[[rule]]\nmatch = \"{rest}\"\naction = \"drop\"\nsession = \"{REST}\"\n")?;
    Ok(text)
}

pub(super) fn one_more(client: &Client, port: &str) -> Result<Duration> {
    let module = super::isolation::store(client, SMALL)?;
    let begun = Instant::now();
    client.create_session(&SessionRequest { name: ONE.to_owned(), ..SessionRequest::default() })?;
    super::isolation::deploy(client, ONE, module, format!("in {port} {UNUSED}"))?;
    let took = begun.elapsed();
    client.remove_session(ONE, true)?;
    Ok(took)
}

/// Reads the usage of the daemon with this process number and of its cell.
pub(super) fn processes(daemon: u32) -> Result<Processes> {
    let cell = cell_of(daemon)?;
    Ok(Processes {
        node_bytes: resident(&process(daemon))?,
        cell_bytes: resident(&cell)?,
        cell_cpu: used(&cell)?,
        pids: [daemon, cell_number(&cell)?],
    })
}

fn cell_number(cell: &Path) -> Result<u32> {
    let name = cell.file_name().and_then(|name| name.to_str()).context("the cell has no number")?;
    name.parse().with_context(|| format!("/proc has '{name}' for the cell's number"))
}

fn process(number: u32) -> PathBuf {
    Path::new("/proc").join(number.to_string())
}

/// Returns the `/proc` folder of the daemon's child that runs as a cell; its other children
/// compile.
fn cell_of(daemon: u32) -> Result<PathBuf> {
    let tasks = std::fs::read_dir(process(daemon).join("task")).context("finding the cell")?;
    for task in tasks.flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_ascii_whitespace() {
            let path = Path::new("/proc").join(child);
            let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
            if line.split(|byte| *byte == 0).nth(1) == Some(b"cell") {
                return Ok(path);
            }
        }
    }
    anyhow::bail!("the node has no cell")
}

/// Returns the resident memory of a process, in bytes.
fn resident(process: &Path) -> Result<u64> {
    let text =
        std::fs::read_to_string(process.join("statm")).context("reading a process's size")?;
    let pages = text.split(' ').nth(1).context("a process's size is not understood")?;
    let pages: u64 = pages.parse().context("a process's size is not understood")?;
    Ok(pages * rustix::param::page_size() as u64)
}

fn used(process: &Path) -> Result<Duration> {
    let text = std::fs::read_to_string(process.join("schedstat")).context("reading its time")?;
    let nanos = text.split(' ').next().context("a process's time is not understood")?;
    Ok(Duration::from_nanos(nanos.parse().context("a process's time is not understood")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_of_ports_has_one_rule_of_a_session_or_a_drop_rule() {
        let text = text("n0", "sha256:0", &Populated { sessions: 3, block: 8, blocks: 4 }).unwrap();
        for ports in ["1024-1031", "1032-1039", "1040-1047", "1048-1055"] {
            assert_eq!(
                text.matches(&format!("in n0 proto udp sport {ports}\"")).count(),
                1,
                "{text}"
            );
        }
        assert_eq!(text.matches("[[session]]").count(), 4);
    }

    #[test]
    fn memory_and_time_of_a_process_are_read() {
        let own = process(std::process::id());
        assert!(resident(&own).unwrap() > 0 && used(&own).unwrap() > Duration::ZERO);
        assert!(processes(std::process::id()).is_err(), "it has no cell");
    }
}
