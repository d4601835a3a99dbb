//! Runs the golden packets of `vectors/wire`: results of another implementation, not ours.

#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use wire::checksum::{L4Checksum, l4_checksum};
use wire::{Fragment, Hidden, Parsed, parse_frame};

/// Returns the folder of the golden packets.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/wire")
}

#[test]
fn every_golden_packet_parses_as_its_source_says() {
    let mut failures = String::new();
    let mut count = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "hex") {
            continue;
        }
        count += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let (head, bytes) = text.split_once("\n\n").unwrap();
        let (source, expected) = head.split_once('\n').unwrap();
        assert!(source.starts_with("source: "), "{} has no source", path.display());
        let digits: String = bytes.split_whitespace().collect();
        let frame = hex::decode(digits).unwrap();
        let found = describe(&frame);
        if found.trim_end() != expected {
            let name = path.display();
            writeln!(failures, "{name}\nexpected\n{expected}\nfound\n{found}").unwrap();
        }
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(count >= 50, "only {count} golden packets were found");
}

/// Returns the parser's result in the format of the files.
fn describe(frame: &[u8]) -> String {
    match parse_frame(frame) {
        Err(outcome) => format!("outcome: {}", outcome.name()),
        Ok(parsed) => describe_parsed(frame, &parsed),
    }
}

/// Returns every field, one line each.
fn describe_parsed(frame: &[u8], parsed: &Parsed) -> String {
    let mac = |bytes: [u8; 6]| bytes.map(|byte| format!("{byte:02x}")).join(":");
    let vlan = parsed.vlan.map_or("none".to_owned(), |tag| {
        let drop_eligible = u8::from(tag.drop_eligible);
        format!(
            "{:#06x} id {} priority {} drop_eligible {drop_eligible}",
            tag.protocol, tag.id, tag.priority
        )
    });
    let fragment = match parsed.fragment {
        Fragment::None => "none",
        Fragment::First => "first",
        Fragment::Later => "later",
    };
    let l4_checksum = match l4_checksum(frame, parsed) {
        L4Checksum::Right => "right",
        L4Checksum::Wrong => "wrong",
        L4Checksum::Absent => "absent",
        L4Checksum::Unknown => "unknown",
    };
    let l4_offset = parsed.l4_offset.map_or("none".to_owned(), |offset| offset.to_string());
    let lines = [
        ("outcome", "parsed".to_owned()),
        ("macs", format!("{} > {}", mac(parsed.ethernet.source), mac(parsed.ethernet.destination))),
        ("vlan", vlan),
        ("vlan_tags", parsed.vlan_tags.to_string()),
        ("l3_offset", parsed.l3_offset.to_string()),
        ("ip_length", parsed.ip_length.to_string()),
        ("ip_version", parsed.ip_version.to_string()),
        ("addresses", format!("{} > {}", parsed.source_address(), parsed.destination_address())),
        ("dscp", parsed.dscp.to_string()),
        ("ecn", parsed.ecn.to_string()),
        ("ttl", parsed.ttl.to_string()),
        ("protocol", parsed.protocol.to_string()),
        ("fragment", fragment.to_owned()),
        ("fragment_id", parsed.fragment_id.to_string()),
        ("has_options", parsed.has_options.to_string()),
        ("l4_offset", l4_offset),
        ("l4_ports", format!("{} > {}", parsed.source_port, parsed.destination_port)),
        ("tcp_flags", format!("{:#04x}", parsed.tcp_flags)),
        ("l4_checksum", l4_checksum.to_owned()),
    ];
    // Most packets hide nothing.
    let hidden =
        (parsed.hidden != Hidden::Nothing).then(|| ("hidden", format!("{:?}", parsed.hidden)));
    lines
        .iter()
        .chain(&hidden)
        .fold(String::new(), |text, (name, value)| text + name + ": " + value + "\n")
}
