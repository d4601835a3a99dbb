//! Unit tests of port shares by a manual clock: amounts, order, and outcomes of waiting packets.

use super::*;
use crate::datapath::tests::Wire;
use crate::memory::Memory;
use crate::packet_memory::PacketMemory;
use std::rc::Rc;
use xsk::Umem;

const PORT: PortId = PortId(0);
const GOLD: SessionId = SessionId(2);
const SILVER: SessionId = SessionId(3);
const PERIOD: Nanos = Nanos::from_millis(4);
/// Length of a packet in bytes: half a millisecond on a port of one byte per microsecond.
const LENGTH: u64 = 500;
const SLOW: BitsPerSecond = BitsPerSecond(8_000_000);

/// Port with shares, and the packets that have arrived at its other end.
struct Bench {
    egress: Egress,
    ports: Ports,
    umem: Rc<Umem>,
    pool: FramePool,
    sessions: Sessions,
    wire: Wire,
    /// Number of packets of each session so far: created, and sent.
    made: BTreeMap<SessionId, u32>,
    sent: BTreeMap<SessionId, u32>,
}

fn facts(rate: Option<BitsPerSecond>) -> CellPort {
    // A raw port has no overhead on the wire.
    CellPort { raw: true, rate, ..crate::datapath::tests::facts(PORT) }
}

fn promised(id: SessionId, json: &str) -> SessionSpec {
    SessionSpec { id, reservation: serde_json::from_str(json).unwrap() }
}

impl Bench {
    fn new(promises: &[(SessionId, &str)]) -> Self {
        let (umem, pool) = Umem::new(128).unwrap();
        let (wire, sockets) = Wire::new();
        let (mut egress, mut ports) = (Egress::new(), Ports::default());
        let mut sessions = Sessions::new(Nanos::ZERO, PacketMemory::of(1), Memory::new());
        ports.add_frames(&facts(Some(SLOW)), None, sockets);
        assert!(egress.set_port(&facts(Some(SLOW))).is_empty());
        for (id, json) in promises {
            sessions.set(Nanos::ZERO, &promised(*id, json));
            assert!(egress.set(&promised(*id, json)).is_empty());
        }
        let (made, sent) = (BTreeMap::new(), BTreeMap::new());
        Self { egress, ports, umem: Rc::new(umem), pool, sessions, wire, made, sent }
    }

    /// Creates a packet that contains its session, and its number within the session.
    fn packet(&mut self, session: SessionId, length: u64) -> Outgoing {
        let number = self.made.entry(session).or_default();
        *number += 1;
        let head = [u32::from(session.0), *number].map(u32::to_le_bytes).concat();
        let mut packet = Packet::allocate(&self.umem, &mut self.pool, length as usize).unwrap();
        packet.store(0, &head).unwrap();
        Outgoing { packet, by: Destination::Port }
    }

    /// Queues a packet.
    fn enqueue(&mut self, session: SessionId, length: u64) -> Result<(), Refused> {
        let outgoing = self.packet(session, length);
        let memory = Bytes(outgoing.packet.memory_length() as u64);
        assert!(self.sessions.admit_outgoing(session, memory));
        self.egress.enqueue(PORT.0, session, outgoing, None).map_err(|(packet, refused)| {
            self.sessions.release(session, memory);
            packet.recycle(&mut self.pool);
            refused
        })
    }

    /// Transmits what may leave by then; returns the sessions of the packets that left, and checks
    /// that each session's are in order.
    fn transmit(&mut self, now: Nanos) -> Vec<SessionId> {
        self.egress.set_time(now);
        let Self { egress, ports, pool, sessions, .. } = self;
        let left = egress.transmit(ports, None, pool, sessions);
        let frames = self.wire.sent();
        assert_eq!((left.sent, left.lost), (frames.len(), 0));
        let session = |frame: Vec<u8>| {
            let word = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().unwrap());
            let session = SessionId(word(0) as u16);
            let sent = self.sent.entry(session).or_default();
            *sent += 1;
            assert_eq!(word(4), *sent, "in order, and none is missing");
            session
        };
        frames.into_iter().map(session).collect()
    }

    /// Transmits for a time, while `busy` sessions always have packets.
    fn run(&mut self, busy: &[SessionId], (mut now, until): (Nanos, Nanos)) -> Nanos {
        while now < until {
            self.egress.set_time(now);
            for &session in busy {
                let sent = self.sent.get(&session).copied().unwrap_or_default();
                while self.made.get(&session).copied().unwrap_or_default() < sent + 8 {
                    self.enqueue(session, LENGTH).unwrap();
                }
            }
            self.transmit(now);
            now = self.egress.poll_timeout().unwrap().max(now + Nanos(1));
        }
        now
    }

    /// Sends until the port's device takes no more; returns how many packets it has.
    fn fill_device(&mut self) -> usize {
        let mut taken = 0;
        loop {
            let Outgoing { packet, .. } = self.packet(SessionId::SYSTEM, 100);
            match self.ports.send(PORT.0, packet, &mut self.pool) {
                Ok(()) => taken += 1,
                Err((packet, failure)) => {
                    assert_eq!(failure, SendFailure::Full);
                    packet.recycle(&mut self.pool);
                    return taken;
                }
            }
        }
    }

    fn bytes(&self, session: SessionId) -> u64 {
        u64::from(self.sent.get(&session).copied().unwrap_or_default()) * LENGTH
    }

    /// Recycles packets that no longer have to wait; returns their sessions.
    fn let_go(&mut self, waited: Vec<(SessionId, Outgoing)>) -> Vec<SessionId> {
        let mut of = Vec::new();
        for (session, outgoing) in waited {
            outgoing.packet.recycle(&mut self.pool);
            of.push(session);
        }
        of
    }
}

