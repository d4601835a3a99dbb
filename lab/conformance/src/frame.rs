//! Frames as one line of text, which a case's author writes.
//!
//! ```text
//! ipv4 udp dscp=46 payload=count:100      built, with right lengths and checksums
//! hex=0200...                             as it stands
//! count=60, zero=60                       60 bytes: 00 01 02 ..., or none set
//! same at=42:ff front=0000 back=-2        the frame that came in, changed
//! ```
//!
//! Two payloads of one frame are concatenated. Addresses and L4 ports are fixed: no case is about
//! them.

use wire::{FrameBuilder, protocol as p};

/// Addresses and L4 ports of every built frame.
const V4: ([u8; 4], [u8; 4]) = ([10, 0, 1, 2], [10, 0, 2, 2]);
const V6: ([u16; 8], [u16; 8]) = ([0xfd00, 1, 0, 0, 0, 0, 0, 2], [0xfd00, 2, 0, 0, 0, 0, 0, 2]);
const L4_PORTS: (u16, u16) = (4000, 5000);
/// TTL of a frame that does not state one.
const TTL: u8 = 64;
/// Longest frame: an Ethernet header and the longest IPv4 packet.
const LENGTH_MAX: usize = 14 + 65_535;

/// Reason why a line is no frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameTextError {
    /// The word is unknown.
    #[error("'{word}' is no word of a frame; frame.rs lists them")]
    Word {
        /// Unknown word.
        word: String,
    },
    /// The value after `=` cannot be parsed.
    #[error("'{word}' has a value that is not {wanted}")]
    Value {
        /// Whole word.
        word: String,
        /// Description of the expected value.
        wanted: &'static str,
    },
    /// The word `same` is used where there is no input frame.
    #[error("'same' needs a frame that came in; it is for frame_out and sent")]
    NothingSame,
    /// The change lies outside the frame.
    #[error("'{word}' reaches beyond the frame, which has {length} bytes here")]
    Outside {
        /// Whole word.
        word: String,
        /// Length of the frame so far, in bytes.
        length: usize,
    },
    /// The frame is longer than a packet can be.
    #[error("the frame would have {length} bytes, at most {LENGTH_MAX} are possible")]
    TooLong {
        /// Length in bytes.
        length: usize,
    },
}

/// Parses a frame; `same` is the input frame that the word `same` stands for.
///
/// # Errors
/// A word is unknown or cannot be applied.
pub fn frame(text: &str, same: Option<&[u8]>) -> Result<Vec<u8>, FrameTextError> {
    let mut builder = FrameBuilder::new();
    let mut whole = None;
    let mut payload = Vec::new();
    let mut changes = Vec::new();
    for word in text.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "same" => whole = Some(same.ok_or(FrameTextError::NothingSame)?.to_vec()),
            "hex" => whole = Some(bytes(word, value)?),
            "count" => whole = Some(counting(number(word, value)?)),
            "zero" => whole = Some(vec![0; usize::from(number::<u16>(word, value)?)]),
            "payload" => {
                payload.extend(payload_piece(word, value)?);
                builder = builder.payload(&payload);
            }
            "at" | "front" | "back" => changes.push((word, name, value)),
            _ => builder = built(builder, word, name, value)?,
        }
    }
    let mut frame = whole.unwrap_or_else(|| builder.build());
    for (word, name, value) in changes {
        change(&mut frame, word, name, value)?;
    }
    match frame.len() {
        length if length > LENGTH_MAX => Err(FrameTextError::TooLong { length }),
        _ => Ok(frame),
    }
}

/// Applies one word of the builder.
fn built(
    builder: FrameBuilder,
    word: &str,
    name: &str,
    value: &str,
) -> Result<FrameBuilder, FrameTextError> {
    Ok(match name {
        "ipv4" => builder.ipv4(V4.0, V4.1, TTL),
        "ipv6" => builder.ipv6(V6.0, V6.1, TTL),
        "answer_ipv4" => builder.ipv4(V4.1, V4.0, TTL),
        "answer_ipv6" => builder.ipv6(V6.1, V6.0, TTL),
        "arp" => builder.ethertype(p::ETHERTYPE_ARP).payload(&[0; 28]),
        "udp" => builder.udp(L4_PORTS.0, L4_PORTS.1),
        "answer_udp" => builder.udp(L4_PORTS.1, L4_PORTS.0),
        "tcp" => builder.tcp(L4_PORTS.0, L4_PORTS.1, p::TCP_ACK),
        "icmp" => builder.icmp_echo(1, 1),
        "protocol" => builder.protocol(number(word, value)?),
        "vlan" => builder.vlan(number(word, value)?),
        "dscp" => builder.dscp(number(word, value)?),
        "ecn" => builder.ecn(number(word, value)?),
        "id" => builder.identification(number(word, value)?),
        "options" => builder.options(&bytes(word, value)?),
        "extension" => builder.extension(number(word, value)?, &[]),
        "pad" => builder.pad_to(number(word, value)?),
        "fragment" => match value.strip_suffix('+') {
            Some(offset) => builder.fragment(number(word, offset)?, true),
            None => builder.fragment(number(word, value)?, false),
        },
        _ => return Err(FrameTextError::Word { word: word.to_owned() }),
    })
}

