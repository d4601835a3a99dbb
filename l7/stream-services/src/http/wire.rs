//! Wire: buffers at both ends of an HTTP connection, for bytes received and not decoded, and
//! written and not sent. Knows no messages.

use crate::connection::Side;
use crate::meter::Meter;
use crate::outgoing::Outgoing;
use units::Nanos;

/// Buffers of both ends, indexed by [`Side`].
#[derive(Default)]
pub(super) struct Wire {
    received: [Vec<u8>; 2],
    has_ended: [bool; 2],
    out: [Outgoing; 2],
    /// Meter of the client's rate.
    meter: Meter,
}

impl Wire {
    /// Returns true if an end has received bytes that are not decoded.
    pub(super) fn has_received(&self, side: Side) -> bool {
        !self.received[side as usize].is_empty()
    }

    /// Returns true if no more bytes come from an end.
    pub(super) const fn has_ended(&self, side: Side) -> bool {
        self.has_ended[side as usize]
    }

    /// Returns true if nothing is unsent to an end.
    pub(super) const fn is_empty(&self, side: Side) -> bool {
        self.out[side as usize].is_empty()
    }

    /// Returns true if no more should be written for an end until some has been sent.
    pub(super) const fn is_full(&self, side: Side) -> bool {
        self.out[side as usize].is_full()
    }

    /// Returns the recent rate of the client in bytes per second, if known.
    pub(super) fn drained_bytes_per_second(&self, now: Nanos) -> Option<u64> {
        self.meter.bytes_per_second(now)
    }

    /// Returns the buffer of unsent bytes for an end.
    pub(super) const fn out(&mut self, side: Side) -> &mut Outgoing {
        &mut self.out[side as usize]
    }

    /// Returns the number of unsent bytes for an end.
    pub(super) const fn unsent(&self, side: Side) -> usize {
        self.out[side as usize].len()
    }

    /// Handles the end of an end's bytes.
    pub(super) const fn handle_end(&mut self, side: Side) {
        self.has_ended[side as usize] = true;
    }

    /// Handles the replacement of an end's connection.
    pub(super) const fn handle_replaced(&mut self, side: Side) {
        self.has_ended[side as usize] = false;
    }

    /// Handles bytes that have been sent to an end.
    pub(super) fn handle_sent(&mut self, side: Side, count: usize) {
        self.out[side as usize].take(count);
        if side == Side::Downstream {
            self.meter.handle_sent(count);
        }
    }

    /// Handles that the kernel accepts no more for an end at the moment.
    pub(super) fn handle_full(&mut self, side: Side, now: Nanos) {
        if side == Side::Downstream {
            self.meter.handle_full(now);
        }
    }

    /// Takes the received bytes for decoding.
    pub(super) fn take_received(&mut self, side: Side) -> Vec<u8> {
        std::mem::take(&mut self.received[side as usize])
    }

    /// Stores bytes that were not decoded, after the first `used` ones: the rest of `kept`, which
    /// [`Self::take_received`] returned, or of `fresh` if that was empty.
    pub(super) fn keep(&mut self, side: Side, mut kept: Vec<u8>, fresh: &[u8], used: usize) {
        let received = &mut self.received[side as usize];
        if kept.is_empty() {
            received.extend_from_slice(&fresh[used..]);
        } else {
            kept.drain(..used);
            *received = kept;
        }
    }

    /// Drops an end's received bytes.
    pub(super) fn drop_received(&mut self, side: Side) {
        self.received[side as usize] = Vec::new();
    }

    /// Forwards the received bytes of each end to the other one, undecoded.
    pub(super) fn cross(&mut self) {
        for (from, to) in [(Side::Downstream, Side::Upstream), (Side::Upstream, Side::Downstream)] {
            let bytes = self.take_received(from);
            self.out(to).end().extend_from_slice(&bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::SEND_LENGTH_MAX;

    #[test]
    fn undecoded_bytes_come_before_new_ones() {
        let mut wire = Wire::default();
        wire.keep(Side::Downstream, Vec::new(), b"GET / HT", 0);
        assert!(wire.has_received(Side::Downstream) && !wire.has_received(Side::Upstream));
        let mut kept = wire.take_received(Side::Downstream);
        kept.extend_from_slice(b"TP/1.1\r\n");
        wire.keep(Side::Downstream, kept, b"TP/1.1\r\n", 4);
        assert_eq!(wire.take_received(Side::Downstream), b"/ HTTP/1.1\r\n");
    }

    #[test]
    fn a_tunnel_gets_the_bytes_received_before() {
        let mut wire = Wire::default();
        wire.out(Side::Downstream).end().extend_from_slice(b"head");
        wire.keep(Side::Downstream, Vec::new(), b"up", 0);
        wire.keep(Side::Upstream, Vec::new(), b"down", 0);
        wire.cross();
        assert_eq!(wire.out(Side::Downstream).bytes(), b"headdown");
        assert_eq!(wire.out(Side::Upstream).bytes(), b"up");
        assert!(!wire.has_received(Side::Downstream) && !wire.has_received(Side::Upstream));
    }

    #[test]
    fn an_end_is_full_until_it_is_sent_something() {
        let mut wire = Wire::default();
        wire.out(Side::Upstream).end().resize(SEND_LENGTH_MAX, 0);
        assert!(wire.is_full(Side::Upstream) && !wire.is_full(Side::Downstream));
        wire.handle_sent(Side::Upstream, 1);
        assert_eq!(
            (wire.is_full(Side::Upstream), wire.unsent(Side::Upstream)),
            (false, SEND_LENGTH_MAX - 1)
        );
    }
}
