//! Any bytes as a frame: parsing, hashing, classifying and rewriting never panic. (Tests of
//! levels/bpf show that the front door in C reads every frame as this parser does.)

use wire::checksum::verify_l4;
use wire::samples::samples;
use wire::{flow_hash, parse_frame, rewrite};

pub fn parse(frame: &[u8]) {
    let Ok(parsed) = parse_frame(frame) else { return };
    assert!(parsed.ip_end() <= frame.len());
    assert!(parsed.l4_offset.is_none_or(|offset| usize::from(offset) <= parsed.ip_end()));
    let _: u32 = flow_hash(&parsed);
    let intact = verify_l4(frame, &parsed);

    let mut routed = frame.to_vec();
    let answer = rewrite::route(&mut routed, parsed.l3_offset, [2; 6], [4; 6]);
    assert_eq!(answer.is_ok(), parsed.ttl > 1);
    rewrite::set_dscp(&mut routed, parsed.l3_offset, 46).expect("the header was parsed");
    let after = parse_frame(&routed).expect("rewriting keeps a packet well-formed");
    assert_eq!((after.dscp, after.ecn), (46, parsed.ecn));
    assert_eq!(verify_l4(&routed, &after), intact);
}

pub fn seeds() -> Vec<Vec<u8>> {
    samples().into_iter().map(|sample| sample.frame).collect()
}
