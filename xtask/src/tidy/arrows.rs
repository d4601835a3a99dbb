//! Allowed dependencies between the workspace's crates: design rules as data.
//!
//! ```text
//!            cli
//!             │
//!            node          (daemon, cell, api)
//!     ┌────┬──┴──┬──────┐
//!   core store   l7   levels   host
//!     ▲────┘      └─ engine ─▲
//!     └────────── base ──────┴────┘
//! ```
//!
//! `core` and `levels` never use each other; they meet in the composition roots only. A crate that
//! breaks this either belongs in another folder or needs a trait in between.

use std::collections::BTreeMap;

use super::Finding;
use super::tree::{Crate, Tree};

const CHECK: &str = "arrows";

/// Crates that may use both `core` and `levels`: the roots where they meet.
const ROOTS: [&str; 7] =
    ["node/daemon", "node/cell", "cli", "lab/sim", "lab/conformance", "lab/system", "lab/targets"];
/// Crates of `lab` that the command line may use; no other crate outside `lab` may use any.
const CLI_USES_OF_LAB: [&str; 2] = ["lab/topology", "lab/bench"];
/// Crates that every crate's tests may use beside what the crate may.
const TESTS_MAY_USE: [&str; 1] = ["lab/testbase"];
/// Crate that only tests of `l7` may use.
const L7_TESTS_MAY_USE: &str = "l7/testkit";
/// The tables of a Cargo.toml that name dependencies.
const TABLES: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

/// Finds every arrow that points where it must not.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let folders = folders_by_name(tree);
    let mut findings = Vec::new();
    for krate in &tree.crates {
        let mut used = Vec::new();
        for (table, name, value) in entries(krate) {
            // A package of a registry may have the name of one of ours.
            if !is_of_the_tree(value) {
                continue;
            }
            let Some(&to) = folders.get(name) else { continue };
            let is_l7s = to == L7_TESTS_MAY_USE && krate.folder.starts_with("l7/");
            let is_for_tests = is_l7s || TESTS_MAY_USE.contains(&to);
            let for_tests = table == "dev-dependencies" && is_for_tests;
            if !may_use(&krate.folder, to) && !for_tests {
                let why = reason(&krate.folder, to);
                findings.push(finding(tree, krate, name, format!("uses {to}: {why}")));
            }
            used.push(to);
        }
        let uses = |top: &str| used.iter().any(|folder| folder.starts_with(top));
        if uses("core/") && uses("levels/") && !ROOTS.contains(&krate.folder.as_str()) {
            let why = format!("uses core and levels, which meet only in {}", ROOTS.join(", "));
            findings.push(finding(tree, krate, "dependencies", why));
        }
    }
    findings
}

/// Returns true if the crate in folder `from` may use the one in folder `to`.
fn may_use(from: &str, to: &str) -> bool {
    let top = |folder: &str| folder.split('/').next().unwrap_or_default().to_owned();
    match (top(from).as_str(), top(to).as_str()) {
        ("base" | "core" | "l7" | "levels" | "host" | "store" | "node" | "cli", "base")
        | ("core" | "store", "core")
        | ("node" | "cli", "core" | "l7" | "levels" | "host" | "store" | "node")
        | ("services", "sdk") => true,
        ("l7", "l7") => to != L7_TESTS_MAY_USE,
        ("host", "host") | ("store", "store") => true,
        ("l7", "levels") => to == "levels/engine",
        ("levels", "levels") => to == "levels/level",
        ("cli", "lab") => CLI_USES_OF_LAB.contains(&to),
        ("lab", _) => to != "cli" && to != "xtask",
        _ => false,
    }
}

fn reason(from: &str, to: &str) -> &'static str {
    match (from.split('/').next(), to.split('/').next()) {
        (Some("base"), _) => "base uses base only",
        (Some("core"), _) => "core uses base and core only, it decides and runs nothing",
        (Some("levels"), Some("core")) => "levels never use core, they run what was decided",
        (Some("levels"), _) => "levels use base and levels/level only",
        (Some("l7"), _) => "l7 uses base, l7 and levels/engine only",
        (Some("host"), _) => "host uses base and host only, it offers what the kernel does",
        (Some("store"), _) => "store uses base, core and store only",
        (_, Some("lab")) => "of lab only cli uses topology and bench",
        (Some("services" | "sdk"), _) => "services are written as a user would, with the SDK only",
        _ => "this arrow is not in the design (ARCHITECTURE.md, dependency arrows)",
    }
}

