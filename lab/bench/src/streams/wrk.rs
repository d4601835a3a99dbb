//! Load generator wrk: keeps connections busy, and reports rates and latencies.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use namespaces::netns::{self, NetNs};

use super::LOAD_CPU;
use super::process::{WRK, on_cpu};

/// Lua script that prints the results as numbers: wrk's own output is rounded for people.
const SCRIPT: &str = "\
done = function(summary, latency, requests)
  local e = summary.errors
  print(string.format('tamandua %d %d %d %d %d %d', summary.duration, summary.requests,
    summary.bytes, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.timeout))
  print(string.format('refused %d', e.status))
end
";

/// Load: URL, connections and headers.
#[derive(Clone, Debug)]
pub(crate) struct Load<'a> {
    pub(crate) url: &'a str,
    pub(crate) connections: u32,
    /// Header field of each request.
    pub(crate) header: Option<&'a str>,
    pub(crate) seconds: u64,
}

/// Results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) seconds: f64,
    pub(crate) requests: f64,
    pub(crate) bytes: f64,
    /// Latencies, in microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Connections that failed, or were late by more than 2 s.
    pub(crate) errors: f64,
}

/// Program wrk, and its script file.
#[derive(Debug)]
pub(crate) struct Wrk {
    program: PathBuf,
    script: PathBuf,
}

impl Wrk {
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let script = folder.join("done.lua");
        std::fs::write(&script, SCRIPT).context("writing a script for wrk")?;
        Ok(Self { program: WRK.find()?, script })
    }

    /// Runs wrk to its end.
    pub(crate) fn run(&self, namespace: &NetNs, load: &Load<'_>) -> Result<Seen> {
        let mut command = Command::new(&self.program);
        command
            .arg("-t1")
            .arg(format!("-c{}", load.connections))
            .arg(format!("-d{}s", load.seconds))
            .args(load.header.iter().flat_map(|header| ["-H", header]))
            .arg("-s")
            .arg(&self.script)
            .arg(load.url)
            .stdin(Stdio::null());
        netns::command_in(namespace, &mut command)?;
        let output = on_cpu(LOAD_CPU, || command.output())?.context("running wrk")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "wrk at {}: {} {text}",
            load.url,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let (seen, refused) = read(&text)
            .with_context(|| format!("what wrk says of {} is not understood: {text}", load.url))?;
        ensure!(refused == 0, "{refused} requests to {} were not answered with 2xx", load.url);
        ensure!(seen.requests > 0.0, "nothing came from {}: {text}", load.url);
        Ok(seen)
    }
}

/// Parses the script's lines: results, and the number of responses with a status of 400 or more.
fn read(text: &str) -> Option<(Seen, u64)> {
    let of = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let numbers: Vec<f64> = of("tamandua ")?
        .split_ascii_whitespace()
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    let [micros, requests, bytes, p50, p99, errors] = numbers[..] else { return None };
    let seconds = micros / 1e6;
    let seen = Seen { seconds, requests, bytes, p50, p99, errors };
    Some((seen, of("refused ")?.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_the_wrk_script_is_parsed() {
        let text = "Running 1s test @ http://10.201.0.1/1k\n  Requests/sec:  9.5k\n\
                    tamandua 1100000 33000 36000000 1900 4100 2\nrefused 3\n";
        let seen = Seen {
            seconds: 1.1,
            requests: 33_000.0,
            bytes: 36e6,
            p50: 1900.0,
            p99: 4100.0,
            errors: 2.0,
        };
        assert_eq!(read(text), Some((seen, 3)));
        for bad in ["", "tamandua 1 2 3\nrefused 0\n", "tamandua 1 2 3 4 5 6\n"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
