//! Function compiled by clang as an XDP program.

use abi::Meta;
use anyhow::{Context, Result, ensure};
use bpf::{Block, Map, Object, Program};
use cell::below::{give, metadata_of};

use super::measure::Measured;
use super::{Function, Handled, Runner, Table};

/// Storage of the program's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// BPF arena, like a module's memory.
    Arena,
    /// BPF arena, with a node's entry and exit around the function, in C.
    ArenaWithEntry,
    /// Array maps, one for each table.
    Maps,
}

/// XDP program with tables of its own.
#[derive(Debug)]
pub struct Baseline {
    program: Program,
    inspect: Program,
    hand_over: Block,
    tables: Vec<Table>,
}

/// Length of the frame for `inspect` and `fill`: table and entry, then space for the entry's bytes.
const QUESTION_LENGTH: usize = 64;
/// ELF section of the variable `hand_over`.
const HAND_OVER: &str = ".data.hand_over";
/// Offset in the frame where `inspect` writes.
const ANSWER_AT: usize = 8;

impl Baseline {
    /// Loads the program with its tables in their initial state.
    ///
    /// # Errors
    /// The kernel refuses it, or has no arenas.
    pub fn load(function: &Function, kind: Kind, tables: &[Table]) -> Result<Self> {
        let (bytes, name) = match kind {
            Kind::Arena => (function.arena, "arena"),
            Kind::ArenaWithEntry => (function.entry, "entry"),
            Kind::Maps => (function.maps, "maps"),
        };
        let object = Object::open(bytes, name)?
            .load()
            .with_context(|| format!("{} as {name}", function.name))?;
        if kind == Kind::Maps {
            let filled = object.program("fill")?.test_run(&[0; QUESTION_LENGTH], None, 1)?;
            ensure!(filled.retval == 0, "the tables of {} cannot be filled", function.name);
        }
        Ok(Self {
            program: object.program("on_packet")?,
            inspect: object.program("inspect")?,
            hand_over: Block::new(object.map(HAND_OVER)?)?,
            tables: tables.to_vec(),
        })
    }
}

impl Measured for Baseline {
    fn program(&self) -> &Program {
        &self.program
    }

    fn hand_over(&self) -> &Map {
        self.hand_over.map()
    }

    fn prepare(&self, packet: &[u8], now_ms: u64) -> Result<()> {
        give(&self.hand_over, &Meta { now_ms, ..metadata_of(packet) });
        Ok(())
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl Runner for Baseline {
    fn handle(&mut self, packet: &[u8], now_ms: u64) -> Result<Handled> {
        self.prepare(packet, now_ms)?;
        let run = self.program.test_run(packet, None, 1)?;
        Ok(Handled { verdict: run.retval, packet: run.data_out })
    }

    fn entry(&mut self, table: &Table, index: u32) -> Result<Vec<u8>> {
        let number = self.tables.iter().position(|known| known == table);
        let number = number.with_context(|| format!("there is no table {}", table.name))?;
        let mut question = [0; QUESTION_LENGTH];
        question[..4].copy_from_slice(&(number as u32).to_le_bytes());
        question[4..8].copy_from_slice(&index.to_le_bytes());
        let answer = self.inspect.test_run(&question, None, 1)?;
        ensure!(
            answer.retval == table.entry,
            "table {} has entries of {} bytes, not {}, or none at {index}",
            table.name,
            answer.retval,
            table.entry
        );
        let bytes = answer.data_out.get(ANSWER_AT..ANSWER_AT + table.entry as usize);
        Ok(bytes.context("an entry is larger than the frame that it is read with")?.to_vec())
    }
}
