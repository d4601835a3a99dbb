//! Simulated wire of a port: sends what a schedule returns, and keeps independent accounts.
//!
//! A sender is busy (its queue is never empty) or bursty; packets have random lengths.

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestCaseResult};
use session::egress::{DropReason, Next, Outcome, Port, Schedule, SenderConfig};
use session::{Kind, Share, Weight};
use units::{BitsPerSecond, Bytes, Nanos, SessionId};

use testbase::Chance;

/// Largest sum of all shares, in parts per million.
pub const PROMISED_MAX: u64 = 990_000;
pub const PACKET_MAX: u64 = 1_500;
const PACKET_MIN: u64 = 60;
pub const QUEUE_MAX: Bytes = Bytes(8 * PACKET_MAX);
/// Longest interval between two polls of the schedule.
const LATE_MAX: u64 = 20_000;
const PICOS: u64 = 1_000;

/// Sender to be added: its period and its fraction of what is still unreserved.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub period: u64,
    /// Parts per thousand; 0 for best effort.
    pub part: u64,
    pub extra: bool,
    pub weight: u16,
    /// True if it always has packets, false if it is bursty.
    pub is_busy: bool,
}

#[derive(Clone, Debug)]
pub struct Set {
    pub members: Vec<Member>,
    pub rate: u64,
    pub per_packet: u64,
    pub ahead: u64,
    /// True if all packets have the maximum length, false for random lengths.
    pub all_long: bool,
    pub seed: u64,
}

pub fn sets() -> impl Strategy<Value = Set> {
    let periods = prop_oneof![Just(6_000_000), 1_000_000u64..10_000_000, 1_000_000u64..50_000_000];
    let parts = prop_oneof![1 => Just(0), 4 => 1u64..=1_000];
    let member = (periods, parts, any::<bool>(), 1u16..=1_000, any::<bool>()).prop_map(
        |(period, part, extra, weight, is_busy)| Member { period, part, extra, weight, is_busy },
    );
    (
        prop::collection::vec(member, 1..10),
        prop_oneof![Just(100_000_000), Just(1_000_000_000), 20_000_000u64..500_000_000],
        prop_oneof![Just(0), Just(24)],
        prop_oneof![Just(0), Just(50_000)],
        any::<bool>(),
        any::<u64>(),
    )
        .prop_map(|(members, rate, per_packet, ahead, all_long, seed)| Set {
            members,
            rate,
            per_packet,
            ahead,
            all_long,
            seed,
        })
}

/// Simulated sender, and what it was observed to send.
pub struct Seen {
    pub session: SessionId,
    pub share: Option<Share>,
    pub extra: bool,
    pub weight: u64,
    pub is_busy: bool,
    pub wakes: Nanos,
    /// Start of its consecutive periods.
    pub began: Option<Nanos>,
    pub ended: u64,
    /// Overrun bounds or use, in picoseconds on the wire.
    pub guaranteed: u64,
    pub surplus: u64,
    pub sent: u64,
    /// Number of the first queued packet, and lengths of the queued packets.
    pub next: u64,
    pub queued: VecDeque<u64>,
}

pub struct Wire {
    pub schedule: Schedule<(SessionId, u64)>,
    chance: Chance,
    pub now: Nanos,
    rate: u64,
    per_packet: u64,
    ahead: u64,
    all_long: bool,
    /// Time at which the wire is free again, in picoseconds.
    free: u64,
    pub all: Vec<Seen>,
}

impl Wire {
    pub fn new(set: &Set) -> Self {
        let port = Port {
            rate: BitsPerSecond(set.rate),
            packet_max: Bytes(PACKET_MAX),
            per_packet: Bytes(set.per_packet),
            ahead_max: Nanos(set.ahead),
            behind_max: Nanos::ZERO,
            in_flight_max: None,
        };
        let now = Nanos(set.seed % 1_000_000_000);
        let mut wire = Self {
            schedule: Schedule::new(port),
            chance: Chance(set.seed),
            now,
            rate: set.rate,
            per_packet: set.per_packet,
            ahead: set.ahead,
            all_long: set.all_long,
            free: now.0 * PICOS,
            all: Vec::new(),
        };
        let mut left = PROMISED_MAX;
        for (session, member) in (2..).zip(&set.members) {
            let least = wire.time(PACKET_MAX).div_ceil(PICOS);
            let slice = left * member.period / 1_000_000 * member.part / 1_000;
            let share = Share::new(Nanos(slice), Nanos(member.period));
            let share = share.ok().filter(|share| share.slice().0 >= least);
            let share = share.filter(|share| share.parts_per_million() <= left);
            left -= share.map_or(0, Share::parts_per_million);
            wire.add(SessionId(session), share, member);
        }
        wire
    }

