//! Tests that the SDKs and the document agree with the node's numbers.

use abi::layout::{self, Meta};
use abi::{HOOKS, HOST_FUNCTIONS, Unverified, Verdict};

/// Table of numbers in the SDK, which stands alone and cannot share the node's.
#[path = "../../../sdk/rust/src/layout.rs"]
#[allow(dead_code)]
mod sdk;

const DOCUMENT: &str = include_str!("../../../docs/reference/module-abi.md");

#[test]
fn the_sdk_has_the_nodes_addresses() {
    assert_eq!(sdk::META_ADDRESS, layout::META_ADDRESS as usize);
    assert_eq!(sdk::META_LENGTH, layout::META_LENGTH);
    assert_eq!(sdk::WINDOW_ADDRESS, layout::WINDOW_ADDRESS as usize);
    assert_eq!(sdk::WINDOW_LENGTH_MAX, layout::WINDOW_LENGTH_MAX as usize);
    assert_eq!(sdk::DATA_ADDRESS, layout::DATA_ADDRESS as usize);
    assert_eq!(sdk::MARK_LENGTH, layout::MARK_LENGTH);
    assert_eq!(sdk::OFFSET_NONE, layout::OFFSET_NONE);
    assert_eq!(sdk::SEND_BY_ROUTE, layout::SEND_BY_ROUTE);
    assert_eq!(sdk::META_FRAGMENT, layout::META_FRAGMENT);
    assert_eq!(sdk::META_LATER_FRAGMENT, layout::META_LATER_FRAGMENT);
    assert_eq!(sdk::PARAMETER_TEXT_MAX, abi::manifest::PARAMETER_TEXT_MAX);
}

#[test]
fn the_sdk_has_the_nodes_codes() {
    use layout::{host_error, verdict_code};
    let node = [
        host_error::OUT_OF_RANGE,
        host_error::NOT_FOUND,
        host_error::OVER_LIMIT,
        host_error::WRONG_HOOK,
    ];
    use sdk::host_error as sdk_error;
    assert_eq!(
        node,
        [
            sdk_error::OUT_OF_RANGE,
            sdk_error::NOT_FOUND,
            sdk_error::OVER_LIMIT,
            sdk_error::WRONG_HOOK
        ]
    );
    use sdk::verdict_code as sdk_verdict;
    for (node, sdk) in [
        (verdict_code::PASS, sdk_verdict::PASS),
        (verdict_code::DROP, sdk_verdict::DROP),
        (verdict_code::BOUNCE, sdk_verdict::BOUNCE),
        (verdict_code::REDIRECT, sdk_verdict::REDIRECT),
        (verdict_code::RAISE, sdk_verdict::RAISE),
        (verdict_code::REROUTE_FLAG, sdk_verdict::REROUTE_FLAG),
    ] {
        assert_eq!(node, sdk);
    }
}

#[test]
fn the_sdk_has_the_nodes_words_for_queues() {
    use abi::host::{QUEUE_DROPPED, QUEUE_LONG, QUEUE_SHORT};
    let node = [QUEUE_SHORT, QUEUE_LONG, QUEUE_DROPPED];
    assert_eq!(node, [sdk::queue::SHORT, sdk::queue::LONG, sdk::queue::DROPPED]);
}

