//! Sample frames, well-formed and malformed, and mutations of them: the same for every parser.
//!
//! `parse`'s tests and the comparison with the front door both run these, so that no case is known
//! to one of them only. Expected results are not here but in the tests and in `vectors/wire`.

use crate::build::FrameBuilder;
use crate::parse::{EXTENSIONS_MAX, VlanTag};
use crate::protocol as p;

/// Frame with a descriptive name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Name for messages of failed tests.
    pub name: &'static str,
    /// Bytes from the destination MAC address on.
    pub frame: Vec<u8>,
}

/// Bytes of an Ethernet frame with the largest common jumbo MTU of 9,000.
pub const JUMBO_FRAME_LENGTH: usize = 9014;

/// Returns every sample, well-formed ones first.
#[must_use]
pub fn samples() -> Vec<Sample> {
    let named = |(name, builder): (_, FrameBuilder)| Sample { name, frame: builder.build() };
    let well_formed = well_formed().into_iter().map(named);
    let unusual = unusual().into_iter().map(named);
    let broken = broken().into_iter().map(named);
    let cut = [0, 1, 13]
        .map(|length| Sample { name: "shorter than an Ethernet header", frame: vec![0; length] });
    well_formed.chain(unusual).chain(broken).chain(cut).collect()
}

/// Starts an IPv4 packet from 10.0.0.1 to 10.0.1.2.
fn v4() -> FrameBuilder {
    FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 1, 2], 64)
}

/// Starts an IPv6 packet from 2001:db8::1 to 2001:db8:1::2.
fn v6() -> FrameBuilder {
    let source = [0x2001, 0x0db8, 0, 0, 0, 0, 0, 1];
    FrameBuilder::new().ipv6(source, [0x2001, 0x0db8, 1, 0, 0, 0, 0, 2], 64)
}

/// Returns frames that ordinary programs send.
fn well_formed() -> Vec<(&'static str, FrameBuilder)> {
    let service =
        VlanTag { protocol: p::ETHERTYPE_SERVICE_VLAN, id: 10, priority: 5, drop_eligible: true };
    vec![
        ("IPv4 UDP", v4().udp(4000, 53).payload(b"hello")),
        ("IPv4 UDP, padded to 60 bytes", v4().udp(4000, 53).pad_to(60)),
        ("IPv4 UDP, marked", v4().udp(4000, 53).dscp(46).ecn(1)),
        ("IPv4 TCP SYN", v4().tcp(4000, 80, p::TCP_SYN)),
        ("IPv4 TCP, 1460 bytes", v4().tcp(80, 4000, p::TCP_ACK | p::TCP_PSH).payload(&[7; 1460])),
        ("IPv4 ICMP echo", v4().icmp_echo(1, 2).payload(&[8; 56])),
        ("IPv4 UDP, VLAN 100", v4().vlan(100).udp(1, 2)),
        ("IPv4 UDP, two tags", v4().vlan_tag(service).vlan(20).udp(1, 2)),
        ("IPv6 UDP", v6().udp(4000, 53).payload(b"hello")),
        ("IPv6 TCP", v6().tcp(4000, 80, p::TCP_ACK).payload(&[7; 100])),
        ("IPv6 ICMPv6 echo reply", v6().icmp_echo_reply(1, 2).dscp(63)),
        ("IPv6 UDP, VLAN 4095", v6().vlan(4095).udp(1, 2)),
        ("ARP", FrameBuilder::new().ethertype(p::ETHERTYPE_ARP).payload(&[0; 28])),
        ("IPv4 UDP, jumbo", v4().udp(1, 2).payload(&vec![9; JUMBO_FRAME_LENGTH - 42])),
        ("IPv6 UDP, jumbo", v6().udp(1, 2).payload(&vec![9; JUMBO_FRAME_LENGTH - 62])),
    ]
}

