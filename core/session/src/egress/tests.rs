//! Unit tests with one or two sessions, packet by packet. Random sets are in tests/session/egress.rs.

use super::*;

const GOLD: SessionId = SessionId(2);
const TIN: SessionId = SessionId(3);
const AT: fn(u64) -> Nanos = Nanos::from_millis;

/// Port of 100 Mb/s: a packet of 1,500 bytes takes 120 µs.
fn port() -> Port {
    Port {
        rate: BitsPerSecond(100_000_000),
        packet_max: Bytes(1500),
        per_packet: Bytes::ZERO,
        ahead_max: Nanos::ZERO,
        behind_max: Nanos::ZERO,
        in_flight_max: None,
    }
}

fn config(share: Option<&str>) -> SenderConfig {
    let share = share.map(|share| share.parse().unwrap());
    SenderConfig { share, extra: false, weight: Weight::default(), queue: Bytes(1 << 16) }
}

/// Returns the packets that leave until `until`, with queues that never get empty.
fn run(schedule: &mut Schedule<u32>, now: &mut Nanos, until: Nanos) -> Vec<(SessionId, Kind)> {
    let mut left = Vec::new();
    while *now < until {
        match schedule.next(*now) {
            Next::Packet { session, kind, .. } => {
                left.push((session, kind));
                schedule.enqueue(*now, session, Bytes(1500), 0);
            }
            Next::Wait(at) => *now = at,
            Next::InFlight | Next::Idle => break,
        }
    }
    left
}

fn fill(schedule: &mut Schedule<u32>, session: SessionId, packets: u32) {
    for number in 0..packets {
        let outcome = schedule.enqueue(AT(0), session, Bytes(1500), number);
        assert_eq!(outcome, Outcome::Queued { crossed: None });
    }
}

#[test]
fn a_share_is_sent_first_and_the_surplus_is_shared() {
    let mut schedule = Schedule::new(port());
    schedule.set(AT(0), GOLD, config(Some("600us/6ms")));
    schedule.set(AT(0), TIN, config(None));
    fill(&mut schedule, GOLD, 20);
    fill(&mut schedule, TIN, 20);
    let mut now = AT(0);
    let left = run(&mut schedule, &mut now, AT(6));
    let (gold, tin) = left.split_at(5);
    assert!(gold.iter().all(|one| *one == (GOLD, Kind::Guaranteed)), "{gold:?}");
    assert!(tin.iter().all(|one| *one == (TIN, Kind::BestEffort)), "{tin:?}");
    assert_eq!(left.len(), 50);
    let account = schedule.account(GOLD).unwrap();
    assert_eq!((account.guaranteed, account.surplus), (Bytes(7500), Bytes::ZERO));
}

#[test]
fn an_overrun_is_subtracted_from_the_next_period() {
    let mut schedule = Schedule::new(port());
    schedule.set(AT(0), GOLD, config(Some("300us/6ms")));
    fill(&mut schedule, GOLD, 20);
    let mut now = AT(0);
    // 300 µs are two and a half packets: three, then two.
    let counts: Vec<usize> =
        (1..=4).map(|period| run(&mut schedule, &mut now, AT(6 * period)).len()).collect();
    assert_eq!(counts, [3, 2, 3, 2]);
}

#[test]
fn packets_keep_their_order_and_come_out_once() {
    let mut schedule = Schedule::new(port());
    schedule.set(AT(0), GOLD, config(None));
    fill(&mut schedule, GOLD, 9);
    let mut now = AT(0);
    let mut order = Vec::new();
    loop {
        match schedule.next(now) {
            Next::Packet { handle, .. } => order.push(handle),
            Next::Wait(at) => now = at,
            Next::InFlight | Next::Idle => break,
        }
    }
    assert_eq!(order, (0..9).collect::<Vec<u32>>());
    assert_eq!(now, Nanos(9 * 120_000), "at the rate of the port");
}

#[test]
fn a_packet_beyond_the_queue_is_dropped_counted_and_returned() {
    let mut schedule = Schedule::new(port());
    schedule.set(AT(0), GOLD, SenderConfig { queue: Bytes(3000), ..config(None) });
    fill(&mut schedule, GOLD, 2);
    let full = Outcome::Dropped { handle: 7, reason: DropReason::QueueFull };
    assert_eq!(schedule.enqueue(AT(0), GOLD, Bytes(1), 7), full);
    let long = Outcome::Dropped { handle: 8, reason: DropReason::TooLong };
    assert_eq!(schedule.enqueue(AT(0), GOLD, Bytes(1501), 8), long);
    let strange = Outcome::Dropped { handle: 9, reason: DropReason::NotConfigured };
    assert_eq!(schedule.enqueue(AT(0), TIN, Bytes(1), 9), strange);
    let account = schedule.account(GOLD).unwrap();
    assert_eq!((account.dropped, account.dropped_bytes), (Count(2), Bytes(1502)));
    assert_eq!(account.queued, Bytes(3000));
    assert_eq!(schedule.remove(AT(0), GOLD), [0, 1]);
    assert!(schedule.remove(AT(0), GOLD).is_empty());
    assert_eq!(schedule.next(AT(0)), Next::Idle);
}

