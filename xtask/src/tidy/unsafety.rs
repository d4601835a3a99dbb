//! Crates that may hold `unsafe` or C; everywhere else the compiler is told to forbid it.
//!
//! The list is a decision: changing it needs an ADR in docs/adr.

use super::Finding;
use super::tree::{Tree, folder_of};

const CHECK: &str = "unsafe";

/// Crates whose purpose is what safe Rust cannot say: kernel interfaces, shared
/// memory, signals, a module's memory; and a module that needs random bytes (ADR 0011).
const UNSAFE_ALLOWED: [&str; 14] = [
    "base/bpf-maps",
    "levels/bpf",
    "levels/level",
    "levels/xdp",
    "levels/tc",
    "levels/xsk",
    "levels/engine",
    "levels/executor",
    "host/namespaces",
    "host/netlink",
    "host/sandbox",
    "host/sockets",
    "sdk/rust",
    "services/transcode",
];
/// Folders that may hold C: programs for the kernel, baselines of benchmarks,
/// services in C and their SDK.
const C_ALLOWED: [&str; 5] =
    ["levels/bpf/", "lab/bench/c/", "lab/bench/functions/", "sdk/c/", "services/"];

/// Finds `unsafe` and C outside the lists, and crates that do not forbid the first.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, source) in tree.sources() {
        if UNSAFE_ALLOWED.contains(&folder_of(path)) {
            continue;
        }
        for token in source.find(&["unsafe"]) {
            let message = format!("unsafe outside {}", UNSAFE_ALLOWED.join(", "));
            findings.push(Finding::error(CHECK, path, token.line, message));
        }
    }
    for krate in tree.crates.iter().filter(|krate| krate.member) {
        if UNSAFE_ALLOWED.contains(&krate.folder.as_str()) {
            continue;
        }
        for root in ["src/lib.rs", "src/main.rs"] {
            let path = format!("{}/{root}", krate.folder);
            let Some((_, source)) = tree.sources().find(|(file, _)| *file == path) else {
                continue;
            };
            if !source.has(&["#", "!", "[", "forbid", "(", "unsafe_code", ")", "]"]) {
                let message = "add #![forbid(unsafe_code)] below the opening comment";
                findings.push(Finding::error(CHECK, &path, 1, message));
            }
        }
    }
    for (path, _) in tree.files().filter(|(path, _)| path.ends_with(".c") || path.ends_with(".h")) {
        if !C_ALLOWED.iter().any(|folder| path.starts_with(folder)) {
            let message = format!("C outside {}", C_ALLOWED.join(" and "));
            findings.push(Finding::error(CHECK, path, 1, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORBIDS: &str = "//! A crate.\n#![forbid(unsafe_code)]\n";

    fn workspace(files: &[(&str, &str)]) -> Vec<Finding> {
        let mut all = vec![
            ("Cargo.toml", "[workspace]\nmembers = [\"base/a\", \"levels/xsk\"]\n"),
            ("base/a/Cargo.toml", ""),
            ("levels/xsk/Cargo.toml", ""),
        ];
        all.extend(files);
        check(&Tree::of(&all))
    }

    #[test]
    fn unsafe_is_found_outside_its_crates_also_in_tests_and_build_scripts() {
        for path in ["base/a/src/b.rs", "base/a/tests/b.rs", "base/a/build.rs"] {
            let found = workspace(&[(path, "//! B.\nfn f() {\n    unsafe { g() }\n}\n")]);
            assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [3], "{path}");
        }
        assert_eq!(workspace(&[("levels/xsk/src/b.rs", "fn f() { unsafe { g() } }")]), []);
    }

    #[test]
    fn a_crate_that_does_not_forbid_unsafe_is_found() {
        assert_eq!(workspace(&[("base/a/src/lib.rs", FORBIDS)]), []);
        assert_eq!(workspace(&[("base/a/src/lib.rs", "//! A crate.\n")]).len(), 1);
        assert_eq!(workspace(&[("base/a/src/main.rs", "//! A crate.\n")]).len(), 1);
        assert_eq!(workspace(&[("levels/xsk/src/lib.rs", "//! A crate.\n")]), []);
    }

    #[test]
    fn a_comment_that_forbids_is_not_enough() {
        let text = "//! A crate.\n// #![forbid(unsafe_code)]\n";
        assert_eq!(workspace(&[("base/a/src/lib.rs", text)]).len(), 1);
    }

    #[test]
    fn c_is_found_outside_its_folders() {
        assert_eq!(workspace(&[("levels/bpf/c/a.h", ""), ("lab/bench/c/a.c", "")]), []);
        assert_eq!(workspace(&[("levels/xsk/src/a.c", "")]).len(), 1);
    }
}
