//! Test vectors: input packets in order, with verdict and output bytes, and the tables afterwards.

use serde::Deserialize;

use super::Table;

/// Test vectors of one function.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vectors {
    /// True if repeated measurement needs the original packet each time.
    #[serde(default)]
    pub restored: bool,
    /// True if the function also removes bytes at the front, or changes more of the head than NAT
    /// does: the packet's length and whole head are restored each time.
    #[serde(default)]
    pub restored_head: bool,
    /// Tables, in the order of the source.
    #[serde(rename = "table")]
    pub tables: Vec<Table>,
    /// Packets, in the order in which they are handled.
    #[serde(rename = "packet")]
    pub packets: Vec<Packet>,
    /// Expected entries of tables that differ from the initial state.
    #[serde(rename = "state", default)]
    pub states: Vec<State>,
}

/// Input packet with the expected result.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packet {
    /// Description of what the packet tests.
    pub about: String,
    /// Time of the node, in milliseconds.
    #[serde(default = "first_ms")]
    pub now_ms: u64,
    /// Bytes of the packet before the call.
    #[serde(deserialize_with = "hex::serde::deserialize")]
    pub frame: Vec<u8>,
    /// Expected verdict, encoded as in the module ABI; in the file `pass`, or `drop` with its
    /// reason.
    #[serde(deserialize_with = "verdict")]
    pub verdict: u32,
    /// Expected bytes after the call, where they differ.
    #[serde(default, deserialize_with = "bytes")]
    pub after: Option<Vec<u8>>,
    /// True if repeating this packet shows the function's cost.
    #[serde(default = "yes")]
    pub measured: bool,
}

impl Packet {
    /// Returns the expected bytes after the call.
    #[must_use]
    pub fn after(&self) -> &[u8] {
        self.after.as_ref().unwrap_or(&self.frame)
    }
}

/// Expected entry of a table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Name of the table.
    pub table: String,
    /// Index of the entry.
    pub entry: u32,
    /// Bytes of the entry.
    #[serde(deserialize_with = "hex::serde::deserialize")]
    pub bytes: Vec<u8>,
}

/// Error: the text is not TOML of this form.
#[derive(Debug, thiserror::Error)]
#[error("the test vectors are not as they should be: {0}")]
pub struct VectorsError(#[from] toml::de::Error);

impl Vectors {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// The text is not TOML of this form.
    pub fn parse(text: &str) -> Result<Self, VectorsError> {
        Ok(toml::from_str(text)?)
    }
}

const fn first_ms() -> u64 {
    1
}

const fn yes() -> bool {
    true
}

fn bytes<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Vec<u8>>, D::Error> {
    hex::serde::deserialize(from).map(Some)
}

fn verdict<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let text = String::deserialize(from)?;
    let reason = |text: &str| text.strip_prefix("drop ")?.parse::<u16>().ok();
    match (text.as_str(), reason(&text)) {
        ("pass", _) => Ok(0),
        (_, Some(reason)) => Ok(1 | u32::from(reason) << 16),
        _ => {
            Err(serde::de::Error::custom(format!("a verdict is pass or drop REASON, not {text:?}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_has_its_reason_in_the_high_half() {
        let text = "[[table]]\nname = \"t\"\nentry = 4\ncount = 1\n[[packet]]\nabout = \"it\"\n\
                    frame = \"00ff\"\nverdict = \"drop 7\"\n";
        let vectors = Vectors::parse(text).unwrap();
        let packet = &vectors.packets[0];
        assert_eq!((packet.verdict, packet.after()), (0x7_0001, &[0, 0xff][..]));
        assert!(Vectors::parse(&text.replace("drop 7", "bounce")).is_err());
    }
}
