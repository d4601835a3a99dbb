//! From a module's bytes to code that a cell can run.

use abi::check::{Checked, Unverified};
use std::process::Command;

/// The program that cell and compile worker are: this one, also when its file
/// has been replaced by a newer version since.
pub(crate) const PROGRAM: &str = "/proc/self/exe";

/// A module that the ABI's check accepted.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    pub(crate) wasm: Vec<u8>,
    pub(crate) checked: Checked,
    pub(crate) code: Option<Vec<u8>>,
}

impl Module {
    pub(crate) fn check(wasm: Vec<u8>) -> Result<Self, abi::check::CheckError> {
        let checked = Unverified(&wasm).check()?;
        Ok(Self { wasm, checked, code: None })
    }
}

/// Compiles in a worker process; blocks until it is done.
pub(crate) fn compile(wasm: &[u8]) -> Result<Vec<u8>, String> {
    let mut worker = Command::new(PROGRAM);
    worker.arg("compile-worker").env_clear();
    cell::compile_in_worker(worker, wasm).map_err(|error| error.to_string())
}