/// Creates a port of which two sessions have a quarter and a half.
fn shared() -> Bench {
    Bench::new(&[
        (GOLD, r#"{"send":{"left":"1ms/4ms"}}"#),
        (SILVER, r#"{"send":{"left":"2ms/4ms"}}"#),
    ])
}

#[test]
fn port_shares_are_kept_over_many_periods_and_best_effort_gets_the_rest() {
    let mut bench = shared();
    let busy = [GOLD, SILVER, SessionId::BEST_EFFORT];
    let mut now = Nanos::ZERO;
    for period in 1..=250 {
        now = bench.run(&busy, (now, Nanos(period * PERIOD.0)));
        let all: u64 = busy.iter().map(|&id| bench.bytes(id)).sum();
        // No faster than the wire, except for the allowed lead, and never idle.
        let wire = now.0 / 1_000;
        assert!(all <= wire + AHEAD_MAX.0 / 1_000 + LENGTH, "period {period}: {all}");
        assert!(all + LENGTH >= period * PERIOD.0 / 1_000, "period {period}: {all}");
        for (session, share) in [(GOLD, 1_000), (SILVER, 2_000)] {
            let (sent, due) = (bench.bytes(session), period * share);
            // Tolerance: a packet of each session with a share, another one, and one of its own.
            assert!(sent + 3 * LENGTH >= due, "period {period}: {session:?} {sent}");
            assert!(sent <= due + share + LENGTH, "period {period}: {session:?} {sent}");
        }
    }
    let rest = bench.bytes(SessionId::BEST_EFFORT);
    assert!(rest.abs_diff(250 * 1_000) <= 6 * LENGTH, "{rest}");
}

#[test]
fn a_share_that_is_not_used_is_the_others_and_is_not_saved() {
    let mut bench = shared();
    let others = [GOLD, SessionId::BEST_EFFORT];
    let now = bench.run(&others, (Nanos::ZERO, Nanos(100 * PERIOD.0)));
    assert!(bench.bytes(GOLD).abs_diff(100 * 1_000) <= 3 * LENGTH, "no more than its share");
    assert!(bench.bytes(SessionId::BEST_EFFORT).abs_diff(100 * 3_000) <= 6 * LENGTH);
    let all = [GOLD, SILVER, SessionId::BEST_EFFORT];
    bench.run(&all, (now, now + Nanos(10 * PERIOD.0)));
    let silver = bench.bytes(SILVER);
    assert!(silver.abs_diff(10 * 2_000) <= 2_000 + 2 * LENGTH, "{silver}");
}

#[test]
fn no_more_is_caught_up_with_than_a_tick_of_the_kernel_after_a_pause() {
    let mut bench = shared();
    for _ in 0..20 {
        bench.enqueue(SessionId::BEST_EFFORT, LENGTH).unwrap();
    }
    let first = bench.transmit(Nanos::ZERO).len() as u64 * LENGTH;
    assert!(first <= AHEAD_MAX.0 / 1_000 + LENGTH, "{first}");
    // The cell was interrupted for a tenth of a second.
    let late = bench.transmit(Nanos::from_millis(100)).len() as u64 * LENGTH;
    assert!(late >= BEHIND_MAX.0 / 1_000, "{late}");
    assert!(late <= (BEHIND_MAX.0 + AHEAD_MAX.0) / 1_000 + LENGTH, "{late}");
    assert!(bench.egress.is_waiting());
}

#[test]
fn what_the_device_does_not_take_leaves_first_when_it_takes_some_again() {
    let mut bench = shared();
    let full = bench.fill_device();
    for session in [GOLD, SILVER, GOLD] {
        bench.enqueue(session, 10).unwrap();
    }
    let now = Nanos(1_000);
    bench.egress.set_time(now);
    let Bench { egress, ports, pool, sessions, .. } = &mut bench;
    assert_eq!(egress.transmit(ports, None, pool, sessions), Transmitted::default());
    assert_eq!(
        (egress.poll_timeout(), egress.is_waiting()),
        (Some(now), true),
        "it is tried again"
    );
    assert_eq!(bench.wire.sent().len(), full);
    let mut sent = bench.transmit(now);
    sent.sort_unstable();
    assert_eq!(sent, [GOLD, GOLD, SILVER]);
    assert!(!bench.egress.is_waiting() && !bench.egress.waits(GOLD));
    assert_eq!(bench.pool.free(), bench.pool.total());
}

#[test]
fn a_packet_that_the_device_refused_is_returned_to_its_session_when_the_port_is_removed() {
    let mut bench = shared();
    bench.fill_device();
    bench.enqueue(SILVER, 10).unwrap();
    let Bench { egress, ports, pool, sessions, .. } = &mut bench;
    egress.transmit(ports, None, pool, sessions);
    bench.enqueue(GOLD, 10).unwrap();
    let waited = bench.egress.remove_port(PORT);
    assert_eq!(bench.let_go(waited), [SILVER, GOLD]);
    assert!(!bench.egress.is_waiting() && !bench.egress.shares(PORT.0) && !bench.egress.is_used());
    assert_eq!(bench.pool.free(), bench.pool.total());
}

#[test]
fn a_removed_session_returns_its_packets_and_others_still_wait() {
    let mut bench = shared();
    for session in [GOLD, SILVER, GOLD] {
        bench.enqueue(session, LENGTH).unwrap();
    }
    let waited = bench.egress.forget(GOLD);
    let waited = waited.into_iter().map(|(port, session, outgoing)| {
        assert_eq!(port, PORT);
        (session, outgoing)
    });
    let waited = waited.collect();
    assert_eq!(bench.let_go(waited), [GOLD, GOLD]);
    assert!(!bench.egress.waits(GOLD) && bench.egress.waits(SILVER) && bench.egress.shares(PORT.0));
    // Without any share the port has no schedule, and packets need not wait.
    let waited = bench.egress.set(&promised(SILVER, "{}"));
    assert_eq!((waited.len(), waited[0].1), (1, SILVER));
    let waited = waited.into_iter().map(|(_, session, outgoing)| (session, outgoing)).collect();
    bench.let_go(waited);
    assert!(!bench.egress.is_used());
    assert_eq!(bench.enqueue(SILVER, LENGTH), Err(Refused::Full), "nothing waits there any more");
}

#[test]
fn no_more_waits_than_a_sessions_queue_has_and_nothing_that_is_too_long_for_the_port() {
    let mut bench = Bench::new(&[(GOLD, r#"{"queue":"16KiB","send":{"left":"1ms/4ms"}}"#)]);
    assert_eq!(bench.enqueue(GOLD, 1_500 + 23), Err(Refused::TooLong));
    assert_eq!(bench.enqueue(GOLD, 1_500 + 22), Ok(()));
    let queued = (0..20).filter(|_| bench.enqueue(GOLD, 1_500).is_ok()).count();
    assert_eq!(queued, (16_384 - 1_522) / 1_500);
    bench.sessions.set(Nanos::ZERO, &promised(SessionId(9), "{}"));
    assert_eq!(bench.enqueue(SessionId(9), 60), Err(Refused::Full), "it has nothing at this port");
    assert!(bench.egress.waits(GOLD) && !bench.egress.waits(SessionId(9)));
}

#[test]
fn a_port_has_a_schedule_while_it_has_a_rate_and_a_session_has_a_share() {
    let mut bench = Bench::new(&[(GOLD, "{}")]);
    assert!(!bench.egress.shares(PORT.0) && !bench.egress.is_used());
    bench.egress.set(&promised(GOLD, r#"{"send":{"left":"1ms/4ms","right":"1ms/4ms"}}"#));
    assert!(
        bench.egress.shares(PORT.0) && !bench.egress.shares(1),
        "there is no port of that name"
    );
    bench.enqueue(GOLD, LENGTH).unwrap();
    let waited = bench.egress.set_port(&facts(None));
    assert_eq!(bench.let_go(waited), [GOLD]);
    assert!(!bench.egress.shares(PORT.0));
    bench.egress.set_port(&facts(Some(SLOW)));
    assert!(bench.egress.shares(PORT.0), "shares are known by the port's name");
}
