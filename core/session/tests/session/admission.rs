//! Random histories of admission control, against independently computed sums, and admitted sets on
//! a simulated guest core.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestCaseResult};
use session::admission::{
    Admission, BELOW_SHARE_MAX, Capacity, GUEST_SHARE_MAX, PORT_SHARE_MAX, PortCapacity, Refusal,
};
use session::executor::{LOAD_MAX, OVERRUN_MAX};
use session::{Reservation, Share, VirtualProcessor};
use units::{BitsPerSecond, Bytes, Name, Nanos, SessionId};

use crate::machine::Machine;
use crate::seeds::for_many_sets;
use crate::set::{Behaviour, Member, Set, processors_of};
use testbase::Chance;

/// Ports of the node, and one that it does not have.
const PORTS: [&str; 3] = ["left", "right", "up"];

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

fn capacity(guest_cores: u16) -> Capacity {
    let port = PortCapacity { rate: BitsPerSecond(1_000_000_000), packet_max: Bytes(1500) };
    Capacity {
        guest_cores,
        packet_cores: 2,
        memory: Bytes(1 << 30),
        packet_memory: Bytes(1 << 24),
        ports: PORTS[..2].iter().map(|it| (name(it), port)).collect(),
        ports_unheld: false,
        one_core: false,
    }
}

/// Step of a history.
#[derive(Clone, Debug)]
enum Act {
    Admit(Reservation),
    Change(Reservation),
    Release,
}

fn shares() -> impl Strategy<Value = Share> {
    // Short periods are included, since overruns matter there.
    let periods = prop_oneof![1_000_000u64..2_000_000, 1_000_000u64..=100_000_000];
    let parts = prop_oneof![1u64..100, 1u64..=1_000];
    (periods, parts).prop_map(|(period, part)| {
        let slice = (period * part / 2_000).max(50_000);
        Share::new(Nanos(slice), Nanos(period)).unwrap()
    })
}

fn reservations() -> impl Strategy<Value = Reservation> {
    let processor =
        (shares(), any::<bool>()).prop_map(|(share, extra)| VirtualProcessor { share, extra });
    let send = (prop::sample::select(&PORTS[..]), shares());
    (
        prop::collection::vec(processor, 0..3),
        prop::option::of(shares()),
        prop::option::of(1u64..1 << 29),
        prop::option::of(1u64..1 << 23),
        prop::collection::vec(send, 0..2),
    )
        .prop_map(|(processors, below, memory, queue, send)| Reservation {
            processors,
            below,
            memory: memory.map(Bytes),
            queue: queue.map(Bytes),
            send: send.into_iter().map(|(port, share)| (name(port), share)).collect(),
            ..Reservation::default()
        })
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => reservations().prop_map(Act::Admit),
        1 => reservations().prop_map(Act::Change),
        1 => Just(Act::Release),
    ]
}

/// Checks that the sum of all reservations, added up anew, is within capacity.
fn check_sums(admission: &Admission, held: &BTreeMap<u16, Reservation>) -> TestCaseResult {
    let capacity = admission.capacity();
    let mut slices = vec![0; usize::from(capacity.guest_cores)];
    let mut loads = slices.clone();
    let (mut below, mut memory, mut queues) = (0, 0, 0);
    let mut ports = BTreeMap::<&Name, u64>::new();
    for (&id, reservation) in held {
        let cores = admission.cores(SessionId(id)).unwrap();
        prop_assert_eq!(cores.len(), reservation.processors.len());
        for (processor, &core) in reservation.processors.iter().zip(cores) {
            let (slice, period) = (processor.share.slice().0, processor.share.period().0);
            slices[usize::from(core)] += (slice * 1_000_000).div_ceil(period);
            loads[usize::from(core)] += ((slice + OVERRUN_MAX.0) * 1_000_000).div_ceil(period);
        }
        below += reservation.below.map_or(0, Share::parts_per_million);
        memory += reservation.memory.map_or(0, |it| it.0);
        queues += reservation.queue.map_or(0, |it| it.0);
        for (port, share) in &reservation.send {
            *ports.entry(port).or_default() += share.parts_per_million();
        }
    }
    prop_assert!(slices.iter().all(|&sum| sum <= GUEST_SHARE_MAX.0), "{slices:?}");
    prop_assert!(loads.iter().all(|&sum| sum <= LOAD_MAX), "{loads:?}");
    prop_assert!(below <= BELOW_SHARE_MAX.0 * u64::from(capacity.packet_cores));
    prop_assert!(memory <= capacity.memory.0 && queues <= capacity.packet_memory.0);
    prop_assert!(ports.values().all(|&sum| sum <= PORT_SHARE_MAX.0), "{ports:?}");
    // The reported remainder is what the sums leave.
    let left = admission.left();
    prop_assert_eq!(left.memory.0, capacity.memory.0 - memory);
    prop_assert_eq!(left.packet_memory.0, capacity.packet_memory.0 - queues);
    for (port, left) in &left.ports {
        prop_assert_eq!(left.0, PORT_SHARE_MAX.0 - ports.get(port).copied().unwrap_or(0));
    }
    Ok(())
}

