//! Captures: pcap and pcapng files of Ethernet frames, in and out.

use super::lanes::{Done, Fate};
use crate::failure::Failure;
use abi::Verdict;
use api::ErrorCode;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// First bytes of a pcapng file (draft-ietf-opsawg-pcapng, section 4.1).
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// First bytes of a pcap file in both byte orders, of microseconds and nanoseconds.
const PCAP_MAGICS: [[u8; 4]; 4] = [
    [0xa1, 0xb2, 0xc3, 0xd4],
    [0xa1, 0xb2, 0x3c, 0x4d],
    [0xd4, 0xc3, 0xb2, 0xa1],
    [0x4d, 0x3c, 0xb2, 0xa1],
];
/// Nanoseconds of a pcapng interface's ticks when it does not say: microseconds.
const PCAPNG_TICK_NANOS: f64 = 1000.0;

/// One captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// When, counted from 1970.
    pub time: Duration,
    /// The bytes that were captured.
    pub bytes: Vec<u8>,
    /// How many there were on the wire.
    pub length_on_wire: usize,
}

/// A capture that is read frame by frame.
pub struct Capture {
    path: PathBuf,
    reader: Reader,
    frames: u64,
}

enum Reader {
    Pcap(PcapReader<BufReader<File>>),
    PcapNg(PcapNgReader<BufReader<File>>),
}

/// A place in a capture behind which nothing can be read.
pub type Fault = String;

impl Capture {
    /// Opens a capture.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let refused = |error: io::Error| Failure::io(format!("reading {}", path.display()), &error);
        let mut file = File::open(path).map_err(refused)?;
        let mut magic = Vec::new();
        file.by_ref().take(4).read_to_end(&mut magic).map_err(refused)?;
        file.rewind().map_err(refused)?;
        let wrong = |error: PcapError| damaged(path, &error);
        let file = BufReader::new(file);
        let reader = if magic == PCAPNG_MAGIC {
            Reader::PcapNg(PcapNgReader::new(file).map_err(wrong)?)
        } else if PCAP_MAGICS.iter().any(|known| magic == known) {
            let reader = PcapReader::new(file).map_err(wrong)?;
            require_ethernet(reader.header().datalink).map_err(|reason| unusable(path, reason))?;
            Reader::Pcap(reader)
        } else {
            return Err(unusable(path, "it is neither pcap nor pcapng".to_owned()));
        };
        Ok(Self { path: path.to_owned(), reader, frames: 0 })
    }

    /// The next frame; a fault ends the capture.
    pub fn next_frame(&mut self) -> Option<Result<Frame, Fault>> {
        let next = match &mut self.reader {
            Reader::Pcap(reader) => next_of_pcap(reader),
            Reader::PcapNg(reader) => next_of_pcapng(reader),
        }?;
        self.frames += u64::from(next.is_ok());
        Some(next.map_err(|reason| {
            format!(
                "{} cannot be read behind packet {}: {reason}",
                self.path.display(),
                self.frames
            )
        }))
    }
}

fn next_of_pcap(reader: &mut PcapReader<BufReader<File>>) -> Option<Result<Frame, String>> {
    let per_tick = match reader.header().ts_resolution {
        TsResolution::MicroSecond => 1000,
        TsResolution::NanoSecond => 1,
    };
    // Raw: a wrong time or snapshot length is no reason to give a packet up.
    Some(reader.next_raw_packet()?.map_err(|error| words(&error)).map(|packet| Frame {
        time: Duration::from_secs(packet.ts_sec.into())
            + Duration::from_nanos(u64::from(packet.ts_frac) * per_tick),
        length_on_wire: packet.orig_len as usize,
        bytes: packet.data.into_owned(),
    }))
}

