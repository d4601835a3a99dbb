//! Compilers for WebAssembly on this machine.
//!
//! C needs clang and LLVM's linker. Rust has two ways: a compiler that brings its libraries for the
//! target (rustup, some distributions), or one whose library source is installed (Debian), from
//! which Cargo then builds `core` first.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Target triple of modules.
pub const TARGET: &str = "wasm32-unknown-unknown";
/// The oldest linker that is known to leave the packet's addresses free:
/// version 14 passes over `--global-base` when the stack comes first.
const LINKER_VERSION_MIN: u32 = 19;
/// Newest LLVM version that is searched for by its number.
const VERSION_MAX: u32 = 40;

/// Cargo and the libraries for the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// Path of Cargo.
    pub cargo: PathBuf,
    /// Source of the compiler's libraries for the target.
    pub libraries: Libraries,
}

/// Source of the compiler's libraries for the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Libraries {
    /// Libraries that are installed.
    Installed,
    /// Libraries that this compiler builds from source.
    Built {
        /// Path of the compiler.
        rustc: PathBuf,
        /// Path of the linker for WebAssembly.
        linker: PathBuf,
        /// Sources of the standard library's dependencies, if they are installed too.
        vendored: Option<PathBuf>,
    },
}

/// No compiler on this machine produces WebAssembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no Rust compiler on this machine makes WebAssembly; with rustup: rustup target add {TARGET}; on Debian and Ubuntu: apt-get install rustc-web cargo-web rust-web-src lld-19; on Fedora: dnf install cargo rust-std-static-{TARGET} lld"
)]
pub struct NoToolchain;

/// Oldest clang version that was tested.
const CLANG_VERSION_MIN: u32 = 19;

/// Compiler and linker of C for WebAssembly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CToolchain {
    /// Path of clang.
    pub clang: PathBuf,
    /// Linker, with the arguments that select WebAssembly.
    pub linker: Vec<PathBuf>,
}

/// No C compiler on this machine produces WebAssembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no {0} {CLANG_VERSION_MIN} or newer, which projects in C need; on Debian and Ubuntu: apt-get install clang-19 lld-19; on Fedora: dnf install clang lld"
)]
pub struct NoCToolchain(&'static str);

impl CToolchain {
    /// Searches the path for clang and a linker; accepts the linker that Rust brings.
    ///
    /// # Errors
    /// Clang or the linker is missing.
    pub fn find() -> Result<Self, NoCToolchain> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let clang = folders.iter().find_map(|folder| newest(folder, "clang", CLANG_VERSION_MIN));
        let linker = folders
            .iter()
            .find_map(|folder| linker(folder))
            .map(|linker| vec![linker])
            .or_else(rust_lld);
        Ok(Self {
            clang: clang.ok_or(NoCToolchain("clang"))?,
            linker: linker.ok_or(NoCToolchain("wasm-ld"))?,
        })
    }
}

/// Returns LLVM's linker as Rust's compiler brings it.
fn rust_lld() -> Option<Vec<PathBuf>> {
    let libraries = sysroot(Path::new("rustc"))?.join("lib/rustlib");
    let hosts = std::fs::read_dir(libraries).ok()?;
    let lld = hosts.flatten().map(|host| host.path().join("bin/rust-lld")).find(|lld| {
        let version = line_of(Command::new(lld).args(["-flavor", "wasm", "--version"]));
        version.and_then(|text| major_version(&text)) >= Some(LINKER_VERSION_MIN)
    })?;
    Some(vec![lld, "-flavor".into(), "wasm".into()])
}

impl Toolchain {
    /// Searches for a compiler, as seen from the project's `directory`, which may select one.
    ///
    /// # Errors
    /// No compiler is installed.
    pub fn find(directory: &Path) -> Result<Self, NoToolchain> {
        if has_libraries(Path::new("rustc"), directory) {
            return Ok(Self { cargo: "cargo".into(), libraries: Libraries::Installed });
        }
        let system = Path::new("/usr/bin");
        let (cargo, rustc) = (system.join("cargo"), system.join("rustc"));
        if !cargo.exists() || !rustc.exists() {
            return Err(NoToolchain);
        }
        if has_libraries(&rustc, directory) {
            return Ok(Self { cargo, libraries: Libraries::Installed });
        }
        let library = sysroot(&rustc).ok_or(NoToolchain)?.join("lib/rustlib/src/rust/library");
        let linker = linker(system).ok_or(NoToolchain)?;
        if !library.join("core").is_dir() {
            return Err(NoToolchain);
        }
        let vendored = Some(library.join("vendor")).filter(|vendor| vendor.is_dir());
        Ok(Self { cargo, libraries: Libraries::Built { rustc, linker, vendored } })
    }
}

/// Returns true if `rustc` has a compiled `core` for the target.
fn has_libraries(rustc: &Path, directory: &Path) -> bool {
    let mut command = Command::new(rustc);
    command.args(["--print", "target-libdir", "--target", TARGET]).current_dir(directory);
    let Some(libraries) = line_of(&mut command) else { return false };
    let Ok(entries) = std::fs::read_dir(libraries) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libcore-"))
}

fn sysroot(rustc: &Path) -> Option<PathBuf> {
    line_of(Command::new(rustc).args(["--print", "sysroot"])).map(PathBuf::from)
}

/// Returns the newest linker for WebAssembly in `directory` that is new enough.
fn linker(directory: &Path) -> Option<PathBuf> {
    newest(directory, "wasm-ld", LINKER_VERSION_MIN)
}

/// Returns the newest LLVM program in `directory` that is new enough: by its number, or else the
/// one without a number.
fn newest(directory: &Path, name: &str, version_min: u32) -> Option<PathBuf> {
    let numbered = (version_min..=VERSION_MAX)
        .rev()
        .map(|version| directory.join(format!("{name}-{version}")))
        .find(|path| path.exists());
    numbered.or_else(|| {
        let plain = directory.join(name);
        let version = line_of(Command::new(&plain).arg("--version"))?;
        (major_version(&version)? >= version_min).then_some(plain)
    })
}

/// Parses the major version in "Debian LLD 19.1.7" or "LLD 19.1.7 (compatible with GNU linkers)".
fn major_version(text: &str) -> Option<u32> {
    let version =
        text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    version.split('.').next()?.parse().ok()
}

/// Returns the first line that a program prints, if it succeeds.
fn line_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linkers_version_is_read() {
        assert_eq!(major_version("Debian LLD 14.0.6"), Some(14));
        assert_eq!(major_version("LLD 19.1.7 (compatible with GNU linkers)"), Some(19));
        assert_eq!(major_version("no number"), None);
    }

    #[test]
    fn an_old_linker_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("wasm-ld-14"), "").unwrap();
        assert_eq!(linker(directory.path()), None);
        std::fs::write(directory.path().join("wasm-ld-19"), "").unwrap();
        std::fs::write(directory.path().join("wasm-ld-21"), "").unwrap();
        assert_eq!(linker(directory.path()), Some(directory.path().join("wasm-ld-21")));
    }
}
