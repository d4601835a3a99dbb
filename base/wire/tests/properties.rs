//! Properties of parser, builder, checksums and rewriting, over generated frames.

#![forbid(unsafe_code)]

use proptest::collection::vec;
use proptest::prelude::*;
use wire::checksum::{L4Checksum, checksum, l4_checksum, update_u16, update_u32, verify_l4};
use wire::{Fragment, FrameBuilder, Outcome, parse_frame, protocol, rewrite};

/// Parts of a generated frame.
#[derive(Clone, Debug)]
struct Plan {
    tags: Vec<u16>,
    v6: bool,
    addresses: ([u8; 16], [u8; 16]),
    ttl: u8,
    dscp: u8,
    ecn: u8,
    extensions: Vec<(u8, usize)>,
    options: usize,
    l4: u8,
    l4_ports: (u16, u16),
    flags: u8,
    payload: Vec<u8>,
    padding: usize,
}

fn plan() -> impl Strategy<Value = Plan> {
    let extension = prop::sample::select(vec![
        protocol::ROUTING,
        protocol::DESTINATION_OPTIONS,
        protocol::AUTHENTICATION,
        protocol::MOBILITY,
        protocol::HIP,
        protocol::SHIM6,
    ]);
    let l2 = (vec(0_u16..4096, 0..=2), 0_usize..20);
    let l3 = (any::<bool>(), any::<([u8; 16], [u8; 16])>(), any::<u8>(), 0_u8..64, 0_u8..4);
    let chain = (vec((extension, 0_usize..40), 0..=8), 0_usize..=40);
    let l4 = (0_u8..4, any::<(u16, u16)>(), any::<u8>(), vec(any::<u8>(), 0..200));
    (l2, l3, chain, l4).prop_map(|(l2, l3, chain, l4)| Plan {
        tags: l2.0,
        padding: l2.1,
        v6: l3.0,
        addresses: l3.1,
        ttl: l3.2,
        dscp: l3.3,
        ecn: l3.4,
        extensions: chain.0,
        options: chain.1,
        l4: l4.0,
        l4_ports: l4.1,
        flags: l4.2,
        payload: l4.3,
    })
}

