//! Connection tracking: the state of a flow as a router between its two ends sees it.
//!
//! ```text
//!            SYN ┌─────────┐ SYN of the other ┌──────────┐ ACK ┌─────────────┐
//!          ─────▶│ Opening │─────────────────▶│ Answered │────▶│ Established │◀──┐
//!                └─────────┘                  └──────────┘     └──────┬──────┘   │ ACK
//!                     │ RST                        │ RST          FIN │ RST  ┌───┴───────┐
//!                     │                            │                  │      │ Reanswered│
//!                     │                            │                  ▼      └───────────┘
//!                     │                            │               Closing        ▲ SYN of
//!                     ▼                            ▼               │     │ SYN    │ the other
//!                   Reset ◀────────────────────────────────────────┘     ▼        │
//!                                     FIN of the other: Closed       Reopening ───┘
//! ```
//!
//! Sequence numbers are checked by the ends, which refuse segments outside their window
//! (RFC 5961). A forged reset is detected: the end that seemed to have sent it continues to send,
//! and the connection is established again.
//!
//! A SYN after one FIN opens the ports anew (RFC 9293, section 3.6.1), but only a complete
//! handshake proves it: until then the connection keeps its state, since a forged SYN costs
//! nothing.

/// TCP's flags (RFC 9293, section 3.1), as the header's byte 13 has them.
pub mod tcp {
    /// Bytes of TCP's header without options.
    pub const HEADER_LENGTH: usize = 20;
    /// The sender has no more data.
    pub const FIN: u8 = 1 << 0;
    /// A connection's first segment, or the answer to it.
    pub const SYN: u8 = 1 << 1;
    /// The sender has no such connection.
    pub const RST: u8 = 1 << 2;
    /// The acknowledgment number counts.
    pub const ACK: u8 = 1 << 4;

    /// Returns true if an end may send a segment with these flags.
    #[inline]
    #[must_use]
    pub const fn is_possible(flags: u8) -> bool {
        match flags & (SYN | FIN | RST | ACK) {
            SYN | RST | ACK => true,
            both => both == SYN | ACK || both == RST | ACK || both == FIN | ACK,
        }
    }

    /// Returns true for a connection's first segment.
    #[inline]
    #[must_use]
    pub const fn is_first(flags: u8) -> bool {
        flags & (SYN | ACK) == SYN
    }

    /// Returns true if the segment may come from an established connection.
    #[inline]
    #[must_use]
    pub const fn is_in_the_middle(flags: u8) -> bool {
        flags & (SYN | RST | ACK) == ACK
    }
}

use tcp::{ACK, FIN, RST, SYN};

/// Phase in the life of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// No flow.
    None,
    /// Begun, without an answer.
    Opening,
    /// TCP: the other end has accepted, without an acknowledgement of the first.
    Answered,
    /// Both ends have sent packets.
    Established,
    /// TCP: one end has sent a FIN.
    Closing,
    /// TCP: after a FIN of one end, an end opens the same ports anew.
    Reopening,
    /// TCP: the other end has accepted the new connection.
    Reanswered,
    /// TCP: both ends have sent a FIN.
    Closed,
    /// TCP: one end has sent a reset.
    Reset,
}

/// Bits of [`Connection::marks`].
mod mark {
    /// Begun from inside.
    pub const FROM_INSIDE: u8 = 1 << 0;
    /// The end inside has sent FIN.
    pub const FIN_INSIDE: u8 = 1 << 1;
    /// The end outside has sent FIN.
    pub const FIN_OUTSIDE: u8 = 1 << 2;
    /// The reset came from inside.
    pub const RESET_INSIDE: u8 = 1 << 3;
    /// The connection was established before the reset.
    pub const RESET_LATE: u8 = 1 << 4;
    /// The beginning of the connection was not seen.
    pub const PICKED_UP: u8 = 1 << 5;
    /// The end inside opens the ports anew; otherwise the end outside does.
    pub const REOPENED_INSIDE: u8 = 1 << 6;
}

/// State of one flow, in two bytes. Its ends are called inside and outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Connection {
    phase: Phase,
    marks: u8,
}

