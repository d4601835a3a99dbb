//! `tam build`: builds a service project into a module that keeps to the ABI.
//!
//! Cargo compiles, or for a project in C clang (`build_c`). This module finds out how to run it,
//! passes its progress on, checks the result and stores it in the project's directory.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use abi::{Checked, Unverified};

use super::build_c;
pub use super::build_error::BuildError;
use super::build_error::OUTPUT_LINES_MAX;
use super::toolchain::{Libraries, TARGET, Toolchain};
use crate::destination;
use crate::user_files::toml_problem;

/// Name of the SDK's package.
const SDK: &str = "tamandua-sdk";

/// Module that was built and keeps to the ABI.
#[derive(Clone, Debug)]
pub struct Built {
    /// Path of the module: in the project's directory, under the name in its manifest.
    pub module: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// Declarations and uses of the module.
    pub checked: Checked,
    /// Time that the compiler took.
    pub took: Duration,
}

/// Builds the project in `directory`; `progress` gets a line for each step. The project is in Rust
/// if it has a `Cargo.toml`, else in C.
///
/// # Errors
/// The directory has no project, there is no compiler, the project does not compile, or the result
/// does not keep to the ABI.
pub fn build(directory: &Path, progress: &mut dyn FnMut(&str)) -> Result<Built, BuildError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| BuildError::Copy { path, source }
    };
    // Folder of intermediate files of a project in C.
    let between = tempfile::tempdir().map_err(failed(&std::env::temp_dir()))?;
    let began = Instant::now();
    let sources = build_c::sources(directory);
    let artifact = if sources.is_empty() || directory.join("Cargo.toml").exists() {
        let needs = Needs::of(directory)?;
        let toolchain = Toolchain::find(directory)?;
        run(cargo(directory, &toolchain, needs), progress)?
            .ok_or_else(|| BuildError::NoModule(directory.into()))?
    } else {
        build_c::build(directory, &sources, between.path(), progress)?
    };
    let took = began.elapsed();
    let bytes = std::fs::read(&artifact).map_err(failed(&artifact))?;
    let checked = Unverified(&bytes)
        .check()
        .map_err(|error| BuildError::Check { path: artifact.clone(), source: Box::new(error) })?;
    let module = directory.join(format!("{}.wasm", checked.manifest.name));
    destination::put(&module, &bytes).map_err(failed(&module))?;
    Ok(Built { module, bytes: bytes.len() as u64, checked, took })
}

/// Dependencies of a project beside the SDK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Needs {
    /// True for the standard library, not only `core`.
    std: bool,
    /// True for crates that are not on this machine.
    registry: bool,
}

impl Needs {
    fn of(directory: &Path) -> Result<Self, BuildError> {
        let path = directory.join("Cargo.toml");
        let refused = |reason: String| BuildError::Manifest { path: path.clone(), reason };
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::read(&text).map_err(refused),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(BuildError::NoProject(directory.into()))
            }
            Err(error) => Err(refused(error.to_string())),
        }
    }

    fn read(text: &str) -> Result<Self, String> {
        let manifest: toml::Table =
            text.parse().map_err(|error: toml::de::Error| toml_problem(text, &error))?;
        let mut needs = Self::default();
        for table in ["dependencies", "build-dependencies", "dev-dependencies"] {
            let Some(dependencies) = manifest.get(table).and_then(toml::Value::as_table) else {
                continue;
            };
            for (name, dependency) in dependencies {
                needs.registry |= dependency.get("path").is_none();
                if table == "dependencies" {
                    let features = dependency.get("features").and_then(toml::Value::as_array);
                    let asks_for_std = features
                        .is_some_and(|all| all.iter().any(|one| one.as_str() == Some("std")));
                    // Another crate may use it; only the SDK is known not to.
                    needs.std |= asks_for_std || name != SDK;
                }
            }
        }
        Ok(needs)
    }
}

fn cargo(directory: &Path, toolchain: &Toolchain, needs: Needs) -> Command {
    let mut cargo = Command::new(&toolchain.cargo);
    cargo.current_dir(directory);
    if let Libraries::Built { rustc, linker, vendored } = &toolchain.libraries {
        let key = TARGET.replace('-', "_").to_uppercase();
        cargo
            // Otherwise a shim of rustup on the path would choose the compiler.
            .env("PATH", "/usr/bin:/bin")
            .env("RUSTC", rustc)
            // -Zbuild-std is open to nightly compilers, or with this to any.
            .env("RUSTC_BOOTSTRAP", "1")
            .env(format!("CARGO_TARGET_{key}_LINKER"), linker);
        if let Some(vendored) = vendored.as_deref().filter(|_| !needs.registry) {
            let vendored = toml::Value::from(vendored.to_string_lossy().as_ref());
            cargo
                .args(["--offline", "--config", "source.crates-io.replace-with=\"rust-src\""])
                .args(["--config", &format!("source.rust-src.directory={vendored}")]);
        }
        cargo.arg(if needs.std { "-Zbuild-std=std,panic_abort" } else { "-Zbuild-std=core" });
    }
    cargo
        .args(["build", "--release", "--target", TARGET])
        .arg("--message-format=json-render-diagnostics");
    cargo
}