fn next_of_pcapng(reader: &mut PcapNgReader<BufReader<File>>) -> Option<Result<Frame, String>> {
    loop {
        let block = match reader.next_block()? {
            Ok(block) => block.into_owned(),
            Err(error) => return Some(Err(words(&error))),
        };
        let (interface, ticks, length_on_wire, data) = match block {
            Block::EnhancedPacket(packet) => {
                // The library takes the ticks for nanoseconds.
                let ticks = packet.timestamp.as_nanos() as u64;
                (packet.interface_id, ticks, packet.original_len, packet.data)
            }
            Block::SimplePacket(packet) => (0, 0, packet.original_len, packet.data),
            Block::Packet(packet) => {
                (packet.interface_id.into(), packet.timestamp, packet.original_len, packet.data)
            }
            _ => continue,
        };
        let Some(description) = reader.interfaces().get(interface as usize) else {
            return Some(Err(format!(
                "the packet names interface {interface}, which does not exist"
            )));
        };
        if let Err(reason) = require_ethernet(description.linktype) {
            return Some(Err(reason));
        }
        let resolution = description.options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
            _ => None,
        });
        let nanos = ticks as f64 * resolution.map_or(PCAPNG_TICK_NANOS, tick_nanos);
        return Some(Ok(Frame {
            time: Duration::from_nanos(nanos as u64),
            length_on_wire: length_on_wire as usize,
            bytes: data.into_owned(),
        }));
    }
}

/// Nanoseconds of a tick, from the option `if_tsresol`: a power of 10, or of 2
/// with the highest bit.
fn tick_nanos(resolution: u8) -> f64 {
    let exponent = -i32::from(resolution & 0x7f);
    let base: f64 = if resolution & 0x80 == 0 { 10.0 } else { 2.0 };
    base.powi(exponent) * 1e9
}

fn require_ethernet(link: DataLink) -> Result<(), String> {
    if link == DataLink::ETHERNET {
        return Ok(());
    }
    Err(format!("its frames are of link type {link:?}; a node handles Ethernet"))
}

fn words(error: &PcapError) -> String {
    match error {
        PcapError::IoError(io) if io.kind() == io::ErrorKind::UnexpectedEof => {
            "the file ends in the middle of a packet".to_owned()
        }
        PcapError::IoError(io) => io.to_string(),
        PcapError::IncompleteBuffer => "the file ends in the middle of a packet".to_owned(),
        other => other.to_string(),
    }
}

fn damaged(path: &Path, error: &PcapError) -> Failure {
    unusable(path, words(error))
}

fn unusable(path: &Path, reason: String) -> Failure {
    Failure::new(ErrorCode::Usage, format!("{} is no capture to run on: {reason}", path.display()))
        .help("record one with: tcpdump -i DEVICE -w FILE.pcap")
}

/// Writes what leaves a module.
pub struct CaptureWriter {
    path: PathBuf,
    writer: PcapWriter<BufWriter<File>>,
}

impl CaptureWriter {
    /// A new file; one of that name is replaced.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let refused = |error: io::Error| Failure::io(format!("writing {}", path.display()), &error);
        let file = BufWriter::new(File::create(path).map_err(refused)?);
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let writer =
            PcapWriter::with_header(file, header).map_err(|error| written(path, &error))?;
        Ok(Self { path: path.to_owned(), writer })
    }

    /// Writes the packet unless it was dropped, then what the module sent itself.
    pub fn write(&mut self, time: Duration, done: &Done) -> Result<(), Failure> {
        let verdict = match &done.fate {
            Fate::Verdict(verdict) => Some(verdict),
            _ => None,
        };
        if matches!(verdict, Some(Verdict::Pass { .. } | Verdict::Redirect { .. })) {
            self.write_frame(time, &done.bytes)?;
        }
        if matches!(verdict, Some(Verdict::Bounce)) {
            let mut bounced = done.bytes.clone();
            if let Some(macs) = bounced.get_mut(..12) {
                macs.rotate_left(6);
            }
            self.write_frame(time, &bounced)?;
        }
        done.sent.iter().try_for_each(|sent| self.write_frame(time, &sent.frame))
    }

    fn write_frame(&mut self, time: Duration, bytes: &[u8]) -> Result<(), Failure> {
        let packet = PcapPacket::new(time, bytes.len() as u32, bytes);
        let done = self.writer.write_packet(&packet);
        done.map(|_| ()).map_err(|error| written(&self.path, &error))
    }

    /// Writes what is still in memory.
    pub fn finish(self) -> Result<(), Failure> {
        let flushed = self.writer.into_writer().into_inner();
        flushed
            .map(|_| ())
            .map_err(|error| Failure::io(format!("writing {}", self.path.display()), error.error()))
    }
}

fn written(path: &Path, error: &PcapError) -> Failure {
    Failure::failed(format!("writing {}: {}", path.display(), words(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_powers_of_ten_or_two() {
        assert_eq!(tick_nanos(6), 1000.0);
        assert_eq!(tick_nanos(9), 1.0);
        assert_eq!(tick_nanos(0x80 | 1), 5e8);
    }
}
