//! Compiles the baselines of the benchmarks, and the functions of `tam bench levels`, with the
//! compilers of this machine, and writes them to `OUT_DIR` for `include_bytes!`.

mod levels;
mod native;

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    native::build(&out);
    levels::build(&out);
    println!("cargo:rerun-if-changed=build");
}

/// Runs a compiler or linker; panics with its output if it fails.
fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
