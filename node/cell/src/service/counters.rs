//! Counters of a service: outcomes of its packets, durations of calls, traps.

use crate::datapath::{End, SendFailure};
use crate::protocol::ServiceReport;
use crate::timing::{Begun, CallTimes};
use abi::PacketBytes;
use engine::Trap;
use std::collections::BTreeMap;
use units::{Bytes, Nanos};
use xsk::Packet;

/// Drop reasons of a module with a counter of their own; further ones share [`REASON_OTHER`].
const REASONS_MAX: usize = 64;
/// Reason under which those beyond [`REASONS_MAX`] are counted.
const REASON_OTHER: u16 = u16::MAX;

/// Outcome of a packet, or its handover to another service, beside the outcomes of the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Sent by its route after `pass`.
    Forwarded,
    Bounced,
    Redirected,
    /// Passed on to another service.
    PassedOn,
    /// Consumed: payload of an active packet, after `pass`.
    Consumed,
    /// Forwarded without its module.
    Plain,
    /// Dropped: a service is down, and its failure policy is closed.
    Down,
    /// Dropped by a rule of the next stage.
    Rule,
    Trap,
    /// Dropped: the session's queue is full.
    Queue,
    /// Dropped: `raise` has no higher level to go to.
    Raise,
    Malformed,
}

/// Counters of a service, across all its versions.
#[derive(Default)]
pub(super) struct Counters {
    packets: u64,
    bytes: u64,
    forwarded: u64,
    /// Bytes that its packets had when they were sent.
    bytes_out: u64,
    /// Counters that are changed less often.
    report: Box<ServiceReport>,
}

impl Counters {
    /// Returns the number of bytes that its packets had when they were sent.
    pub(super) const fn bytes_out(&self) -> Bytes {
        Bytes(self.bytes_out)
    }

    /// Returns the number of traps since the start.
    pub(super) fn traps(&self) -> u64 {
        self.report.traps.values().sum()
    }

    /// Returns the counters; the caller adds the state of the instances.
    pub(super) fn report(&self) -> ServiceReport {
        let Self { packets, bytes, forwarded, .. } = *self;
        ServiceReport { packets, bytes, forwarded, ..(*self.report).clone() }
    }

    /// Counts an arrived packet.
    #[inline]
    pub(super) fn count_in(&mut self, packet: &Packet) {
        self.packets += 1;
        self.bytes += packet.length() as u64;
    }

    /// Counts bytes that were sent.
    #[inline]
    pub(super) const fn count_sent(&mut self, bytes: u64) {
        self.bytes_out += bytes;
    }

    /// Counts the outcome of a packet.
    #[inline]
    pub(super) fn count(&mut self, ending: Ending) {
        let report = &mut self.report;
        *match ending {
            Ending::Forwarded => &mut self.forwarded,
            Ending::Bounced => &mut report.bounced,
            Ending::Redirected => &mut report.redirected,
            Ending::PassedOn => &mut report.passed_on,
            Ending::Consumed => &mut report.consumed,
            Ending::Plain => &mut report.plain,
            Ending::Down => &mut report.drop_down,
            Ending::Rule => &mut report.drop_rule,
            Ending::Trap => &mut report.drop_trap,
            Ending::Queue => &mut report.drop_queue,
            Ending::Raise => &mut report.drop_raise,
            Ending::Malformed => &mut report.drop_malformed,
        } += 1;
    }

    /// Counts the data path's outcome of a packet: as `sent` if it left by a port.
    #[inline]
    pub(super) fn count_end(&mut self, end: End, sent: Ending) {
        let report = &mut self.report;
        match end {
            End::Sent => self.count(sent),
            End::ToKernel => report.to_kernel += 1,
            End::Cycle => report.drop_cycle += 1,
            End::Failed(SendFailure::NoPort) => report.drop_no_port += 1,
            End::Failed(SendFailure::Full) => report.drop_egress_full += 1,
            End::Malformed | End::Failed(SendFailure::NotIp) => report.drop_malformed += 1,
            End::UnknownVlan => report.drop_vlan += 1,
            End::KernelRefused => report.drop_kernel += 1,
            End::TooLong | End::Failed(SendFailure::TooLong) => report.drop_too_long += 1,
        }
    }

    /// Counts a packet that its module dropped.
    pub(super) fn count_reason(&mut self, reason: u16) {
        let reasons: &mut BTreeMap<u16, u64> = &mut self.report.drop_module;
        let is_known = reasons.contains_key(&reason) || reasons.len() < REASONS_MAX;
        *reasons.entry(if is_known { reason } else { REASON_OTHER }).or_default() += 1;
    }

