//! Random sets of virtual processors that pass admission control.

use proptest::prelude::*;
use session::executor::{LOAD_MAX, OVERRUN_MAX};
use session::{Period, SLICE_MIN, Share, VirtualProcessor};
use units::Nanos;

use testbase::Chance;

/// Largest sum of all slices, in parts per million.
const SLICES_MAX: u64 = 900_000;

/// Behaviour of an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Always has work.
    Busy,
    /// Work of up to the first number, then a pause of up to the second (in microseconds).
    Bursts { work: u64, pause: u64 },
    /// Work of a fraction of its slice, then a wake-up at the worst moment: at the end of its
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

/// Virtual processor to be added: its period, and its fraction of what is still unreserved.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub period: u64,
    /// Parts per thousand of what is still unreserved.
    pub part: u64,
    pub extra: bool,
    pub weight: u16,
    pub behaviour: Behaviour,
    /// Exact share instead, if it fits.
    pub share: Option<Share>,
}

impl Member {
    pub fn busy(share: Share) -> Self {
        let period = share.period().0;
        let behaviour = Behaviour::Busy;
        Self { period, part: 0, extra: false, weight: 100, behaviour, share: Some(share) }
    }
}

/// Set of virtual processors, and the disturbances of its run.
#[derive(Clone, Debug)]
pub struct Set {
    pub members: Vec<Member>,
    pub best_effort: Vec<(u16, Behaviour)>,
    /// Largest delay of a preemption, in nanoseconds.
    pub stop_max: u64,
    pub steals: bool,
    pub changes: bool,
    pub seed: u64,
}

impl Set {
    /// Makes a busy member without a reservation, to which others are added.
    pub fn beside_best_effort() -> Self {
        let best_effort = vec![(100, Behaviour::Busy)];
        let members = Vec::new();
        Self { members, best_effort, stop_max: 0, steals: false, changes: false, seed: 1 }
    }

    /// Returns the simulated time of the run.
    pub fn length(&self) -> Nanos {
        length_of(processors_of(&self.members).into_iter())
    }

    /// Returns true if a host that steals `stolen` in each `every` leaves enough for all deadlines:
    /// the unreserved time until the earliest of them is longer than that and one overrun.
    pub fn has_slack_for(&self, stolen: u64, every: u64) -> bool {
        let processors = processors_of(&self.members);
        let load: u64 = processors.iter().map(|processor| cost(processor.share)).sum();
        let shortest = processors.iter().map(|processor| processor.share.period().0).min();
        let shortest = shortest.unwrap_or(u64::MAX / 1_000_000);
        let taken = stolen * 1_000_000 / every;
        let free = 1_000_000u64.saturating_sub(load + taken);
        u128::from(free) * u128::from(shortest) / 1_000_000 >= u128::from(stolen + OVERRUN_MAX.0)
    }
}

/// Returns five times the longest period.
pub fn length_of(processors: impl Iterator<Item = VirtualProcessor>) -> Nanos {
    let longest = processors.map(|processor| processor.share.period().0).max().unwrap_or(0);
    Nanos((5 * longest).max(400_000_000))
}

fn parts(share: Share) -> u64 {
    (share.slice().0 * 1_000_000).div_ceil(share.period().0)
}

fn cost(share: Share) -> u64 {
    ((share.slice().0 + OVERRUN_MAX.0) * 1_000_000).div_ceil(share.period().0)
}

/// Returns the virtual processors of these members, until nothing is left to reserve.
pub fn processors_of(members: &[Member]) -> Vec<VirtualProcessor> {
    let (mut slices, mut load) = (SLICES_MAX, LOAD_MAX);
    let mut processors = Vec::new();
    for member in members {
        let most = (slices * member.period / 1_000_000)
            .min((load * member.period / 1_000_000).saturating_sub(OVERRUN_MAX.0));
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

/// Returns a share of the same period with a shorter slice, if there is one.
pub fn smaller(share: Share, chance: &mut Chance) -> Share {
    let slice = chance.between(SLICE_MIN.0, share.slice().0);
    Share::new(Nanos(slice), share.period()).unwrap()
}

/// Returns two shares of which the first is lowered to `lower`, and the second raised by what that
/// frees.
pub fn exchanged(
    mine: VirtualProcessor,
    his: VirtualProcessor,
    lower: Share,
) -> Option<(VirtualProcessor, VirtualProcessor)> {
    // Two parts less, for rounding.
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

/// Generates random sets.
pub fn sets() -> impl Strategy<Value = Set> {
    let best_effort = (1u16..=1000, behaviours());
    (
        prop::collection::vec(members(), 1..30),
        prop::collection::vec(best_effort, 0..4),
        prop_oneof![Just(0), Just(10_000), Just(OVERRUN_MAX.0)],
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
