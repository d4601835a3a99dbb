//! `tam capture`: packets as they enter and leave a node, as lines, JSON or pcapng.

mod file;

use super::Context;
use crate::amounts;
use crate::failure::{DONE, Failure, Outcome};
use crate::interrupt::on_interrupt;
use crate::output::escaped;
use api::{CaptureRequest, CaptureStarted, CapturedPacket, ErrorCode, SCHEMA_VERSION};
use clap::Args;
use file::CaptureFile;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Arguments of `tam capture`.
#[derive(Debug, Args)]
pub struct Capture {
    /// Write a pcapng file, with rule, verdict and level as comments; - is standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Capture at this port only; may be repeated
    #[arg(long = "port", value_name = "PORT")]
    ports: Vec<String>,
    /// Capture only packets that matched the rule of this number
    #[arg(long, value_name = "NUMBER")]
    rule: Option<u32>,
    /// Capture only packets on the account of this session
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// Capture only packets that the node dropped
    #[arg(long)]
    dropped: bool,
    /// Capture only packets that enter (in) or leave (out) the node
    #[arg(long, value_name = "in|out")]
    direction: Option<String>,
    /// Bytes kept of each packet, 64 to 2048
    #[arg(long, value_name = "BYTES", default_value_t = 2048)]
    snap: u32,
    /// End after this many packets
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1_000_000)]
    packets: u64,
    /// End after this many bytes of packets
    #[arg(long, value_name = "N", default_value_t = 1 << 30)]
    bytes: u64,
    /// End after this many seconds
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
}

/// Seconds that one request waits at the node; Ctrl-C is noticed within this time.
const WAIT_SECONDS: u32 = 1;

/// Summary of a capture, printed at its end.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    schema_version: u32,
    ports: &'a [String],
    packets: u64,
    bytes: u64,
    /// Packets lost because the capture's buffer was full.
    lost: u64,
    /// `packets`, `bytes`, `seconds`, `interrupted` or `closed`.
    ended: &'a str,
    file: Option<String>,
}

/// Destination of captured packets: the terminal, a file, or standard output.
struct Sink<'a> {
    context: &'a Context<'a>,
    file: Option<CaptureFile>,
    /// True when the pcapng file goes to standard output, which then carries nothing else.
    is_piped: bool,
    packets: u64,
    bytes: u64,
}

impl Capture {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let client = context.client()?;
        let request = CaptureRequest {
            ports: self.ports.clone(),
            rule: self.rule,
            session: self.session.clone(),
            dropped: self.dropped,
            direction: self.direction.clone(),
            snap: Some(self.snap),
        };
        let interrupted = on_interrupt()?;
        let started = client.capture(&request)?;
        // Only once the node has accepted the request, since an existing file is replaced.
        let file = match self.open() {
            Ok(file) => file,
            Err(failure) => {
                client.end_capture(started.id)?;
                return Err(failure);
            }
        };
        let is_piped = self.is_piped();
        let mut sink = Sink { context, file, is_piped, packets: 0, bytes: 0 };
        if let Some(file) = &mut sink.file {
            file.begin(&started)?;
        }
        if !context.output.is_json() {
            context.output.note(&format!("capturing at {}; Ctrl-C ends", started.ports.join(", ")));
        }
        let end = self.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let ended = loop {
            if interrupted.load(Ordering::Relaxed) {
                break "interrupted";
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                break "seconds";
            }
            let more = client.captured(started.id, WAIT_SECONDS)?;
            if let Some(ended) = self.give(&mut sink, &more.packets)? {
                break ended;
            }
        };
        let rest = client.end_capture(started.id)?;
        if matches!(ended, "interrupted" | "seconds") {
            self.give(&mut sink, &rest.packets)?;
        }
        self.summarize(sink, &started, rest.lost, ended)
    }

    /// Returns whether packets go to standard output.
    fn is_piped(&self) -> bool {
        self.write.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// Opens what packets are written to.
    fn open(&self) -> Result<Option<CaptureFile>, Failure> {
        match &self.write {
            _ if self.is_piped() => CaptureFile::to_standard_output().map(Some),
            Some(path) => CaptureFile::create(path).map(Some),
            None => Ok(None),
        }
    }

    /// Writes the packets of one answer; returns why the capture ends, if it does.
    fn give(
        &self,
        sink: &mut Sink<'_>,
        packets: &[CapturedPacket],
    ) -> Result<Option<&'static str>, Failure> {
        for packet in packets {
            if !sink.take(packet)? {
                return Ok(Some("closed"));
            }
            if sink.packets >= self.packets {
                return Ok(Some("packets"));
            }
            if sink.bytes >= self.bytes {
                return Ok(Some("bytes"));
            }
        }
        sink.flush().map(|open| (!open).then_some("closed"))
    }

    fn summarize(
        &self,
        mut sink: Sink<'_>,
        started: &CaptureStarted,
        lost: u64,
        ended: &str,
    ) -> Outcome {
        sink.flush()?;
        let output = sink.context.output;
        let summary = Summary {
            schema_version: SCHEMA_VERSION,
            ports: &started.ports,
            packets: sink.packets,
            bytes: sink.bytes,
            lost,
            ended,
            file: self.write.as_ref().map(|path| path.display().to_string()),
        };
        if output.is_json() && sink.file.is_some() && !sink.is_piped {
            return output.result(&summary, String::new);
        }
        let losses = match lost {
            0 => "none lost".to_owned(),
            lost => format!("{lost} lost, for which there was no room"),
        };
        output.note(&format!("{} packets, {}, {losses}", sink.packets, amounts::size(sink.bytes)));
        Ok(DONE)
    }
}

