//! A function as an XDP program made by clang.

use abi::Meta;
use anyhow::{Context, Result, ensure};
use bpf::{Block, Map, Object, Program};
use cell::below::{give, metadata_of};

use super::measure::Measured;
use super::{Function, Handled, Runner, Table};

/// Which program, by where it has its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In a BPF arena, like a module's memory.
    Arena,
    /// The same, with a node's entry and exit around it, in C.
    ArenaWithEntry,
    /// In array maps, one for each table.
    Maps,
}

/// The program, with tables of its own.
#[derive(Debug)]
pub struct Baseline {
    program: Program,
    inspect: Program,
    hand_over: Block,
    tables: Vec<Table>,
}

/// The frame that `inspect` and `fill` get: table and entry, then room for the entry.
const QUESTION_LENGTH: usize = 64;
/// The section of the variable `hand_over`.
const HAND_OVER: &str = ".data.hand_over";
/// Where `inspect` writes.
const ANSWER_AT: usize = 8;

impl Baseline {
    /// Loads it, its tables as in the beginning.
    ///
    /// # Errors
    /// When the kernel refuses it, or has no arenas.
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