#[test]
fn the_sdk_finds_every_field_of_the_metadata() {
    use sdk::offset;
    let mut bytes = [0xff; layout::META_LENGTH];
    Meta {
        packet_length: 0x0102_0304,
        window_length: 0x1112_1314,
        l3_offset: 0x2122,
        l4_offset: 0x3132,
        begins_with: 0x41,
        ip_version: 0x42,
        protocol: 0x43,
        flags: 0x44,
        port: 0x5152,
        session: 0x6162,
        rule: 0x7172_7374,
        flow_hash: 0x8182_8384,
        lane: 0x9192_9394,
        now_ms: 0xa1a2_a3a4_a5a6_a7a8,
        mark: [0xb1; layout::MARK_LENGTH],
    }
    .write_to(&mut bytes);
    let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
    assert_eq!(u32_at(offset::PACKET_LENGTH), 0x0102_0304);
    assert_eq!(u32_at(offset::WINDOW_LENGTH), 0x1112_1314);
    assert_eq!((u16_at(offset::L3_OFFSET), u16_at(offset::L4_OFFSET)), (0x2122, 0x3132));
    assert_eq!((bytes[offset::BEGINS_WITH], bytes[offset::IP_VERSION]), (0x41, 0x42));
    assert_eq!((bytes[offset::PROTOCOL], bytes[offset::FLAGS]), (0x43, 0x44));
    assert_eq!((u16_at(offset::PORT), u16_at(offset::SESSION)), (0x5152, 0x6162));
    assert_eq!(u32_at(offset::RULE), 0x7172_7374);
    assert_eq!(u32_at(offset::FLOW_HASH), 0x8182_8384);
    assert_eq!(u32_at(offset::LANE), 0x9192_9394);
    assert_eq!((u32_at(offset::NOW_MS), u32_at(offset::NOW_MS + 4)), (0xa5a6_a7a8, 0xa1a2_a3a4));
    assert_eq!(bytes[offset::MARK..][..layout::MARK_LENGTH], [0xb1; layout::MARK_LENGTH]);
}

#[test]
fn the_document_names_every_function_and_hook() {
    for spec in HOST_FUNCTIONS {
        let parameters = vec!["i32"; spec.parameters.len()].join(", ");
        let heading = format!("`{}({parameters}) -> {}`", spec.name, spec.result);
        assert!(DOCUMENT.contains(&heading), "{heading}");
    }
    for spec in HOOKS {
        assert!(DOCUMENT.contains(&format!("`{}", spec.name)), "{}", spec.name);
    }
}

