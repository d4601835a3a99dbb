//! One export of a module through the compiler.

use std::panic::catch_unwind;

use wasm_to_bpf::{Entry, Flavour, Options, Program};

/// Why there is no program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoProgram {
    /// A typed reason; the code of the first.
    Refused(String),
    /// The compiler must not panic on any input, so this is a fault.
    Panicked,
}

/// The program of an export.
pub(crate) fn export(bytes: &[u8], name: &str, pages_max: u32) -> Result<Program, NoProgram> {
    let options = Options {
        entry: Entry::Export(name.to_owned()),
        flavour: Flavour::Xdp,
        memory_pages_max: pages_max,
        functions: Default::default(),
    };
    match catch_unwind(|| wasm_to_bpf::compile(bytes, &options)) {
        Ok(Ok(program)) => Ok(program),
        Ok(Err(refusals)) => {
            let code = refusals.first().map_or("none", |refusal| refusal.code());
            Err(NoProgram::Refused(code.to_owned()))
        }
        Err(_) => Err(NoProgram::Panicked),
    }
}
