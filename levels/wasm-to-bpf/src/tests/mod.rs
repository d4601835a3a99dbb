//! Tests of the front half by running its result: before the passes, after them, and against
//! numbers computed by hand.

mod expressions;
mod meaning;
mod packets;
mod refusals;
mod tables;
mod walks;

use crate::interpret::Machine;
use crate::{Entry, Flavour, Image, Options, TrapCode, front, ir, passes, unit};

/// Module of docs/reference/module-abi.md.
const EXPIRE: &str = include_str!("../../tests/expire.wat");

fn options(entry: Entry) -> Options {
    Options {
        entry,
        flavour: Flavour::Xdp,
        memory_pages_max: 16,
        functions: abi::HostFunctions::ALL,
    }
}

fn export(name: &str) -> Options {
    options(Entry::Export(name.into()))
}

fn packet(window: u32) -> Options {
    options(Entry::Packet { window, standalone: true })
}

fn bytes(text: &str) -> Vec<u8> {
    wat::parse_str(text).expect("text that parses")
}

/// Translates without the optimisation passes.
fn plain(bytes: &[u8], options: &Options) -> (ir::Unit, Image) {
    let built = front::unit(bytes, options).unwrap_or_else(|refusals| panic!("{refusals:?}"));
    let (mut unit, image) = (built.unit, built.image);
    passes::plain(&mut unit);
    (unit, image)
}

/// Runs an export before and after the passes; both must agree.
fn run(text: &str, name: &str, arguments: &[u64]) -> Result<Vec<u64>, TrapCode> {
    let bytes = bytes(text);
    let plain = plain(&bytes, &export(name));
    let fast = unit(&bytes, &export(name)).expect("a module that compiles");
    let both = [plain, fast].map(|(unit, image): (ir::Unit, Image)| {
        let mut machine = Machine::new(&unit, &image);
        let result = machine.run(arguments);
        // After a trap the whole budget counts as spent, whatever is left.
        let fuel = result.is_ok().then_some(machine.fuel);
        (result, fuel, machine.memory, machine.behind, machine.globals)
    });
    assert_eq!(both[0], both[1], "passes change the meaning");
    both[0].0.clone()
}