    pub fn add(&mut self, session: SessionId, share: Option<Share>, member: &Member) {
        let weight = Weight::new(member.weight).unwrap();
        let terms = SenderConfig { share, extra: member.extra, weight, queue: QUEUE_MAX };
        self.schedule.set(self.now, session, terms);
        self.all.push(Seen {
            session,
            share,
            extra: member.extra,
            weight: u64::from(member.weight),
            is_busy: member.is_busy,
            wakes: self.now,
            began: None,
            ended: 0,
            guaranteed: 0,
            surplus: 0,
            sent: 0,
            next: 0,
            queued: VecDeque::new(),
        });
    }

    /// Returns the transmission time of a packet, in picoseconds.
    fn time(&self, bytes: u64) -> u64 {
        ((bytes + self.per_packet) * 8_000_000_000_000).div_ceil(self.rate)
    }

    /// Queues packets of the senders that have some; checks that each is queued or dropped with the
    /// right reason.
    fn fill(&mut self) -> TestCaseResult {
        for seen in &mut self.all {
            let count = if seen.is_busy {
                2u64.saturating_sub(seen.queued.len() as u64)
            } else if seen.wakes <= self.now {
                seen.wakes = self.now + Nanos(self.chance.between(1, 5_000_000));
                self.chance.between(1, 20)
            } else {
                0
            };
            for _ in 0..count {
                let bytes = match self.chance.between(0, 2) {
                    _ if self.all_long => PACKET_MAX,
                    0 => PACKET_MAX,
                    1 => PACKET_MIN,
                    _ => self.chance.between(PACKET_MIN, PACKET_MAX),
                };
                let waits: u64 = seen.queued.iter().map(|bytes| (*bytes).max(64)).sum();
                let fits = waits + bytes.max(64) <= QUEUE_MAX.0;
                let handle = (seen.session, seen.next + seen.queued.len() as u64);
                match self.schedule.enqueue(self.now, seen.session, Bytes(bytes), handle) {
                    Outcome::Queued { .. } => {
                        prop_assert!(fits, "a queue holds more than it may");
                        seen.queued.push_back(bytes);
                    }
                    Outcome::Dropped { handle: same, reason } => {
                        prop_assert!(!fits && reason == DropReason::QueueFull && same == handle);
                    }
                }
            }
            if seen.began.is_none() && seen.is_busy {
                seen.began = Some(self.schedule.account(seen.session).unwrap().running.begin);
            }
        }
        Ok(())
    }

    /// Sends until `horizon` and passes each step to `check`.
    pub fn run(
        &mut self,
        horizon: Nanos,
        mut look: impl FnMut(&mut Self) -> TestCaseResult,
    ) -> TestCaseResult {
        while self.now < horizon {
            self.fill()?;
            match self.schedule.next(self.now) {
                Next::Packet { handle, session, bytes, kind, .. } => {
                    self.send(handle, session, bytes.0, kind)?;
                }
                Next::Wait(until) => {
                    self.check_idle()?;
                    prop_assert!(until > self.now, "somebody waits for what was");
                    let late = if self.ahead > 0 { self.chance.between(0, LATE_MAX) } else { 0 };
                    self.now = (until + Nanos(late)).min(self.next_wakes());
                }
                Next::Idle => {
                    self.check_idle()?;
                    self.now = self.next_wakes();
                }
                Next::InFlight => return Err(TestCaseError::fail("nothing limits that")),
            }
            look(self)?;
        }
        Ok(())
    }

