//! What sessions reserve, whether a node can promise it, and who is next when all of them want
//! theirs. Sans-IO: time comes in as an argument, answers are data.
//!
//! ```text
//!  text ──FromStr──▶ Share, VirtualProcessor, Weight ──▶ Reservation
//!                                                            │
//!                    Refusal ◀── admission::Admission ◀──────┘
//!                                        │ what fits together
//!                          ┌─────────────┴───────────┐
//!                          ▼                         ▼
//!                 executor::Schedule         egress::Schedule
//!                 who runs, until when       which packet leaves, when
//! ```
//!
//! [`share`], [`processor`] and [`weight`] are the parts, [`reservation`] the whole, [`text`] how
//! times and sizes are written. [`admission`] adds up, [`executor`] shares a guest core,
//! [`egress`] a port, [`below`] says what time below user level is in fuel, [`line`] what a share
//! of a port is there in bytes, and [`memory`] keeps account of who has how much of it.

#![forbid(unsafe_code)]

/// Who can have memory loaded into a cache before it is looked at. It changes nothing but time.
pub trait Ahead {
    /// Starts loading a thing.
    fn load<T>(&self, what: &T);
}

pub mod admission;
pub mod below;
mod edf;
pub mod egress;
pub mod executor;
mod kind;
pub mod line;
pub mod memory;
mod period;
pub mod processor;
pub mod reservation;
pub mod share;
pub mod text;
pub mod weight;

pub use kind::Kind;
pub use period::NOTIONAL_PERIOD;
pub use period::Period;
pub use processor::{ProcessorError, VirtualProcessor};
pub use reservation::{PROCESSORS_MAX, Reservation, ReservationError};
pub use share::{PERIOD_MAX, PERIOD_MIN, Parts, SLICE_MIN, Share, ShareError};
pub use text::{Rate, Size, TextError};
pub use weight::{Weight, WeightError};