impl Connection {
    /// No flow.
    pub const NONE: Self = Self { phase: Phase::None, marks: 0 };

    /// Begins a flow with a packet of no protocol with connections, or with a TCP segment that
    /// [is the first](tcp::is_first).
    #[inline]
    #[must_use]
    pub const fn begin(from_inside: bool) -> Self {
        let marks = if from_inside { mark::FROM_INSIDE } else { 0 };
        Self { phase: Phase::Opening, marks }
    }

    /// Begins a connection with a segment from its middle: it is established when the other end
    /// sends anything.
    #[inline]
    #[must_use]
    pub const fn pick_up(from_inside: bool, flags: u8) -> Self {
        let Self { phase, marks } = Self::begin(from_inside);
        let closes = if flags & FIN != 0 { fin_of(from_inside) } else { 0 };
        Self { phase, marks: marks | mark::PICKED_UP | closes }
    }

    /// Returns the phase.
    #[inline]
    #[must_use]
    pub const fn phase(self) -> Phase {
        self.phase
    }

    /// Returns true if the flow has ended for both ends.
    #[inline]
    #[must_use]
    pub const fn has_ended(self) -> bool {
        matches!(self.phase, Phase::Closed | Phase::Reset)
    }

    /// Returns true if the flow was established and has not ended: a full table must keep it.
    #[inline]
    #[must_use]
    pub const fn is_lasting(self) -> bool {
        use Phase::{Closing, Established, Reanswered, Reopening};
        matches!(self.phase, Established | Closing | Reopening | Reanswered)
    }

    /// Returns true if only one end has closed it.
    #[inline]
    #[must_use]
    pub const fn is_closing(self) -> bool {
        matches!(self.phase, Phase::Closing | Phase::Reopening | Phase::Reanswered)
    }

    /// Returns true if an established connection was reset: the reset may be forged.
    #[inline]
    #[must_use]
    pub const fn was_reset_late(self) -> bool {
        matches!(self.phase, Phase::Reset) && self.marks & mark::RESET_LATE != 0
    }

    /// Handles a packet of a protocol without connections: an answer establishes the flow.
    #[inline]
    pub const fn packet(&mut self, from_inside: bool) {
        if !self.is_from_first(from_inside) {
            self.phase = Phase::Established;
        }
    }

    /// Handles a TCP segment.
    pub const fn segment(&mut self, from_inside: bool, flags: u8) {
        if flags & RST != 0 {
            return self.reset(from_inside);
        }
        match self.phase {
            Phase::Opening if !self.is_from_first(from_inside) => {
                if flags & SYN != 0 {
                    self.phase = Phase::Answered;
                } else if self.marks & mark::PICKED_UP != 0 {
                    self.phase = Phase::Established;
                }
            }
            Phase::Answered if self.is_from_first(from_inside) && flags & SYN == 0 => {
                self.phase = Phase::Established;
            }
            Phase::Closing | Phase::Reopening | Phase::Reanswered => {
                self.reopen(from_inside, flags);
            }
            // The supposed sender of the reset continues to send: it was forged.
            Phase::Reset
                if self.was_reset_late()
                    && (self.marks & mark::RESET_INSIDE != 0) == from_inside =>
            {
                self.phase = Phase::Established;
            }
            _ => {}
        }
        let closes = if flags & FIN != 0 { fin_of(from_inside) } else { 0 };
        // A repeated FIN changes nothing.
        if closes & !self.marks != 0 && self.is_lasting() {
            self.marks |= closes;
            self.close();
        } else if matches!(self.phase, Phase::Established) {
            self.close();
        }
    }

    const fn is_from_first(self, from_inside: bool) -> bool {
        (self.marks & mark::FROM_INSIDE != 0) == from_inside
    }

    /// Handles a segment after one end has closed: part of a new handshake, or of the old
    /// connection.
    const fn reopen(&mut self, from_inside: bool, flags: u8) {
        let by_opener = (self.marks & mark::REOPENED_INSIDE != 0) == from_inside;
        match self.phase {
            Phase::Closing if tcp::is_first(flags) => {
                self.marks &= !mark::REOPENED_INSIDE;
                self.marks |= if from_inside { mark::REOPENED_INSIDE } else { 0 };
                self.phase = Phase::Reopening;
            }
            Phase::Reopening if !by_opener && flags & SYN != 0 => self.phase = Phase::Reanswered,
            Phase::Reanswered if by_opener && flags & (SYN | ACK) == ACK => {
                *self = Self::begin(from_inside);
                self.phase = Phase::Established;
            }
            _ => {}
        }
    }

