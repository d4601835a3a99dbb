//! Packet functions as the build compiled them.

/// Set of functions with a geometric mean of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Functions that the compiler was optimised with.
    First,
    /// Functions that were written before the compiler was changed for them, and did not change
    /// with it.
    Unseen,
}

/// Function in its four forms, with its test vectors.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Name, which is that of its files.
    pub name: &'static str,
    /// Set that it belongs to.
    pub set: Set,
    /// The module.
    pub module: &'static [u8],
    /// The XDP program with its tables in an arena.
    pub arena: &'static [u8],
    /// XDP program with its tables in an arena and a node's entry and exit around it, in C.
    pub entry: &'static [u8],
    /// The XDP program with its tables in array maps.
    pub maps: &'static [u8],
    /// The test vectors, as [`Vectors::parse`](super::Vectors::parse) takes them.
    pub vectors: &'static str,
}

/// Error: the build found no compiler for the functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the functions were left out when this program was built: it lacked {0}; build it again")]
pub struct NotBuilt(&'static str);

/// Returns the functions of both sets, in the order of the report.
///
/// # Errors
/// [`NotBuilt`] when the build had no compiler for them.
pub fn functions() -> Result<&'static [Function], NotBuilt> {
    Ok(compiled()?.functions)
}

/// Returns a module that passes every packet.
///
/// # Errors
/// [`NotBuilt`] when the build had no compiler for it.
pub(crate) fn nothing() -> Result<&'static [u8], NotBuilt> {
    Ok(compiled()?.nothing)
}

/// Returns a module that hashes the contents of its memory: `functions/sha1.c`.
///
/// # Errors
/// [`NotBuilt`] when the build had no compiler for it.
pub(crate) fn sha1() -> Result<&'static [u8], NotBuilt> {
    Ok(compiled()?.sha1)
}

/// Results of the build.
pub(super) struct Compiled {
    functions: &'static [Function],
    /// Module that passes every packet.
    pub(super) nothing: &'static [u8],
    /// Module that hashes.
    sha1: &'static [u8],
    /// `restore` and `empty`.
    pub(super) restore: &'static [u8],
}

pub(super) fn compiled() -> Result<&'static Compiled, NotBuilt> {
    COMPILED.as_ref().map_err(|missing| NotBuilt(missing))
}

/// Bytes aligned to eight, as ELF readers expect.
#[repr(C, align(8))]
struct Aligned<T>(T);

include!(concat!(env!("OUT_DIR"), "/levels.rs"));
