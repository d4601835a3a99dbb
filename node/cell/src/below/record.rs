//! What programs write into the ring buffer to the cell: [`layout::record`], taken apart.

use abi::host::{EVENT_LENGTH_MAX, FRAME_LENGTH_MAX, FRAME_LENGTH_MIN};
use abi::layout::SEND_BY_ROUTE;
use wasm_to_bpf::layout::{self, record};

/// A record, whose bytes still lie in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A module tells the node's event stream something.
    Event {
        /// Whose it is: what the node put into [`layout::INSTANCE`].
        instance: u64,
        /// Chosen by the module.
        code: u32,
        /// At most [`EVENT_LENGTH_MAX`] bytes.
        data: &'a [u8],
    },
    /// A module sends a frame of its own.
    Send {
        /// Whose it is: what the node put into [`layout::INSTANCE`].
        instance: u64,
        /// The port's number, below [`layout::PORTS_MAX`], or [`SEND_BY_ROUTE`].
        port: u16,
        /// The whole frame, [`FRAME_LENGTH_MIN`] to [`FRAME_LENGTH_MAX`] bytes.
        frame: &'a [u8],
    },
    /// A module has a control message for those before it in the graph.
    Message {
        /// Whose it is: what the node put into [`layout::INSTANCE`].
        instance: u64,
        /// At most [`EVENT_LENGTH_MAX`] bytes.
        message: &'a [u8],
    },
}

/// Bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Another length than the record says of itself, or less than its first fields take.
    #[error("a record from below says that it has {said:?} bytes of data, and comes in {found}")]
    Length {
        /// What it says; `None` when it ends before it says so.
        said: Option<u32>,
        /// Bytes of the whole record.
        found: usize,
    },
    /// None of those that there are.
    #[error(
        "a record from below is of kind {kind}; there are 1, an event, 2, a frame, and 3, a message"
    )]
    Kind {
        /// What it says.
        kind: u32,
    },
    /// More data than an event or a message has.
    #[error("an event or message from below has {length} bytes; it can have {EVENT_LENGTH_MAX}")]
    Event {
        /// Bytes of its data.
        length: usize,
    },
    /// A length that no frame has.
    #[error(
        "a frame from below has {length} bytes; it can have {FRAME_LENGTH_MIN} to {FRAME_LENGTH_MAX}"
    )]
    Frame {
        /// Its bytes.
        length: usize,
    },
    /// A number that no port has.
    #[error("a frame from below is for port {port}; ports are below {}", layout::PORTS_MAX)]
    Port {
        /// What it says.
        port: u32,
    },
}

impl<'a> Record<'a> {
    /// Takes a record apart.
    ///
    /// # Errors
    /// When the bytes are none that a program of our compiler writes: programs and cell are of
    /// different versions, or the ring is another one.
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
    fn events_and_frames_are_what_they_were() {
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