    const fn reset(&mut self, from_inside: bool) {
        let late = self.is_lasting();
        if !matches!(self.phase, Phase::Reset) {
            self.marks &= !(mark::RESET_INSIDE | mark::RESET_LATE);
            self.marks |= if from_inside { mark::RESET_INSIDE } else { 0 };
            self.marks |= if late { mark::RESET_LATE } else { 0 };
        }
        self.phase = Phase::Reset;
    }

    /// Closes the connection as far as FINs were seen.
    const fn close(&mut self) {
        match self.marks & (mark::FIN_INSIDE | mark::FIN_OUTSIDE) {
            0 => {}
            mark::FIN_INSIDE | mark::FIN_OUTSIDE => self.phase = Phase::Closing,
            _ => self.phase = Phase::Closed,
        }
    }
}

const fn fin_of(from_inside: bool) -> u8 {
    if from_inside { mark::FIN_INSIDE } else { mark::FIN_OUTSIDE }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: bool = true;
    const BACK: bool = false;
    const OPENED: [(bool, u8); 3] = [(OUT, SYN), (BACK, SYN | ACK), (OUT, ACK)];

    /// Returns the phase after the first segment and some more.
    fn phase(segments: &[(bool, u8)]) -> Phase {
        follow(segments).phase()
    }

    fn follow(segments: &[(bool, u8)]) -> Connection {
        let ((from_inside, flags), rest) = segments.split_first().unwrap();
        let mut connection = match tcp::is_first(*flags) {
            true => Connection::begin(*from_inside),
            false => Connection::pick_up(*from_inside, *flags),
        };
        for (from_inside, flags) in rest {
            connection.segment(*from_inside, *flags);
        }
        connection
    }

    fn after(beginning: &[(bool, u8)], more: &[(bool, u8)]) -> Phase {
        phase(&[beginning, more].concat())
    }

    #[test]
    fn a_handshake_is_whole_with_its_third_segment() {
        assert_eq!(phase(&OPENED[..1]), Phase::Opening);
        assert_eq!(phase(&OPENED[..2]), Phase::Answered);
        assert_eq!(phase(&OPENED), Phase::Established);
        // Repeated segments do not advance it.
        assert_eq!(after(&OPENED[..2], &OPENED[..2]), Phase::Answered);
        // Both open at once (RFC 9293, section 3.5).
        let both = [(OUT, SYN), (BACK, SYN), (OUT, SYN | ACK), (BACK, SYN | ACK)];
        assert_eq!(phase(&both), Phase::Answered);
        assert_eq!(after(&both, &[(OUT, ACK)]), Phase::Established);
        // The other end alone proves nothing.
        assert_eq!(after(&OPENED[..2], &[(BACK, ACK)]), Phase::Answered);
    }

    #[test]
    fn what_is_picked_up_is_established_when_the_other_end_speaks() {
        assert_eq!(phase(&[(OUT, ACK)]), Phase::Opening);
        assert_eq!(phase(&[(OUT, ACK), (OUT, ACK)]), Phase::Opening);
        assert_eq!(phase(&[(OUT, ACK), (BACK, ACK)]), Phase::Established);
        assert_eq!(phase(&[(OUT, FIN | ACK), (BACK, ACK)]), Phase::Closing);
        assert_eq!(phase(&[(OUT, FIN | ACK), (BACK, FIN | ACK)]), Phase::Closed);
    }

    #[test]
    fn a_connection_is_closed_when_both_ends_have_sent_fin() {
        let fins = [(BACK, FIN | ACK), (OUT, ACK), (OUT, FIN | ACK), (BACK, ACK)];
        assert_eq!(after(&OPENED, &fins[..2]), Phase::Closing);
        assert_eq!(after(&OPENED, &fins), Phase::Closed);
        // The same end twice.
        assert_eq!(after(&OPENED, &[fins[0], fins[0]]), Phase::Closing);
    }

    #[test]
    fn a_reset_is_recognised_as_forged_when_its_sender_continues() {
        let forged = follow(&[&OPENED[..], &[(BACK, RST)]].concat());
        assert!(forged.was_reset_late() && forged.has_ended());
        assert_eq!(after(&OPENED, &[(BACK, RST), (OUT, ACK)]), Phase::Reset);
        assert_eq!(after(&OPENED, &[(BACK, RST), (BACK, ACK)]), Phase::Established);
        // The closed end is remembered.
        let closing = [(OUT, FIN | ACK), (BACK, RST), (BACK, ACK)];
        assert_eq!(after(&OPENED, &closing), Phase::Closing);
        // A connection that was never open stays ended.
        assert_eq!(phase(&[(OUT, SYN), (BACK, RST | ACK), (BACK, ACK)]), Phase::Reset);
    }

    #[test]
    fn after_one_fin_only_a_whole_handshake_reopens_a_connection() {
        for closer in [OUT, BACK] {
            let closing = [&OPENED[..], &[(closer, FIN | ACK)]].concat();
            for opener in [OUT, BACK] {
                let shake = [(opener, SYN), (!opener, SYN | ACK), (opener, ACK)];
                assert_eq!(after(&closing, &shake[..1]), Phase::Reopening);
                assert_eq!(after(&closing, &shake[..2]), Phase::Reanswered);
                assert_eq!(after(&closing, &shake), Phase::Established);
                // Like a new connection, it takes two FINs to close.
                let once = [&shake[..], &[(closer, FIN | ACK)]].concat();
                assert_eq!(after(&closing, &once), Phase::Closing);
                assert_eq!(after(&closing, &[&once[..], &[(!closer, FIN | ACK)]].concat()), {
                    Phase::Closed
                });
                // A challenge ACK (RFC 5961, section 4.2) is no answer, nor is the opener's own.
                let challenged = [shake[0], (!opener, ACK), (opener, SYN | ACK), (opener, ACK)];
                assert_eq!(after(&closing, &challenged), Phase::Reopening);
                // A repeated FIN of the old connection does not interfere.
                let repeated = [shake[0], (closer, FIN | ACK), shake[1], shake[2]];
                assert_eq!(after(&closing, &repeated), Phase::Established);
                // In the meantime the old connection may end.
                assert_eq!(after(&closing, &[shake[0], (!closer, FIN | ACK)]), Phase::Closed);
                let refused = [shake[0], (!opener, RST | ACK)];
                assert_eq!(after(&closing, &refused), Phase::Reset);
            }
        }
    }

    #[test]
    fn only_an_established_connection_is_lasting() {
        let lasts = |segments: &[(bool, u8)]| follow(segments).is_lasting();
        assert!(!lasts(&OPENED[..1]) && !lasts(&OPENED[..2]) && lasts(&OPENED));
        let closing = [&OPENED[..], &[(OUT, FIN | ACK)]].concat();
        assert!(lasts(&closing) && follow(&closing).is_closing());
        assert!(lasts(&[&closing[..], &[(OUT, SYN)]].concat()));
        assert!(!lasts(&[&closing[..], &[(BACK, FIN | ACK)]].concat()));
        assert!(!lasts(&[&OPENED[..], &[(BACK, RST)]].concat()));
    }

    #[test]
    fn a_flow_without_connections_is_established_by_its_answer() {
        let mut flow = Connection::begin(OUT);
        flow.packet(OUT);
        assert_eq!(flow.phase(), Phase::Opening);
        flow.packet(BACK);
        assert_eq!(flow.phase(), Phase::Established);
    }

    #[test]
    fn impossible_tcp_flags_are_recognised() {
        for flags in [0, FIN, SYN | FIN, SYN | RST, RST | FIN, 0x3f] {
            assert!(!tcp::is_possible(flags), "{flags:#x}");
        }
        for flags in [SYN, ACK, RST, SYN | ACK, RST | ACK, FIN | ACK, ACK | 8 | 32] {
            assert!(tcp::is_possible(flags), "{flags:#x}");
        }
    }
}
