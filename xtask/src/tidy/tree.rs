//! The project's tree in memory: text files by path, crates by folder.
//!
//! Files that people do not write (built files, lock files, captures) are
//! left out. Nothing here judges.

use std::collections::BTreeMap;
use std::path::Path;

use super::rust::{Source, Unreadable};
use crate::figures::RESULTS;

/// Endings of the files that are read; files without one are read by name.
const ENDINGS: [&str; 9] = ["rs", "c", "h", "toml", "md", "sh", "wat", "yml", "svg"];
/// Files without an ending that people write.
const NAMES: [&str; 2] = ["Makefile", "run"];
/// Folders that hold nothing that people write.
const SKIPPED: [&str; 4] = ["target", ".git", ".demo", "node_modules"];
/// No text file of the project is larger; a larger one is data (4 MiB).
const FILE_LENGTH_MAX: u64 = 4 << 20;

/// Cargo package of the tree.
#[derive(Debug)]
pub struct Crate {
    /// Folder from the root, such as `base/units`.
    pub folder: String,
    /// Parsed Cargo.toml.
    pub manifest: toml::Table,
    /// True if the workspace names it as a member.
    pub member: bool,
}

/// All that the checks look at.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
    rust: BTreeMap<String, Result<Source, Unreadable>>,
    /// The packages, by folder.
    pub crates: Vec<Crate>,
}

impl Tree {
    /// Reads every text file below `root`.
    ///
    /// # Errors
    /// A folder or file cannot be read.
    pub fn read(root: &Path) -> std::io::Result<Self> {
        let mut files = BTreeMap::new();
        read_folder(root, "", &mut files)?;
        Ok(Self::new(files))
    }

