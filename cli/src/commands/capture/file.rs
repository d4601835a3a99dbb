//! A pcapng file (draft-ietf-opsawg-pcapng): an interface for each port, a comment for each packet.

use super::{bytes_of, comment, unwritable};
use crate::destination;
use crate::failure::Failure;
use crate::output;
use api::{CaptureStarted, CapturedPacket};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};
use std::borrow::Cow;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

/// Time stamps in nanoseconds (if_tsresol).
const NANOSECONDS: u8 = 9;
/// epb_flags: direction.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// pcapng file that is being written.
pub struct CaptureFile {
    name: String,
    writer: PcapNgWriter<BufWriter<Box<dyn Write>>>,
    /// Ports in the order of their interfaces.
    ports: Vec<String>,
    snap: u32,
}

impl CaptureFile {
    /// Creates the file; replaces an existing one.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        Self::new(name, Box::new(destination::open(path)?))
    }

    /// Writes to standard output.
    pub fn to_standard_output() -> Result<Self, Failure> {
        output::must_be_open()?;
        Self::new("standard output".to_owned(), Box::new(io::stdout()))
    }

    fn new(name: String, out: Box<dyn Write>) -> Result<Self, Failure> {
        let writer = PcapNgWriter::new(BufWriter::new(out));
        let writer = writer.map_err(|problem| unwritable(&name, problem))?;
        Ok(Self { name, writer, ports: Vec::new(), snap: 0 })
    }

    /// Writes the section header and the interfaces.
    pub fn begin(&mut self, started: &CaptureStarted) -> Result<(), Failure> {
        self.snap = started.snap;
        for port in &started.ports {
            self.interface(port)?;
        }
        self.flush().map(drop)
    }

    fn interface(&mut self, port: &str) -> Result<u32, Failure> {
        if let Some(at) = self.ports.iter().position(|known| known == port) {
            return Ok(at as u32);
        }
        let block = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: self.snap,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(port.to_owned())),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        let written = self.writer.write_pcapng_block(block);
        written.map_err(|problem| unwritable(&self.name, problem))?;
        self.ports.push(port.to_owned());
        Ok(self.ports.len() as u32 - 1)
    }

    /// Writes a packet; returns false when the reader has closed the output.
    pub fn write(&mut self, packet: &CapturedPacket) -> Result<bool, Failure> {
        let direction = if packet.direction == "in" { INBOUND } else { OUTBOUND };
        let block = EnhancedPacketBlock {
            interface_id: self.interface(&packet.port)?,
            timestamp: Duration::from_nanos(packet.time_ns),
            original_len: packet.length,
            data: Cow::Owned(bytes_of(&packet.bytes_hex)),
            options: vec![
                EnhancedPacketOption::Comment(Cow::Owned(comment(packet))),
                EnhancedPacketOption::Flags(direction),
            ],
        };
        match self.writer.write_pcapng_block(block) {
            Ok(_) => Ok(true),
            Err(PcapError::IoError(error)) => self.refused(&error),
            Err(problem) => Err(unwritable(&self.name, problem)),
        }
    }

    /// Flushes to the reader; returns false when the reader has closed the output.
    pub fn flush(&mut self) -> Result<bool, Failure> {
        match self.writer.get_mut().flush() {
            Ok(()) => Ok(true),
            Err(error) => self.refused(&error),
        }
    }

    /// Returns `Ok(false)` for a closed pipe: a reader that has seen enough is no failure.
    fn refused(&self, error: &io::Error) -> Result<bool, Failure> {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Ok(false),
            _ => Err(Failure::io(format!("writing {}", self.name), error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::packet;
    use super::*;
    use pcap_file::pcapng::{Block, PcapNgReader};
    use std::fs::File;

    #[test]
    fn what_is_written_reads_back_with_time_length_and_comment() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.pcapng");
        let mut file = CaptureFile::create(&path).unwrap();
        let ports = vec!["left".to_owned(), "right".to_owned()];
        file.begin(&CaptureStarted { schema_version: 1, id: 1, ports, snap: 2048 }).unwrap();
        file.write(&packet()).unwrap();
        file.write(&CapturedPacket { port: "new".into(), ..packet() }).unwrap();
        file.flush().unwrap();
        let mut reader = PcapNgReader::new(File::open(&path).unwrap()).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap() {
                packets.push(packet.into_owned());
            }
        }
        assert_eq!(packets.len(), 2);
        let EnhancedPacketOption::Comment(comment) = &packets[0].options[0] else { panic!() };
        assert!(comment.starts_with("rule #3, service dns, level user"), "{comment}");
        assert_eq!((packets[0].original_len, packets[0].data.len()), (43, 43));
        assert_eq!((packets[0].interface_id, packets[1].interface_id), (0, 2));
    }
}
