//! Parser of the records that programs write into the ring buffer to the cell ([`layout::record`]).

use abi::host::{EVENT_LENGTH_MAX, FRAME_LENGTH_MAX, FRAME_LENGTH_MIN};
use abi::layout::SEND_BY_ROUTE;
use wasm_to_bpf::layout::{self, record};

/// Parsed record, whose bytes lie in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// Event that a module sends to the node's event stream.
    Event {
        /// Instance that wrote it: the value of [`layout::INSTANCE`].
        instance: u64,
        /// Number chosen by the module.
        code: u32,
        /// Payload of at most [`EVENT_LENGTH_MAX`] bytes.
        data: &'a [u8],
    },
    /// Frame that a module made and sends.
    Send {
        /// Instance that wrote it: the value of [`layout::INSTANCE`].
        instance: u64,
        /// Number of the port, below [`layout::PORTS_MAX`], or [`SEND_BY_ROUTE`].
        port: u16,
        /// Whole frame of [`FRAME_LENGTH_MIN`] to [`FRAME_LENGTH_MAX`] bytes.
        frame: &'a [u8],
    },
    /// Control message of a module for those before it in the graph.
    Message {
        /// Instance that wrote it: the value of [`layout::INSTANCE`].
        instance: u64,
        /// Payload of at most [`EVENT_LENGTH_MAX`] bytes.
        message: &'a [u8],
    },
}

/// Cause for which bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record has another length than its header says, or is shorter than the header.
    #[error("a record from below says that it has {said:?} bytes of data, and comes in {found}")]
    Length {
        /// Length in the header; `None` if the record ends before that field.
        said: Option<u32>,
        /// Length of the whole record in bytes.
        found: usize,
    },
    /// The kind is unknown.
    #[error(
        "a record from below is of kind {kind}; there are 1, an event, 2, a frame, and 3, a message"
    )]
    Kind {
        /// Kind in the header.
        kind: u32,
    },
    /// The payload is longer than an event or a message may be.
    #[error("an event or message from below has {length} bytes; it can have {EVENT_LENGTH_MAX}")]
    Event {
        /// Length of the payload in bytes.
        length: usize,
    },
    /// The length is none that a frame may have.
    #[error(
        "a frame from below has {length} bytes; it can have {FRAME_LENGTH_MIN} to {FRAME_LENGTH_MAX}"
    )]
    Frame {
        /// Length of the frame in bytes.
        length: usize,
    },
    /// The number is none that a port may have.
    #[error("a frame from below is for port {port}; ports are below {}", layout::PORTS_MAX)]
    Port {
        /// Port number in the header.
        port: u32,
    },
}

impl<'a> Record<'a> {
    /// Parses a record.
    ///
    /// # Errors
    /// The bytes are none that a program of this compiler writes: programs and cell are of
    /// different versions, or the ring is not that of a module.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, RecordError> {
        let found = bytes.len();
        let (Some(kind), Some(value), Some(instance), Some(length)) = (
            u32_at(bytes, record::KIND),
            u32_at(bytes, record::VALUE),
            u64_at(bytes, record::INSTANCE),
            u32_at(bytes, record::LENGTH),
        ) else {
            return Err(RecordError::Length { said: None, found });
        };
        let data = bytes.get(record::BYTES as usize..).filter(|data| data.len() == length as usize);
        let data = data.ok_or(RecordError::Length { said: Some(length), found })?;
        match kind {
            record::KIND_EVENT | record::KIND_MESSAGE if data.len() > EVENT_LENGTH_MAX => {
                Err(RecordError::Event { length: data.len() })
            }
            record::KIND_EVENT => Ok(Self::Event { instance, code: value, data }),
            record::KIND_MESSAGE => Ok(Self::Message { instance, message: data }),
            record::KIND_FRAME if !(FRAME_LENGTH_MIN..=FRAME_LENGTH_MAX).contains(&data.len()) => {
                Err(RecordError::Frame { length: data.len() })
            }
            record::KIND_FRAME => {
                let port = u16::try_from(value).ok();
                let port = port.filter(|&port| value < layout::PORTS_MAX || port == SEND_BY_ROUTE);
                let port = port.ok_or(RecordError::Port { port: value })?;
                Ok(Self::Send { instance, port, frame: data })
            }
            _ => Err(RecordError::Kind { kind }),
        }
    }
}

fn u32_at(bytes: &[u8], offset: u32) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(offset as usize..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], offset: u32) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(offset as usize..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(kind: u32, value: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(kind.to_le_bytes());
        bytes.extend(value.to_le_bytes());
        bytes.extend(77u64.to_le_bytes());
        bytes.extend((data.len() as u32).to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(data);
        bytes
    }

    #[test]
    fn events_and_frames_are_parsed_unchanged() {
        for data in [&[][..], b"some", &[3; EVENT_LENGTH_MAX]] {
            let event = Record::Event { instance: 77, code: u32::MAX, data };
            assert_eq!(Record::parse(&bytes(1, u32::MAX, data)), Ok(event));
        }
        for length in [FRAME_LENGTH_MIN, FRAME_LENGTH_MAX] {
            let frame = &vec![5; length];
            for port in [127, SEND_BY_ROUTE] {
                let sent = Record::Send { instance: 77, port, frame };
                assert_eq!(Record::parse(&bytes(2, u32::from(port), frame)), Ok(sent));
            }
        }
    }

    #[test]
    fn every_limit_is_kept() {
        let parse =
            |kind, value, length| Record::parse(&bytes(kind, value, &vec![0; length])).err();
        let (event, frame) = (EVENT_LENGTH_MAX + 1, FRAME_LENGTH_MAX + 1);
        assert_eq!(parse(1, 0, event), Some(RecordError::Event { length: event }));
        assert_eq!(parse(2, 0, frame), Some(RecordError::Frame { length: frame }));
        assert_eq!(parse(2, 0, 13), Some(RecordError::Frame { length: 13 }));
        assert_eq!(parse(2, 128, 60), Some(RecordError::Port { port: 128 }));
        assert_eq!(parse(2, 1 << 16, 60), Some(RecordError::Port { port: 1 << 16 }));
        assert_eq!(parse(0, 0, 60), Some(RecordError::Kind { kind: 0 }));
        assert_eq!(parse(3, 0, event), Some(RecordError::Event { length: event }));
        assert_eq!(parse(4, 0, 60), Some(RecordError::Kind { kind: 4 }));
    }

    #[test]
    fn every_other_length_is_refused() {
        let whole = bytes(1, 0, b"event");
        for length in 0..whole.len() {
            let said = (length >= 20).then_some(5);
            let error = RecordError::Length { said, found: length };
            assert_eq!(Record::parse(&whole[..length]), Err(error));
        }
        let longer = [whole.as_slice(), b"!"].concat();
        assert_eq!(
            Record::parse(&longer),
            Err(RecordError::Length { said: Some(5), found: longer.len() })
        );
    }
}
