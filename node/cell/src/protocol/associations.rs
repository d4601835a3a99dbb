//! Associations between daemon and cell: services that active packets call, and counters.

use association::AssociationId;
use serde::{Deserialize, Serialize};
use units::EntryId;

/// Question to the daemon: the service of a digest, for an association or for unauthenticated
/// packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Association of the packets; `None` for unauthenticated packets.
    pub association: Option<AssociationId>,
    /// SHA-256 of the module's bytes.
    pub digest: [u8; 32],
}

/// Answer of the daemon about a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Service that runs on the digest's packets.
    Service(EntryId),
    /// Refusal: no service runs on them, and the cell is not to ask again for this time.
    Refused {
        /// Time in milliseconds.
        for_ms: u64,
    },
}

/// Counters of a cell's associations. Every received frame is in exactly one of the counts that
/// follow, or waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssociationReport {
    /// Associations whose keys the cell has.
    pub live: u64,
    /// Packets that wait for their service.
    pub waiting: u64,
    /// Frames received.
    pub received: u64,
    /// Payloads given to a service.
    pub calls: u64,
    /// Handshakes and fragments, handed to the kernel's stack.
    pub to_kernel: u64,
    /// Handshakes and fragments that the kernel's stack refused.
    pub kernel_refused: u64,
    /// Dropped: answers, to calls that this node has not sent.
    pub answers: u64,
    /// Dropped: no active packet.
    pub malformed: u64,
    /// Dropped: the association does not exist.
    pub unknown: u64,
    /// Dropped: accepted before, or too old to tell.
    pub stale: u64,
    /// Dropped: sealed with a key that has expired, or one too far ahead.
    pub no_key: u64,
    /// Dropped: not sealed by the other side.
    pub forged: u64,
    /// Dropped: unauthenticated, with a wrong checksum.
    pub checksum: u64,
    /// Dropped: the module does not exist, or the packet may not call it.
    pub refused: u64,
    /// Dropped: too many questions about unknown modules.
    pub not_asked: u64,
    /// Dropped: too many packets wait for their services.
    pub waiting_full: u64,
    /// Dropped: the service was not available in time.
    pub waited_too_long: u64,
    /// Dropped: the association, its service or its daemon was removed while the packet waited.
    pub gone: u64,
}

impl AssociationReport {
    /// Returns the sum of this report and another cell's.
    pub(super) const fn plus(&self, other: &Self) -> Self {
        Self {
            live: self.live + other.live,
            waiting: self.waiting + other.waiting,
            received: self.received + other.received,
            calls: self.calls + other.calls,
            to_kernel: self.to_kernel + other.to_kernel,
            kernel_refused: self.kernel_refused + other.kernel_refused,
            answers: self.answers + other.answers,
            malformed: self.malformed + other.malformed,
            unknown: self.unknown + other.unknown,
            stale: self.stale + other.stale,
            no_key: self.no_key + other.no_key,
            forged: self.forged + other.forged,
            checksum: self.checksum + other.checksum,
            refused: self.refused + other.refused,
            not_asked: self.not_asked + other.not_asked,
            waiting_full: self.waiting_full + other.waiting_full,
            waited_too_long: self.waited_too_long + other.waited_too_long,
            gone: self.gone + other.gone,
        }
    }

    /// Returns the counts of dropped packets, by reason.
    #[must_use]
    pub const fn dropped(&self) -> [(&'static str, u64); 13] {
        [
            ("active_answer", self.answers),
            ("active_kernel_refused", self.kernel_refused),
            ("active_malformed", self.malformed),
            ("active_unknown", self.unknown),
            ("active_stale", self.stale),
            ("active_no_key", self.no_key),
            ("active_forged", self.forged),
            ("active_checksum", self.checksum),
            ("active_refused", self.refused),
            ("active_not_asked", self.not_asked),
            ("active_waiting_full", self.waiting_full),
            ("active_waited_too_long", self.waited_too_long),
            ("active_gone", self.gone),
        ]
    }
}