impl Sink<'_> {
    /// Writes one packet; returns false when the reader has closed the output.
    fn take(&mut self, packet: &CapturedPacket) -> Result<bool, Failure> {
        self.packets += 1;
        self.bytes += u64::from(packet.length);
        match &mut self.file {
            Some(file) => file.write(packet),
            None => {
                self.context.output.result(packet, || line(packet, &TimeZone::system()))?;
                Ok(!self.context.output.is_closed())
            }
        }
    }

    fn flush(&mut self) -> Result<bool, Failure> {
        self.file.as_mut().map_or(Ok(true), CaptureFile::flush)
    }
}

/// Describes the outcome of a packet: rule, verdict and level. Also the packet's comment in a
/// pcapng file.
fn comment(packet: &CapturedPacket) -> String {
    let parts = [
        packet.rule.map(|rule| format!("rule #{rule}")),
        packet.session.as_ref().map(|session| format!("session {session}")),
        packet.service.as_ref().map(|service| format!("service {service}")),
        packet.level.as_ref().map(|level| format!("level {level}")),
        packet.verdict.as_ref().map(|verdict| format!("verdict {verdict}")),
        packet.outcome.as_ref().map(|outcome| format!("outcome {outcome}")),
        packet.dropped.then(|| "dropped".to_owned()),
        Some(format!("seen by the {}", packet.seen_by)),
    ];
    escaped(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

/// Formats a packet as one line for people.
fn line(packet: &CapturedPacket, zone: &TimeZone) -> String {
    let time = Timestamp::from_nanosecond(packet.time_ns.into()).map_or_else(
        |_| String::new(),
        |time| time.to_zoned(zone.clone()).strftime("%H:%M:%S%.6f").to_string(),
    );
    let what = match wire::parse_frame(&bytes_of(&packet.bytes_hex)) {
        Ok(parsed) => {
            let address = |bytes: [u8; 16]| -> std::net::IpAddr {
                match parsed.ip_version {
                    4 => [bytes[0], bytes[1], bytes[2], bytes[3]].into(),
                    _ => bytes.into(),
                }
            };
            let protocol = node::protocol::Protocol(parsed.protocol);
            let port = |number: u16| match protocol.has_ports() {
                true => format!(":{number}"),
                false => String::new(),
            };
            format!(
                "{protocol} {}{} > {}{}",
                address(parsed.source),
                port(parsed.source_port),
                address(parsed.destination),
                port(parsed.destination_port)
            )
        }
        Err(problem) => problem.to_string(),
    };
    format!(
        "{time} {:<3} {:<8} {} bytes, {what} ({})",
        packet.direction,
        escaped(&packet.port),
        packet.length,
        comment(packet)
    )
}

/// Decodes the hexadecimal digits that a node writes; returns no bytes for any other text.
fn bytes_of(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(byte).collect::<Option<_>>().unwrap_or_default()
}

/// Returns the failure of a file that cannot be written.
fn unwritable(name: &str, problem: impl std::fmt::Display) -> Failure {
    Failure::new(ErrorCode::Failed, format!("writing {name}: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn packet() -> CapturedPacket {
        let frame = wire::FrameBuilder::new().ipv4([10, 0, 1, 2], [10, 0, 2, 2], 64).udp(4000, 53);
        let bytes = frame.payload(b"?").build();
        CapturedPacket {
            time_ns: 1_500_000_000,
            port: "left".into(),
            direction: "in".into(),
            seen_by: "cell".into(),
            length: bytes.len() as u32,
            bytes_hex: bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            rule: Some(3),
            service: Some("dns".into()),
            level: Some("user".into()),
            verdict: Some("drop \u{1b}bad".into()),
            dropped: true,
            ..CapturedPacket::default()
        }
    }

    #[test]
    fn a_packet_is_one_line_that_no_terminal_obeys() {
        assert_eq!(
            line(&packet(), &TimeZone::UTC),
            "00:00:01.500000 in  left     43 bytes, udp 10.0.1.2:4000 > 10.0.2.2:53 (rule #3, \
             service dns, level user, verdict drop \\u{1b}bad, dropped, seen by the cell)"
        );
    }

    #[test]
    fn digits_that_are_none_have_no_bytes() {
        assert_eq!(bytes_of("0aff"), [10, 255]);
        assert!(bytes_of("zz").is_empty());
    }
}
