//! The rules of the project that a machine can check, and what breaks them.
//!
//! Data flows one way: the tree is read once into memory ([`tree`]), each check
//! is a function from the tree to findings, the report prints them. Checks know
//! no file system, so that each has tests on trees of a few lines.
//!
//! | module | rule |
//! |---|---|
//! | [`arrows`] | which crates may use which |
//! | [`unsafety`] | where `unsafe` and C may be |
//! | [`determinism`] | no clock and no random order in `base` and `core` |
//! | [`text`] | openings, unfinished work, panics, machine paths |
//! | [`comments`] | doc comments open with their subject |
//! | [`timers`] | no timer begins anew because something else has happened |
//! | [`features`] | builds and tests resolve the same features |
//! | [`dependencies`] | each external dependency has its line in the docs |
//! | [`examples`] | libraries whose comments have no example take no time of rustdoc's |
//! | [`owners`] | what one type owns, where its methods are, circles of files |
//! | [`documents`] | ARCHITECTURE.md and docs/reference/promises.md agree with the tree; the glossary |
//! | [`figures`] | pages of benchmarks show the results that are kept beside them |

pub mod arrows;
pub mod comments;
pub mod dependencies;
pub mod determinism;
pub mod documents;
pub mod examples;
pub mod features;
pub mod figures;
pub mod owners;
pub mod rust;
pub mod text;
pub mod timers;
pub mod tree;
pub mod unsafety;

use std::fmt;

use serde::Serialize;

use features::Listings;
use tree::Tree;

/// Runs every check.
pub fn check(tree: &Tree, listings: &Listings) -> Report {
    let checks: [fn(&Tree) -> Vec<Finding>; 11] = [
        arrows::check,
        unsafety::check,
        determinism::check,
        text::check,
        comments::check,
        timers::check,
        examples::check,
        dependencies::check,
        documents::check,
        figures::check,
        owners::check,
    ];
    let mut findings: Vec<Finding> = checks.iter().flat_map(|check| check(tree)).collect();
    findings.extend(features::check(listings));
    findings.extend(tree.rust_files().filter_map(|(path, source)| {
        let error = source.as_ref().err()?;
        Some(Finding::error("rust", path, error.line, "this file cannot be read as Rust tokens"))
    }));
    findings.sort();
    findings.dedup();
    Report::new(findings)
}

/// Severity of a finding: an error fails the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The run fails.
    Error,
    /// The finding is printed, and the run passes.
    Warning,
}

/// Place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// Path from the project's root.
    pub path: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Severity of the finding.
    pub level: Level,
    /// The rule's short name.
    pub check: &'static str,
    /// Sentence that says what is wrong, and what to do.
    pub message: String,
}

impl Finding {
    /// A finding that fails the run.
    pub fn error(check: &'static str, path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, level: Level::Error, check, message: message.into() }
    }

    /// A finding that is only said.
    pub fn warning(
        check: &'static str,
        path: &str,
        line: usize,
        message: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warning, ..Self::error(check, path, line, message) }
    }
}

/// All findings, sorted by place.
#[derive(Debug, Serialize)]
pub struct Report {
    schema_version: u32,
    /// Findings that fail the run.
    pub errors: usize,
    /// Findings that do not.
    pub warnings: usize,
    findings: Vec<Finding>,
}

impl Report {
    fn new(findings: Vec<Finding>) -> Self {
        let errors = findings.iter().filter(|finding| finding.level == Level::Error).count();
        Self { schema_version: 1, errors, warnings: findings.len() - errors, findings }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let Finding { path, line, check, message, level } = finding;
            let level = if *level == Level::Error { "error" } else { "warning" };
            writeln!(f, "{path}:{line}: {level}[{check}]: {message}")?;
        }
        writeln!(f, "tidy: {} errors, {} warnings", self.errors, self.warnings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_does_not_fail_the_run() {
        let report = Report::new(vec![Finding::warning("opening", "a.rs", 1, "long")]);
        assert_eq!((report.errors, report.warnings), (0, 1));
        assert!(report.to_string().starts_with("a.rs:1: warning[opening]: long\n"));
    }

    #[test]
    fn a_file_that_is_no_rust_is_found() {
        let tree = Tree::of(&[("xtask/src/odd.rs", "//! A file.\nfn f( {\n")]);
        let report = check(&tree, &Listings::default());
        assert!(report.findings.iter().any(|finding| finding.check == "rust"), "{report}");
    }
}
