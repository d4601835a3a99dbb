//! Checks of a change while one works on it: `cargo xtask quick`.
//!
//! Format, the project's rules, lints, and the tests of the packages that the change touches and
//! of all that depend on them. The system tests are not among them: those that a change concerns
//! are run by name, as CONTRIBUTING.md says.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;

use crate::{affected, cargo, programs, project_root, run_tidy};

/// Checks what differs from a revision; without one what differs from the last commit, or in a
/// tree without changes the last commit itself. True when everything passed.
pub fn run(since: Option<&str>) -> anyhow::Result<bool> {
    let root = project_root()?;
    let files = affected::changed_files(&root, since)?;
    let packages = affected::affected(&root, &affected::packages(&root)?, &files);
    let outside = affected::outside(&root, &files)?;
    println!(
        "{} files differ, {} packages of the workspace and {} outside it are affected",
        files.len(),
        packages.len(),
        outside.len()
    );
    let mut failed = Vec::new();
    let mut step = |name: &str, run: &mut dyn FnMut() -> anyhow::Result<bool>| {
        let begin = Instant::now();
        let passed = run()?;
        println!("== {name}: {:.1} s", begin.elapsed().as_secs_f64());
        if !passed {
            failed.push(name.to_owned());
        }
        anyhow::Ok(())
    };
    step("format", &mut || run_cargo(&root, &["fmt", "--all", "--check"]))?;
    step("tidy", &mut || run_tidy(false))?;
    if !packages.is_empty() {
        // Of the whole workspace, so that features are those of the tests; what is unchanged is
        // not looked at again.
        let lints = ["clippy", "--release", "--workspace", "--all-targets", "--quiet"];
        step("clippy", &mut || {
            run_cargo(&root, &[&lints[..], &["--", "-D", "warnings"]].concat())
        })?;
        let mut built = Vec::new();
        step("build of the tests", &mut || {
            built = programs::of_packages(programs::build(&root)?, &packages);
            Ok(true)
        })?;
        step("tests", &mut || {
            let outcome = programs::run(&built, programs::jobs(), &[])?;
            print!("{outcome}");
            Ok(outcome.failed.is_empty())
        })?;
    }
    for manifest in &outside {
        let manifest = manifest.to_str().context("a path of the project is UTF-8")?;
        step(manifest, &mut || {
            let test = ["test", "--release", "--quiet", "--target-dir=target/samples"];
            run_cargo(&root, &[&test[..], &["--manifest-path", manifest]].concat())
        })?;
    }
    failed.iter().for_each(|name| println!("failed: {name}"));
    Ok(failed.is_empty())
}

/// Runs Cargo; true when it ended well.
fn run_cargo(root: &Path, arguments: &[&str]) -> anyhow::Result<bool> {
    let status = cargo(root).args(arguments).status();
    Ok(status.with_context(|| format!("running cargo {}", arguments.join(" ")))?.success())
}
