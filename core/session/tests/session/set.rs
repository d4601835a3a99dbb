//! Sets of virtual processors, as random as they may be and still be promised together.

use proptest::prelude::*;
use session::executor::{LOAD_MAX, STOP_MAX};
use session::{Period, SLICE_MIN, Share, VirtualProcessor};
use units::Nanos;

use testbase::Chance;

/// What all slices together may be, in parts of a million.
const SLICES_MAX: u64 = 900_000;

/// What somebody does with the time that he gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// He always has work.
    Busy,
    /// Work of up to so much, then a pause of up to so much (in microseconds).
    Bursts { work: u64, pause: u64 },
    /// As much work as is a part of his slice, and up again when it hurts most: at the end of his
    /// period, or just before.
    Spiteful,
}

impl Behaviour {
    pub fn work(self, chance: &mut Chance, promise: Option<VirtualProcessor>) -> u64 {
        match self {
            Self::Busy => u64::MAX,
            Self::Bursts { work, .. } => chance.between(1, work * 1_000),
            Self::Spiteful => {
                let slice = promise.map_or(1_000_000, |promise| promise.share.slice().0);
                chance.between(1, 2 * slice)
            }
        }
    }

    pub fn wakes(self, chance: &mut Chance, now: Nanos, running: &Period) -> Nanos {
        match self {
            Self::Busy => now,
            Self::Bursts { pause, .. } => now + Nanos(chance.between(1, pause * 1_000)),
            Self::Spiteful => {
                let rest = running.end.saturating_sub(now).0;
                now + Nanos(match chance.between(0, 3) {
                    0 => rest,
                    1 => rest.saturating_sub(chance.between(0, 60_000)),
                    2 => chance.between(0, rest),
                    _ => 1,
                })
            }
        }
    }
}

/// A virtual processor that may be promised: its period, and its part of what is left.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub period: u64,
    /// Parts of a thousand of what may still be promised.
    pub part: u64,
    pub extra: bool,
    pub weight: u16,
    pub behaviour: Behaviour,
    /// Exactly this one, if it fits.
    pub share: Option<Share>,
}

impl Member {
    pub fn busy(share: Share) -> Self {
        let period = share.period().0;
        let behaviour = Behaviour::Busy;
        Self { period, part: 0, extra: false, weight: 100, behaviour, share: Some(share) }
    }
}

/// A set, and what happens to it.
#[derive(Clone, Debug)]
pub struct Set {
    pub members: Vec<Member>,
    pub best_effort: Vec<(u16, Behaviour)>,
    /// How late somebody is stopped, at most, in nanoseconds.
    pub stop_max: u64,
    pub steals: bool,
    pub changes: bool,
    pub seed: u64,
}

impl Set {
    /// One that is always busy and has no promise, for members to be put beside.
    pub fn beside_best_effort() -> Self {
        let best_effort = vec![(100, Behaviour::Busy)];
        let members = Vec::new();
        Self { members, best_effort, stop_max: 0, steals: false, changes: false, seed: 1 }
    }

    /// How long it runs.
    pub fn length(&self) -> Nanos {
        length_of(processors_of(&self.members).into_iter())
    }

    /// Whether a host that takes away `stolen` each `every` leaves enough for all deadlines: what
    /// is not promised until the earliest of them is longer than that and one stop.
    pub fn has_slack_for(&self, stolen: u64, every: u64) -> bool {
        let processors = processors_of(&self.members);
        let load: u64 = processors.iter().map(|processor| cost(processor.share)).sum();
        let shortest = processors.iter().map(|processor| processor.share.period().0).min();
        let shortest = shortest.unwrap_or(u64::MAX / 1_000_000);
        let taken = stolen * 1_000_000 / every;
        let free = 1_000_000u64.saturating_sub(load + taken);
        u128::from(free) * u128::from(shortest) / 1_000_000 >= u128::from(stolen + STOP_MAX.0)
    }
}

/// Long enough for five of the longest periods.
pub fn length_of(processors: impl Iterator<Item = VirtualProcessor>) -> Nanos {
    let longest = processors.map(|processor| processor.share.period().0).max().unwrap_or(0);
    Nanos((5 * longest).max(400_000_000))
}

fn parts(share: Share) -> u64 {
    (share.slice().0 * 1_000_000).div_ceil(share.period().0)
}

fn cost(share: Share) -> u64 {
    ((share.slice().0 + STOP_MAX.0) * 1_000_000).div_ceil(share.period().0)
}

/// The virtual processors that these members are promised: as long as there is something left.
pub fn processors_of(members: &[Member]) -> Vec<VirtualProcessor> {
    let (mut slices, mut load) = (SLICES_MAX, LOAD_MAX);
    let mut processors = Vec::new();
    for member in members {
        let most = (slices * member.period / 1_000_000)
            .min((load * member.period / 1_000_000).saturating_sub(STOP_MAX.0));
        let slice = (most * member.part / 1_000).max(SLICE_MIN.0);
        let share = member.share.or_else(|| Share::new(Nanos(slice), Nanos(member.period)).ok());
        let Some(share) = share.filter(|share| parts(*share) <= slices && cost(*share) <= load)
        else {
            break;
        };
        slices -= parts(share);
        load -= cost(share);
        processors.push(VirtualProcessor { share, extra: member.extra });
    }
    processors
}

/// A share of the same period with a shorter slice, if there is one.
pub fn smaller(share: Share, chance: &mut Chance) -> Share {
    let slice = chance.between(SLICE_MIN.0, share.slice().0);
    Share::new(Nanos(slice), share.period()).unwrap()
}

/// Two promises of which the first is lowered to `lower`, and the second gets what that frees.
pub fn exchanged(
    mine: VirtualProcessor,
    his: VirtualProcessor,
    lower: Share,
) -> Option<(VirtualProcessor, VirtualProcessor)> {
    // Two parts are kept for what was rounded.
    let freed = (cost(mine.share) - cost(lower)).checked_sub(2)?;
    let period = his.share.period();
    let slice = his.share.slice().0 + freed * period.0 / 1_000_000;
    let more = Share::new(Nanos(slice.min(period.0)), period).ok()?;
    Some((VirtualProcessor { share: lower, ..mine }, VirtualProcessor { share: more, ..his }))
}

fn behaviours() -> impl Strategy<Value = Behaviour> {
    prop_oneof![
        Just(Behaviour::Busy),
        (1u64..5_000, 1u64..20_000).prop_map(|(work, pause)| Behaviour::Bursts { work, pause }),
        Just(Behaviour::Spiteful),
    ]
}

fn members() -> impl Strategy<Value = Member> {
    let periods = prop_oneof![
        Just(1_000_000),
        Just(4_000_000),
        Just(6_000_000),
        1_000_000u64..10_000_000,
        10_000_000u64..100_000_000,
    ];
    let weights = prop_oneof![Just(100), 1u16..=1000];
    (periods, 1u64..=1_000, any::<bool>(), weights, behaviours()).prop_map(
        |(period, part, extra, weight, behaviour)| Member {
            period,
            part,
            extra,
            weight,
            behaviour,
            share: None,
        },
    )
}

/// Random sets.
pub fn sets() -> impl Strategy<Value = Set> {
    let best_effort = (1u16..=1000, behaviours());
    (
        prop::collection::vec(members(), 1..30),
        prop::collection::vec(best_effort, 0..4),
        prop_oneof![Just(0), Just(10_000), Just(STOP_MAX.0)],
        any::<u64>(),
    )
        .prop_map(|(members, best_effort, stop_max, seed)| Set {
            members,
            best_effort,
            stop_max,
            steals: false,
            changes: false,
            seed,
        })
}
