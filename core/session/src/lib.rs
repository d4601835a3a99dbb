//! What sessions reserve. Sans-IO: time comes in as an argument, answers are data.
//!
//! ```text
//!  text ──FromStr──▶ Share, VirtualProcessor, Weight ──▶ Reservation ──check──▶ may be asked for
//! ```
//!
//! [`share`], [`processor`] and [`weight`] are the parts, [`reservation`] the whole, [`text`] how
//! times and sizes are written.

#![forbid(unsafe_code)]

pub mod processor;
pub mod reservation;
pub mod share;
pub mod text;
pub mod weight;

pub use processor::{ProcessorError, VirtualProcessor};
pub use reservation::{PROCESSORS_MAX, Reservation, ReservationError};
pub use share::{PERIOD_MAX, PERIOD_MIN, SLICE_MIN, Share, ShareError};
pub use text::{Size, TextError};
pub use weight::{Weight, WeightError};
