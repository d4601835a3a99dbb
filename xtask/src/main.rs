//! The project's chores as ordinary Rust: `cargo xtask tidy`.
//!
//! It reads the tree and says what breaks the project's rules; it changes
//! nothing, and runs no other program than `cargo tree`. Formatting and lints are cargo's.

#![forbid(unsafe_code)]

mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use tidy::features::{self, Listings};

const USAGE: &str = "usage: cargo xtask tidy [--json]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let json = match arguments.as_slice() {
        ["tidy"] => false,
        ["tidy", "--json"] => true,
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(json) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tidy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the findings; true when none of them is an error.
fn run(json: bool) -> anyhow::Result<bool> {
    let root = project_root()?;
    let tree = tidy::tree::Tree::read(&root)
        .with_context(|| format!("reading the tree at {}", root.display()))?;
    let listings = Listings {
        built: listing(&root, features::BUILT)?,
        tested: listing(&root, features::TESTED)?,
    };
    let report = tidy::check(&tree, &listings);
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(report.errors == 0)
}

/// Runs one `cargo tree` over the workspace and returns its output.
fn listing(root: &Path, edges: &str) -> anyhow::Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root)
        .args(features::TREE)
        .arg(edges)
        .output()
        .context("running cargo tree")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo tree failed: {}", said.trim());
    String::from_utf8(output.stdout).context("reading what cargo tree printed")
}

/// The nearest directory at or above the current one whose Cargo.toml is a workspace.
fn project_root() -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir().context("asking for the current directory")?;
    here.ancestors()
        .find(|directory| {
            std::fs::read_to_string(directory.join("Cargo.toml"))
                .is_ok_and(|text| text.contains("[workspace]"))
        })
        .map(PathBuf::from)
        .with_context(|| format!("{} lies in no Cargo workspace", here.display()))
}
