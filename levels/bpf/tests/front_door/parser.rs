//! Comparison of the front door's parser in C with `wire::parse_frame`, on the same frames.
//!
//! Each frame runs twice: with a rule for everything that sends it to a cell, which shows all
//! parsed fields as metadata, and with no rule.

use std::fmt::Write as _;
use std::path::Path;

use bpf_maps::{ACTION_USER, Key, Mask, PacketMeta, Rule};
use wire::samples::{Mutations, samples};
use wire::{
    Fragment, FrameBuilder, Hidden, Outcome, Parsed, flow_hash, parse_frame, protocol as p,
};

use crate::harness::{Done, FrontDoor, RULE_NONE, addressed, key_of};
use crate::namespace::enter;

/// Number of mutations of one ordinary run, and with `TAM_SOAK=1`.
const MUTATIONS: usize = 100_000;
const MUTATIONS_SOAK: usize = 1_000_000;
/// Most mismatches that a failed test shows.
const SHOWN_MAX: usize = 10;
/// Bytes that a test run keeps in the first buffer: a page without headroom (256) and tailroom
/// (320, `struct skb_shared_info`).
const LINEAR_LENGTH: usize = 4096 - 256 - 320;
/// Shortest frame that a test run takes.
const LENGTH_MIN: usize = p::ETHERNET_LENGTH;

/// Indexes of the rule set without rules, and of the one that sends everything to a cell.
const PLAIN: usize = 0;
const TO_CELL: usize = 1;
/// Rule for everything.
const ALL: Rule =
    Rule { rank: 0, rule: 77, session: 5, entry: 9, action: ACTION_USER, zero: [0; 3] };

#[test]
fn samples_are_read_as_in_rust() {
    if !enter("samples_are_read_as_in_rust") {
        return;
    }
    let mut comparison = Comparison::new();
    samples().into_iter().for_each(|sample| comparison.frame(sample.frame));
    comparison.finish(60);
}

#[test]
fn golden_packets_and_their_heads_are_read_as_in_rust() {
    if !enter("golden_packets_and_their_heads_are_read_as_in_rust") {
        return;
    }
    let mut comparison = Comparison::new();
    for frame in golden_packets() {
        for length in 0..=frame.len() {
            comparison.frame(frame[..length].to_vec());
        }
    }
    comparison.finish(5000);
}

#[test]
fn mutated_frames_are_read_as_in_rust() {
    if !enter("mutated_frames_are_read_as_in_rust") {
        return;
    }
    let soak = std::env::var("TAM_SOAK").is_ok_and(|value| value == "1");
    let count = if soak { MUTATIONS_SOAK } else { MUTATIONS };
    let mut comparison = Comparison::new();
    Mutations::new(1).take(count).for_each(|frame| comparison.frame(frame));
    comparison.finish(count * 9 / 10);
}

#[test]
fn l4_headers_beyond_the_parsers_reach_are_hidden() {
    if !enter("l4_headers_beyond_the_parsers_reach_are_hidden") {
        return;
    }
    let mut comparison = Comparison::new();
    for count in 1..=4 {
        let start = FrameBuilder::new().ipv6([1; 16], [2; 16], 64);
        let long = |builder: FrameBuilder, _| builder.extension(p::DESTINATION_OPTIONS, &[0; 2046]);
        let frame = (0..count).fold(start, long).udp(1, 2).build();
        let parsed = parse_frame(&frame).unwrap();
        comparison.front_door.activate(TO_CELL);
        let done = comparison.front_door.run(&addressed(frame.clone()));
        assert_eq!(done.outcome, "kernel_no_socket", "{count}: a rule for everything has it");
        let meta: PacketMeta = bytemuck::pod_read_unaligned(&done.bytes[..size_of::<PacketMeta>()]);
        // The preceding header gives the type of the next.
        let far = 14 + 40 + (count - 1) * 2048 + 8 > LINEAR_LENGTH;
        let protocol = if far { p::DESTINATION_OPTIONS } else { p::UDP };
        assert_eq!(meta.flags >> 16 & 0xff, u32::from(protocol), "{count}");
        let hidden = match count {
            1 => Hidden::Nothing,
            2 => Hidden::Ports,
            _ => Hidden::Protocol,
        };
        assert_eq!(parsed.hidden, hidden, "{count}");
        comparison.frame(frame);
    }
    comparison.finish(4);
}