/// Applies a change: `at=OFFSET:HEX` overwrites; `front=HEX` and `back=HEX` add, `front=-N` and
/// `back=-N` remove bytes.
fn change(frame: &mut Vec<u8>, word: &str, name: &str, value: &str) -> Result<(), FrameTextError> {
    let length = frame.len();
    let outside = || FrameTextError::Outside { word: word.to_owned(), length };
    if name == "at" {
        let (offset, digits) = value.split_once(':').unwrap_or((value, ""));
        let (start, new) = (number::<usize>(word, offset)?, bytes(word, digits)?);
        let range = start..start.saturating_add(new.len());
        frame.get_mut(range).ok_or_else(outside)?.copy_from_slice(&new);
        return Ok(());
    }
    let at_front = name == "front";
    match value.strip_prefix('-') {
        Some(count) => {
            let count: usize = number(word, count)?;
            let rest = length.checked_sub(count).ok_or_else(outside)?;
            frame.drain(if at_front { 0..count } else { rest..length });
        }
        None => {
            let at = if at_front { 0 } else { length };
            frame.splice(at..at, bytes(word, value)?);
        }
    }
    Ok(())
}

/// Parses a payload: `HEX`, `count:N`, or `words:A,B,...` of 32 bits, little-endian.
fn payload_piece(word: &str, value: &str) -> Result<Vec<u8>, FrameTextError> {
    if let Some(count) = value.strip_prefix("count:") {
        return Ok(counting(number(word, count)?));
    }
    let Some(list) = value.strip_prefix("words:") else { return bytes(word, value) };
    let mut payload = Vec::new();
    for item in list.split(',') {
        let value: i64 = number(word, item)?;
        let wanted = "a list of numbers of 32 bits";
        let wrong = || FrameTextError::Value { word: word.to_owned(), wanted };
        if value < i64::from(i32::MIN) || value > i64::from(u32::MAX) {
            return Err(wrong());
        }
        payload.extend_from_slice(&(value as u32).to_le_bytes());
    }
    Ok(payload)
}

fn counting(count: u16) -> Vec<u8> {
    (0..count).map(|at| at as u8).collect()
}

fn bytes(word: &str, digits: &str) -> Result<Vec<u8>, FrameTextError> {
    let wanted = "an even number of hexadecimal digits";
    hex::decode(digits).map_err(|_| FrameTextError::Value { word: word.to_owned(), wanted })
}

/// Parses a decimal number, or a hexadecimal one with `0x`.
fn number<T: TryFrom<i64>>(word: &str, text: &str) -> Result<T, FrameTextError> {
    let read = match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let wanted = "a number in its range";
    let wrong = || FrameTextError::Value { word: word.to_owned(), wanted };
    T::try_from(read.map_err(|_| wrong())?).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_build_a_frame() {
        let built = frame("ipv4 udp dscp=46 vlan=7 payload=words:1,-1 pad=64", None).unwrap();
        let expected = FrameBuilder::new().ipv4(V4.0, V4.1, TTL).udp(4000, 5000).dscp(46).vlan(7);
        assert_eq!(built, expected.payload(&[1, 0, 0, 0, 255, 255, 255, 255]).pad_to(64).build());
        assert_eq!(frame("hex=00ff", None).unwrap(), [0, 255]);
        assert_eq!(frame("count=3", None).unwrap(), [0, 1, 2]);
    }

    #[test]
    fn changes_apply_in_order() {
        let came = [1, 2, 3, 4];
        let changed = frame("same front=-1 at=0:aa back=0b back=-2 front=0000", Some(&came));
        assert_eq!(changed.unwrap(), [0, 0, 0xaa, 3]);
    }

    #[test]
    fn text_that_is_no_frame_is_an_error() {
        for text in [
            "ipv5",
            "hex=0",
            "hex=zz",
            "count=-1",
            "count=65536",
            "vlan=",
            "ipv4 payload=words:4294967296",
            "same",
            "count=4 at=3:0000",
            "count=4 front=-5",
            "count=65535 back=000000000000000000000000000000",
        ] {
            assert!(frame(text, None).is_err(), "{text}");
        }
    }
}
