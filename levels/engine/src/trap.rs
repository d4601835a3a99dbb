//! Faults of a module, and their positions.

use crate::origins::Origins;
use abi::layout::{ABI_VERSION, NotAVerdict};
use std::fmt::{self, Write};

/// Reason why an instance did not start: a fault of the author or the operator.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Memory or tables beyond the granted limits, or a limit of the host.
    #[error("the instance cannot be made: {0}")]
    Instantiate(String),
    /// A hook that the ABI requires is missing or has another type.
    #[error("the module has no usable export '{0}'")]
    Export(&'static str),
    /// Trap of `on_start`.
    #[error("on_start trapped: {0}")]
    Trapped(Trap),
    /// Number other than 0 returned by `on_start`: the module refuses to start.
    #[error(transparent)]
    Refused(StartRefusal),
    /// Failure to take over the state of the previous instance.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Reason why state was not handed over: a fault of the module's author or the operator.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Hook that the module does not export.
    #[error("the module exports no '{0}'")]
    NoHook(&'static str),
    /// The hook trapped: the instance it ran in is not used again.
    #[error("{0} trapped: {1}")]
    Trapped(&'static str, Trap),
    /// The hook returned a number other than 0.
    #[error("{0} returned {1}: the module does not {2} this state")]
    Refused(&'static str, i32, &'static str),
    /// State too large for the new instance.
    #[error("the state has {bytes} bytes of memory, and the new instance may have less")]
    TooLarge {
        /// Bytes of memory.
        bytes: usize,
    },
}

/// A number other than 0 that `on_start` returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartRefusal {
    /// The number.
    pub number: i32,
    /// The number's meaning, where the module's manifest has it.
    pub meaning: Option<String>,
}

impl std::error::Error for StartRefusal {}

impl fmt::Display for StartRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, meaning } = self;
        match meaning {
            Some(meaning) => {
                write!(f, "the module refuses to start: {meaning} (on_start returned {number})")
            }
            None => write!(f, "on_start returned {number}: the module refuses its parameters"),
        }
    }
}

/// End of an instance: the cause and the function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trap {
    /// Cause of the trap.
    pub kind: TrapKind,
    /// Position, as far as the code shows it: innermost function first.
    pub place: Option<Place>,
}

/// Position in a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the function from the name section, or its index; where it is known.
    pub function: Option<String>,
    /// Offset of the instruction in the module's bytes.
    pub offset: Option<usize>,
}

/// Cause that ended a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrapKind {
    /// An `unreachable` instruction, the end of a panic.
    Unreachable,
    /// A load or store outside the memory.
    MemoryOutOfBounds,
    /// An access outside a table, or an empty or differently typed entry.
    IndirectCall,
    /// Division by zero, or a quotient that does not fit.
    Arithmetic,
    /// Calls nested beyond [`STACK_LENGTH_MAX`](crate::STACK_LENGTH_MAX).
    StackOverflow,
    /// The call exceeded its time limit or, below user level, spent its fuel.
    TimeLimit,
    /// Number returned by `on_packet` that is no verdict; `None` where only the fact is known.
    NotAVerdict(Option<u32>),
    /// Another cause of a WebAssembly trap.
    Other,
}

impl TrapKind {
    /// Returns the name of the trap's counter.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::MemoryOutOfBounds => "memory_out_of_bounds",
            Self::IndirectCall => "indirect_call",
            Self::Arithmetic => "arithmetic",
            Self::StackOverflow => "stack_overflow",
            Self::TimeLimit => "time_limit",
            Self::NotAVerdict(_) => "not_a_verdict",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            TrapKind::NotAVerdict(Some(value)) => NotAVerdict(value).fmt(f)?,
            TrapKind::NotAVerdict(None) => write!(
                f,
                "on_packet returned a number that is no verdict of ABI version {ABI_VERSION}"
            )?,
            TrapKind::Unreachable => f.write_str("reached 'unreachable' (a panic ends so)")?,
            TrapKind::MemoryOutOfBounds => f.write_str("accessed memory out of bounds")?,
            TrapKind::IndirectCall => f.write_str("called through a bad table entry")?,
            TrapKind::Arithmetic => f.write_str("divided by zero or overflowed a division")?,
            TrapKind::StackOverflow => f.write_str("overflowed its stack")?,
            TrapKind::TimeLimit => f.write_str("ran longer than a call may")?,
            TrapKind::Other => f.write_str("trapped")?,
        }
        let Some(place) = &self.place else { return Ok(()) };
        if let Some(function) = &place.function {
            write!(f, " in function {function}")?;
        }
        match place.offset {
            Some(offset) => write!(f, " at module offset {offset:#x}"),
            None => Ok(()),
        }
    }
}

impl Trap {
    /// Reads the cause from wasmtime's error; offsets are those of the code that it compiled.
    #[must_use]
    pub fn from_error(error: &wasmtime::Error) -> Self {
        use wasmtime::Trap as T;
        let kind = match error.downcast_ref::<T>() {
            Some(T::UnreachableCodeReached) => TrapKind::Unreachable,
            Some(T::MemoryOutOfBounds | T::HeapMisaligned) => TrapKind::MemoryOutOfBounds,
            Some(T::TableOutOfBounds | T::IndirectCallToNull | T::BadSignature) => {
                TrapKind::IndirectCall
            }
            Some(T::IntegerDivisionByZero | T::IntegerOverflow | T::BadConversionToInteger) => {
                TrapKind::Arithmetic
            }
            Some(T::StackOverflow) => TrapKind::StackOverflow,
            Some(T::Interrupt) => TrapKind::TimeLimit,
            _ => TrapKind::Other,
        };
        Self { kind, place: place(error) }
    }