#[test]
fn short_packets_count_for_their_slots_too() {
    let mut schedule = Schedule::new(port());
    schedule.set(AT(0), GOLD, SenderConfig { queue: Bytes(640), ..config(None) });
    let queued = (0..100).filter(|&number| {
        matches!(schedule.enqueue(AT(0), GOLD, Bytes(1), number), Outcome::Queued { .. })
    });
    assert_eq!(queued.count(), 10);
}

#[test]
fn each_crossing_is_reported_once() {
    let mut schedule = Schedule::new(port());
    schedule.set(AT(0), GOLD, config(None));
    schedule.watch(GOLD, Some(Watch { above: Bytes(6000), below: Bytes(3000) }));
    let above: Vec<bool> = (0..7)
        .map(|number| match schedule.enqueue(AT(0), GOLD, Bytes(1500), number) {
            Outcome::Queued { crossed } => crossed == Some(Crossing::Above),
            Outcome::Dropped { .. } => panic!("there is room for 43"),
        })
        .collect();
    assert_eq!(above, [false, false, false, false, true, false, false]);
    let mut now = AT(0);
    let mut below = Vec::new();
    while below.len() < 7 {
        match schedule.next(now) {
            Next::Packet { crossed, .. } => below.push(crossed == Some(Crossing::Below)),
            Next::Wait(at) => now = at,
            Next::InFlight | Next::Idle => break,
        }
    }
    assert_eq!(below, [false, false, false, false, true, false, false]);
}

#[test]
fn no_more_is_handed_out_than_may_be_in_flight() {
    let mut schedule =
        Schedule::new(Port { ahead_max: AT(1), in_flight_max: Some(Bytes(3000)), ..port() });
    schedule.set(AT(0), GOLD, config(None));
    fill(&mut schedule, GOLD, 3);
    assert!(matches!(schedule.next(AT(0)), Next::Packet { handle: 0, .. }));
    assert!(matches!(schedule.next(AT(0)), Next::Packet { handle: 1, .. }));
    assert_eq!(schedule.next(AT(0)), Next::InFlight);
    schedule.sent(Bytes(1500));
    assert!(matches!(schedule.next(AT(0)), Next::Packet { handle: 2, .. }));
}

#[test]
fn the_overhead_of_a_packet_counts() {
    let mut schedule = Schedule::new(Port { per_packet: Bytes(24), ..port() });
    schedule.set(AT(0), GOLD, config(None));
    fill(&mut schedule, GOLD, 1);
    assert!(matches!(schedule.next(AT(0)), Next::Packet { .. }));
    assert_eq!(schedule.next(AT(0)), Next::Wait(Nanos(1524 * 80)));
}

#[test]
fn sending_allocates_nothing_once_the_queues_have_reached_their_maximum() {
    let mut schedule = Schedule::new(port());
    for session in 2..100 {
        let share = (session % 2 == 0).then_some("120us/20ms");
        schedule.set(AT(0), SessionId(session), config(share));
        fill(&mut schedule, SessionId(session), 20);
    }
    let capacities = format!("{:?}, {}", schedule.edf.capacities(), schedule.waiting.capacity());
    let mut now = AT(0);
    for step in 0u64..20_000 {
        match schedule.next(now) {
            Next::Packet { session, .. } => {
                // Some sessions fall asleep, others are filled again.
                let other = SessionId(u16::try_from(2 + step * 7919 % 98).unwrap());
                let whose = if step % 3 == 0 { other } else { session };
                schedule.enqueue(now, whose, Bytes(64 + step % 1400), 0);
            }
            Next::Wait(at) => now = at,
            Next::InFlight | Next::Idle => break,
        }
    }
    assert_eq!(
        format!("{:?}, {}", schedule.edf.capacities(), schedule.waiting.capacity()),
        capacities
    );
}

#[test]
fn a_stalled_port_does_not_burst() {
    let mut schedule = Schedule::new(port());
    schedule.set(AT(0), GOLD, config(Some("600us/6ms")));
    fill(&mut schedule, GOLD, 20);
    // Pause of 100 ms without a call.
    let mut now = AT(100);
    let counts: Vec<usize> =
        (1..=2).map(|period| run(&mut schedule, &mut now, AT(100 + 6 * period)).len()).collect();
    assert_eq!(counts, [5, 5]);
    assert_eq!(schedule.account(GOLD).unwrap().short, Nanos(600_000), "of the period that ran");
}

#[test]
fn bypassing_packets_delay_queued_ones() {
    let mut schedule = Schedule::new(Port { per_packet: Bytes(24), ..port() });
    schedule.set(AT(0), GOLD, config(None));
    fill(&mut schedule, GOLD, 2);
    schedule.account_bypass(Count(10), Bytes(9760), AT(5));
    assert_eq!(schedule.next(AT(0)), Next::Wait(Nanos(10_000 * 80)));
    assert!(matches!(schedule.next(Nanos(800_000)), Next::Packet { .. }));
    // More than the wire carries in 1 ms.
    schedule.account_bypass(Count(0), Bytes(1 << 30), AT(1));
    let busy = Nanos(800_000 + 1524 * 80 + 1_000_000);
    assert_eq!(schedule.next(Nanos(800_000)), Next::Wait(busy));
}
