//! The packet functions, as the build left them.

/// A group of functions with a geometric mean of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Those that the compiler was worked on with.
    First,
    /// Those that were written before the compiler was changed for them, and did not change
    /// with it.
    Unseen,
}

/// A function in its four forms, and what it must do.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its name, which is that of its files.
    pub name: &'static str,
    /// Its set.
    pub set: Set,
    /// The module.
    pub module: &'static [u8],
    /// The XDP program with its tables in an arena.
    pub arena: &'static [u8],
    /// The same with a node's entry and exit around it, in C.
    pub entry: &'static [u8],
    /// The XDP program with its tables in array maps.
    pub maps: &'static [u8],
    /// The test vectors, as [`Vectors::parse`](super::Vectors::parse) takes them.
    pub vectors: &'static str,
}

/// The build found no compiler for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the functions were left out when this program was built: it lacked {0}; build it again")]
pub struct NotBuilt(&'static str);

/// All of both sets, in the order of the report.
///
/// # Errors
/// [`NotBuilt`] when the build had no compiler for them.
pub fn functions() -> Result<&'static [Function], NotBuilt> {
    Ok(compiled()?.functions)
}

/// A module that lets every packet pass.
///
/// # Errors
/// [`NotBuilt`] when the build had no compiler for it.
pub(crate) fn nothing() -> Result<&'static [u8], NotBuilt> {
    Ok(compiled()?.nothing)
}

/// A module that hashes what is in its memory: `functions/sha1.c`.
///
/// # Errors
/// [`NotBuilt`] when the build had no compiler for it.
pub(crate) fn sha1() -> Result<&'static [u8], NotBuilt> {
    Ok(compiled()?.sha1)
}

/// What the build leaves.
pub(super) struct Compiled {
    functions: &'static [Function],
    /// A module that lets every packet pass.
    pub(super) nothing: &'static [u8],
    /// A module that hashes.
    sha1: &'static [u8],
    /// `restore` and `empty`.
    pub(super) restore: &'static [u8],
}

pub(super) fn compiled() -> Result<&'static Compiled, NotBuilt> {
    COMPILED.as_ref().map_err(|missing| NotBuilt(missing))
}

/// ELF readers expect their header on a multiple of eight.
#[repr(C, align(8))]
struct Aligned<T>(T);

include!(concat!(env!("OUT_DIR"), "/levels.rs"));
