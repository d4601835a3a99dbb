//! Which compilers can make WebAssembly on this machine.
//!
//! C needs clang and LLVM's linker. Rust has two ways: a compiler that brings its libraries for the target (rustup, some
//! distributions), or one whose library source is installed (Debian), from
//! which Cargo then builds `core` first.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What modules are built for.
pub const TARGET: &str = "wasm32-unknown-unknown";
/// The oldest linker that is known to leave the packet's addresses free:
/// version 14 passes over `--global-base` when the stack comes first.
const LINKER_VERSION_MIN: u32 = 19;
/// The newest program of LLVM that is looked for by its number.
const VERSION_MAX: u32 = 40;

/// How to run Cargo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// The program.
    pub cargo: PathBuf,
    /// Where the compiler's libraries for the target come from.
    pub libraries: Libraries,
}

/// Where the compiler's libraries for the target come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Libraries {
    /// They are installed.
    Installed,
    /// They are built from source by this compiler.
    Built {
        /// The compiler.
        rustc: PathBuf,
        /// The linker for WebAssembly.
        linker: PathBuf,
        /// The sources of what the standard library uses, if they are installed too.
        vendored: Option<PathBuf>,
    },
}

/// No compiler on this machine makes WebAssembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no Rust compiler on this machine makes WebAssembly; with rustup: rustup target add {TARGET}; on Debian and Ubuntu: apt-get install rustc-web cargo-web rust-web-src lld-19; on Fedora: dnf install cargo rust-std-static-{TARGET} lld"
)]
pub struct NoToolchain;

/// The oldest clang that was tried.
const CLANG_VERSION_MIN: u32 = 19;

/// How to make WebAssembly of C.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CToolchain {
    /// The compiler.
    pub clang: PathBuf,
    /// The linker, with the arguments that make it one for WebAssembly.
    pub linker: Vec<PathBuf>,
}

/// Nothing on this machine makes WebAssembly of C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no {0} {CLANG_VERSION_MIN} or newer, which projects in C need; on Debian and Ubuntu: apt-get install clang-19 lld-19; on Fedora: dnf install clang lld"
)]
pub struct NoCToolchain(&'static str);

impl CToolchain {
    /// Looks for both on the path; a linker that Rust brings with it will do, too.
    ///
    /// # Errors
    /// When one is missing.
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

/// LLVM's linker as Rust's compiler brings it.
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
    /// Looks for a compiler, as seen from the project's `directory`, which may choose one.
    ///
    /// # Errors
    /// When there is none.
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

/// True when `rustc` has a compiled `core` for the target.
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

/// The newest linker for WebAssembly in `directory` that is new enough.
fn linker(directory: &Path) -> Option<PathBuf> {
    newest(directory, "wasm-ld", LINKER_VERSION_MIN)
}

/// The newest program of LLVM in `directory` that is new enough: by its number, or else
/// the one without.
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

/// The number in "Debian LLD 19.1.7" or "LLD 19.1.7 (compatible with GNU linkers)".
fn major_version(text: &str) -> Option<u32> {
    let version =
        text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    version.split('.').next()?.parse().ok()
}

/// The first line that a program prints, if it succeeds.
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
