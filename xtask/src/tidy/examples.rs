//! Libraries whose comments have no example say so: `doctest = false`.
//!
//! Rustdoc reads and compiles every library of the workspace to find the examples in its comments,
//! which takes as long for one that has none. With the key and an example, nobody would run it.

use super::Finding;
use super::tree::{Crate, Tree};

const CHECK: &str = "examples";

/// Compares the examples in each library's comments with the key `doctest` of its package.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let libraries = tree.crates.iter().filter(|it| tree.text(&root(it)).is_some());
    libraries.filter_map(|krate| finding(tree, krate)).collect()
}

fn finding(tree: &Tree, krate: &Crate) -> Option<Finding> {
    let manifest = format!("{}/Cargo.toml", krate.folder);
    let key = krate.manifest.get("lib").and_then(|lib| lib.get("doctest"));
    let runs = key.and_then(toml::Value::as_bool) != Some(false);
    let sources = format!("{}/src/", krate.folder);
    let example = tree
        .files()
        .filter(|(path, _)| path.starts_with(&sources) && path.ends_with(".rs"))
        .find_map(|(path, text)| Some((path, first_example(text)?)));
    match (runs, example) {
        (true, None) => {
            let message = "the comments of this library have no example: [lib] doctest = false";
            Some(Finding::error(CHECK, &manifest, 1, message))
        }
        (false, Some((path, line))) => {
            let message = format!("nobody runs this example: {manifest} has doctest = false");
            Some(Finding::error(CHECK, path, line, message))
        }
        _ => None,
    }
}

fn root(krate: &Crate) -> String {
    format!("{}/src/lib.rs", krate.folder)
}

/// Returns the line of the first block of a documentation comment that rustdoc would run.
fn first_example(text: &str) -> Option<usize> {
    let mut within = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let Some(tag) = comment.and_then(|it| it.trim_start().strip_prefix("```")) else {
            continue;
        };
        let code = ["", "rust", "no_run", "should_panic", "compile_fail"];
        if !within && code.contains(&tag.split(',').next().unwrap_or_default().trim()) {
            return Some(number);
        }
        within = !within;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"a\"\n";
    const WITHOUT: &str = "[package]\nname = \"a\"\n[lib]\ndoctest = false\n";
    const DRAWING: &str = "//! A.\n//!\n//! ```text\n//! a -> b\n//! ```\n";
    const EXAMPLE: &str =
        "//! A.\n//!\n//! ```text\n//! a\n//! ```\n\n/// ```\n/// f();\n/// ```\n";

    fn found(manifest: &str, source: &str) -> Vec<(String, usize)> {
        let files = [("base/a/Cargo.toml", manifest), ("base/a/src/lib.rs", source)];
        check(&Tree::of(&files)).into_iter().map(|it| (it.path, it.line)).collect()
    }

    #[test]
    fn a_library_without_an_example_says_so() {
        assert_eq!(found(MANIFEST, DRAWING), [("base/a/Cargo.toml".to_owned(), 1)]);
        assert_eq!(found(WITHOUT, DRAWING), []);
    }

    #[test]
    fn an_example_that_nobody_runs_is_found() {
        assert_eq!(found(WITHOUT, EXAMPLE), [("base/a/src/lib.rs".to_owned(), 7)]);
        assert_eq!(found(MANIFEST, EXAMPLE), []);
    }

    #[test]
    fn a_program_is_no_library() {
        let files = [("base/a/Cargo.toml", MANIFEST), ("base/a/src/main.rs", "//! A.\n")];
        assert_eq!(check(&Tree::of(&files)), []);
    }
}
