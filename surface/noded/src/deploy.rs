//! From a module's bytes to code that a cell can run.

use abi::check::{Checked, Unverified};
use cell::Compiled;
use std::process::Command;
use std::sync::Arc;

/// The program that cell and compile worker are: this one, also when its file
/// has been replaced by a newer version since.
pub(crate) const PROGRAM: &str = "/proc/self/exe";

/// A module that the ABI's check accepted.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    pub(crate) wasm: Vec<u8>,
    pub(crate) checked: Checked,
    pub(crate) compiled: Option<Arc<Compiled>>,
}

impl Module {
    pub(crate) fn check(wasm: Vec<u8>) -> Result<Self, abi::check::CheckError> {
        let checked = Unverified(&wasm).check()?;
        Ok(Self { wasm, checked, compiled: None })
    }
}

/// Compiles in a worker process, for the levels below user too if `bpf` says so; blocks
/// until it is done.
pub(crate) fn compile(wasm: &[u8], bpf: bool) -> Result<Compiled, String> {
    let mut worker = Command::new(PROGRAM);
    worker.arg("compile-worker").env_clear();
    if !bpf {
        worker.arg("--no-bpf");
    }
    cell::compile_in_worker(worker, wasm).map_err(|error| error.to_string())
}
