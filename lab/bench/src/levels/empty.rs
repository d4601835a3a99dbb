//! What stands around the measured programs: functions/restore.c.

use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result};
use bpf::{Map, Object, Program, Update};

use super::functions;

/// Where the restored bytes begin, as in functions/restore.c.
const RESTORED_FROM: usize = 22;
/// How many 8-byte words they are.
const RESTORED_WORDS: usize = 4;

/// The program that does nothing.
pub(super) fn load() -> Result<Program> {
    Ok(Object::open(functions::compiled()?.restore, "restore")?.load()?.program("empty")?)
}

/// A program that gives a packet its bytes back and goes on to another one.
#[derive(Debug)]
pub(super) struct Restore {
    program: Program,
    measured: Map,
}

impl Restore {
    /// For one packet.
    pub(super) fn load(packet: &[u8]) -> Result<Self> {
        let mut object = Object::open(functions::compiled()?.restore, "restore")?;
        let saved = packet.get(RESTORED_FROM..RESTORED_FROM + 8 * RESTORED_WORDS);
        let saved = saved.context("the packet is too short to be restored")?;
        let words: [u64; RESTORED_WORDS] = bytemuck::pod_read_unaligned(saved);
        object.set_global("saved", &words)?;
        let object = object.load()?;
        Ok(Self { program: object.program("restore")?, measured: object.map("measured")? })
    }

    /// The program, with another one behind it from now on.
    pub(super) fn before(&self, program: &Program) -> Result<&Program> {
        let fd = program.as_fd().as_raw_fd() as u32;
        self.measured
            .update(&0u32, &fd, Update::Any)
            .context("a program that is measured cannot be called behind 'restore'")?;
        Ok(&self.program)
    }
}
