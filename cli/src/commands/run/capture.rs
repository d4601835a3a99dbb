//! Capture files of Ethernet frames: reading and writing.

use super::lanes::{FrameOutcome, FrameResult};
use super::reader::{CaptureError, Frame, Reader, words};
use crate::destination;
use crate::failure::Failure;
use abi::Verdict;
use api::ErrorCode;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, PcapError, TsResolution};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Capture that is read frame by frame.
pub struct Capture {
    path: PathBuf,
    reader: Reader<BufReader<File>>,
    frames: u64,
}

/// Description of a fault in a capture, after which nothing can be read.
pub type Fault = String;

impl Capture {
    /// Opens a capture.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let refused = |error: io::Error| Failure::io(format!("reading {}", path.display()), &error);
        let file = BufReader::new(File::open(path).map_err(refused)?);
        let reader = Reader::new(file).map_err(|error| match error {
            CaptureError::Io(error) => refused(error),
            CaptureError::Unusable(reason) => unusable(path, &reason),
        })?;
        Ok(Self { path: path.to_owned(), reader, frames: 0 })
    }

    /// Returns the next frame; a fault ends the capture.
    pub fn next_frame(&mut self) -> Option<Result<Frame, Fault>> {
        let next = self.reader.next_frame()?;
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

fn unusable(path: &Path, reason: &str) -> Failure {
    Failure::new(ErrorCode::Usage, format!("{} is no capture to run on: {reason}", path.display()))
        .help("record one with: tcpdump -i DEVICE -w FILE.pcap")
}

/// Writer of the frames that leave a module.
pub struct CaptureWriter {
    path: PathBuf,
    writer: PcapWriter<BufWriter<File>>,
}

impl CaptureWriter {
    /// Creates the file; replaces an existing one.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let file = BufWriter::new(destination::open(path)?);
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let writer =
            PcapWriter::with_header(file, header).map_err(|error| written(path, &error))?;
        Ok(Self { path: path.to_owned(), writer })
    }

    /// Writes the frames that leave the module.
    pub fn write(&mut self, time: Duration, done: &FrameResult) -> Result<(), Failure> {
        leaving(done).try_for_each(|frame| self.write_frame(time, &frame))
    }

    fn write_frame(&mut self, time: Duration, bytes: &[u8]) -> Result<(), Failure> {
        let packet = PcapPacket::new(time, bytes.len() as u32, bytes);
        let done = self.writer.write_packet(&packet);
        done.map(|_| ()).map_err(|error| written(&self.path, &error))
    }

    /// Flushes the file.
    pub fn finish(self) -> Result<(), Failure> {
        let flushed = self.writer.into_writer().into_inner();
        flushed
            .map(|_| ())
            .map_err(|error| Failure::io(format!("writing {}", self.path.display()), error.error()))
    }
}

/// Returns the frames that leave a module: the packet unless it was dropped, and the frames that
/// the module sent itself.
pub fn leaving(done: &FrameResult) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let packet = match &done.outcome {
        FrameOutcome::Verdict(Verdict::Pass { .. } | Verdict::Redirect { .. }) => {
            Some(Cow::Borrowed(&done.bytes[..]))
        }
        FrameOutcome::Verdict(Verdict::Bounce) => {
            let mut bounced = done.bytes.clone();
            if let Some(macs) = bounced.get_mut(..12) {
                macs.rotate_left(6);
            }
            Some(Cow::Owned(bounced))
        }
        _ => None,
    };
    packet.into_iter().chain(done.sent.iter().map(|sent| Cow::Borrowed(&sent.frame[..])))
}

fn written(path: &Path, error: &PcapError) -> Failure {
    Failure::failed(format!("writing {}: {}", path.display(), words(error)))
}
