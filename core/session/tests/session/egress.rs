//! Random sets of senders on a simulated wire: reservations are kept, and the order is right.

use proptest::prelude::*;
use session::egress::{Next, Port, Schedule, SenderConfig};
use session::{Share, Weight};
use units::{BitsPerSecond, Bytes, Nanos, SessionId};

use crate::seeds::for_many_sets;
use crate::wire::{Member, PACKET_MAX, PROMISED_MAX, QUEUE_MAX, Set, Wire, horizon, sets};

#[test]
fn shares_of_a_port_leave_in_every_period_but_for_a_packet_of_each() {
    for_many_sets(&sets(), |set| {
        let mut wire = Wire::new(&set);
        wire.run(horizon(&set), Wire::check_shares)?;
        for seen in &wire.all {
            let account = wire.schedule.account(seen.session).unwrap();
            prop_assert_eq!(account.guaranteed.0 + account.surplus.0, seen.sent);
            prop_assert_eq!(account.packets.0, seen.next);
        }
        Ok(())
    });
}

#[test]
fn the_surplus_of_a_port_is_shared_by_weight_and_none_is_lost() {
    for_many_sets(&sets(), |mut set| {
        let busy = Member { period: 6_000_000, part: 0, extra: false, weight: 100, is_busy: true };
        set.members.extend([busy, Member { weight: 250, ..busy }]);
        let mut wire = Wire::new(&set);
        wire.run(horizon(&set), |wire| wire.check_rest())
    });
}

const HUNDRED_MEGABITS: Port = Port {
    rate: BitsPerSecond(100_000_000),
    packet_max: Bytes(PACKET_MAX),
    per_packet: Bytes::ZERO,
    ahead_max: Nanos::ZERO,
    behind_max: Nanos::ZERO,
    in_flight_max: None,
};

/// Every sender transmits two packets at the same time where little more than one is reserved, and
/// not all of them fit into the first period. Delayed senders still get their slices.
#[test]
fn shares_of_little_more_than_a_packet_lose_nothing_in_the_long_run() {
    let sets = (1_000u64..8_000, 120u64..240, 0u64..3, any::<bool>(), any::<u64>());
    for_many_sets(&sets, |(period, slice, skew, all_long, seed)| {
        let (members, rate, per_packet, ahead) = (Vec::new(), 100_000_000, 0, 0);
        let mut wire = Wire::new(&Set { members, rate, per_packet, ahead, all_long, seed });
        let busy = Member { period: 0, part: 0, extra: false, weight: 100, is_busy: true };
        let mut left = PROMISED_MAX;
        for at in 0.. {
            let period = Nanos((period + skew * u64::from(at)) * 1_000);
            let share = Share::new(Nanos(slice * 1_000), period).unwrap();
            let Some(rest) = left.checked_sub(share.parts_per_million()) else { break };
            left = rest;
            wire.add(SessionId(2 + at), Some(share), &busy);
        }
        wire.run(wire.now + Nanos(100 * period * 1_000), Wire::check_shares)?;
        // The first periods are not checked.
        wire.all.iter_mut().for_each(|seen| seen.ended = 0);
        wire.check_shares_within(4)
    });
}

/// Three senders, each with a quarter of the wire, begin a period with one packet, and queue a
/// slice full of packets just before it ends. They get a new deadline, and a sender with a short
/// period is not delayed.
#[test]
fn bursts_just_before_a_deadline_delay_no_other_sender() {
    let mut schedule = Schedule::new(HUNDRED_MEGABITS);
    let share = |share: &str| SenderConfig {
        share: Some(share.parse().unwrap()),
        extra: false,
        weight: Weight::default(),
        queue: Bytes(1 << 20),
    };
    let victim = SessionId(2);
    let bursty = [SessionId(3), SessionId(4), SessionId(5)];
    schedule.set(Nanos::ZERO, victim, share("200us/1ms"));
    for session in bursty {
        schedule.set(Nanos::ZERO, session, share("12ms/50ms"));
        schedule.enqueue(Nanos::ZERO, session, Bytes(PACKET_MAX), ());
    }
    for _ in 0..2 {
        schedule.enqueue(Nanos::ZERO, victim, Bytes(PACKET_MAX), ());
    }
    let (mut now, mut sent, mut has_burst) = (Nanos::ZERO, 0, false);
    while now < Nanos::from_millis(100) {
        if !has_burst && now >= Nanos(49_500_000) {
            has_burst = true;
            for burst in 0..300 {
                schedule.enqueue(now, bursty[burst % 3], Bytes(PACKET_MAX), ());
            }
        }
        match schedule.next(now) {
            Next::Packet { session, .. } if session == victim => {
                sent += 120_000;
                schedule.enqueue(now, session, Bytes(PACKET_MAX), ());
            }
            Next::Packet { .. } => {}
            Next::Wait(at) => now = at,
            Next::InFlight | Next::Idle => panic!("the victim always has packets"),
        }
        let promised = now.as_millis() * 200_000;
        assert!(sent + 2 * 120_000 >= promised, "{sent} of {promised} ns at {now}");
    }
}

