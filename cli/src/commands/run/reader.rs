//! Reader of pcap and pcapng files of Ethernet frames. Faults are sentences without the file's
//! name, which callers add.

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};
use std::io::{self, Read, Seek};
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
/// Nanoseconds per tick of a pcapng interface without the option `if_tsresol`: microseconds.
const PCAPNG_TICK_NANOS: f64 = 1000.0;

/// Captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Time stamp since 1970.
    pub time: Duration,
    /// Captured bytes.
    pub bytes: Vec<u8>,
    /// Length on the wire, in bytes; more than were captured when the frame was cut.
    pub length_on_wire: usize,
}

/// Reader of either capture format.
pub enum Reader<R: Read> {
    /// Format of libpcap.
    Pcap(PcapReader<R>),
    /// Format pcapng.
    PcapNg(PcapNgReader<R>),
}

/// Reason why a file cannot be read as a capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(io::Error),
    /// The file is no capture, is damaged, or is of another kind of network.
    #[error("{0}")]
    Unusable(String),
}

impl<R: Read + Seek> Reader<R> {
    /// Reads the file's header.
    ///
    /// # Errors
    /// The file is no capture, or not of Ethernet.
    pub fn new(mut file: R) -> Result<Self, CaptureError> {
        let mut magic = Vec::new();
        file.by_ref().take(4).read_to_end(&mut magic).map_err(CaptureError::Io)?;
        file.rewind().map_err(CaptureError::Io)?;
        let wrong = |error: PcapError| CaptureError::Unusable(words(&error));
        if magic == PCAPNG_MAGIC {
            return Ok(Self::PcapNg(PcapNgReader::new(file).map_err(wrong)?));
        }
        if !PCAP_MAGICS.iter().any(|known| magic == known) {
            return Err(CaptureError::Unusable("it is neither pcap nor pcapng".to_owned()));
        }
        let reader = PcapReader::new(file).map_err(wrong)?;
        require_ethernet(reader.header().datalink).map_err(CaptureError::Unusable)?;
        Ok(Self::Pcap(reader))
    }

    /// Returns the next frame, or the reason why nothing more can be read.
    pub fn next_frame(&mut self) -> Option<Result<Frame, String>> {
        match self {
            Self::Pcap(reader) => next_of_pcap(reader),
            Self::PcapNg(reader) => next_of_pcapng(reader),
        }
    }
}

fn next_of_pcap<R: Read>(reader: &mut PcapReader<R>) -> Option<Result<Frame, String>> {
    let per_tick = match reader.header().ts_resolution {
        TsResolution::MicroSecond => 1000,
        TsResolution::NanoSecond => 1,
    };
    // The raw packet, since a wrong time or snapshot length is no reason to discard it.
    Some(reader.next_raw_packet()?.map_err(|error| words(&error)).map(|packet| Frame {
        time: Duration::from_secs(packet.ts_sec.into())
            + Duration::from_nanos(u64::from(packet.ts_frac) * per_tick),
        length_on_wire: packet.orig_len as usize,
        bytes: packet.data.into_owned(),
    }))
}

fn next_of_pcapng<R: Read>(reader: &mut PcapNgReader<R>) -> Option<Result<Frame, String>> {
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

/// Returns nanoseconds per tick, from the option `if_tsresol`: a power of 10, or of 2 when the
/// highest bit is set.
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

/// Describes an error of the pcap library for people.
pub fn words(error: &PcapError) -> String {
    match error {
        PcapError::IoError(io) if io.kind() == io::ErrorKind::UnexpectedEof => {
            "the file ends in the middle of a packet".to_owned()
        }
        PcapError::IoError(io) => io.to_string(),
        PcapError::IncompleteBuffer => "the file ends in the middle of a packet".to_owned(),
        other => other.to_string(),
    }
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
