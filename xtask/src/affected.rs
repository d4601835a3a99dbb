//! Packages that a change touches, and those that depend on them.
//!
//! Git names the files and Cargo the packages; this module only compares the two.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::cargo;

/// Files and folders at the root that every package is built with, or that many tests read.
const SHARED: [&str; 7] = [
    "Cargo.toml",
    "Cargo.lock",
    ".cargo",
    "rustfmt.toml",
    "clippy.toml",
    "vectors",
    "tools/rust.sh",
];

/// Packages that services are written with, outside the workspace as they are.
const SDKS: [&str; 2] = ["sdk/rust", "sdk/stream"];

/// Package of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    pub folder: PathBuf,
    /// Folders of the packages that it depends on, for tests and builds, too.
    pub uses: BTreeSet<PathBuf>,
}

/// Returns the files that differ from a revision, relative to the root; of a tree without changes
/// those of the last commit.
pub fn changed_files(root: &Path, since: Option<&str>) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = git(root, &["diff", "--name-only", since.unwrap_or("HEAD")])?;
    files.extend(git(root, &["ls-files", "--others", "--exclude-standard"])?);
    if files.is_empty() && since.is_none() {
        files = git(root, &["diff", "--name-only", "HEAD~1"])?;
    }
    Ok(files)
}

/// Returns the packages of the workspace.
pub fn packages(root: &Path) -> anyhow::Result<Vec<Package>> {
    let metadata = ["metadata", "--no-deps", "--format-version=1", "--locked", "--offline"];
    let document = output(cargo(root).args(metadata))?;
    parse(&document)
}

/// Returns the folders of the packages that these files belong to, and of all that depend on them.
pub fn affected(root: &Path, packages: &[Package], files: &[PathBuf]) -> BTreeSet<PathBuf> {
    if files.iter().any(|file| SHARED.iter().any(|shared| file.starts_with(shared))) {
        return packages.iter().map(|package| package.folder.clone()).collect();
    }
    let owner = |file: &PathBuf| {
        let file = root.join(file);
        let owners = packages.iter().filter(|package| file.starts_with(&package.folder));
        owners.max_by_key(|package| package.folder.as_os_str().len())
    };
    let mut found: BTreeSet<PathBuf> =
        files.iter().filter_map(owner).map(|package| package.folder.clone()).collect();
    loop {
        let more: Vec<PathBuf> = packages
            .iter()
            .filter(|package| !found.contains(&package.folder))
            .filter(|package| !package.uses.is_disjoint(&found))
            .map(|package| package.folder.clone())
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Returns the manifests of packages outside the workspace that the files belong to, or whose
/// dependencies by path they belong to (the SDKs and the services).
pub fn outside(root: &Path, files: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let services = std::fs::read_dir(root.join("services")).context("listing services")?;
    let mut folders = services
        .map(|entry| Ok(Path::new("services").join(entry.context("listing services")?.file_name())))
        .collect::<anyhow::Result<Vec<PathBuf>>>()?;
    folders.extend(SDKS.map(PathBuf::from));
    folders.sort();
    let has = |folder: &str| files.iter().any(|file| file.starts_with(folder));
    let all = SDKS.into_iter().any(has);
    folders.retain(|folder| all || files.iter().any(|file| file.starts_with(folder)));
    let manifests = folders.into_iter().map(|folder| folder.join("Cargo.toml"));
    Ok(manifests.filter(|manifest| root.join(manifest).is_file()).collect())
}

fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let text = output(Command::new("git").current_dir(root).args(arguments))?;
    Ok(text.lines().map(PathBuf::from).collect())
}

/// Runs a command that must succeed, and returns its standard output.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {}", said.trim());
    String::from_utf8(output.stdout).with_context(|| format!("reading what {command:?} printed"))
}

/// Reads `cargo metadata --no-deps`.
fn parse(document: &str) -> anyhow::Result<Vec<Package>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Described>,
    }
    #[derive(Deserialize)]
    struct Described {
        manifest_path: PathBuf,
        dependencies: Vec<Dependency>,
    }
    #[derive(Deserialize)]
    struct Dependency {
        path: Option<PathBuf>,
    }
    let metadata: Metadata = serde_json::from_str(document).context("reading cargo metadata")?;
    let package = |it: Described| {
        let folder = it.manifest_path.parent().context("a manifest lies in a folder")?.to_owned();
        let uses = it.dependencies.into_iter().filter_map(|it| it.path).collect();
        Ok(Package { folder, uses })
    };
    metadata.packages.into_iter().map(package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(folder: &str, uses: &[&str]) -> Package {
        let at = |it: &str| Path::new("/p").join(it);
        Package { folder: at(folder), uses: uses.iter().map(|it| at(it)).collect() }
    }

    fn tree() -> Vec<Package> {
        vec![
            package("base/wire", &[]),
            package("core/node", &["base/wire"]),
            package("core/node/macros", &[]),
            package("node/daemon", &["core/node"]),
            package("host/netlink", &[]),
        ]
    }

    fn affected_by(files: &[&str]) -> Vec<String> {
        let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
        let found = affected(Path::new("/p"), &tree(), &files);
        found.iter().map(|it| it.strip_prefix("/p").unwrap().display().to_string()).collect()
    }

    #[test]
    fn a_change_affects_its_package_and_all_that_depend_on_it() {
        assert_eq!(affected_by(&["core/node/src/rule.rs"]), ["core/node", "node/daemon"]);
        assert_eq!(
            affected_by(&["base/wire/src/lib.rs"]),
            ["base/wire", "core/node", "node/daemon"]
        );
        assert_eq!(affected_by(&["core/node/macros/src/lib.rs"]), ["core/node/macros"]);
        assert_eq!(affected_by(&["docs/guides/rules.md"]), [""; 0]);
        assert_eq!(affected_by(&["Cargo.lock"]).len(), tree().len());
        assert_eq!(affected_by(&["vectors/http1/edge-cases.txt"]).len(), tree().len());
    }

    #[test]
    fn packages_are_read_from_cargos_metadata() {
        let document = r#"{"packages":[{"manifest_path":"/p/core/node/Cargo.toml","dependencies":
            [{"name":"wire","path":"/p/base/wire"},{"name":"serde"}]}]}"#;
        assert_eq!(parse(document).unwrap(), [package("core/node", &["base/wire"])]);
        assert!(parse("{}").is_err());
    }
}