/// Returns the frames of `vectors/wire`.
pub fn golden_packets() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/wire");
    let mut frames = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "hex") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let (_, bytes) = text.split_once("\n\n").unwrap();
        let digits: Vec<u8> = bytes.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        frames.push(digits.chunks(2).map(byte).collect());
    }
    assert!(frames.len() >= 50, "only {} golden packets were found", frames.len());
    frames
}

/// Comparison of both parsers; collects the mismatches.
struct Comparison {
    front_door: FrontDoor,
    /// Front door with the shortcut for common frames.
    common: FrontDoor,
    compared: usize,
    differences: Vec<String>,
}

impl Comparison {
    fn new() -> Self {
        let everything = Mask { bits: Key { mask: u16::MAX, ..Key::default() }, ..Mask::default() };
        let [front_door, common] =
            [FrontDoor::load_taking_apart(), FrontDoor::load(None)].map(|mut door| {
                door.install(TO_CELL, &[everything], &[(Key::default(), ALL)]);
                door
            });
        Self { front_door, common, compared: 0, differences: Vec::new() }
    }

    fn frame(&mut self, frame: Vec<u8>) {
        let frame = addressed(frame);
        let answer = parse_frame(&frame);
        if frame.len() < LENGTH_MIN {
            assert_eq!(answer, Err(Outcome::Truncated));
            return;
        }
        self.compared += 1;
        for (set, check) in [(TO_CELL, differs_to_cell as Check), (PLAIN, differs_plain)] {
            self.front_door.activate(set);
            self.common.activate(set);
            let done = self.front_door.run(&frame);
            // The second time it may come from the cache.
            self.common.heartbeat();
            let common = [(); 2].map(|()| Done { cached: false, ..self.common.run(&frame) });
            let answer = answer.as_ref();
            let difference = match answer {
                _ if common != [done.clone(), done.clone()] => {
                    Some(format!("{common:x?} by the short cut, {done:x?}"))
                }
                _ if done.counted != frame.len() as u64 => {
                    Some(format!("counted {} bytes of {}", done.counted, frame.len()))
                }
                _ if too_far(&frame, answer) => None,
                Err(Outcome::VlanDepth) if set == TO_CELL && done.outcome == "drop_vlan_depth" => {
                    None
                }
                Err(outcome) if done.outcome == outcome.name() => None,
                Err(outcome) => Some(format!("C {}, Rust {}", done.outcome, outcome.name())),
                Ok(parsed) if parsed.is_link_local(&frame) => (done.outcome != "kernel_link_local")
                    .then(|| format!("C {}, Rust kernel_link_local", done.outcome)),
                Ok(parsed) => check(&self.front_door, parsed, &done, &frame),
            };
            if let Some(difference) = difference {
                self.note(&frame, &difference);
            }
        }
    }

    fn note(&mut self, frame: &[u8], difference: &str) {
        let mut line = format!("{difference}, {} bytes: ", frame.len());
        for byte in &frame[..frame.len().min(160)] {
            write!(line, "{byte:02x}").unwrap();
        }
        self.differences.push(line);
    }

    fn finish(self, compared_min: usize) {
        let count = self.differences.len();
        let shown = self.differences[..count.min(SHOWN_MAX)].join("\n");
        assert_eq!(count, 0, "of {} frames:\n{shown}", self.compared);
        assert!(self.compared >= compared_min, "only {} frames", self.compared);
    }
}

type Check = fn(&FrontDoor, &Parsed, &Done, &[u8]) -> Option<String>;