    fn next_wakes(&self) -> Nanos {
        let bursts = self.all.iter().filter(|seen| !seen.is_busy);
        let wakes = bursts.map(|seen| seen.wakes).filter(|at| *at > self.now).min();
        wakes.unwrap_or(Nanos(u64::MAX))
    }

    fn send(
        &mut self,
        handle: (SessionId, u64),
        session: SessionId,
        bytes: u64,
        kind: Kind,
    ) -> TestCaseResult {
        let time = self.time(bytes);
        prop_assert!(self.free <= (self.now.0 + self.ahead) * PICOS, "faster than the wire");
        self.free = self.free.max(self.now.0 * PICOS) + time;
        let seen = self.all.iter_mut().find(|seen| seen.session == session).unwrap();
        prop_assert_eq!(handle, (session, seen.next), "in order, each once");
        prop_assert_eq!(seen.queued.pop_front(), Some(bytes));
        seen.next += 1;
        seen.sent += bytes;
        match kind {
            Kind::Guaranteed => seen.guaranteed += time,
            Kind::Extra | Kind::BestEffort => {
                prop_assert!(seen.share.is_none() || seen.extra, "more than was promised");
                seen.surplus += time;
            }
        }
        Ok(())
    }

    /// Checks that the wire is idle only if no packet may leave.
    fn check_idle(&self) -> TestCaseResult {
        let is_free = self.free <= (self.now.0 + self.ahead) * PICOS;
        let waits = |seen: &&Seen| !seen.queued.is_empty() && (seen.share.is_none() || seen.extra);
        let who = self.all.iter().find(waits).map(|seen| seen.session);
        prop_assert!(!is_free || who.is_none(), "{who:?} could send");
        Ok(())
    }

    /// Checks that at the end of each of its periods a busy sender is behind by at most one packet
    /// of each sender with a share, plus one, and ahead by at most one of its own.
    pub fn check_shares(&mut self) -> TestCaseResult {
        let shares = self.all.iter().filter(|seen| seen.share.is_some()).count() as u64;
        self.check_shares_within(shares + 1)
    }

    /// Checks the same with a given bound on how far behind, in packets.
    pub fn check_shares_within(&mut self, packets: u64) -> TestCaseResult {
        let packet = self.time(PACKET_MAX);
        let behind_max = packets * packet + (self.ahead + LATE_MAX) * PICOS;
        let now = self.now.0;
        for seen in &mut self.all {
            let (Some(share), Some(began)) = (seen.share, seen.began) else { continue };
            let ended = (now - began.0) / share.period().0;
            let slice = share.slice().0 * PICOS;
            prop_assert!(
                seen.guaranteed <= (ended + 1) * slice + packet,
                "{share} is ahead: {} ps after {ended} periods",
                seen.guaranteed
            );
            if ended > seen.ended {
                seen.ended = ended;
                prop_assert!(
                    seen.guaranteed + behind_max >= ended * slice,
                    "{share} is behind: {} ps after {ended} periods",
                    seen.guaranteed
                );
            }
        }
        Ok(())
    }

    /// Checks that of two backlogged senders without a share neither is ahead by more than one
    /// packet of each, by weight.
    pub fn check_rest(&self) -> TestCaseResult {
        let packet = self.time(PACKET_MAX) / PICOS;
        let wants = |seen: &&Seen| seen.share.is_none() && seen.is_busy;
        for one in self.all.iter().filter(wants) {
            for other in self.all.iter().filter(wants) {
                let by_weight = |seen: &Seen| seen.surplus / PICOS / seen.weight;
                let bound = packet / one.weight + packet / other.weight + 4;
                let ahead = by_weight(one).saturating_sub(by_weight(other));
                prop_assert!(ahead <= bound, "{ahead} of {bound} ns by weight");
            }
        }
        Ok(())
    }
}

/// Returns five times the longest period.
pub fn horizon(set: &Set) -> Nanos {
    let longest = set.members.iter().map(|member| member.period).max().unwrap_or(0);
    Nanos(set.seed % 1_000_000_000 + (5 * longest).max(50_000_000))
}
