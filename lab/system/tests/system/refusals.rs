//! Requests that the API refuses, with a message that names reason and remedy; nothing changes.

use std::time::{Duration, Instant};

use crate::common::{Line, module, module_with_manifest};
use api::client::ClientError;
use api::{ErrorCode, ErrorInfo, RuleRequest};
use testkit::{Service, root_or_skip, service_module};

/// Smallest module: forwards everything.
const PASS: &str =
    r#"(memory (export "memory") 1) (func (export "on_packet") (result i32) (i32.const 0))"#;

fn refused<T: std::fmt::Debug>(result: Result<T, ClientError>) -> ErrorInfo {
    match result.unwrap_err() {
        ClientError::Refused(document) => document.error,
        other => panic!("no refusal but: {other}"),
    }
}

#[test]
fn what_is_no_module_of_this_abi_is_not_stored() {
    if !root_or_skip("modules that are none") {
        return;
    }
    let line = Line::up();
    let manifest = |abi| format!("abi = {abi}\nname = \"m\"\nversion = \"0.1.0\"\nwindow = 64\n");
    let unknown = r#"(import "tam" "packet_lod" (func (param i32 i32 i32) (result i32)))"#;
    let foreign = r#"(import "env" "exit" (func))"#;
    let on_packet = r#"(func (export "on_packet") (result i32) (i32.const 0))"#;
    let cases: [(&str, Vec<u8>, &[&str]); 8] = [
        ("an ELF file", b"\x7fELF\x02\x01\x01".to_vec(), &["ELF"]),
        ("text", b"#!/bin/sh\n".to_vec(), &["text"]),
        ("cut off", module("m", "window = 64", PASS)[..40].to_vec(), &[]),
        ("another ABI", module_with_manifest(&manifest(2), PASS), &["2", "1"]),
        ("no manifest", wat::parse_str(format!("(module {PASS})")).unwrap(), &["tamandua"]),
        (
            "unknown import",
            module("m", "window = 64", &format!("{unknown}{PASS}")),
            &["packet_lod", "packet_load"],
        ),
        ("foreign import", module("m", "window = 64", &format!("{foreign}{PASS}")), &["env"]),
        (
            "4 GiB of memory",
            module("m", "window = 64", &format!(r#"(memory (export "memory") 65536) {on_packet}"#)),
            &["65536", "256"],
        ),
    ];
    for (name, wasm, words) in cases {
        let error = refused(line.node.client().store_module(wasm));
        assert_eq!(error.code, ErrorCode::Usage, "{name}: {}", error.message);
        for word in words {
            assert!(error.message.contains(word), "{name}: '{}' lacks {word}", error.message);
        }
    }
    assert!(line.node.client().modules().unwrap().modules.is_empty());
}

#[test]
fn a_start_that_never_ends_is_refused_within_a_second() {
    if !root_or_skip("endless start") {
        return;
    }
    let line = Line::up();
    let looping = format!(
        r#"{PASS} (func (export "on_start") (result i32) (loop $again (br $again)) (i32.const 0))"#
    );
    let wasm = module("endless", "window = 64", &looping);
    let start = Instant::now();
    let error = line.node.deploy(&wasm, &Service::default()).unwrap_err().to_string();
    let took = start.elapsed();
    assert!(error.contains("on_start") && error.contains("endless"), "{error}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(line.node.client().services().unwrap().services.is_empty());
    // A start section would run before anyone could stop it.
    let section = module("early", "window = 64", &format!("{PASS} (func $s) (start $s)"));
    let error = refused(line.node.client().store_module(section));
    assert!(error.message.contains("start"), "{}", error.message);
}

#[test]
fn wrong_requests_are_refused_with_what_was_meant() {
    if !root_or_skip("wrong requests") {
        return;
    }
    let line = Line::up();
    let client = line.node.client();
    let monitor = service_module("monitor").unwrap();
    let deploy = |service: &Service<'_>| {
        let error = line.node.deploy(&monitor, service).unwrap_err();
        refused::<()>(Err(error.downcast().unwrap())).message
    };
    let parameter = |pair| deploy(&Service { parameters: pair, ..Service::default() });
    let said = parameter(&[("dcsp", "46")]);
    assert!(said.contains("dcsp") && said.contains("'dscp'"), "{said}");
    let said = parameter(&[("dscp", "many")]);
    assert!(said.contains("many") && said.contains("dscp"), "{said}");
    let said = deploy(&Service { rules: &["prot udp"], ..Service::default() });
    assert!(said.contains("did you mean 'proto'"), "{said}");
    let said = deploy(&Service { rules: &["in middle"], ..Service::default() });
    assert!(said.contains("middle") && said.contains("left"), "{said}");
    let said = deploy(&Service { name: "Not a name", ..Service::default() });
    assert!(said.contains("'N'"), "{said}");
    assert!(client.services().unwrap().services.is_empty(), "all or nothing");

    let rule =
        |r#match: &str, action: &str| client.add_rules(&RuleRequest::new(r#match, action).into());
    let error = refused(rule("proto udp dport 99999", "drop"));
    assert!(error.message.contains("99999"), "{}", error.message);
    let error = refused(rule("proto udp", "discard"));
    assert!(error.message.contains("discard"), "{}", error.message);
    let error = refused(rule("proto udp", "service nobody"));
    assert!(error.message.contains("nobody"), "{}", error.message);
    assert!(client.rules().unwrap().rules.is_empty());
    let error = refused(client.service("monitro"));
    assert_eq!(error.code, ErrorCode::NotFound, "{}", error.message);
    let error = refused(client.remove_rule(77));
    assert_eq!(error.code, ErrorCode::NotFound, "{}", error.message);
}