/// Runs Cargo; returns the path of the module that it made, if it made one.
fn run(mut cargo: Command, progress: &mut dyn FnMut(&str)) -> Result<Option<PathBuf>, BuildError> {
    let failed = {
        let program = PathBuf::from(cargo.get_program());
        move |source| BuildError::Run { program: program.clone(), source }
    };
    let mut child = cargo
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(&failed)?;
    // Both pipes at once, so that neither fills up and holds the compiler.
    let artifacts = child.stdout.take().map(|out| std::thread::spawn(move || last_module(out)));
    let mut output = Vec::new();
    for line in child.stderr.take().into_iter().flat_map(|err| BufReader::new(err).lines()) {
        let line = line.map_err(&failed)?;
        if is_progress(&line) {
            progress(line.trim());
            if line.trim_start().starts_with("Compiling core ") {
                progress("(the compiler brings no libraries for WebAssembly: half a minute, once)");
            }
        } else if output.len() < OUTPUT_LINES_MAX {
            output.push(line);
        }
    }
    let status = child.wait().map_err(&failed)?;
    let module = artifacts.and_then(|reader| reader.join().ok()).flatten();
    if status.success() {
        return Ok(module);
    }
    Err(BuildError::Compile { output: output.join("\n") })
}

/// Returns true for Cargo's own lines, which begin with a right-aligned verb.
fn is_progress(line: &str) -> bool {
    line.starts_with("   ") && line.trim_start().starts_with(|c: char| c.is_ascii_uppercase())
}

/// Returns the last .wasm file among Cargo's messages: that of the project itself.
fn last_module(messages: impl io::Read) -> Option<PathBuf> {
    let mut module = None;
    for line in BufReader::new(messages).lines().map_while(Result::ok) {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(&line) else { continue };
        if message["reason"] != "compiler-artifact" {
            continue;
        }
        let files = message["filenames"].as_array().into_iter().flatten();
        for file in files.filter_map(serde_json::Value::as_str) {
            if file.ends_with(".wasm") {
                module = Some(PathBuf::from(file));
            }
        }
    }
    module
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_project_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let refused = || build(directory.path(), &mut |_| ()).unwrap_err();
        assert!(matches!(refused(), BuildError::NoProject(_)));
        std::fs::write(directory.path().join("Makefile"), "").unwrap();
        assert!(matches!(refused(), BuildError::NoProject(_)));
        std::fs::write(directory.path().join("service.c"), "").unwrap();
        std::fs::write(directory.path().join("Cargo.toml"), "[").unwrap();
        assert!(matches!(refused(), BuildError::Manifest { .. }));
    }

    #[test]
    fn a_new_project_passes_its_test_and_becomes_a_module() {
        let parent = tempfile::tempdir().unwrap();
        let name = units::Name::new("fresh").unwrap();
        let project = super::super::create(parent.path(), &name, Default::default()).unwrap();
        let mut lines = Vec::new();
        let built = build(&project.directory, &mut |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(built.module, project.directory.join("fresh.wasm"));
        assert_eq!(built.checked.manifest.name, name);
        assert_eq!(built.checked.imports, [abi::HostFunction::ParamLoad]);
        assert_eq!(std::fs::metadata(&built.module).unwrap().len(), built.bytes);
        assert!(lines.iter().any(|line| line.contains("Compiling fresh")), "{lines:?}");

        let toolchain = Toolchain::find(&project.directory).unwrap();
        let mut test = Command::new(toolchain.cargo);
        test.args(["test", "--quiet", "--offline"]).current_dir(&project.directory);
        let output = test.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn only_what_a_project_names_is_built_or_fetched() {
        let sdk = "tamandua-sdk = { path = \"sdk\" }";
        let with_std = "tamandua-sdk = { path = \"sdk\", features = [\"std\"] }";
        for (dependencies, std, registry) in [
            (sdk.to_owned(), false, false),
            (with_std.to_owned(), true, false),
            (format!("{sdk}\nother = {{ path = \"other\" }}"), true, false),
            (format!("{sdk}\nsha2 = \"0.10\""), true, true),
        ] {
            let needs = Needs::read(&format!("[dependencies]\n{dependencies}")).unwrap();
            assert_eq!(needs, Needs { std, registry }, "{dependencies}");
        }
    }

    #[test]
    fn the_projects_module_is_the_last_one() {
        let messages = concat!(
            "{\"reason\":\"compiler-artifact\",\"filenames\":[\"/t/a.rlib\"]}\n",
            "no json\n",
            "{\"reason\":\"compiler-artifact\",\"filenames\":[\"/t/b.wasm\"]}\n",
            "{\"reason\":\"build-finished\",\"success\":true}\n",
        );
        assert_eq!(last_module(messages.as_bytes()), Some(PathBuf::from("/t/b.wasm")));
        assert_eq!(last_module(&b"{}"[..]), None);
    }

    #[test]
    fn progress_is_told_from_complaints() {
        assert!(is_progress("   Compiling core v0.0.0"));
        assert!(is_progress("    Finished `release` profile"));
        assert!(!is_progress("error[E0308]: mismatched types"));
        assert!(!is_progress("   |     ^^^ expected `u32`"));
    }
}
