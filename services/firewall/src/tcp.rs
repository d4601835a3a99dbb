//! What a TCP segment makes of its connection (RFC 9293, section 3.3.2), seen from between.
//!
//! ```text
//!            SYN ┌─────────┐ SYN of the other ┌──────────┐ ACK ┌─────────────┐
//!          ─────▶│ Opening │─────────────────▶│ Answered │────▶│ Established │
//!                └─────────┘                  └──────────┘     └──────┬──────┘
//!                     │ RST                        │ RST          FIN │ RST
//!                     ▼                            ▼                  ▼
//!                  Reset ◀──────────────────────────────────────── Closing ─ FIN of the other ─▶ Closed
//! ```
//!
//! Sequence numbers are the ends' business: they refuse what is outside their window
//! (RFC 5961). A reset that somebody made up is found out: the end that is said to have sent
//! it goes on speaking, and the connection is established again.

use crate::flows::{Flow, Phase, mark};

const FIN: u8 = 1 << 0;
const SYN: u8 = 1 << 1;
const RST: u8 = 1 << 2;
const ACK: u8 = 1 << 4;

/// Whether an end may send a segment with these flags.
pub const fn is_possible(flags: u8) -> bool {
    match flags & (SYN | FIN | RST | ACK) {
        SYN | RST | ACK => true,
        both => both == SYN | ACK || both == RST | ACK || both == FIN | ACK,
    }
}

/// Whether it is a connection's first segment.
pub const fn is_first(flags: u8) -> bool {
    flags & (SYN | ACK) == SYN
}

/// Whether it may come from a connection that has been there for a while.
pub const fn is_in_the_middle(flags: u8) -> bool {
    flags & (SYN | RST | ACK) == ACK
}

/// Lets a segment change its connection.
pub fn follow(flow: &mut Flow, from_inside: bool, flags: u8) {
    if flags & RST != 0 {
        return reset(flow, from_inside);
    }
    let from_first = flow.is_from_first(from_inside);
    match flow.phase {
        Phase::Opening if !from_first => {
            if flags & SYN != 0 {
                flow.phase = Phase::Answered;
            } else if flow.marks & mark::PICKED_UP != 0 {
                flow.phase = Phase::Established;
            }
        }
        Phase::Answered if from_first && flags & SYN == 0 => flow.phase = Phase::Established,
        // The end that is said to have reset it speaks: it has not.
        Phase::Reset
            if flow.marks & mark::RESET_LATE != 0
                && (flow.marks & mark::RESET_INSIDE != 0) == from_inside =>
        {
            flow.phase = Phase::Established;
        }
        _ => {}
    }
    if flags & FIN != 0 && matches!(flow.phase, Phase::Established | Phase::Closing) {
        close(flow, from_inside);
    } else if flow.phase == Phase::Established {
        close_as_far_as_marked(flow);
    }
}

fn reset(flow: &mut Flow, from_inside: bool) {
    let late = matches!(flow.phase, Phase::Established | Phase::Closing);
    if flow.phase != Phase::Reset {
        flow.marks &= !(mark::RESET_INSIDE | mark::RESET_LATE);
        flow.marks |= if from_inside { mark::RESET_INSIDE } else { 0 };
        flow.marks |= if late { mark::RESET_LATE } else { 0 };
    }
    flow.phase = Phase::Reset;
}

fn close(flow: &mut Flow, from_inside: bool) {
    flow.marks |= if from_inside { mark::FIN_INSIDE } else { mark::FIN_OUTSIDE };
    close_as_far_as_marked(flow);
}

fn close_as_far_as_marked(flow: &mut Flow) {
    match (flow.marks & mark::FIN_INSIDE != 0, flow.marks & mark::FIN_OUTSIDE != 0) {
        (true, true) => flow.phase = Phase::Closed,
        (true, false) | (false, true) => flow.phase = Phase::Closing,
        (false, false) => {}
    }
}
