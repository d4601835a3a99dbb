//! Compilation of one export of a module.

use std::panic::catch_unwind;

use wasm_to_bpf::{Entry, Flavour, Options, Program};

/// Reason why there is no program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoProgram {
    /// The compiler refused the module; the code of its first reason.
    Refused(String),
    /// The compiler panicked, which is a fault on any input.
    Panicked,
}

/// Compiles an export to a program.
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