/// Returns the builder of the plan's frame, without padding.
fn builder(plan: &Plan) -> FrameBuilder {
    let mut builder = plan.tags.iter().fold(FrameBuilder::new(), |builder, id| builder.vlan(*id));
    let (source, destination) = plan.addresses;
    builder = if plan.v6 {
        let with_ip = builder.ipv6(source, destination, plan.ttl);
        plan.extensions
            .iter()
            .fold(with_ip, |builder, (kind, length)| builder.extension(*kind, &vec![0; *length]))
    } else {
        let [a, b, c, d, ..] = source;
        let [e, f, g, h, ..] = destination;
        builder.ipv4([a, b, c, d], [e, f, g, h], plan.ttl).options(&vec![1; plan.options])
    };
    let (from, to) = plan.l4_ports;
    let builder = match plan.l4 {
        0 => builder.udp(from, to),
        1 => builder.tcp(from, to, plan.flags),
        2 => builder.icmp_echo(from, to),
        _ => builder.protocol(protocol::ESP),
    };
    builder.dscp(plan.dscp).ecn(plan.ecn).payload(&plan.payload)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_built_is_what_is_parsed(plan in plan()) {
        let frame = builder(&plan).build();
        let padded = builder(&plan).pad_to(frame.len() + plan.padding).build();
        let parsed = parse_frame(&padded).unwrap();
        prop_assert_eq!(Ok(parsed), parse_frame(&frame));
        prop_assert_eq!(usize::from(parsed.vlan_tags), plan.tags.len());
        prop_assert_eq!(parsed.vlan.map(|tag| tag.id), plan.tags.first().copied());
        prop_assert_eq!(parsed.ip_version, if plan.v6 { 6 } else { 4 });
        prop_assert_eq!(parsed.ip_end(), frame.len());
        let length = if plan.v6 { 16 } else { 4 };
        prop_assert_eq!(&parsed.source[..length], &plan.addresses.0[..length]);
        prop_assert_eq!(&parsed.destination[..length], &plan.addresses.1[..length]);
        prop_assert!(parsed.source[length..].iter().all(|byte| *byte == 0));
        prop_assert_eq!((parsed.dscp, parsed.ecn, parsed.ttl), (plan.dscp, plan.ecn, plan.ttl));
        prop_assert_eq!(parsed.fragment, Fragment::None);
        prop_assert_eq!(parsed.has_options, !plan.v6 && plan.options > 0);
        let ports = if plan.l4 < 2 { plan.l4_ports } else { (0, 0) };
        prop_assert_eq!((parsed.source_port, parsed.destination_port), ports);
        prop_assert_eq!(parsed.tcp_flags, if plan.l4 == 1 { plan.flags } else { 0 });
        let judged = if plan.l4 < 3 { L4Checksum::Right } else { L4Checksum::Unknown };
        prop_assert_eq!(l4_checksum(&padded, &parsed), judged);
    }

    #[test]
    fn a_damaged_payload_is_noticed(plan in plan(), at in any::<prop::sample::Index>(), bit in 0_u32..8) {
        prop_assume!(plan.l4 < 3 && !plan.payload.is_empty());
        let mut frame = builder(&plan).build();
        let length = frame.len();
        frame[length - 1 - at.index(plan.payload.len())] ^= 1_u8 << bit;
        let parsed = parse_frame(&frame).unwrap();
        prop_assert!(!verify_l4(&frame, &parsed));
    }

    #[test]
    fn a_cut_frame_is_truncated_or_has_a_wrong_total_length(plan in plan()) {
        let frame = builder(&plan).build();
        for length in 0..frame.len() {
            let answer = parse_frame(&frame[..length]);
            let named = matches!(answer, Err(Outcome::Truncated | Outcome::TotalLength));
            prop_assert!(named, "cut to {length} of {}: {answer:?}", frame.len());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300), ethertype in 0..4, offset: u16) {
        let mut bytes = bytes;
        if bytes.len() >= 14 {
            let ethertype = [0x0800_u16, 0x86dd, 0x8100, 0x88a8][ethertype as usize];
            bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
        }
        if let Ok(parsed) = parse_frame(&bytes) {
            prop_assert!(parsed.ip_end() <= bytes.len());
            let _: L4Checksum = l4_checksum(&bytes, &parsed);
            let _: L4Checksum = l4_checksum(&bytes[..14], &parsed);
        }
        for offset in [offset, offset % 64] {
            let mut copy = bytes.clone();
            if rewrite::route(&mut copy, offset, [1; 6], [2; 6]).is_err() {
                prop_assert_eq!(&copy, &bytes);
            }
            if rewrite::set_dscp(&mut copy, offset, 9).is_ok() {
                prop_assert_eq!(copy.len(), bytes.len());
            }
        }
    }

    #[test]
    fn an_updated_checksum_is_the_one_computed_anew(
        words in vec(any::<u16>(), 2..30), at in any::<prop::sample::Index>(), new: u32,
    ) {
        let sum = |words: &[u16]| {
            checksum(&words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>())
        };
        let at = at.index(words.len() - 1);
        let mut changed = words.clone();
        changed[at] = new as u16;
        if changed.iter().any(|word| *word != 0) {
            prop_assert_eq!(update_u16(sum(&words), words[at], new as u16), sum(&changed));
        }
        let old = (u32::from(words[at]) << 16) | u32::from(words[at + 1]);
        (changed[at], changed[at + 1]) = ((new >> 16) as u16, new as u16);
        if changed.iter().any(|word| *word != 0) {
            prop_assert_eq!(update_u32(sum(&words), old, new), sum(&changed));
        }
    }

    #[test]
    fn routing_and_marking_change_what_they_say_and_nothing_else(plan in plan(), dscp in 0_u8..64) {
        prop_assume!(plan.ttl > 1);
        let mut frame = builder(&plan).build();
        let before = parse_frame(&frame).unwrap();
        rewrite::route(&mut frame, before.l3_offset, [1; 6], [2; 6]).unwrap();
        rewrite::set_dscp(&mut frame, before.l3_offset, dscp).unwrap();
        let mut expected = plan.clone();
        (expected.ttl, expected.dscp) = (plan.ttl - 1, dscp);
        prop_assert_eq!(frame, builder(&expected).ethernet([1; 6], [2; 6]).build());
    }

    #[test]
    fn fragments_agree_on_the_datagram(plan in plan(), step in 8_usize..100) {
        let mut plan = plan;
        plan.extensions.truncate(7); // The fragment header is the eighth.
        let fragments = builder(&plan).identification(77).build_fragments(step);
        let whole = parse_frame(&builder(&plan).build()).unwrap();
        if fragments.len() == 1 || step < 24 {
            return Ok(()); // A first fragment below 24 bytes may cut its L4 header off.
        }
        for (index, frame) in fragments.iter().enumerate() {
            let parsed = parse_frame(frame).unwrap();
            let kind = if index == 0 { Fragment::First } else { Fragment::Later };
            prop_assert_eq!((parsed.fragment, parsed.fragment_id), (kind, 77));
            prop_assert_eq!(parsed.protocol, whole.protocol);
            prop_assert_eq!(parsed.l4_offset.is_some(), index == 0);
        }
    }
}
