//! `classify`: cost of finding rule and route of a packet.
//!
//! ```text
//! test-run ─▶ replay: the next flow's headers ─▶ the front door of a node with rules
//!                                              ├▶ a plain BPF hash of all flows, which forwards
//!                                              ├▶ the same, which only looks up
//!                                              └▶ an empty program: subtracted from all others
//! ```
//!
//! No packet is sent: a redirect ends where the device's queue would begin. Benign flows repeat; an
//! attacker's are chosen to share a slot of the cache, or never repeat and match nothing, so that
//! every mask is searched.

mod flows;

use std::os::fd::{AsFd as _, AsRawFd as _};

use anyhow::{Context as _, Result, ensure};
use bpf::front_door::{self, FrontDoor};
use bpf::{Map, MappedArray, Object, Program, Update, objects};
use bpf_maps::{ACTION_FORWARD, Key, Mask, PortConfig, Rule};
use namespaces::netns;
use units::{Name, PortId};

use crate::levels::cpu;
use crate::line::{self, Line};
use crate::measurement::{Better, GoalFor, Measured, Measurement};
use crate::rounds::{Pair, Rounds};
use crate::{Options, line::MAC_DESTINATION, line::MAC_IN, line::MAC_OUT};
use flows::{Flow, Flows, HEADERS};

/// Number of hot flows, which repeat often.
const HOT: usize = 1000;
/// Number of cold flows, which repeat seldom.
const COLD: usize = 1_000_000;
/// Packets of one sample: every cold flow once.
const REPEAT: u32 = COLD as u32;
/// Packets of one system call.
const RUN: u32 = 1 << 16;
/// Samples of each program in a round. The smallest counts, since disturbances only add time.
const SAMPLES: usize = 3;
/// Cases: numbers of rules and of masks.
const CASES: [(u32, u32); 7] =
    [(10, 1), (1000, 1), (1000, 16), (1000, 64), (8192, 1), (8192, 16), (8192, 64)];
/// Cases with `--quick`.
const CASES_QUICK: [(u32, u32); 2] = [(1000, 16), (8192, 16)];
/// Goal for hot flows, in nanoseconds above an empty program.
const GOAL_HOT: f64 = 50.0;
/// Goal for hot flows with 8,192 rules and 16 masks, in nanoseconds above an empty program.
const GOAL_MANY: f64 = 100.0;
/// Goal for cold flows: time divided by that of the plain hash.
const GOAL_COLD: f64 = 1.3;
/// Goal for an attacker's flows: time divided by that of benign ones.
const GOAL_CRAFTED: f64 = 3.0;

const FORWARDS: &str = "plain BPF hash, forwards";
const LOOKS_UP: &str = "plain BPF hash, looks up only";
const BENIGN: &str = "the same rules, benign flows";

pub(crate) fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Measured> {
    let line = Line::new("classify")?;
    let out = Line::ifindex(&line.node, line::PORT_OUT)?;
    let arrival = Line::ifindex(&line.node, line::PORT_IN)?;
    // Devices are found, and routes asked for, in the namespace of the thread.
    let mut bench = netns::in_namespace(&line.node, || Bench::new(arrival, out))??;
    let cases = if options.quick { &CASES_QUICK[..] } else { &CASES[..] };
    let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { 5 }).max(1);
    let mut all: Vec<[Rounds; 4]> = cases.iter().map(|_| Default::default()).collect();
    for round in 1..=rounds {
        for (&(rules, masks), of_case) in cases.iter().zip(&mut all) {
            progress(&format!("{rules} rules, {masks} masks, round {round} of {rounds}"));
            let measured = netns::in_namespace(&line.node, || {
                let _pinned = cpu::Pinned::new()?;
                bench.case(rules, masks)
            })??;
            for (rounds, values) in of_case.iter_mut().zip(measured) {
                rounds.add(values);
            }
        }
    }
    let measurements = cases
        .iter()
        .zip(&all)
        .flat_map(|(&(rules, masks), rounds)| compared(rules, masks, rounds))
        .collect();
    let notes = vec![format!(
        "by the kernel's test-run, less what an empty program takes behind the same replay; {HOT} \
         hot and {COLD} cold flows; 'never_twice' is each packet another flow that matches nothing"
    )];
    Ok(Measured { measurements, notes })
}

/// Programs, loaded and ready to be measured.
struct Bench {
    front: FrontDoor,
    name: Name,
    ours: Program,
    replay: Program,
    empty: Program,
    look_up: Program,
    forward: Program,
    measured: Map,
    state: MappedArray<[u64; 4]>,
    headers: MappedArray<[u8; HEADERS]>,
    flows: Flows,
}

