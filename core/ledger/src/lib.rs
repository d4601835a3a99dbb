//! Ledger of what principals used: tamper-evident records for billing. Sans-IO: time, keys and
//! bytes are arguments; bytes to write are returned.
//!
//! ```text
//!  meters ──Reading──▶ Ledger::append ──bytes──▶ a segment file, on disk before it is billed
//!  (absolute)              │ difference to the meter's last record
//!  segment files ─▶ Replay ┴▶ records, the ledger state, or the place of damage
//!  a principal's records ─▶ Receipt ─▶ text ─▶ the principal: verifies it with the node's key
//! ```
//!
//! [`record`] defines the format, [`chain`] appends, [`replay`] reads and verifies, [`totals`] sums
//! by account, [`receipt`] makes and verifies receipts for principals.

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