    /// Counts a frame made by the module.
    pub(super) fn count_emitted(&mut self, is_sent: bool) {
        match is_sent {
            true => self.report.sent += 1,
            false => self.report.sent_dropped += 1,
        }
    }

    /// Counts a trap of an instance.
    pub(super) fn count_trap(&mut self, trap: &Trap) {
        *self.report.traps.entry(trap.kind.name().to_owned()).or_default() += 1;
        self.report.last_trap = Some(trap.to_string());
    }

    /// Records why an instance did not start again, or that a program left an invalid record.
    pub(super) fn note_failure(&mut self, why: String) {
        self.report.last_trap = Some(why);
    }

    /// Begins a call on a packet, if this one is to be timed.
    #[inline]
    pub(super) fn begin_call(&self) -> Option<Begun> {
        CallTimes::begin(self.packets)
    }

    /// Ends a call.
    #[inline]
    pub(super) fn end_call(&mut self, begun: Option<Begun>) {
        self.report.call_times.end(begun);
    }

    /// Counts calls on a number of packets by the time they took together.
    pub(super) fn count_calls(&mut self, packets: u64, ran: Nanos) {
        self.report.call_times.spread(self.packets, packets, ran);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::TrapKind;

    const ENDINGS: [Ending; 12] = [
        Ending::Forwarded,
        Ending::Bounced,
        Ending::Redirected,
        Ending::PassedOn,
        Ending::Consumed,
        Ending::Plain,
        Ending::Down,
        Ending::Rule,
        Ending::Trap,
        Ending::Queue,
        Ending::Raise,
        Ending::Malformed,
    ];

    #[test]
    fn each_ending_is_one_end_of_a_packet() {
        let mut counters = Counters::default();
        for (count, ending) in (1..).zip(ENDINGS) {
            counters.count(ending);
            assert_eq!(counters.report().ended(), count, "{ending:?}");
        }
    }

    #[test]
    fn where_the_data_path_ended_a_packet_is_one_end_too() {
        let mut counters = Counters::default();
        let failures =
            [SendFailure::NoPort, SendFailure::Full, SendFailure::NotIp, SendFailure::TooLong];
        let ends = [
            End::Sent,
            End::ToKernel,
            End::Malformed,
            End::KernelRefused,
            End::TooLong,
            End::Cycle,
            End::UnknownVlan,
        ];
        let ends = ends.into_iter().chain(failures.map(End::Failed));
        for (count, end) in (1..).zip(ends) {
            counters.count_end(end, Ending::Bounced);
            let report = counters.report();
            assert_eq!((report.ended(), report.bounced), (count, 1), "{end:?}");
        }
        assert_eq!(counters.report().dropped(), 9);
    }

    #[test]
    fn reasons_beyond_those_that_are_counted_apart_share_one() {
        let mut counters = Counters::default();
        for reason in 0..REASONS_MAX as u16 + 5 {
            counters.count_reason(reason);
        }
        counters.count_reason(3);
        let reasons = counters.report().drop_module;
        assert_eq!(reasons.len(), REASONS_MAX + 1);
        assert_eq!((reasons[&3], reasons[&REASON_OTHER]), (2, 5));
    }

    #[test]
    fn traps_are_counted_by_kind_and_the_last_failure_is_kept() {
        let mut counters = Counters::default();
        let trap = Trap { kind: TrapKind::Other, place: None };
        counters.count_trap(&trap);
        counters.count_trap(&trap);
        assert_eq!((counters.traps(), counters.report().traps.len()), (2, 1));
        assert_eq!(counters.report().last_trap, Some(trap.to_string()));
        counters.note_failure("not started again".into());
        assert_eq!(counters.report().last_trap.as_deref(), Some("not started again"));
    }

    #[test]
    fn what_is_sent_is_counted_by_bytes_and_frames_of_its_own_making_apart() {
        let mut counters = Counters::default();
        counters.count_sent(60);
        counters.count_sent(40);
        counters.count_emitted(true);
        counters.count_emitted(false);
        let report = counters.report();
        assert_eq!(counters.bytes_out(), Bytes(100));
        assert_eq!((report.sent, report.sent_dropped, report.ended()), (1, 1, 0));
    }

    #[test]
    fn one_call_of_64_is_timed_and_those_of_a_turn_count_with_their_mean() {
        let mut counters = Counters { packets: 2, ..Counters::default() };
        assert!(counters.begin_call().is_none());
        counters.packets = 65;
        assert!(counters.begin_call().is_some());
        counters.count_calls(65, Nanos(65_000));
        let times = counters.report().call_times;
        assert_eq!((times.buckets.iter().sum::<u64>(), times.sum_ns), (2, 2_000));
    }
}
