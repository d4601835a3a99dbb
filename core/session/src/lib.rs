//! What sessions reserve, and who is next when they all want it. Sans-IO: time comes in as an
//! argument, answers are data.
//!
//! ```text
//!  text ──FromStr──▶ Share, VirtualProcessor, Weight ──▶ Reservation
//!                                                            │
//!                       executor::Schedule ◀─────────────────┘
//!                       who runs, until when
//! ```
//!
//! [`share`], [`processor`] and [`weight`] are the parts, [`reservation`] the whole, [`text`] how
//! times and sizes are written. [`executor`] shares a guest core.

#![forbid(unsafe_code)]

mod edf;
pub mod executor;
mod kind;
mod period;
pub mod processor;
pub mod reservation;
pub mod share;
pub mod text;
pub mod weight;

pub use edf::NOTIONAL_PERIOD;
pub use kind::Kind;
pub use period::Period;
pub use processor::{ProcessorError, VirtualProcessor};
pub use reservation::{PROCESSORS_MAX, Reservation, ReservationError};
pub use share::{PERIOD_MAX, PERIOD_MIN, SLICE_MIN, Share, ShareError};
pub use text::{Size, TextError};
pub use weight::{Weight, WeightError};
