//! Packet reception by a kernel thread on a CPU of its own: threaded NAPI
//! (Documentation/networking/napi.rst; Linux 5.12).

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::line::{self, Line};

/// Prefix of the names of NAPI threads, before the device and the number of the NAPI instance.
const THREADS: &str = "napi/";

/// Reception on a chosen CPU. Threads that existed before belong to others.
pub(super) struct Threaded {
    cpu: usize,
    others: BTreeSet<i32>,
}

impl Threaded {
    pub(super) fn new(cpu: usize) -> Self {
        Self { cpu, others: threads().collect() }
    }

    /// Sets whether packets that enter by n0 are received by a thread of its own, or on the
    /// sender's CPU.
    pub(super) fn set(&self, line: &Line, on: bool) -> Result<()> {
        // `ip netns exec` shows the namespace's own devices in /sys.
        let name = line.node.name();
        let write = format!("echo {} > /sys/class/net/{}/threaded", u8::from(on), line::PORT_IN);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", name, "sh", "-c", &write]).stdin(Stdio::null());
        let said = command.output().context("running 'ip': is the package iproute2 installed?")?;
        ensure!(
            said.status.success(),
            "having n0 of {name} received by a thread: {}",
            String::from_utf8_lossy(&said.stderr).trim()
        );
        if !on {
            return Ok(());
        }
        let mut cpus = CpuSet::new();
        cpus.set(self.cpu);
        let ours: Vec<i32> = threads().filter(|pid| !self.others.contains(pid)).collect();
        ensure!(!ours.is_empty(), "the kernel made no thread that receives for n0 of {name}");
        for pid in ours {
            sched_setaffinity(Pid::from_raw(pid), &cpus)
                .with_context(|| format!("putting the kernel thread {pid} on CPU {}", self.cpu))?;
        }
        Ok(())
    }
}

/// Returns the kernel threads that receive for a device named n0, in whatever namespace.
fn threads() -> impl Iterator<Item = i32> {
    let named = format!("{THREADS}{}-", line::PORT_IN);
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(move |process| {
        let name = std::fs::read_to_string(process.path().join("comm")).ok()?;
        name.starts_with(&named).then(|| process.file_name().to_str()?.parse().ok())?
    })
}
