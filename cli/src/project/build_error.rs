//! Reasons why a project was not built.

use std::io;
use std::path::PathBuf;

use abi::CheckError;

use super::toolchain::{NoCToolchain, NoToolchain};
/// Lines of the compiler's output that an error keeps: the first complaint causes the others.
pub(super) const OUTPUT_LINES_MAX: usize = 200;
/// Failure to build a module: the author's or the host's fault.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The folder has no project.
    #[error(
        "{0} has neither a Cargo.toml nor a .c file: it is no service project; `tam new NAME` writes one"
    )]
    NoProject(PathBuf),
    /// `Cargo.toml` cannot be read.
    #[error("cannot read {path}: {reason}")]
    Manifest {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        reason: String,
    },
    /// Rust's compiler is missing.
    #[error(transparent)]
    NoToolchain(#[from] NoToolchain),
    /// The C compiler is missing.
    #[error(transparent)]
    NoCToolchain(#[from] NoCToolchain),
    /// The compiler could not be run.
    #[error("cannot run {program}: {source}")]
    Run {
        /// Program that could not be run.
        program: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The compiler refused the project.
    #[error("the project does not compile:\n{output}")]
    Compile {
        /// Output of the compiler, without its progress.
        output: String,
    },
    /// The project compiles, but not to a module.
    #[error(
        "{0} compiles to no .wasm file; its Cargo.toml needs [lib] with crate-type = [\"cdylib\"]"
    )]
    NoModule(PathBuf),
    /// The module does not keep to the ABI.
    #[error("{path} was built, but no node would take it: {source}")]
    Check {
        /// File that the compiler made.
        path: PathBuf,
        /// Defect of the module.
        source: Box<CheckError>,
    },
    /// The module could not be read or written.
    #[error("cannot copy the module to {path}: {source}")]
    Copy {
        /// File that the module was to be written to.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}