#[test]
fn the_documents_module_is_taken() {
    let (_, rest) = DOCUMENT.split_once("```wat\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let module = wat::parse_str(text).unwrap();
    let checked = Unverified(&module).check().unwrap();
    assert_eq!(checked.counters[0].name.as_str(), "dropped");
    assert!(text.contains(&format!("(i32.const {})", Verdict::PASS.to_value())));
    let drop = Verdict::Drop { reason: 7 }.to_value();
    assert!(text.contains(&format!("(i32.const {drop:#x})")), "{drop:#x}");
}

/// Header of the SDK for C.
const HEADER: &str = include_str!("../../../sdk/c/tam.h");

/// Returns the value of a `#define` of the header, without comment and spaces.
fn defined(name: &str) -> String {
    let line = HEADER.lines().find_map(|line| line.strip_prefix(&format!("#define {name}")));
    let text = line.unwrap_or_else(|| panic!("no {name}"));
    text.split("/*").next().unwrap().split_whitespace().collect()
}

#[test]
fn the_header_for_c_has_the_nodes_numbers() {
    use layout::{host_error, verdict_code};
    assert_eq!(defined("TAM_META "), format!("((structtam_meta*){:#x})", layout::META_ADDRESS));
    assert_eq!(defined("TAM_WINDOW "), format!("((u8*){:#x})", layout::WINDOW_ADDRESS));
    assert_eq!(defined("TAM_WINDOW_MAX "), layout::WINDOW_LENGTH_MAX.to_string());
    assert_eq!(defined("TAM_OFFSET_NONE "), format!("{:#x}", layout::OFFSET_NONE));
    assert_eq!(defined("TAM_SEND_BY_ROUTE "), format!("{:#x}", layout::SEND_BY_ROUTE));
    assert!(DOCUMENT.contains(&format!("{:#x}, in place of a port", layout::SEND_BY_ROUTE)));
    assert_eq!(defined("TAM_ETHERNET "), layout::BEGINS_WITH_ETHERNET.to_string());
    assert_eq!(defined("TAM_DATA "), layout::BEGINS_WITH_DATA.to_string());
    assert_eq!(sdk::BEGINS_WITH_ETHERNET, layout::BEGINS_WITH_ETHERNET);
    assert_eq!(sdk::BEGINS_WITH_DATA, layout::BEGINS_WITH_DATA);
    assert_eq!(defined("TAM_FRAGMENT "), layout::META_FRAGMENT.to_string());
    assert_eq!(defined("TAM_LATER_FRAGMENT "), layout::META_LATER_FRAGMENT.to_string());
    for (name, code) in [
        ("OUT_OF_RANGE", host_error::OUT_OF_RANGE),
        ("NOT_FOUND", host_error::NOT_FOUND),
        ("OVER_LIMIT", host_error::OVER_LIMIT),
        ("WRONG_HOOK", host_error::WRONG_HOOK),
    ] {
        assert_eq!(defined(&format!("TAM_{name} ")), format!("({code})"));
    }
    assert_eq!(defined("TAM_PASS "), format!("{}u", verdict_code::PASS));
    assert_eq!(defined("TAM_PASS_BY(edge) "), "((u32)(edge)<<16)");
    assert_eq!(defined("TAM_PASS_REROUTE "), format!("{:#x}u", verdict_code::REROUTE_FLAG));
    let drop = verdict_code::DROP;
    assert_eq!(defined("TAM_DROP(reason) "), format!("({drop}u|(u32)(reason)<<16)"));
    assert_eq!(defined("TAM_BOUNCE "), format!("{}u", verdict_code::BOUNCE));
    let redirect = verdict_code::REDIRECT;
    assert_eq!(defined("TAM_REDIRECT(port) "), format!("({redirect}u|(u32)(port)<<16)"));
    assert_eq!(defined("TAM_RAISE "), format!("{}u", verdict_code::RAISE));
}

#[test]
fn the_header_for_c_has_every_function_and_hook() {
    use abi::host::ValueType;
    for spec in HOST_FUNCTIONS {
        let result = if spec.result == ValueType::I32 { "i32" } else { "i64" };
        let declared = format!("TAM_HOST({0}) {result} tam_{0}(", spec.name);
        let (_, rest) = HEADER.split_once(&declared).unwrap_or_else(|| panic!("{declared}"));
        let parameters = rest.split(')').next().unwrap();
        let count = if parameters == "void" { 0 } else { parameters.split(',').count() };
        assert_eq!(count, spec.parameters.len(), "{}", spec.name);
    }
    for spec in HOOKS {
        assert!(HEADER.contains(&format!("TAM_EXPORT({})", spec.name)), "{}", spec.name);
    }
}

#[test]
fn the_header_for_c_finds_every_field_of_the_metadata() {
    use sdk::offset;
    let (_, rest) = HEADER.split_once("struct tam_meta {\n").unwrap();
    let (fields, _) = rest.split_once("\n};").unwrap();
    let mut at = 0;
    let mut found = Vec::new();
    for line in fields.lines() {
        let (ty, rest) = line.trim().split_once(' ').unwrap();
        let name = rest.split(';').next().unwrap();
        let (name, count) = match name.split_once('[') {
            Some((name, count)) => (name, count.trim_end_matches(']').parse().unwrap()),
            None => (name, 1),
        };
        let width: usize = ty.strip_prefix('u').unwrap().parse().unwrap();
        found.push((name, at));
        at += count * width / 8;
    }
    assert_eq!(at, layout::META_LENGTH);
    let expected = [
        ("packet_length", offset::PACKET_LENGTH),
        ("window_length", offset::WINDOW_LENGTH),
        ("l3_offset", offset::L3_OFFSET),
        ("l4_offset", offset::L4_OFFSET),
        ("begins_with", offset::BEGINS_WITH),
        ("ip_version", offset::IP_VERSION),
        ("protocol", offset::PROTOCOL),
        ("flags", offset::FLAGS),
        ("port", offset::PORT),
        ("session", offset::SESSION),
        ("rule", offset::RULE),
        ("flow_hash", offset::FLOW_HASH),
        ("lane", offset::LANE),
        ("now_ms", offset::NOW_MS),
        ("mark", offset::MARK),
        ("level", offset::LEVEL),
    ];
    assert_eq!(found[..expected.len()], expected);
    assert_eq!(found[expected.len()..], [("reserved", offset::LEVEL + 1)]);
}