/// Packets of 1,500 bytes that left by the port in an interval, by sender.
type Counts = [u64; 3];

/// RCANE, Figure 12: three senders that never stop on 100 Mb/s, packets of 1,500 bytes. D has no
/// reservation, E 2 ms of each 6 ms, F 25 % of 6 ms, then 45 % from 20 s, 65 % from 22 s, and 25 %
/// again from 24 s. Returns the packets of each 6 ms.
fn figure_12() -> Vec<Counts> {
    let all @ [_, e, f] = [SessionId(2), SessionId(3), SessionId(4)];
    let terms = |share: Option<&str>| SenderConfig {
        share: share.map(|share| share.parse().unwrap()),
        extra: false,
        weight: Weight::default(),
        queue: QUEUE_MAX,
    };
    let mut schedule = Schedule::new(HUNDRED_MEGABITS);
    let mut now = Nanos::ZERO;
    for session in all {
        schedule.set(now, session, terms(None));
        schedule.enqueue(now, session, Bytes(PACKET_MAX), ());
        schedule.enqueue(now, session, Bytes(PACKET_MAX), ());
    }
    schedule.set(now, e, terms(Some("2ms/6ms")));
    schedule.set(now, f, terms(Some("25%/6ms")));
    let mut changes = [(20_000, "45%/6ms"), (22_000, "65%/6ms"), (24_000, "25%/6ms")].iter();
    let mut change = changes.next();
    let mut windows = Vec::new();
    while now < Nanos::from_millis(26_000) {
        if let Some((at, share)) = change.filter(|(at, _)| now >= Nanos::from_millis(*at)) {
            assert!(*at <= now.as_millis());
            schedule.set(now, f, terms(Some(share)));
            change = changes.next();
        }
        match schedule.next(now) {
            Next::Packet { session, .. } => {
                let window = usize::try_from(now.0 / 6_000_000).unwrap();
                windows.resize(windows.len().max(window + 1), Counts::default());
                let who = all.iter().position(|one| *one == session).unwrap();
                windows[window][who] += 1;
                schedule.enqueue(now, session, Bytes(PACKET_MAX), ());
            }
            Next::Wait(at) => now = at,
            Next::InFlight | Next::Idle => panic!("everybody always has packets"),
        }
    }
    windows
}

#[test]
fn figure_12_of_rcane_is_reproduced() {
    let windows = figure_12();
    // Of the 50 packets of each 6 ms, E has 16 2/3, F its share of 50, and D the remainder.
    let phases = [
        (0, 20_000, 12.5, 20.83),
        (20_000, 22_000, 22.5, 10.83),
        (22_000, 24_000, 32.5, 0.83),
        (24_000, 26_000, 12.5, 20.83),
    ];
    for (from, until, of_f, of_d) in phases {
        // A change takes effect with F's next period: one window on either side mixes both.
        let (first, last) = (from / 6 + 2, until / 6 - 2);
        let phase = &windows[first..last];
        let mean = |who: usize| {
            let sum: u64 = phase.iter().map(|window| window[who]).sum();
            sum as f64 / phase.len() as f64
        };
        assert!((mean(0) - of_d).abs() < 0.1, "D from {from} ms on: {}", mean(0));
        assert!((mean(1) - 16.67).abs() < 0.1, "E from {from} ms on: {}", mean(1));
        assert!((mean(2) - of_f).abs() < 0.1, "F from {from} ms on: {}", mean(2));
        for window in phase {
            // The paper: "either 16 or 17 packets in each period".
            assert!((16..=17).contains(&window[1]), "E in 6 ms: {window:?}");
            assert!((window[2] as f64 - of_f).abs() <= 0.5, "F in 6 ms: {window:?}");
            assert!(
                (49..=51).contains(&window.iter().sum::<u64>()),
                "the wire is full: {window:?}"
            );
        }
    }
}