/// Checks that the share a refusal advises is admitted.
fn check_advice(
    admission: &Admission,
    requested: &Reservation,
    refusal: &Refusal,
) -> TestCaseResult {
    let mut instead = Reservation::default();
    match refusal {
        Refusal::Processor { requested, fits: Some(share), .. } => {
            instead.processors = vec![VirtualProcessor { share: *share, ..*requested }];
        }
        Refusal::Below { fits: Some(share), .. } => instead.below = Some(*share),
        Refusal::Port { port, fits: Some(share), .. } => {
            instead.send.insert(port.clone(), *share);
        }
        Refusal::PortUnknown { port, .. } => prop_assert!(requested.send.contains_key(port)),
        _ => {}
    }
    // In a session with several virtual processors the sums include the others already.
    if requested.processors.len() <= 1 {
        let answer = admission.clone().admit(SessionId(u16::MAX), &instead);
        prop_assert!(answer.is_ok(), "{instead:?} was said to fit: {answer:?}");
    }
    Ok(())
}

#[test]
fn no_history_of_admissions_exceeds_the_capacity() {
    let histories = (1u16..=3, prop::collection::vec((0u16..12, acts()), 1..60));
    for_many_sets(&histories, |(guest_cores, history)| {
        let mut admission = Admission::new(capacity(guest_cores));
        let mut held = BTreeMap::new();
        for (id, act) in history {
            let (before, session) = (admission.clone(), SessionId(id));
            let (answer, requested) = match &act {
                Act::Admit(requested) => (admission.admit(session, requested), Some(requested)),
                Act::Change(requested) => (admission.change(session, requested), Some(requested)),
                Act::Release => {
                    prop_assert_eq!(admission.release(session), held.remove(&id));
                    (Ok(()), None)
                }
            };
            match (answer, requested) {
                (Ok(()), Some(requested)) => {
                    held.insert(id, requested.clone());
                }
                (Ok(()), None) => {}
                (Err(refusal), requested) => {
                    prop_assert_eq!(admission.left(), before.left());
                    prop_assert_eq!(admission.reservation(session), held.get(&id));
                    prop_assert_eq!(admission.cores(session), before.cores(session));
                    if let (Act::Admit(_), Some(requested)) = (&act, requested) {
                        check_advice(&admission, requested, &refusal)?;
                    }
                }
            }
            check_sums(&admission, &held)?;
        }
        for id in held.into_keys() {
            admission.release(SessionId(id));
        }
        prop_assert_eq!(admission.left(), Admission::new(capacity(guest_cores)).left());
        Ok(())
    });
}

/// Fills the guest cores completely: a refused share is requested again as advised.
fn fill(
    guest_cores: u16,
    requested: &[VirtualProcessor],
) -> Result<Vec<Vec<VirtualProcessor>>, TestCaseError> {
    let mut admission = Admission::new(capacity(guest_cores));
    let mut cores = vec![Vec::new(); usize::from(guest_cores)];
    for (id, &processor) in (2u16..).zip(requested) {
        let one = |processor| Reservation { processors: vec![processor], ..Reservation::default() };
        let mut promised = processor;
        if let Err(refusal) = admission.admit(SessionId(id), &one(processor)) {
            let Refusal::Processor { fits: Some(share), .. } = refusal else { continue };
            promised.share = share;
            let answer = admission.admit(SessionId(id), &one(promised));
            prop_assert!(answer.is_ok(), "{share} was said to fit: {answer:?}");
        }
        let core = admission.cores(SessionId(id)).unwrap()[0];
        cores[usize::from(core)].push(promised);
    }
    Ok(cores)
}

#[test]
fn admitted_reservations_have_their_slices_on_every_core() {
    let processor =
        (shares(), any::<bool>()).prop_map(|(share, extra)| VirtualProcessor { share, extra });
    let sets = (1u16..=2, prop::collection::vec(processor, 1..16), any::<u64>());
    for_many_sets(&sets, |(guest_cores, requested, seed)| {
        let mut chance = Chance(seed);
        for processors in fill(guest_cores, &requested)? {
            let members: Vec<Member> = processors
                .iter()
                .map(|processor| Member {
                    extra: processor.extra,
                    behaviour: match chance.between(0, 2) {
                        0 => Behaviour::Spiteful,
                        _ => Behaviour::Busy,
                    },
                    ..Member::busy(processor.share)
                })
                .collect();
            let known = processors_of(&members).len();
            prop_assert_eq!(known, members.len(), "more than there is was admitted");
            let stop_max = OVERRUN_MAX.0;
            let set = Set { members, stop_max, seed, ..Set::beside_best_effort() };
            let mut machine = Machine::new(&set);
            machine.run(|machine, before, step| machine.check_slices(before, step))?;
            machine.check_totals()?;
        }
        Ok(())
    });
}