    /// Reads the cause with offsets in the module that the code was made from.
    pub(crate) fn in_module(error: &wasmtime::Error, origins: &Origins) -> Self {
        let mut trap = Self::from_error(error);
        if let Some(offset) = trap.place.as_mut().and_then(|place| place.offset.as_mut()) {
            *offset = origins.original(*offset);
        }
        trap
    }
}

/// Returns the innermost function of the module's own code: a Rust module that panics traps in
/// `core`, which says nothing about the module.
fn place(error: &wasmtime::Error) -> Option<Place> {
    let frames = error.downcast_ref::<wasmtime::WasmBacktrace>()?.frames();
    let name = |frame: &wasmtime::FrameInfo| {
        frame.func_name().map_or_else(|| format!("#{}", frame.func_index()), function_name)
    };
    let own = frames.iter().find(|frame| !is_of_rust(&name(frame)));
    let frame = own.or_else(|| frames.first())?;
    Some(Place { function: Some(name(frame)), offset: frame.module_offset() })
}

/// Returns a function's name for people: a symbol of Rust as it was written, without the hash, other
/// names as they are; control characters are escaped. A module chooses these names, so they end at
/// [`FUNCTION_NAME_MAX`].
pub(crate) fn function_name(symbol: &str) -> String {
    let mut name = BoundedName::default();
    // The only error is that of the bound: a short symbol can stand for a name without end.
    let _ = match rustc_demangle::try_demangle(symbol) {
        Ok(demangled) => write!(name, "{demangled:#}"),
        Err(_) => name.write_str(symbol),
    };
    name.text
}

/// Longest name of a function in the place of a trap, in bytes, without the `…` of one that was cut:
/// longer than names in use, and many fit into one message of a cell to the daemon.
const FUNCTION_NAME_MAX: usize = 512;

/// Text that ends at [`FUNCTION_NAME_MAX`], by an error for its writer.
#[derive(Default)]
struct BoundedName {
    text: String,
}

impl Write for BoundedName {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let is_control = character.is_control();
            let escaped = character.escape_default().filter(|_| is_control);
            let shown: String = escaped.chain((!is_control).then_some(character)).collect();
            if self.text.len() + shown.len() > FUNCTION_NAME_MAX {
                self.text.push('…');
                return Err(fmt::Error);
            }
            self.text.push_str(&shown);
        }
        Ok(())
    }
}

/// True for functions of Rust's own libraries, which panics and checks call.
fn is_of_rust(function: &str) -> bool {
    const CRATES: [&str; 3] = ["core::", "alloc::", "std::"];
    // A method of a trait is named `<TYPE as TRAIT>::NAME`.
    let path = function.trim_start_matches(['<', '&']);
    CRATES.iter().any(|name| path.starts_with(name))
        || ["rust_panic", "rust_begin_unwind", "__rust_alloc_error_handler"].contains(&function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_named_as_in_the_source_and_those_of_rusts_libraries_are_known() {
        let panic = "_RNvNtCsjTS7XqMtFsn_4core9panicking9panic_fmt";
        assert_eq!(function_name(panic), "core::panicking::panic_fmt");
        let own = "_ZN7fragile9on_packet17h0123456789abcdefE";
        assert_eq!(function_name(own), "fragile::on_packet");
        assert_eq!(function_name("on_packet"), "on_packet");
        for (name, of_rust) in [
            ("core::panicking::panic_fmt", true),
            ("<core::fmt::Formatter>::pad", true),
            ("alloc::raw_vec::handle_error", true),
            ("fragile::on_packet", false),
            ("core_dump", false),
            ("#3", false),
        ] {
            assert_eq!(is_of_rust(name), of_rust, "{name}");
        }
    }

    #[test]
    fn names_that_a_module_chose_have_a_bounded_length_and_no_control_characters() {
        // Tuples of two, both of which are the tuple before: each is twice as long.
        let doubling = "_RINvC1a1bTmmETB7_B7_ETBb_Bb_ETBj_Bj_ETBr_Br_ETBz_Bz_ETBH_BH_ETBP_BP_ETBX_BX_\
            ETB15_B15_ETB1d_B1d_ETB1n_B1n_ETB1x_B1x_ETB1H_B1H_ETB1R_B1R_ETB21_B21_ETB2b_B2b_EE";
        let all = ["x".repeat(200_000), "é".repeat(FUNCTION_NAME_MAX), doubling.to_owned()];
        for symbol in all {
            let name = function_name(&symbol);
            assert!(name.ends_with('…'), "{name}");
            assert!(name.len() <= FUNCTION_NAME_MAX + '…'.len_utf8(), "{}", name.len());
        }
        assert!(function_name(doubling).starts_with("a::b::<(u32, u32), ((u32, u32), (u32, u32))"));
        assert!(function_name(&"x".repeat(FUNCTION_NAME_MAX + 1)).ends_with("x…"));
        let longest = "x".repeat(FUNCTION_NAME_MAX);
        assert_eq!(function_name(&longest), longest);
        assert_eq!(function_name("a\nb\u{1b}[2J"), "a\\nb\\u{1b}[2J");
    }
}
