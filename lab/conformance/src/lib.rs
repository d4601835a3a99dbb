//! Conformance table of (module, state, packet in, verdict, packet out), for every level.
//!
//! ```text
//! vectors/conformance/*.toml ─▶ cases() ─▶ Case ─▶ Level::run ─▶ Outcome
//!                                            │                      │
//!                                            └─ expected ─▶ differences()
//! ```
//!
//! A level runs a module on packets: [`User`] is the engine that `tam run` and a cell use, without
//! a device; [`Below`] is the module as eBPF in the kernel, at `nic` or `kernel`, without a device
//! as well. The steps of a node after the verdict (routing, swapping MACs, sending) are not in the
//! table. Levels that disagree are a defect, even if both results look right.

#![forbid(unsafe_code)]

mod below;
mod case;
mod clock;
mod ending;
mod frame;
mod level;
mod subject;
mod table;
mod user;

pub use below::Below;
pub use case::{Case, Event, Module, ModuleError, Outcome, Sent};
pub use ending::{Ending, EndingError};
pub use frame::{FrameTextError, frame};
pub use level::{ARRIVAL_PORT, Level, LevelError, OTHER_PORT, differences};
pub use table::{FILES, LoadError, cases, load};
pub use user::User;