/// Returns correct but rare frames: fragments, options, extension headers, other protocols.
fn unusual() -> Vec<(&'static str, FrameBuilder)> {
    let id = |builder: FrameBuilder| builder.identification(0xbeef);
    let chain = |count: u8| {
        let chain = (1..count).fold(v6().extension(p::HOP_BY_HOP, &[]), |builder, _| {
            builder.extension(p::DESTINATION_OPTIONS, &[0; 14])
        });
        chain.udp(7, 8)
    };
    vec![
        ("IPv4 first fragment", id(v4()).udp(1, 2).fragment(0, true).payload(&[1; 8])),
        ("IPv4 later fragment", id(v4()).udp(1, 2).fragment(1480, false).payload(&[1; 3])),
        ("IPv4 first fragment too short for UDP", id(v4()).protocol(p::UDP).fragment(0, true)),
        ("IPv4 options", v4().options(&[7, 7, 4, 0, 0, 0, 0, 0]).udp(1, 2)),
        ("IPv4 most options", v4().options(&[1; 40]).tcp(1, 2, p::TCP_RST)),
        ("IPv4 SCTP", v4().protocol(p::SCTP).payload(&[0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("IPv4 UDP-Lite", v4().protocol(p::UDP_LITE).payload(&[0, 1, 0, 2, 0, 8, 0, 0])),
        ("IPv4 DCCP", v4().protocol(p::DCCP).payload(&[3; 12])),
        ("IPv4 GRE without payload", v4().protocol(47)),
        ("IPv4 protocol 59", v4().protocol(p::NO_NEXT_HEADER).payload(&[1; 4])),
        ("IPv6 no next header", v6().payload(&[1, 2, 3])),
        ("IPv6 empty", v6()),
        ("IPv6 ESP", v6().protocol(p::ESP).payload(&[5; 32])),
        ("IPv6 hop-by-hop", v6().extension(p::HOP_BY_HOP, &[5, 2, 0, 0]).icmp_echo(1, 1)),
        ("IPv6 AH", v6().extension(p::AUTHENTICATION, &[0; 22]).tcp(1, 2, p::TCP_FIN)),
        (
            "IPv6 routing, mobility",
            v6().extension(p::ROUTING, &[]).extension(p::MOBILITY, &[]).udp(1, 2),
        ),
        ("IPv6 HIP, shim6", v6().extension(p::HIP, &[]).extension(p::SHIM6, &[]).udp(1, 2)),
        ("IPv6 longest extension", v6().extension(p::DESTINATION_OPTIONS, &[0; 2046]).udp(1, 2)),
        ("IPv6 first fragment", id(v6()).udp(1, 2).fragment(0, true).payload(&[1; 8])),
        ("IPv6 later fragment", id(v6()).udp(1, 2).fragment(1448, true).payload(&[1; 8])),
        ("IPv6 atomic fragment", id(v6()).udp(1, 2).fragment(0, false).payload(&[1; 8])),
        (
            "IPv6 later fragment of a chain",
            id(v6()).fragment(8, false).extension(p::DESTINATION_OPTIONS, &[]).udp(1, 2),
        ),
        ("IPv6 eight extension headers", chain(EXTENSIONS_MAX)),
        ("IPv6 nine extension headers", chain(EXTENSIONS_MAX + 1)),
        // The payload after the IP header is for its receiver to judge.
        ("IPv6 payload length 0 before UDP", v6().udp(1, 2).payload(&[1; 20]).patch(18, &[0, 0])),
        ("IPv4 TCP of 19 bytes", v4().protocol(p::TCP).payload(&[0; 19]).pad_to(60)),
        ("IPv4 ICMP of 7 bytes", v4().protocol(p::ICMP).payload(&[0; 7])),
        ("IPv6 SCTP of 11 bytes", v6().protocol(p::SCTP).payload(&[0; 11]).pad_to(90)),
        ("IPv6 extension cut off", v6().protocol(p::SHIM6).payload(&[59, 0, 0])),
        (
            "IPv6 extension beyond the packet",
            v6().extension(p::ROUTING, &[]).udp(1, 2).patch(55, &[9]),
        ),
        ("IPv6 AH beyond the packet", v6().extension(p::AUTHENTICATION, &[]).patch(55, &[1])),
    ]
}

/// Returns malformed and damaged frames. Offsets count from the frame's start: IP at 14, L4 at 34
/// or 54.
fn broken() -> Vec<(&'static str, FrameBuilder)> {
    let udp4 = || v4().udp(1, 2).payload(&[1; 20]);
    let udp6 = || v6().udp(1, 2).payload(&[1; 20]);
    let tags = |count: u16| (0..count).fold(FrameBuilder::new(), |builder, id| builder.vlan(id));
    vec![
        ("three tags", tags(3).ipv4([1; 4], [2; 4], 9).udp(1, 2)),
        ("ten tags", tags(10).ipv4([1; 4], [2; 4], 9).udp(1, 2)),
        ("ten tags and nothing", tags(10).ethertype(p::ETHERTYPE_VLAN)),
        ("IPv4 with version 6", udp4().patch(14, &[0x65])),
        ("IPv4 with version 0", udp4().patch(14, &[0x05])),
        ("IPv4 header of 16 bytes", udp4().patch(14, &[0x44])),
        ("IPv4 header of 60 bytes that are not there", udp4().patch(14, &[0x4f])),
        ("IPv4 total length 0", udp4().patch(16, &[0, 0])),
        ("IPv4 total length below the header", udp4().patch(16, &[0, 19])),
        ("IPv4 total length beyond the frame", udp4().patch(16, &[0, 49])),
        ("IPv4 total length 65535", udp4().patch(16, &[0xff, 0xff])),
        ("IPv4 checksum wrong", udp4().patch(24, &[0x12, 0x34])),
        ("IPv4 checksum wrong in the options", v4().options(&[1; 8]).udp(1, 2).patch(35, &[0])),
        ("IPv6 with version 4", udp6().patch(14, &[0x45])),
        ("IPv6 payload length beyond the frame", udp6().patch(18, &[0, 29])),
        (
            "IPv6 jumbogram",
            v6().extension(p::HOP_BY_HOP, &[0xc2, 4, 0, 1, 0, 0]).patch(18, &[0, 0]),
        ),
    ]
}

/// Endless mutations of the samples, the same for the same seed.
#[derive(Clone, Debug)]
pub struct Mutations {
    state: u64,
    samples: Vec<Sample>,
}

impl Mutations {
    /// Starts the sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed, samples: samples() }
    }

    /// Returns a number below `bound` by SplitMix64 (Steele, Lea, Flood 2014); its bias at these
    /// bounds is negligible.
    fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % (bound as u64).max(1)) as usize
    }
}