    /// A tree of a few lines, for tests.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        Self::new(files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect())
    }

    fn new(files: BTreeMap<String, String>) -> Self {
        let mut rust: BTreeMap<_, _> = files
            .iter()
            .filter(|(path, _)| path.ends_with(".rs") && !is_template(path))
            .map(|(path, text)| (path.clone(), Source::parse(text)))
            .collect();
        mark_test_files(&mut rust);
        let members = workspace_members(&files);
        let crates = files
            .iter()
            .filter(|(path, _)| !is_template(path))
            .filter_map(|(path, text)| Some((path.strip_suffix("/Cargo.toml")?, text)))
            .map(|(folder, text)| Crate {
                folder: folder.to_owned(),
                manifest: text.parse().unwrap_or_default(),
                member: members.iter().any(|member| member == folder),
            })
            .collect();
        Self { files, rust, crates }
    }

    /// The text of one file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Every file with its text.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Every Rust file with its tokens; templates of `tam new` are no Rust yet.
    pub fn rust_files(&self) -> impl Iterator<Item = (&str, &Result<Source, Unreadable>)> {
        self.rust.iter().map(|(path, source)| (path.as_str(), source))
    }

    /// Every Rust file that could be read.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &Source)> {
        self.rust_files().filter_map(|(path, source)| Some((path, source.as_ref().ok()?)))
    }

    /// Returns true if there is a file or folder of this path. Only text files count.
    pub fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.files.keys().any(|file| {
            file.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// The root Cargo.toml, empty when it cannot be read.
    pub fn workspace(&self) -> toml::Table {
        self.text("Cargo.toml").and_then(|text| text.parse().ok()).unwrap_or_default()
    }
}

/// Returns true if a path lies in a folder of templates, which become files of a user's project.
fn is_template(path: &str) -> bool {
    path.split('/').any(|part| part == "templates")
}

/// The folder of the crate that a file belongs to: the first two parts of its path, or one.
pub fn folder_of(path: &str) -> &str {
    let parts = if path.starts_with("xtask/") || path.starts_with("cli/") { 1 } else { 2 };
    path.match_indices('/').nth(parts - 1).map_or(path, |(at, _)| &path[..at])
}

/// A file that its parent declares under `#[cfg(test)]` is a test from its first line.
fn mark_test_files(rust: &mut BTreeMap<String, Result<Source, Unreadable>>) {
    let mut modules = Vec::new();
    for (path, source) in rust.iter() {
        let stem = path.trim_end_matches(".rs");
        let folder = ["lib", "main", "mod"].iter().find_map(|root| stem.strip_suffix(root));
        let folder = folder.map_or_else(|| format!("{stem}/"), str::to_owned);
        let names = source.iter().flat_map(Source::test_modules);
        modules.extend(names.map(|name| format!("{folder}{name}")));
    }
    for (path, source) in rust.iter_mut() {
        let in_module = |module: &String| {
            path.strip_prefix(module.as_str())
                .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        if let (true, Ok(source)) = (modules.iter().any(in_module), source) {
            source.mark_as_test();
        }
    }
}

fn workspace_members(files: &BTreeMap<String, String>) -> Vec<String> {
    let table: toml::Table =
        files.get("Cargo.toml").and_then(|text| text.parse().ok()).unwrap_or_default();
    let members = table.get("workspace").and_then(|workspace| workspace.get("members"));
    let members = members.and_then(toml::Value::as_array).into_iter().flatten();
    members.filter_map(|member| member.as_str().map(str::to_owned)).collect()
}

fn read_folder(
    root: &Path,
    below: &str,
    files: &mut BTreeMap<String, String>,
) -> std::io::Result<()> {
    for entry in std::fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
            read_folder(root, &path, files)?;
        } else if kind.is_file()
            && is_text(below, &name)
            && entry.metadata()?.len() <= FILE_LENGTH_MAX
        {
            let bytes = std::fs::read(entry.path())?;
            files.insert(path, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    Ok(())
}

/// Returns true for files that people write, and for the results that pages show.
fn is_text(folder: &str, name: &str) -> bool {
    match name.rsplit_once('.') {
        Some((_, "json")) => folder == RESULTS,
        Some((_, ending)) => ENDINGS.contains(&ending),
        None => NAMES.contains(&name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_there_when_a_file_lies_in_it() {
        let tree = Tree::of(&[("base/units/src/lib.rs", "//! Units.\n")]);
        assert!(tree.has("base/units") && tree.has("base/units/") && tree.has("base"));
        assert!(!tree.has("base/unit") && !tree.has("base/units/src/lib"));
    }

    #[test]
    fn a_file_belongs_to_its_folder() {
        assert_eq!(folder_of("base/units/src/lib.rs"), "base/units");
        assert_eq!(folder_of("xtask/src/main.rs"), "xtask");
        assert_eq!(folder_of("README.md"), "README.md");
    }

    #[test]
    fn members_are_those_that_the_workspace_names() {
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace]\nmembers = [\"base/a\"]\n"),
            ("base/a/Cargo.toml", "[package]\nname = \"a\"\n"),
            ("sdk/rust/Cargo.toml", "[package]\nname = \"sdk\"\n"),
        ]);
        let members: Vec<_> = tree.crates.iter().map(|c| (c.folder.as_str(), c.member)).collect();
        assert_eq!(members, [("base/a", true), ("sdk/rust", false)]);
    }

    #[test]
    fn a_file_that_is_declared_for_tests_is_a_test() {
        let tree = Tree::of(&[
            ("a/src/lib.rs", "#[cfg(test)]\nmod tests;\nmod b;\n"),
            ("a/src/tests.rs", "fn f() { here() }"),
            ("a/src/b.rs", "#[cfg(test)]\nmod tests;\nfn f() { here() }"),
            ("a/src/b/tests.rs", "fn f() { here() }"),
        ]);
        let is_test = |path: &str| {
            let (_, source) = tree.sources().find(|(file, _)| *file == path).unwrap();
            source.find(&["here"]).all(|token| token.test)
        };
        assert!(is_test("a/src/tests.rs") && is_test("a/src/b/tests.rs"));
        assert!(!is_test("a/src/b.rs"));
    }

    #[test]
    fn the_tree_is_read_from_disk_without_what_was_built() {
        let root = std::env::temp_dir().join(format!("tam-tidy-tree-{}", std::process::id()));
        for (path, text) in [("a/x.rs", "//! X.\n"), ("target/y.rs", "no"), ("a/z.pcap", "no")] {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let tree = Tree::read(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(tree.files().collect::<Vec<_>>(), [("a/x.rs", "//! X.\n")]);
    }
}