impl Drop for Bench {
    fn drop(&mut self) {
        // The next run of the same name removes what this cannot.
        let _ = front_door::remove(&self.name);
    }
}

/// Times of the four programs less the empty one's, in nanoseconds.
struct Sample {
    ours: f64,
    forward: f64,
    look_up: f64,
}

impl Bench {
    fn new(arrival: u32, out: u32) -> Result<Self> {
        let name = Name::new(format!("bench-{}", std::process::id()))?;
        let front = FrontDoor::create(&name, flows::hash_keys()?, COLD as u32)
            .context("making the front door")?;
        let port = |ifindex, mac| PortConfig { ifindex, mac, mtu: 1500, ..PortConfig::default() };
        front.load(PortId(1), &port(out, MAC_OUT))?;
        let ours = front.load(PortId(0), &port(arrival, MAC_IN))?;
        let object = Object::open(objects::bench::CLASSIFY, "classify")?.load()?;
        object.map("classify_out")?.update(&0u32, &out, Update::Any)?;
        let program = |name| object.program(name);
        let bench = Self {
            ours,
            replay: program("replay")?,
            empty: program("empty")?,
            look_up: program("look_up")?,
            forward: program("look_up_and_forward")?,
            measured: object.map("measured")?,
            state: object.map("state")?.map_array()?,
            headers: object.map("flows")?.map_array()?,
            flows: Flows::new(COLD),
            front,
            name,
        };
        bench.fill_plain_hash(&object.map("flow_table")?)?;
        Ok(bench)
    }

    /// Fills the flow table of the baselines: all flows, with their egress.
    fn fill_plain_hash(&self, table: &Map) -> Result<()> {
        let mut value = [0u8; 24];
        value[..6].copy_from_slice(&MAC_DESTINATION);
        value[6..12].copy_from_slice(&MAC_OUT);
        for flow in self.flows.benign() {
            table
                .update(&flow.plain_key(), &value, Update::Any)
                .context("filling the plain hash")?;
        }
        Ok(())
    }

    /// Measures one case: hot flows, cold flows, an attacker's flows that share a slot, and an
    /// attacker's that never repeat; in each the front door comes first.
    fn case(&mut self, rules: u32, masks: u32) -> Result<[Vec<f64>; 4]> {
        let (masks, entries) = rule_set(rules, masks, &self.flows);
        self.front.install_rules(&masks, &entries, &[])?;

        self.lay_out(self.flows.benign(), COLD)?;
        self.play(HOT, false);
        let hot = self.measure()?;
        self.play(COLD, false);
        let cold = self.measure()?;
        self.play(COLD, true);
        let fresh = self.only_ours()?;
        self.lay_out(self.flows.colliding(), HOT)?;
        self.play(HOT, false);
        let colliding = self.only_ours()?;
        Ok([
            vec![hot.ours, hot.forward, hot.look_up],
            vec![cold.ours, cold.forward, cold.look_up],
            vec![colliding, hot.ours],
            vec![fresh, cold.ours],
        ])
    }

    fn lay_out(&self, flows: &[Flow], count: usize) -> Result<()> {
        for (at, flow) in flows.iter().take(count).enumerate() {
            ensure!(self.headers.store(at, &flow.headers()), "there is no room for flow {at}");
        }
        Ok(())
    }

    /// Makes `replay` use the first `count` flows, from the first one on; with `fresh` each packet
    /// gets another source.
    fn play(&self, count: usize, fresh: bool) {
        // The sources continue, so that none is repeated.
        let sources = self.state.load(0).map_or(0, |state| state[3]);
        self.state.store(0, &[0, count as u64, u64::from(fresh), sources]);
    }

    fn measure(&self) -> Result<Sample> {
        let mut least = [f64::INFINITY; 4];
        let programs = [&self.ours, &self.forward, &self.look_up, &self.empty];
        // The caches, the machine's and ours, have seen each flow before it is measured.
        self.sample(&self.ours, REPEAT)?;
        self.sample(&self.ours, 1 << 17)?;
        for turn in 0..SAMPLES {
            for step in 0..programs.len() {
                let at = if turn % 2 == 0 { step } else { programs.len() - 1 - step };
                least[at] = least[at].min(self.sample(programs[at], REPEAT)?);
            }
        }
        let [ours, forward, look_up, empty] = least;
        Ok(Sample { ours: ours - empty, forward: forward - empty, look_up: look_up - empty })
    }