/// Bytes at a frame's start in which mutations fall: the headers, rarely payload.
const MUTATED_HEAD: usize = 96;

impl Iterator for Mutations {
    type Item = Vec<u8>;

    /// Returns a sample with up to four changed bytes, sometimes shorter or longer. Half of them
    /// get a correct IPv4 checksum again, to be parsed further.
    fn next(&mut self) -> Option<Vec<u8>> {
        let chosen = self.below(self.samples.len());
        let mut frame = self.samples[chosen].frame.clone();
        for _ in 0..self.below(5) {
            let at = self.below(frame.len().min(MUTATED_HEAD));
            let value = match self.below(3) {
                0 => [0, 1, 4, 6, 44, 59, 60, 0x45, 0x81, 0xff][self.below(10)],
                1 => 1 << self.below(8),
                _ => self.below(256) as u8,
            };
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= value;
            }
        }
        match self.below(8) {
            0 => frame.truncate(self.below(frame.len() + 1)),
            1 => frame.resize(frame.len() + self.below(8), 0xa5),
            _ => {}
        }
        if self.below(2) == 0 {
            refresh_ipv4_checksum(&mut frame);
        }
        Some(frame)
    }
}

/// Writes the correct header checksum into an untagged IPv4 frame, if it is one.
fn refresh_ipv4_checksum(frame: &mut [u8]) {
    let Some(first) = frame.get(p::ETHERNET_LENGTH) else { return };
    let end = p::ETHERNET_LENGTH + usize::from(first & 0x0f) * 4;
    if let Some(header) = frame.get_mut(p::ETHERNET_LENGTH..end)
        && header.len() >= p::IPV4_LENGTH
        && header[0] >> 4 == 4
    {
        header[10..12].fill(0);
        let sum = crate::checksum::checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Fragment, Outcome, parse_frame};

    #[test]
    fn the_samples_reach_every_outcome() {
        let answers: Vec<_> = samples().iter().map(|sample| parse_frame(&sample.frame)).collect();
        for outcome in Outcome::ALL {
            assert!(answers.contains(&Err(outcome)), "no sample is {}", outcome.name());
        }
        for fragment in [Fragment::None, Fragment::First, Fragment::Later] {
            assert!(answers.iter().flatten().any(|parsed| parsed.fragment == fragment));
        }
    }

    #[test]
    fn well_formed_samples_parse_and_broken_ones_do_not() {
        for (name, builder) in well_formed() {
            let answer = parse_frame(&builder.build());
            assert!(answer.is_ok() || name == "ARP", "{name}: {answer:?}");
        }
        for (name, builder) in broken() {
            assert!(parse_frame(&builder.build()).is_err(), "{name} parses");
        }
    }

    #[test]
    fn one_seed_gives_one_sequence() {
        let take = |seed| Mutations::new(seed).take(100).collect::<Vec<_>>();
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
    }
}
