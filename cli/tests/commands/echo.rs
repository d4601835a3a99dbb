//! The service `echo`, built by `tam build` and run over a capture at each level.

use super::{document, status, tam, write};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapReader, PcapWriter};
use std::fs::File;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use wire::FrameBuilder;

/// Offset behind the MAC addresses, which the node swaps, in bytes.
const BEHIND_MACS: usize = 12;
const HERE: [u8; 4] = [10, 0, 0, 1];
const THERE: [u8; 4] = [192, 0, 2, 7];
const HERE_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const THERE_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];

/// Builds the module in a folder of its own: other tests may build it, too.
fn module(directory: &TempDir) -> PathBuf {
    let project = directory.path().join("echo");
    std::fs::create_dir(&project).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../services/echo");
    for file in ["echo.c", "module.toml"] {
        std::fs::copy(source.join(file), project.join(file)).unwrap();
    }
    let output = tam(&["--json", "build", project.to_str().unwrap()]);
    assert_eq!(status(&output), 0, "{}", document(&output));
    project.join("echo.wasm")
}

/// Returns an IPv4 frame of a request, or of its answer.
fn v4(answer: bool) -> FrameBuilder {
    let (from, to, hops) = if answer { (THERE, HERE, 64) } else { (HERE, THERE, 3) };
    FrameBuilder::new().ipv4(from, to, hops)
}

fn v6(answer: bool) -> FrameBuilder {
    let (from, to, hops) = if answer { (THERE_V6, HERE_V6, 64) } else { (HERE_V6, THERE_V6, 3) };
    FrameBuilder::new().ipv6(from, to, hops)
}

/// Returns requests with the expected answers, built by the frame builder with new checksums;
/// `None` for a request that passes.
fn cases() -> Vec<(FrameBuilder, Option<FrameBuilder>)> {
    let payload = b"how far is it, and back?";
    let with = |frame: FrameBuilder| frame.payload(payload);
    let answered = |request, answer| (with(request), Some(with(answer)));
    vec![
        answered(v4(false).icmp_echo(7, 1), v4(true).icmp_echo_reply(7, 1)),
        answered(v4(false).icmp_echo(0xffff, 0xfffe), v4(true).icmp_echo_reply(0xffff, 0xfffe)),
        answered(v4(false).udp(4000, 7), v4(true).udp(7, 4000)),
        answered(v4(false).vlan(9).icmp_echo(1, 2), v4(true).vlan(9).icmp_echo_reply(1, 2)),
        answered(v6(false).icmp_echo(7, 1), v6(true).icmp_echo_reply(7, 1)),
        answered(v6(false).udp(4000, 7), v6(true).udp(7, 4000)),
        (v4(false).icmp_echo_reply(7, 1), None),
        (v4(false).udp(7, 7), None),
        (v4(false).udp(4000, 8), None),
        (v4(false).tcp(4000, 7, 2), None),
        (FrameBuilder::new().ipv4(HERE, [224, 0, 0, 1], 3).icmp_echo(1, 1), None),
        (FrameBuilder::new().ipv4(HERE, [255; 4], 3).icmp_echo(1, 1), None),
    ]
}

#[test]
fn echo_answers_pings_and_datagrams_and_nothing_else() {
    let directory = TempDir::new().unwrap();
    let module = module(&directory);
    let cases = cases();
    let capture = directory.path().join("in.pcap");
    let header = PcapHeader { datalink: DataLink::ETHERNET, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(File::create(&capture).unwrap(), header).unwrap();
    for (number, (request, _)) in cases.iter().enumerate() {
        write(&mut writer, number, &request.build());
    }
    // A fragmented ping passes.
    for piece in v4(false).icmp_echo(1, 1).payload(&[7; 100]).build_fragments(80) {
        write(&mut writer, cases.len(), &piece);
    }
    drop(writer);
    let root = rustix::process::geteuid().is_root();
    let levels = if root { &["user", "nic", "kernel"][..] } else { &["user"] };
    for level in levels {
        let out = directory.path().join(format!("{level}.pcap"));
        let paths = [&module, &capture, &out].map(|path| path.to_str().unwrap());
        let output =
            tam(&["--json", "run", paths[0], paths[1], "--level", level, "--out", paths[2]]);
        let document = document(&output);
        let mut reader = PcapReader::new(File::open(&out).unwrap()).unwrap();
        for (number, (request, answer)) in cases.iter().enumerate() {
            let came = reader.next_packet().unwrap().unwrap().data;
            let (verdict, expected) = match answer {
                Some(answer) => ("bounce", answer.build()),
                None => ("pass", request.build()),
            };
            assert_eq!(document["packets"][number]["verdict"], verdict, "{level}: {number}");
            assert_eq!(came[BEHIND_MACS..], expected[BEHIND_MACS..], "{level}: {number}");
        }
        let expected = serde_json::json!({ "pings": 4, "datagrams": 2, "calls": 0, "others": 8 });
        assert_eq!(document["counters"], expected, "{level}");
    }
}
