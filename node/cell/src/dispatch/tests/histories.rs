//! Random histories of a cell's services: in whatever order events happen, each packet has one
//! outcome, and nothing of it is left in memory or in a queue.

use super::*;
use bpf_maps::META_ROUTED;

const SERVICES: [EntryId; 4] = [ENTRY, NEXT, EntryId(8), EntryId(9)];
const GOLD: SessionId = SessionId(2);
/// Word that is no verdict, so that the module traps.
const FALL: u32 = 0xffff;

/// Random numbers (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Packets of stopped services, from their last reports.
#[derive(Debug, Default)]
struct Gone {
    packets: u64,
}

fn facts_of(entry: EntryId, chance: &mut Chance) -> ServiceSpec {
    ServiceSpec {
        // Two of them belong to a session that is added and removed.
        session: if entry.0 > 7 { GOLD } else { SessionId::BEST_EFFORT },
        lanes: chance.one_of(&[1, 1, 2]),
        brief: chance.below(2) == 0,
        closed: chance.below(2) == 0,
        timer_ms: (chance.below(3) == 0).then_some(1),
        ..facts(entry)
    }
}

/// Checks the counters of one service against each other.
fn check(entry: EntryId, report: &ServiceReport, seed: u64) {
    assert_eq!(report.packets, report.ended(), "seed {seed}: {entry:?} {report:?}");
}

fn step(rig: &mut Rig, chance: &mut Chance, gone: &mut Gone, seed: u64) {
    let entry = chance.one_of(&SERVICES);
    let is_there = rig.dispatcher.services().get(entry).is_some();
    let has_session = entry.0 <= 7 || rig.dispatcher.scheduler().takes_turns();
    match chance.below(24) {
        0..10 => {
            let edge = chance.below(3) as u8;
            let verdicts = [
                Verdict::Pass { edge, reroute: chance.below(4) == 0 },
                Verdict::Drop { reason: edge.into() },
                Verdict::Bounce,
                Verdict::Redirect { port: edge.into() },
                Verdict::Raise,
            ];
            let word =
                if chance.below(12) == 0 { FALL } else { chance.one_of(&verdicts).to_value() };
            let (packet, mut origin) = rig.packet(entry, word);
            origin.meta.flow_hash = chance.below(1 << 32) as u32;
            origin.meta.flags |= chance.one_of(&[0, META_ROUTED]);
            rig.dispatcher.on_packet(packet, origin, &mut round(&mut rig.link));
        }
        10..13 => drop(rig.run_short_turn()),
        13 => rig.run_turns(),
        14 if !is_there && has_session => rig.start(facts_of(entry, chance), OBEYS),
        14 | 15 if is_there => {
            let report = rig.stop(entry);
            check(entry, &report, seed);
            gone.packets += report.packets;
        }
        16 if is_there => {
            let ready = rig.ready(facts_of(entry, chance), ANSWERS);
            let transfer = chance.one_of(&[StateTransfer::Empty, StateTransfer::Memory]);
            let control = Control::Replace(Box::new(ready), transfer);
            rig.dispatcher.request(entry, control, &mut round(&mut rig.link));
        }
        17 if is_there => {
            // Never backwards: a graph has no cycles.
            let later = SERVICES.map(|to| if to > entry { Edge::To(to) } else { Edge::Down });
            let edges = [(); 3].map(|()| chance.one_of(&[Edge::Out, later[2], later[3], later[1]]));
            rig.connect(entry, &edges);
        }
        18 if rig.dispatcher.scheduler().takes_turns() => {
            for entry in rig.dispatcher.services().of_session(GOLD) {
                gone.packets += rig.stop(entry).packets;
            }
            rig.dispatcher.forget_session(pacer::now(), GOLD);
        }
        18 | 19 => rig.add_session(GOLD.0, r#"{"cpu":["1ms/4ms+extra"],"queue":"24KiB"}"#),
        20 => rig.dispatcher.tick(&mut round(&mut rig.link)),
        21 => {
            let message = Control::Message(PendingMessage::of_daemon([1, 2].into()));
            rig.dispatcher.request(entry, message, &mut round(&mut rig.link));
        }
        22 => drop(rig.dispatcher.send_waiting()),
        _ => rig.dispatcher.flush(),
    }
    rig.reported();
}

#[test]
fn each_packet_has_one_end_whatever_happens_to_its_service() {
    for seed in 1..=12 {
        let mut chance = Chance(seed | 0x9e37_79b9_7f4a_0000);
        let (mut rig, mut gone) = (Rig::new(), Gone::default());
        for number in 1..=400 {
            step(&mut rig, &mut chance, &mut gone, seed);
            if number % 40 > 0 {
                continue;
            }
            rig.run_turns();
            for entry in SERVICES {
                if rig.dispatcher.services().get(entry).is_some() {
                    check(entry, &rig.report(entry), seed);
                }
            }
            let report = rig.cell();
            assert_eq!(report.frames_free, report.frames_total, "seed {seed}, step {number}");
            for place in [1, usize::from(GOLD.0)] {
                let sessions = rig.dispatcher.scheduler_mut().sessions_mut();
                let queue =
                    sessions.poll_report(place, Bytes::ZERO, true).map(|report| report.queue);
                assert_eq!(queue.unwrap_or_default(), Bytes::ZERO, "seed {seed}, step {number}");
            }
        }
        assert!(gone.packets > 0 && rig.cell().no_service > 0, "seed {seed} did too little");
    }
}