/// Every dependency of a crate: its table and the package's name.
pub fn dependencies(krate: &Crate) -> impl Iterator<Item = (&'static str, &str)> {
    entries(krate).map(|(table, name, _)| (table, name))
}

/// Every dependency of a crate: its table, the package's name, and what is said of it.
fn entries(krate: &Crate) -> impl Iterator<Item = (&'static str, &str, &toml::Value)> {
    let targets = krate.manifest.get("target").and_then(toml::Value::as_table);
    let per_target = targets.into_iter().flat_map(toml::Table::values);
    let manifests = per_target.filter_map(toml::Value::as_table).chain([&krate.manifest]);
    manifests.flat_map(|manifest| {
        TABLES.into_iter().flat_map(move |table| {
            let entries = manifest.get(table).and_then(toml::Value::as_table);
            entries.into_iter().flatten().map(move |(key, value)| {
                let renamed = value.get("package").and_then(toml::Value::as_str);
                (table, renamed.unwrap_or(key), value)
            })
        })
    })
}

/// Returns true if a dependency may be one of the tree. A registry's is given by a version alone.
fn is_of_the_tree(value: &toml::Value) -> bool {
    let has = |key| value.get(key).is_some();
    let is_of_registry = value.is_str() || has("version");
    !is_of_registry || has("path") || has("workspace")
}

/// Folder of each crate. A service may have the name of what it is about: nobody uses services.
fn folders_by_name(tree: &Tree) -> BTreeMap<&str, &str> {
    let is_service = |krate: &&Crate| krate.folder.starts_with("services/");
    let services = tree.crates.iter().filter(is_service);
    let others = tree.crates.iter().filter(|krate| !is_service(krate));
    services
        .chain(others)
        .filter_map(|krate| {
            let name = krate.manifest.get("package")?.get("name")?.as_str()?;
            Some((name, krate.folder.as_str()))
        })
        .collect()
}

