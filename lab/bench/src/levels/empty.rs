//! Programs that run around the measured ones: functions/restore.c.

use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result};
use bpf::{Block, Map, Object, Program, Update};
use cell::below::new_hand_over;

use super::functions;

/// Offset of the restored bytes, as in functions/restore.c.
const RESTORED_FROM: usize = 22;
/// Number of restored 8-byte words.
const RESTORED_WORDS: usize = 4;
/// Bytes before the words of a restored head.
const HEAD_FROM: usize = 6;
/// Number of 8-byte words of a restored head.
const HEAD_WORDS: usize = 8;

/// Program that does nothing.
#[derive(Debug)]
pub(super) struct Empty {
    pub(super) program: Program,
    /// Hand-over block, which nothing reads; the program before the others writes theirs.
    pub(super) hand_over: Block,
}

impl Empty {
    pub(super) fn load() -> Result<Self> {
        let mut object = Object::open(functions::compiled()?.restore, "restore")?;
        object.set_autoload("restore_head", false)?;
        Ok(Self { program: object.load()?.program("empty")?, hand_over: new_hand_over()? })
    }
}

/// Program that restores a packet's bytes and tail-calls the measured program.
#[derive(Debug)]
pub(super) struct Restore {
    program: Program,
    /// Map that holds the measured program.
    _measured: Map,
}

impl Restore {
    /// Loads a program in front of `program` that restores the part of a packet that NAT changes.
    pub(super) fn part(packet: &[u8], program: &Program) -> Result<Self> {
        let mut object = Object::open(functions::compiled()?.restore, "restore")?;
        object.set_autoload("restore_head", false)?;
        let saved = packet.get(RESTORED_FROM..RESTORED_FROM + 8 * RESTORED_WORDS);
        let saved = saved.context("the packet is too short to be restored")?;
        let words: [u64; RESTORED_WORDS] = bytemuck::pod_read_unaligned(saved);
        object.set_global("saved", &words)?;
        Self::before(object.load()?, "restore", program)
    }

    /// Loads a program in front of `program` that restores a packet's length and its whole head,
    /// and writes both lengths to the program's hand-over block.
    pub(super) fn head(
        packet: &[u8],
        window: u32,
        program: &Program,
        hand_over: &Map,
    ) -> Result<Self> {
        let mut object = Object::open(functions::compiled()?.restore, "restore")?;
        let saved = packet.get(..HEAD_FROM + 8 * HEAD_WORDS);
        let saved = saved.context("the packet is too short for its head to be restored")?;
        let ethernet: u64 = bytemuck::pod_read_unaligned(&saved[..8]);
        let words: [u64; HEAD_WORDS] = bytemuck::pod_read_unaligned(&saved[HEAD_FROM..]);
        let length = u32::try_from(packet.len()).context("the packet is too long")?;
        object.set_global("saved_ethernet", &ethernet)?;
        object.set_global("saved_head", &words)?;
        object.set_global("saved_length", &length)?;
        object.set_global("saved_window", &length.min(window))?;
        object.reuse_map("handed_over", hand_over)?;
        Self::before(object.load()?, "restore_head", program)
    }

    fn before(object: Object, name: &str, program: &Program) -> Result<Self> {
        let fd = program.as_fd().as_raw_fd() as u32;
        let measured = object.map("measured")?;
        measured.update(&0u32, &fd, Update::Any).with_context(|| {
            format!("a program that is measured cannot be called behind '{name}'")
        })?;
        Ok(Self { program: object.program(name)?, _measured: measured })
    }

    /// Returns the restoring program, which calls the measured one.
    pub(super) fn program(&self) -> &Program {
        &self.program
    }
}