    /// Returns the front door's time less the empty program's, in nanoseconds, for flows that the
    /// plain hash does not hold.
    fn only_ours(&self) -> Result<f64> {
        self.sample(&self.ours, 1 << 17)?;
        let mut least = [f64::INFINITY; 2];
        for _ in 0..SAMPLES {
            least[0] = least[0].min(self.sample(&self.ours, REPEAT / 2)?);
            least[1] = least[1].min(self.sample(&self.empty, REPEAT / 2)?);
        }
        Ok(least[0] - least[1])
    }

    /// Returns the time of each packet of a run in nanoseconds; every packet must end with the
    /// expected result.
    fn sample(&self, program: &Program, packets: u32) -> Result<f64> {
        self.measured.update(&0u32, &(program.as_fd().as_raw_fd() as u32), Update::Any)?;
        let forwarded = || -> Result<u64> { Ok(self.front.port_stats(PortId(0))?.outcomes[0]) };
        let before = forwarded()?;
        let (mut time, mut left, mut answer) = (std::time::Duration::ZERO, packets, 0);
        while left > 0 {
            // However busy the machine is, cached routes are good until the end of a run.
            self.front.heartbeat()?;
            let begun = cpu::time();
            answer = self.replay.test_run(&[0; flows::FRAME], None, left.min(RUN))?.retval;
            time += cpu::time().saturating_sub(begun);
            left -= left.min(RUN);
        }
        let is_ours = std::ptr::eq(program, &raw const self.ours);
        ensure!(
            answer != 0 && (!is_ours || forwarded()? == before + u64::from(packets)),
            "not all packets were forwarded (the last one: {}); the counters: {:?}",
            answer,
            self.front.port_stats(PortId(0))?
        );
        Ok(time.as_nanos() as f64 / f64::from(packets))
    }
}

/// Returns rules over `masks` masks, in turn: prefixes of 25 to 32 bits of both addresses of the
/// first flows, so that each hot flow has its rule, and few cold ones do. Their ranks let no search
/// end before the last mask.
fn rule_set(count: u32, masks: u32, flows: &Flows) -> (Vec<Mask>, Vec<(Key, Rule)>) {
    let lengths = |mask: u32| (32 - mask % 8, 32 - mask / 8);
    let bits_of = |length: u32| u32::MAX << (32 - length);
    let with = |source: u32, destination: u32, protocol, ip_version| {
        let mut key = Key { protocol, ip_version, ..Key::default() };
        key.source[..4].copy_from_slice(&source.to_be_bytes());
        key.destination[..4].copy_from_slice(&destination.to_be_bytes());
        key
    };
    let mask_of = |mask: u32| {
        let (source, destination) = lengths(mask);
        let bits = with(bits_of(source), bits_of(destination), u8::MAX, u8::MAX);
        Mask { bits, rank_best: mask, ..Mask::default() }
    };
    let rule_of = |rank: u32| {
        let (source, destination) = lengths(rank % masks);
        let (from, to) = flows.benign()[rank as usize % COLD].addresses();
        let from = u32::from_be_bytes(from) & bits_of(source);
        let to = u32::from_be_bytes(to) & bits_of(destination);
        let key = with(from, to, wire::protocol::UDP, 4);
        let rule = Rule { rank, rule: rank, action: ACTION_FORWARD, ..Rule::default() };
        (Key { mask: (rank % masks) as u16, ..key }, rule)
    };
    ((0..masks).map(mask_of).collect(), (0..count).map(rule_of).collect())
}

/// Compares the rounds of one case.
fn compared(rules: u32, masks: u32, rounds: &[Rounds; 4]) -> Vec<Measurement> {
    let [hot, cold, colliding, fresh] = rounds;
    let case = format!("classify.{rules}x{masks}");
    let compare = |rounds: &Rounds, variant: &str, baseline, baseline_name, goal| {
        rounds.compare(Pair {
            metric: format!("{case}{variant}"),
            unit: "ns over empty",
            baseline_name,
            baseline,
            better: Better::Lower,
            goal,
        })
    };
    let goal = if masks > 1 { GOAL_MANY } else { GOAL_HOT };
    let mut hot = compare(hot, "", 1, FORWARDS, Some(goal));
    hot.goal_for = GoalFor::Ours;
    vec![
        hot,
        compare(cold, ".cold", 1, FORWARDS, Some(GOAL_COLD)),
        compare(cold, ".cold.lookup", 2, LOOKS_UP, None),
        compare(colliding, ".colliding", 1, BENIGN, Some(GOAL_CRAFTED)),
        compare(fresh, ".never_twice", 1, BENIGN, Some(GOAL_CRAFTED)),
    ]
}