/// A finding at the line of the Cargo.toml that begins with `word`.
fn finding(tree: &Tree, krate: &Crate, word: &str, message: String) -> Finding {
    let path = format!("{}/Cargo.toml", krate.folder);
    let text = tree.text(&path).unwrap_or_default();
    let begins = |line: &str| line.trim_start_matches('[').starts_with(word);
    let line = text.lines().position(begins).map_or(1, |at| at + 1);
    Finding::error(CHECK, &path, line, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings for one crate that uses others.
    fn arrows(from: &str, uses: &[&str]) -> Vec<Finding> {
        let mut files: Vec<(String, String)> = uses
            .iter()
            .map(|to| (format!("{to}/Cargo.toml"), format!("[package]\nname = \"{}\"\n", name(to))))
            .collect();
        let lines: String =
            uses.iter().map(|to| format!("{}.workspace = true\n", name(to))).collect();
        let manifest = format!("[package]\nname = \"it\"\n[dependencies]\n{lines}");
        files.push((format!("{from}/Cargo.toml"), manifest));
        let files: Vec<_> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
        check(&Tree::of(&files))
    }

    fn name(folder: &str) -> &str {
        folder.rsplit('/').next().unwrap()
    }

    #[test]
    fn arrows_of_the_design_are_allowed() {
        for (from, to) in [
            ("base/wire", "base/units"),
            ("core/node", "base/abi"),
            ("levels/engine", "base/abi"),
            ("store/module-store", "base/abi"),
            ("cli", "lab/topology"),
            ("lab/testkit", "host/netlink"),
            ("host/netlink", "host/namespaces"),
            ("l7/proxy-wasm", "levels/engine"),
            ("store/oci-client", "store/module-store"),
        ] {
            assert_eq!(arrows(from, &[to]), [], "{from} -> {to}");
        }
        assert_eq!(arrows("node/daemon", &["core/node", "levels/bpf"]), []);
    }

    #[test]
    fn arrows_against_the_design_are_found_at_their_line() {
        for (from, to) in [
            ("base/wire", "core/node"),
            ("core/node", "levels/engine"),
            ("levels/engine", "core/node"),
            ("levels/engine", "levels/executor"),
            ("levels/bpf", "host/netlink"),
            ("l7/http1", "levels/bpf"),
            ("l7/http1", "core/node"),
            ("host/netlink", "node/api"),
            ("store/module-store", "levels/engine"),
            ("node/daemon", "cli"),
            ("node/daemon", "lab/topology"),
            ("cli", "lab/testkit"),
            ("lab/bench", "cli"),
            ("xtask", "base/units"),
        ] {
            let found = arrows(from, &[to]);
            assert_eq!(found.len(), 1, "{from} -> {to}");
            assert_eq!(found[0].line, 4, "{from} -> {to}");
        }
    }

    #[test]
    fn core_and_levels_meet_only_in_the_roots() {
        assert_eq!(arrows("node/api", &["core/node", "levels/bpf"]).len(), 1);
    }

    #[test]
    fn tests_may_use_the_test_base_and_nothing_else_of_the_lab() {
        for (from, to, count) in [
            ("levels/bpf", "lab/testbase", 0),
            ("levels/bpf", "lab/testkit", 1),
            ("levels/bpf", "l7/testkit", 1),
            ("l7/fanout", "l7/testkit", 0),
        ] {
            let manifest = format!("[dev-dependencies]\n{} = {{}}\n", name(to));
            let package = format!("[package]\nname = \"{}\"\n", name(to));
            let tree = Tree::of(&[
                (&format!("{from}/Cargo.toml"), manifest.as_str()),
                (&format!("{to}/Cargo.toml"), package.as_str()),
            ]);
            assert_eq!(check(&tree).len(), count, "{from} -> {to}");
        }
        assert_eq!(arrows("l7/fanout", &["l7/testkit"]).len(), 1, "it is for tests alone");
    }

    #[test]
    fn a_service_may_have_the_name_of_a_crate() {
        let tree = Tree::of(&[
            ("core/it/Cargo.toml", "[package]\nname = \"it\"\n"),
            ("services/it/Cargo.toml", "[package]\nname = \"it\"\n"),
            ("core/other/Cargo.toml", "[dependencies]\nit.workspace = true\n"),
        ]);
        assert_eq!(check(&tree).len(), 0);
    }

    #[test]
    fn a_renamed_dependency_and_one_for_a_target_are_seen() {
        let tree = Tree::of(&[
            ("core/node/Cargo.toml", "[package]\nname = \"node\"\n"),
            (
                "base/wire/Cargo.toml",
                "[target.'cfg(unix)'.dependencies]\nother = { package = \"node\", path = \"\" }\n",
            ),
        ]);
        assert_eq!(check(&tree).len(), 1);
    }

    #[test]
    fn a_package_of_a_registry_is_not_ours_though_it_has_the_name_of_one() {
        for (dependency, count) in [
            ("proxy-wasm = \"0.2\"", 0),
            ("proxy-wasm = { version = \"0.2\", features = [] }", 0),
            ("it = { package = \"proxy-wasm\", version = \"0.2\" }", 0),
            ("proxy-wasm.workspace = true", 1),
            ("proxy-wasm = { path = \"../../l7/proxy-wasm\" }", 1),
            ("proxy-wasm = { path = \"../../l7/proxy-wasm\", version = \"0.2\" }", 1),
        ] {
            let tree = Tree::of(&[
                ("l7/proxy-wasm/Cargo.toml", "[package]\nname = \"proxy-wasm\"\n"),
                ("services/it/Cargo.toml", &format!("[dependencies]\n{dependency}\n")),
            ]);
            assert_eq!(check(&tree).len(), count, "{dependency}");
        }
    }
}
