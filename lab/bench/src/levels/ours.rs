//! Function as a module, compiled to eBPF by our compiler.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use abi::check::Unverified;
use abi::{HostFunctions, Meta};
use anyhow::{Context, Result, bail};
use bpf::{Block, Map, MapSpec, MappedArena, Program};
use cell::below::{Around, Instance, give, metadata_of, new_hand_over};
use wasm_to_bpf::{Entry, Flavour, Options};

use super::measure::Measured;
use super::{Handled, Runner, Table, addresses};

/// Fuel of one packet: more than any of the functions uses.
const FUEL_BUDGET: u64 = 1 << 24;
/// Bytes of the event buffer; the functions raise no events.
const EVENTS_LENGTH: u32 = 4096;

/// Program of the module, with a memory of its own.
#[derive(Debug)]
pub struct Ours {
    program: Program,
    instance: Instance,
    memory: MappedArena,
    hand_over: Block,
    window: u32,
    addresses: BTreeMap<String, u32>,
}

impl Ours {
    /// Compiles a module for `nic` and loads it with new memory.
    ///
    /// # Errors
    /// The compiler or the kernel refuses it.
    pub fn load(module: &[u8]) -> Result<Self> {
        let checked = Unverified(module).check()?;
        let window = checked.manifest.window;
        let options = Options {
            entry: Entry::Packet { window, standalone: true },
            flavour: Flavour::Xdp,
            memory_pages_max: checked.memory.pages_max,
            functions: HostFunctions::ALL,
        };
        let compiled = match wasm_to_bpf::compile(module, &options) {
            Ok(compiled) => compiled,
            Err(refusals) => {
                let reasons: Vec<String> = refusals.iter().map(ToString::to_string).collect();
                bail!("the compiler refuses the module: {}", reasons.join("; "));
            }
        };
        let (instance, memory) = Instance::here(&compiled.image, FUEL_BUDGET)?;
        let hand_over = new_hand_over()?;
        let afterwards = Map::create("afterwards", &MapSpec::program_array(1))?;
        let events = Map::create("events", &MapSpec::ring_buffer(EVENTS_LENGTH))?;
        let around = Around {
            hand_over: hand_over.as_fd(),
            hand_over_at: 0,
            afterwards: afterwards.as_fd(),
            events: events.as_fd(),
        };
        let program = instance.load("ours", &compiled, around)?;
        let addresses = addresses(module)?;
        Ok(Self { program, instance, memory, hand_over, window, addresses })
    }
}

impl Ours {
    /// Returns the length of the module's window in bytes.
    pub(super) fn window(&self) -> u32 {
        self.window
    }
}

impl Measured for Ours {
    fn program(&self) -> &Program {
        &self.program
    }

    fn hand_over(&self) -> &Map {
        self.hand_over.map()
    }

    fn prepare(&self, packet: &[u8], now_ms: u64) -> Result<()> {
        let meta = metadata_of(packet);
        let window_length = meta.packet_length.min(self.window);
        give(&self.hand_over, &Meta { window_length, now_ms, ..meta });
        Ok(())
    }

    /// Returns an error if a call has trapped.
    fn check(&self) -> Result<()> {
        match self.instance.take_trap()? {
            (0, _) => Ok(()),
            (code, place) => bail!("the module trapped with code {code} at byte {place:#x}"),
        }
    }
}

impl Runner for Ours {
    fn handle(&mut self, packet: &[u8], now_ms: u64) -> Result<Handled> {
        self.prepare(packet, now_ms)?;
        let run = self.program.test_run(packet, None, 1)?;
        self.check()?;
        Ok(Handled { verdict: run.retval, packet: run.data_out })
    }

    fn entry(&mut self, table: &Table, index: u32) -> Result<Vec<u8>> {
        let address = self.addresses.get(&table.name);
        let address = address.with_context(|| format!("there is no table {}", table.name))?;
        let mut bytes = vec![0; table.entry as usize];
        self.memory.read(u64::from(*address) + u64::from(index * table.entry), &mut bytes)?;
        Ok(bytes)
    }
}
