//! Session reservations: their types, admission control, and the schedulers of guest cores and of
//! ports. Sans-IO: time is an argument, answers are data.
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
//! [`share`], [`processor`] and [`weight`] are the parts of a [`reservation`]; [`text`] parses and
//! formats times, sizes and rates. [`admission`] decides what can be promised together,
//! [`executor`] schedules a guest core, [`egress`] a port's transmissions, [`in_kernel`] and
//! [`port_bucket`] convert shares into token buckets for the kernel (fuel and bytes), and
//! [`memory`] accounts for memory by session.
//!
//! *Surplus* is capacity that nobody reserved or that its holder leaves unused; it is divided by
//! weight.

#![forbid(unsafe_code)]

/// CPU cache prefetcher that callers lend to the schedulers. Affects timing only, never a decision.
pub trait Prefetch {
    /// Starts loading `what` into the cache, without waiting for it.
    fn prefetch<T>(&self, what: &T);
}

pub mod admission;
mod edf;
pub mod egress;
pub mod executor;
pub mod in_kernel;
mod kind;
pub mod memory;
mod period;
pub mod port_bucket;
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
