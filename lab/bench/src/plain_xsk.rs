//! The plain AF_XDP forwarder (`c/plain_xsk.c`) as a process.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use namespaces::netns;
use serde::Deserialize;

use crate::line::{self, Line};
use crate::measure::Reading;
use crate::native::unpacked;

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/plain_xsk"));

/// Time within which the first report has to come, which is sent after 0.1 s.
const START_TIME_MAX: Duration = Duration::from_secs(5);

/// Handling of received packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Forward them by the other port.
    Forward,
    /// Drop them: reception alone.
    Drop,
}

/// Running forwarder; it is killed on drop.
#[derive(Debug)]
pub(crate) struct PlainXsk {
    child: Child,
    latest: Arc<Mutex<Reading>>,
}

#[derive(Deserialize)]
struct Sample {
    time_ns: u64,
    packets: u64,
}

impl PlainXsk {
    /// Starts the forwarder in the middle of a line and waits until it is attached.
    pub(crate) fn start(line: &Line, mode: Mode, cpu: usize) -> Result<Self> {
        let path = unpacked(PROGRAM, "tam-plain-xsk")?;
        let mut command = Command::new(&path);
        let (destination, source) =
            (line::mac_text(line::MAC_DESTINATION), line::mac_text(line::MAC_OUT));
        match mode {
            Mode::Forward => command.args(["forward", line::PORT_IN, line::PORT_OUT]),
            Mode::Drop => command.args(["rxdrop", line::PORT_IN, "-"]),
        };
        command.arg(cpu.to_string());
        if mode == Mode::Forward {
            command.args([destination, source]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = netns::command_in(&line.node, &mut command)?
            .spawn()
            .context("starting the plain AF_XDP forwarder")?;
        let latest = Arc::new(Mutex::new(Reading::default()));
        let first = follow(&mut child, Arc::clone(&latest))?;
        let running = Self { child, latest };
        if first.recv_timeout(START_TIME_MAX).is_err() {
            bail!("the plain AF_XDP forwarder did not start; its message is above");
        }
        Ok(running)
    }

    /// Returns the packets received, with the time of the last report, up to 0.1 s ago.
    pub(crate) fn received(&self) -> Reading {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PlainXsk {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the reports until the process ends; the receiver is notified of the first.
fn follow(child: &mut Child, latest: Arc<Mutex<Reading>>) -> Result<mpsc::Receiver<()>> {
    let output = child.stdout.take().context("the plain AF_XDP forwarder has no output")?;
    let (first, heard) = mpsc::channel();
    std::thread::Builder::new()
        .name("plain-xsk".to_owned())
        .spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Ok(sample) = serde_json::from_str::<Sample>(&line) {
                    let reading = Reading { packets: sample.packets, nanos: sample.time_ns };
                    *latest.lock().unwrap_or_else(PoisonError::into_inner) = reading;
                    // The receiver waits for the first report only.
                    let _ = first.send(());
                }
            }
        })
        .context("starting a thread")?;
    Ok(heard)
}
