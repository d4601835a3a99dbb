//! Tests of the packet functions against their vectors: as modules at user level and below it, and
//! as the XDP programs that they are measured against.

mod levels_user;

use bench::levels::{Baseline, Function, Kind, Ours, Runner, Set, Vectors, functions, verify};
use engine::Engine;
use levels_user::User;

/// Returns each function with its vectors; none, with a note, where the build left them out.
fn all() -> Vec<(&'static Function, Vectors)> {
    match functions() {
        Ok(functions) => {
            functions.iter().map(|f| (f, Vectors::parse(f.vectors).unwrap())).collect()
        }
        Err(error) => {
            testbase::skip_this(&error.to_string());
            Vec::new()
        }
    }
}

fn privileged() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        testbase::skip_this("BPF programs need root");
    }
    root
}

fn assert_keeps_to_vectors(name: &str, runner: &mut dyn Runner, vectors: &Vectors) {
    let differences = verify(runner, vectors).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    let texts: Vec<String> = differences.iter().map(ToString::to_string).collect();
    assert!(texts.is_empty(), "{name}:\n{}", texts.join("\n"));
}

#[test]
fn both_sets_are_there_and_each_function_has_packets_to_measure() {
    for (function, vectors) in all() {
        let measured = vectors.packets.iter().filter(|packet| packet.measured).count();
        assert!(measured >= 3, "{} measures {measured} packets", function.name);
    }
    let functions = match functions() {
        Ok(functions) => functions,
        Err(error) => return testbase::skip_this(&error.to_string()),
    };
    let of = |set| functions.iter().filter(|function| function.set == set).count();
    assert_eq!((of(Set::First), of(Set::Unseen)), (14, 12));
}

#[test]
fn a_packet_with_right_checksums_leaves_with_right_checksums() {
    for (function, vectors) in all() {
        for packet in &vectors.packets {
            // A tunnel's payload may have no header, and so no checksum.
            if wire::parse_frame(packet.after()).is_err() {
                continue;
            }
            let right = has_right_checksums(packet.after());
            assert_eq!(
                right,
                has_right_checksums(&packet.frame),
                "{} '{}'",
                function.name,
                packet.about
            );
        }
    }
}

/// Returns true if the checksums of its first IPv4 header and of the transport are right.
fn has_right_checksums(frame: &[u8]) -> bool {
    let Ok(parsed) = wire::parse_frame(frame) else { return false };
    let start = usize::from(parsed.l3_offset);
    let Some(first) = frame.get(start).filter(|_| parsed.ip_version == 4) else { return false };
    let header = frame.get(start..start + usize::from(first & 0xf) * 4);
    header.is_some_and(|header| wire::checksum::checksum(header) == 0)
        && wire::checksum::verify_l4(frame, &parsed)
}

#[test]
fn the_modules_keep_to_their_vectors_at_user_level() {
    let engine = Engine::new().unwrap();
    for (function, vectors) in all() {
        let mut user = User::start(&engine, function.module).unwrap();
        assert_keeps_to_vectors(function.name, &mut user, &vectors);
    }
}

#[test]
fn the_baselines_keep_to_the_vectors() {
    if !privileged() {
        return;
    }
    for (function, vectors) in all() {
        for kind in [Kind::Arena, Kind::ArenaWithEntry, Kind::Maps] {
            let mut baseline = Baseline::load(function, kind, &vectors.tables).unwrap();
            let name = format!("{} ({kind:?})", function.name);
            assert_keeps_to_vectors(&name, &mut baseline, &vectors);
        }
    }
}

#[test]
fn the_modules_keep_to_their_vectors_at_nic_level() {
    if !privileged() {
        return;
    }
    for (function, vectors) in all() {
        let mut ours = Ours::load(function.module)
            .unwrap_or_else(|error| panic!("{}: {error:#}", function.name));
        assert_keeps_to_vectors(function.name, &mut ours, &vectors);
    }
}
