//! Each external dependency has its line in docs/reference/dependencies.md, and none is stale.
//!
//! A line is a table row whose first cell is the crate's name in backticks.

use std::collections::BTreeSet;

use super::Finding;
use super::arrows;
use super::documents::{backticked, rows};
use super::tree::Tree;

const CHECK: &str = "dependencies";
const DOCUMENT: &str = "docs/reference/dependencies.md";

/// Compares the manifests with the document.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let declared = declared(tree);
    let used: BTreeSet<&str> =
        tree.crates.iter().flat_map(arrows::dependencies).map(|(_, name)| name).collect();
    let text = tree.text(DOCUMENT).unwrap_or_default();
    let explained: Vec<(usize, &str)> = rows(text)
        .filter_map(|(line, cells)| Some((line, backticked(cells.first()?).next()?)))
        .collect();
    let mut findings = Vec::new();
    for name in &declared {
        if !explained.iter().any(|(_, row)| row == name) {
            let message = format!("{name} has no row in {DOCUMENT}: for what, what was compared");
            findings.push(Finding::error(CHECK, "Cargo.toml", line_of(tree, name), message));
        }
        if !used.contains(name.as_str()) {
            let message = format!("no crate uses {name}");
            let line = line_of(tree, name);
            findings.push(Finding::warning(CHECK, "Cargo.toml", line, message));
        }
    }
    for (line, row) in explained {
        if !declared.contains(row) {
            let message = format!("{row} is no dependency any more: remove its row");
            findings.push(Finding::error(CHECK, DOCUMENT, line, message));
        }
    }
    findings
}

/// Names of all external dependencies: the workspace's, and those of packages outside it.
fn declared(tree: &Tree) -> BTreeSet<String> {
    let workspace = tree.workspace();
    let table = workspace.get("workspace").and_then(|workspace| workspace.get("dependencies"));
    let of_workspace = table.and_then(toml::Value::as_table).into_iter().flatten();
    let mut names: BTreeSet<String> = of_workspace
        .filter(|(_, value)| value.get("path").is_none())
        .map(|(name, _)| name.clone())
        .collect();
    for krate in &tree.crates {
        let own: BTreeSet<&str> = arrows::dependencies(krate).map(|(_, name)| name).collect();
        names.extend(
            own.into_iter().filter(|name| is_external(&krate.manifest, name)).map(str::to_owned),
        );
    }
    names
}

/// Returns true if a manifest gives this dependency a version, not a path or the workspace's.
fn is_external(manifest: &toml::Table, name: &str) -> bool {
    ["dependencies", "dev-dependencies", "build-dependencies"].iter().any(|table| {
        let value = manifest.get(*table).and_then(|table| table.get(name));
        value.is_some_and(|value| value.is_str() || value.get("version").is_some())
    })
}

fn line_of(tree: &Tree, name: &str) -> usize {
    let text = tree.text("Cargo.toml").unwrap_or_default();
    let begins = |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(" ="));
    text.lines().position(begins).map_or(1, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(document: &str) -> Tree {
        Tree::of(&[
            (
                "Cargo.toml",
                "[workspace]\nmembers = [\"base/a\"]\n[workspace.dependencies]\n\
                 a = { path = \"base/a\" }\nserde = \"1\"\ntoml = { version = \"1\" }\n",
            ),
            (
                "base/a/Cargo.toml",
                "[dependencies]\nserde.workspace = true\n[dev-dependencies]\ntoml.workspace = true\n",
            ),
            (DOCUMENT, document),
        ])
    }

    #[test]
    fn each_dependency_needs_its_row() {
        assert_eq!(
            check(&tree("| crate | for what |\n|---|---|\n| `serde` | x |\n| `toml` | y |\n")),
            []
        );
        let found = check(&tree("| `serde` | x |\n"));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].path.as_str()), (6, "Cargo.toml"));
    }

    #[test]
    fn a_stale_row_is_found() {
        let found = check(&tree("| `serde` | x |\n| `toml` | y |\n| `gone` | z |\n"));
        assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_dependency_outside_the_workspace_needs_its_row_too() {
        let tree = Tree::of(&[
            ("lab/fuzz/Cargo.toml", "[dependencies]\nlibfuzzer-sys = \"0.4\"\n"),
            ("sdk/rust/Cargo.toml", "[dev-dependencies]\nwat = { version = \"1\" }\n"),
        ]);
        assert_eq!(check(&tree).len(), 2);
    }

    #[test]
    fn a_dependency_that_nobody_uses_is_said() {
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace]\n[workspace.dependencies]\nserde = \"1\"\n"),
            (DOCUMENT, "| `serde` | x |\n"),
        ]);
        assert_eq!(
            check(&tree).iter().map(|f| f.level).collect::<Vec<_>>(),
            [super::super::Level::Warning]
        );
    }
}
