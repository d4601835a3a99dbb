//! Function as a module in the engine: level `user`, without a device.

use std::collections::BTreeMap;

use abi::Meta;
use abi::check::Unverified;
use abi::packet::OwnedPacket;
use anyhow::{Context, Result, ensure};
use bench::levels::{Handled, Runner, Table, addresses};
use cell::below::metadata_of;
use engine::{Engine, Instance, InstanceSpec};

/// Module in the engine.
pub struct User {
    instance: Instance<OwnedPacket>,
    addresses: BTreeMap<String, u32>,
}

impl User {
    pub fn start(engine: &Engine, module: &[u8]) -> Result<Self> {
        let checked = Unverified(module).check()?;
        let spec = InstanceSpec {
            window: checked.manifest.window,
            memory_pages_max: checked.memory.pages_max,
            // The epoch is never raised, so a call has no time limit.
            call_slices: 1,
            ..InstanceSpec::default()
        };
        let instance = engine.program(module, engine::MemoryKind::Own)?.start(engine, &spec)?;
        Ok(Self { instance, addresses: addresses(module)? })
    }
}

impl Runner for User {
    fn handle(&mut self, packet: &[u8], now_ms: u64) -> Result<Handled> {
        let owned = OwnedPacket::new(packet.to_vec());
        let (packet, verdict) =
            self.instance.on_packet(owned, &Meta { now_ms, ..metadata_of(packet) });
        let verdict = verdict.ok().context("a trap")?.to_value();
        Ok(Handled { verdict, packet: packet.into_bytes() })
    }

    fn entry(&mut self, table: &Table, index: u32) -> Result<Vec<u8>> {
        let start = self.addresses.get(&table.name).context("no such table")? + index * table.entry;
        let bytes = self.instance.memory().get(start as usize..(start + table.entry) as usize);
        ensure!(index < table.count, "no such entry");
        Ok(bytes.context("beyond the memory")?.to_vec())
    }
}
