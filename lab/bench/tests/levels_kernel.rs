//! Packet functions at level `kernel`: their vectors, and random packets, which get the same
//! verdict there, at `nic` and at `user`.

mod levels_packets;
mod levels_user;

use std::collections::BTreeMap;

use abi::Meta;
use abi::check::Unverified;
use anyhow::{Context, Result, ensure};
use bench::levels::{
    Function, Handled, Ours, Runner, Table, Vectors, addresses, functions, verify,
};
use cell::below::{Alone, AloneModule, CompileAloneError, metadata_of};
use engine::{Engine, InstanceSpec};
use levels_packets::{ETHERNET_LENGTH, Random, packets};
use levels_user::User;
use wasm_to_bpf::Flavour;

/// Module at tcx, without a device.
struct Kernel {
    alone: Alone,
    addresses: BTreeMap<String, u32>,
}

impl Kernel {
    fn start(engine: &Engine, module: &[u8]) -> Result<Self> {
        let checked = Unverified(module).check()?;
        let spec = InstanceSpec {
            window: checked.manifest.window,
            memory_pages_max: checked.memory.pages_max,
            // The epoch is never raised, so a start has no time limit.
            call_slices: 1,
            ..InstanceSpec::default()
        };
        let compiled = AloneModule::compile(engine, module, &checked, Flavour::Tc)?;
        let alone = Alone::start(engine, &compiled, &spec)?;
        Ok(Self { alone, addresses: addresses(module)? })
    }
}

impl Runner for Kernel {
    fn handle(&mut self, packet: &[u8], now_ms: u64) -> Result<Handled> {
        let handled = self.alone.on_packet(packet, &Meta { now_ms, ..metadata_of(packet) })?;
        let verdict = handled.verdict.ok().context("a trap")?.to_value();
        Ok(Handled { verdict, packet: handled.packet })
    }

    fn entry(&mut self, table: &Table, index: u32) -> Result<Vec<u8>> {
        let start = self.addresses.get(&table.name).context("no such table")? + index * table.entry;
        let bytes = self.alone.memory().get(start as usize..(start + table.entry) as usize);
        ensure!(index < table.count, "no such entry");
        Ok(bytes.context("beyond the memory")?.to_vec())
    }
}

/// Functions that `kernel` refuses: they remove bytes at the front, for which tc has no helper.
const REFUSED: [&str; 3] = ["ipip", "vxlan_decap", "gre_decap"];

/// Returns the functions that run at `kernel`; none, with a note, where no program can be run.
fn all() -> Vec<&'static Function> {
    if !rustix::process::geteuid().is_root() {
        testbase::skip_this("BPF programs need root");
        return Vec::new();
    }
    match functions() {
        Ok(functions) => functions.iter().filter(|f| !REFUSED.contains(&f.name)).collect(),
        Err(error) => {
            testbase::skip_this(&error.to_string());
            Vec::new()
        }
    }
}

#[test]
fn what_kernel_level_refuses_is_refused_for_its_reason() {
    let engine = Engine::new().unwrap();
    for function in functions().into_iter().flatten().filter(|f| REFUSED.contains(&f.name)) {
        let checked = Unverified(function.module).check().unwrap();
        let compiled = AloneModule::compile(&engine, function.module, &checked, Flavour::Tc);
        let Err(CompileAloneError::Refused(refusals)) = compiled else {
            panic!("{} is not refused", function.name);
        };
        assert_eq!(refusals[0].code(), "resize_head", "{}", function.name);
    }
}

#[test]
fn the_modules_keep_to_their_vectors_at_kernel_level() {
    let engine = Engine::new().unwrap();
    for function in all() {
        let mut vectors = Vectors::parse(function.vectors).unwrap();
        // Packets that are cut off pass and leave no trace in any table.
        vectors.packets.retain(|packet| packet.frame.len() >= least(&packet.frame));
        let mut kernel = Kernel::start(&engine, function.module)
            .unwrap_or_else(|error| panic!("{}: {error:#}", function.name));
        let differences = verify(&mut kernel, &vectors)
            .unwrap_or_else(|error| panic!("{}: {error:#}", function.name));
        let texts: Vec<String> = differences.iter().map(ToString::to_string).collect();
        assert!(texts.is_empty(), "{}:\n{}", function.name, texts.join("\n"));
    }
}

#[test]
fn random_packets_get_the_same_results_at_kernel_nic_and_user_level() {
    let engine = Engine::new().unwrap();
    let functions = all();
    for function in &functions {
        let vectors = Vectors::parse(function.vectors).unwrap();
        let runners: [(&str, Box<dyn Runner>); 3] = [
            ("user", Box::new(User::start(&engine, function.module).unwrap())),
            ("nic", Box::new(Ours::load(function.module).unwrap())),
            ("kernel", Box::new(Kernel::start(&engine, function.module).unwrap())),
        ];
        compare(function.name, runners, &vectors, packets() / functions.len() as u64);
    }
}

fn compare(
    function: &str,
    mut runners: [(&str, Box<dyn Runner>); 3],
    vectors: &Vectors,
    packets: u64,
) {
    let mut random = Random::new();
    let mut now_ms = 1;
    for number in 0..packets {
        let frame = random.frame(&vectors.packets, least);
        now_ms += random.time();
        let handled = runners.each_mut().map(|(level, runner)| {
            let handled = runner.handle(&frame, now_ms);
            handled.unwrap_or_else(|error| panic!("{function} {number} at {level}: {error:#}"))
        });
        for ((level, _), found) in runners.iter().zip(&handled) {
            let bytes = hex::encode(&frame);
            assert_eq!(*found, handled[0], "{function} {number} at {level}: {bytes}");
        }
    }
    for table in &vectors.tables {
        for index in 0..table.count {
            let entries = runners.each_mut().map(|(_, runner)| runner.entry(table, index).unwrap());
            for ((level, _), entry) in runners.iter().zip(&entries) {
                assert_eq!(*entry, entries[0], "{function} at {level}: {} {index}", table.name);
            }
        }
    }
}

/// Returns the shortest length of a frame that the kernel runs at tc: an IP packet needs its whole
/// header.
fn least(frame: &[u8]) -> usize {
    match frame.get(12..14) {
        Some([0x08, 0x00]) => ETHERNET_LENGTH + 20,
        Some([0x86, 0xdd]) => ETHERNET_LENGTH + 40,
        _ => ETHERNET_LENGTH,
    }
}
