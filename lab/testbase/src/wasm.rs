//! Packages that are built for WebAssembly: stream modules with the public Rust SDK.

use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "wasm32-unknown-unknown";

/// Builds what a manifest, as seen from the project's root, has for WebAssembly: its library and
/// whatever `more` says to cargo. It is built in the folder `target` of the build's own, and the
/// returned path says where what came out lies.
///
/// # Panics
/// The package does not build.
#[must_use]
pub fn built_for_wasm(manifest: &str, target: &str, more: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let targets = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let target = targets.join(target);
    let mut cargo = Command::new("cargo");
    if !has_target() {
        // Debian's compiler brings the sources of its libraries, not the libraries.
        cargo = Command::new("/usr/bin/cargo");
        cargo
            .env("PATH", "/usr/bin:/bin")
            .env("RUSTC", "/usr/bin/rustc")
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", "/usr/bin/wasm-ld-19");
    }
    cargo.args(["build", "--quiet", "--release", "--lib", "--target", TARGET]).args(more);
    if !has_target() {
        cargo.arg("-Zbuild-std=std,panic_abort");
    }
    // Settings of this cargo do not apply to that one.
    for name in ["CARGO_BUILD_TARGET", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        cargo.env_remove(name);
    }
    let status = cargo
        .arg("--manifest-path")
        .arg(root.join(manifest))
        .arg("--target-dir")
        .arg(&target)
        .status()
        .expect("cargo runs the tests, so it is there");
    assert!(status.success(), "{manifest} does not build; see tools/setup.sh for what is missing");
    target.join(TARGET).join("release")
}

/// Returns true when the compiler on the path has libraries for WebAssembly.
fn has_target() -> bool {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output();
    output.is_ok_and(|output| {
        let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Path::new(&sysroot).join("lib/rustlib").join(TARGET).join("lib").is_dir()
    })
}