/// Compares the metadata of a packet on its way to a cell with Rust's result.
fn differs_to_cell(door: &FrontDoor, parsed: &Parsed, done: &Done, frame: &[u8]) -> Option<String> {
    if done.outcome != "kernel_no_socket" {
        return Some(format!("C {}, Rust parsed it", done.outcome));
    }
    let (found, rest) = done.bytes.split_at(size_of::<PacketMeta>());
    let found: PacketMeta = bytemuck::pod_read_unaligned(found);
    let mut parsed = *parsed;
    if parsed.fragment == Fragment::Later && parsed.ip_version == 6 {
        // Its first fragment may have come before, and shown the protocol behind its headers.
        parsed.protocol = (found.flags >> 16) as u8;
    }
    let (parsed, expected) = (&parsed, meta_of(&parsed));
    if rest != frame {
        return Some("the frame was changed".to_owned());
    }
    if found != expected {
        return Some(format!("metadata\n    C {found:x?}\n Rust {expected:x?}\n"));
    }
    differs_key(door, parsed, ALL.rule as u16)
}

/// Compares the key in the flow cache, and its rule.
fn differs_key(door: &FrontDoor, parsed: &Parsed, rule: u16) -> Option<String> {
    if parsed.fragment == Fragment::Later {
        // Its first fragment may have come before, and left its L4 ports; `fragments` tests that.
        return None;
    }
    let (flow, expected) = (door.flow(&key_of(parsed)), key_of(parsed));
    (flow.key != expected || flow.meta.rule != rule || flow.generation != door.generation())
        .then(|| format!("key\n    C {flow:x?}\n Rust {expected:x?}\n"))
}

/// Checks that without a rule the kernel gets the packet, for there is no route.
fn differs_plain(door: &FrontDoor, parsed: &Parsed, done: &Done, frame: &[u8]) -> Option<String> {
    if !matches!(
        done.outcome,
        "kernel_local" | "kernel_partial" | "kernel_source" | "kernel_vlan_depth" | "kernel_other"
    ) {
        return Some(format!("C {}, Rust parsed it", done.outcome));
    }
    if done.bytes != frame {
        return Some("the frame was changed".to_owned());
    }
    differs_key(door, parsed, RULE_NONE)
}

/// Returns the metadata of a packet that matched [`ALL`] and has no route.
fn meta_of(parsed: &Parsed) -> PacketMeta {
    let fragment = match parsed.fragment {
        Fragment::None => 0,
        Fragment::First => bpf_maps::META_FRAGMENT,
        Fragment::Later => bpf_maps::META_FRAGMENT | bpf_maps::META_LATER_FRAGMENT,
    };
    // There is no VLAN device.
    let is_tagged = parsed.vlan.is_some_and(|tag| tag.id != 0);
    PacketMeta {
        egress_vlan: if is_tagged { bpf_maps::VLAN_UNKNOWN } else { 0 },
        rule: ALL.rule as u16,
        then: [RULE_NONE; 2],
        entry: ALL.entry,
        arrival_port: crate::harness::PORT,
        l3_offset: parsed.l3_offset,
        l4_offset: parsed.l4_offset.unwrap_or(0xffff),
        flow_hash: flow_hash(parsed),
        flags: fragment | u32::from(parsed.ip_version) << 8 | u32::from(parsed.protocol) << 16,
        ..PacketMeta::default()
    }
}

/// Returns true if the front door may hide what Rust reads because a header lies in a later buffer
/// of a frame that has several.
fn too_far(frame: &[u8], answer: Result<&Parsed, &Outcome>) -> bool {
    let read = match answer {
        Ok(parsed) if parsed.hidden == Hidden::Protocol => frame.len(),
        Ok(parsed) => usize::from(parsed.l4_offset.unwrap_or(0)) + 14,
        Err(_) => 0,
    };
    frame.len() > LINEAR_LENGTH && read > LINEAR_LENGTH
}
