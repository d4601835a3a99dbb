//! What each principal used, so that nobody can change it unseen. Sans-IO: time, keys and bytes
//! come in as arguments, and bytes go out.
//!
//! ```text
//!  meters ──Reading──▶ Ledger::append ──bytes──▶ a segment file, on disk before it counts
//!  (absolute)              │ what a meter shows less what it showed last
//!  segment files ─▶ Replay ┴▶ records, the ledger to go on with, or where the damage is
//!  a principal's records ─▶ Receipt ─▶ text ─▶ the principal: verifies it with the node's key
//! ```
//!
//! [`record`] has the pictures of what is written, [`chain`] what goes on, [`replay`] reads,
//! [`totals`] adds up, [`receipt`] is what a principal is given.

#![forbid(unsafe_code)]

pub mod amounts;
pub mod chain;
pub mod receipt;
pub mod record;
pub mod replay;
pub mod totals;

pub use amounts::{Amounts, Field};
pub use chain::{Appended, Ledger, Reading, ReadingError};
pub use receipt::{Receipt, ReceiptError};
pub use record::{Account, Digest, LedgerId, MeterId, Usage};
pub use replay::{Damage, DamageKind, End, Replay, Torn};
pub use totals::{Overflow, Period, Sum, Totals};
