//! Front door in C, and the thin safe layer over libbpf that loads it.
//!
//! ```text
//! objects::FRONT_DOOR ─open─▶ OpenObject ─load─▶ Object ─▶ Map, Program ─attach─▶ Link
//!   (clang, build.rs)         globals, sizes,    every map and program is its own
//!                             shared maps        descriptor, closed on drop
//! ```
//!
//! The layer checks properties that the kernel cannot: that a Rust type is as large as
//! the map's key or value, and that a pinned object is of the expected kind.
//! It knows nothing of rules or nodes; `front_door` does.

mod answers;
mod arena;
mod block;
mod btf;
#[cfg(test)]
mod call_stack;
pub mod front_door;
mod function_btf;
mod insn;
mod inventory;
mod lanes;
#[cfg(test)]
mod layout;
mod map;
mod mapped;
mod new_map;
mod object;
mod object_name;
pub mod pin;
mod port_shares;
mod program;
mod queue_credits;
mod raw_program;
mod reserved;
mod ring;
pub mod rule_facts;
mod test_run;
#[cfg(test)]
mod tests;

pub use answers::{Answers, QUESTION_HEAD, QUESTION_PACKET};
pub use arena::{ARENA_PAGE, Arena, ArenaError, MappedArena};
pub use block::{Block, BlockError, MappedBlock};
pub use front_door::{Below, FrontDoor, FrontDoorError, VlanDevice};
pub use inventory::Inventory;
pub use lanes::{Departures, Lane, Lanes, LanesError};
pub use map::{DevmapValue, Map, MapError, MapInfo, MappedArray, Update, possible_cpus};
pub use new_map::{MapSpec, NewMapError};
pub use object::{LoadError, Object, ObjectError, OpenObject};
pub use pin::PinError;
pub use port_shares::{PortShares, SentBelow};
pub use program::{AttachError, Link, Order, Program, XdpMode, takes_redirects, xdp_program_on};
pub use queue_credits::{CreditRecord, CreditTable, Head};
pub use raw_program::{RawFunction, RawKind, RawLoadError, RawMap, RawProgram};
pub use reserved::Reservation;
pub use ring::{BrokenRing, RingBuffer};
pub use rule_facts::RuleFacts;
pub use test_run::{TestRun, TestRunError, XdpContext};

/// Compiled objects, by the upper-case name of their source file.
pub mod objects {
    /// Alignment to eight bytes, which ELF readers expect of the header.
    #[repr(C, align(8))]
    struct Aligned<T>(T);

    include!(concat!(env!("OUT_DIR"), "/objects.rs"));
}
