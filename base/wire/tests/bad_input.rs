//! Tests of malformed frames: each row is a frame that an attacker could send, with its outcome.

#![forbid(unsafe_code)]

use wire::samples::{JUMBO_FRAME_LENGTH, Mutations, samples};
use wire::{Fragment, FrameBuilder, Hidden, Outcome, Parsed, flow_hash, parse_frame};

/// Returns the parser's result for the sample with this name.
fn answer(name: &str) -> Result<Parsed, Outcome> {
    let all = samples();
    let sample = all.iter().find(|sample| sample.name == name).expect("a sample with that name");
    parse_frame(&sample.frame)
}

#[test]
fn each_malformed_header_has_its_own_outcome() {
    let rows = [
        ("three tags", Outcome::VlanDepth),
        ("ten tags", Outcome::VlanDepth),
        ("ten tags and nothing", Outcome::VlanDepth),
        ("ARP", Outcome::NotIp),
        ("shorter than an Ethernet header", Outcome::Truncated),
        ("IPv4 with version 6", Outcome::IpVersion),
        ("IPv4 with version 0", Outcome::IpVersion),
        ("IPv4 header of 16 bytes", Outcome::HeaderLength),
        ("IPv4 header of 60 bytes that are not there", Outcome::Truncated),
        ("IPv4 total length 0", Outcome::TotalLength),
        ("IPv4 total length below the header", Outcome::TotalLength),
        ("IPv4 total length beyond the frame", Outcome::TotalLength),
        ("IPv4 total length 65535", Outcome::TotalLength),
        ("IPv4 checksum wrong", Outcome::Checksum),
        ("IPv4 checksum wrong in the options", Outcome::Checksum),
        ("IPv6 with version 4", Outcome::IpVersion),
        ("IPv6 payload length beyond the frame", Outcome::TotalLength),
        ("IPv6 jumbogram", Outcome::TotalLength),
    ];
    for (name, outcome) in rows {
        assert_eq!(answer(name), Err(outcome), "{name}");
    }
}

#[test]
fn unreadable_l4_and_extension_headers_are_hidden_fields_and_no_error() {
    let rows = [
        ("IPv4 TCP of 19 bytes", Hidden::Nothing),
        ("IPv4 ICMP of 7 bytes", Hidden::Nothing),
        ("IPv4 first fragment too short for UDP", Hidden::Ports),
        ("IPv6 payload length 0 before UDP", Hidden::Ports),
        ("IPv6 extension beyond the packet", Hidden::Protocol),
        ("IPv6 AH beyond the packet", Hidden::Protocol),
        ("IPv6 extension cut off", Hidden::Protocol),
        ("IPv6 SCTP of 11 bytes", Hidden::Nothing),
        ("IPv6 nine extension headers", Hidden::Protocol),
    ];
    for (name, hidden) in rows {
        let parsed = answer(name).unwrap();
        assert_eq!((parsed.hidden, parsed.l4_offset), (hidden, None), "{name}");
    }
}

#[test]
fn the_first_eight_bytes_of_a_segment_show_its_l4_ports_and_hide_its_flags() {
    let segment = FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).tcp(7, 8, 2);
    let first = &segment.payload(&[0; 64]).build_fragments(8)[0];
    let parsed = parse_frame(first).unwrap();
    assert_eq!((parsed.ip_length, parsed.fragment), (28, Fragment::First));
    assert_eq!((parsed.source_port, parsed.destination_port), (7, 8));
    assert_eq!((parsed.hidden, parsed.l4_offset), (Hidden::Flags, None));
}

#[test]
fn a_chain_of_eight_extension_headers_is_read_to_its_end() {
    let parsed = answer("IPv6 eight extension headers").unwrap();
    assert_eq!((parsed.protocol, parsed.source_port, parsed.destination_port), (17, 7, 8));
    assert_eq!(parsed.l4_offset, Some(14 + 40 + 8 + 7 * 16));
    assert!(parsed.has_options);
}

#[test]
fn a_jumbo_frame_is_read_whole_and_refused_one_byte_shorter() {
    for name in ["IPv4 UDP, jumbo", "IPv6 UDP, jumbo"] {
        let all = samples();
        let frame = &all.iter().find(|sample| sample.name == name).unwrap().frame;
        assert_eq!(frame.len(), JUMBO_FRAME_LENGTH);
        assert_eq!(parse_frame(frame).unwrap().ip_end(), JUMBO_FRAME_LENGTH);
        let short = &frame[..JUMBO_FRAME_LENGTH - 1];
        assert_eq!(parse_frame(short), Err(Outcome::TotalLength));
    }
}

#[test]
fn an_extension_header_of_the_largest_length_is_walked() {
    let parsed = answer("IPv6 longest extension").unwrap();
    assert_eq!((parsed.l4_offset, parsed.protocol), (Some(14 + 40 + 2048), 17));
}

#[test]
fn a_million_mutated_frames_never_panic_and_what_parses_lies_within_the_frame() {
    let mut parsed_count = 0_u32;
    for frame in Mutations::new(0x7a6d_616e_6475_6121).take(1_000_000) {
        let Ok(parsed) = parse_frame(&frame) else { continue };
        parsed_count += 1;
        let _: u32 = flow_hash(&parsed);
        assert!(parsed.ip_end() <= frame.len(), "{frame:02x?}");
        let l4 = parsed.l4_offset.map_or(0, usize::from);
        assert!(l4 <= parsed.ip_end(), "{frame:02x?}");
    }
    // Mutations that all fail early would prove little.
    assert!((200_000..900_000).contains(&parsed_count), "{parsed_count} of a million parsed");
}
