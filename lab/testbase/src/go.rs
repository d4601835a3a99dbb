//! The filter for streams that is written with the public Go SDK.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Builds `lab/filters/go` with the Go on the path, and gives its bytes.
///
/// # Errors
/// Go 1.24 or newer is not installed, or cannot build the filter.
pub fn go_filter() -> Result<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let filter = target.join("filters/go/filter.wasm");
    let output = Command::new("go")
        .current_dir(root.join("lab/filters/go"))
        .args(["build", "-buildmode=c-shared", "-o"])
        .arg(&filter)
        .arg(".")
        .envs([("GOOS", "wasip1"), ("GOARCH", "wasm")])
        .output()
        .context("starting go: Go 1.24 or newer has to be on the path")?;
    ensure!(output.status.success(), "go build: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(&filter).with_context(|| format!("reading {}", filter.display()))
}
