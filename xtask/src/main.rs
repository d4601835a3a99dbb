//! The project's chores as ordinary Rust: `cargo xtask tidy`, `figures`, `test` and `quick`.
//!
//! `tidy` reads the tree and says what breaks the project's rules; `test` runs the test programs
//! of the workspace; `quick` does both for what a change touches. Formatting and lints are cargo's.

#![forbid(unsafe_code)]

mod affected;
mod book;
mod figures;
mod house;
mod index;
mod programs;
mod quick;
mod tidy;

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use tidy::features::{self, Listings};

const USAGE: &str = "usage: cargo xtask tidy [--json]        the project's rules
       cargo xtask house [--json]       sizes of types, circles of files, shares of tests
       cargo xtask tests [WORD]          an index of the tests whose name or file has WORD
       cargo xtask book FOLDER           the documents as mdBook's source; `make book` renders them
       cargo xtask figures FOLDER        tables of docs/benchmarks from FOLDER/NAME.json, of `tam bench NAME --json`
       cargo xtask test [RUNNER…]        every test program but the system tests; RUNNER stands before each: sudo -n
       cargo xtask quick [REVISION]      format, rules, lints and tests of what differs from REVISION (HEAD), and of what depends on it";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let passed = match words.as_slice() {
        ["tidy"] => run_tidy(false),
        ["tidy", "--json"] => run_tidy(true),
        ["house"] => print_house(false),
        ["house", "--json"] => print_house(true),
        ["tests"] => print_tests(None),
        ["tests", word] => print_tests(Some(word)),
        ["book", folder] => write_book(Path::new(folder)),
        ["figures", folder] => write_figures(Path::new(folder)),
        ["test", ..] => run_tests(&arguments[1..]),
        ["quick"] => quick::run(None),
        ["quick", revision] if !revision.starts_with('-') => quick::run(Some(revision)),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the index of tests.
fn print_tests(word: Option<&str>) -> anyhow::Result<bool> {
    let root = project_root()?;
    let tree = tidy::tree::Tree::read(&root)
        .with_context(|| format!("reading the tree at {}", root.display()))?;
    // Whoever reads it may have seen enough.
    let written = std::io::stdout().write_all(index::page(&tree, word).as_bytes());
    Ok(written.is_ok() || written.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe))
}

/// Writes the documents' site as mdBook's source.
fn write_book(folder: &Path) -> anyhow::Result<bool> {
    let pages = book::write(&project_root()?, folder)?;
    println!("{pages} pages in {}", folder.display());
    Ok(true)
}

/// Writes the tables of the benchmarks' pages from the results of a folder.
fn write_figures(folder: &Path) -> anyhow::Result<bool> {
    for name in figures::write(&project_root()?, folder)? {
        println!("{name}: its page shows {}", folder.join(format!("{name}.json")).display());
    }
    Ok(true)
}

/// Builds and runs every test program but the system tests; true when all passed.
fn run_tests(runner: &[String]) -> anyhow::Result<bool> {
    let root = project_root()?;
    let outcome = programs::run(&programs::build(&root)?, programs::jobs(), runner)?;
    print!("{outcome}");
    Ok(outcome.failed.is_empty())
}

/// Prints the findings of tidy; true when none of them is an error.
fn run_tidy(json: bool) -> anyhow::Result<bool> {
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

/// Prints the measures of the code's inside.
fn print_house(json: bool) -> anyhow::Result<bool> {
    let root = project_root()?;
    let tree = tidy::tree::Tree::read(&root)
        .with_context(|| format!("reading the tree at {}", root.display()))?;
    let house = house::House::of(&tree);
    if json {
        println!("{}", serde_json::to_string_pretty(&house)?);
    } else {
        print!("{house}");
    }
    Ok(true)
}

/// Returns a Cargo that runs at the root, without what `cargo run` has set for xtask: build scripts
/// that look at it would run again, and everything behind them.
fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let set = std::env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_")
    });
    for name in set {
        command.env_remove(name);
    }
    command.current_dir(root);
    command
}

/// Runs one `cargo tree` over the workspace and returns its output.
fn listing(root: &Path, edges: &str) -> anyhow::Result<String> {
    let output =
        cargo(root).args(features::TREE).arg(edges).output().context("running cargo tree")?;
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
