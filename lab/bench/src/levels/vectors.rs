//! Test vectors: packets in, in this order, with verdict and bytes out, and the
//! tables afterwards.

use serde::Deserialize;

use super::Table;

/// The vectors of one function.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vectors {
    /// Whether measuring it over and over needs the packet as it came each time.
    #[serde(default)]
    pub restored: bool,
    /// Whether it also takes bytes away in front, or changes more of the head than NAT does:
    /// the packet gets its length and its whole head back each time.
    #[serde(default)]
    pub restored_head: bool,
    /// Its tables, in the order of the source.
    #[serde(rename = "table")]
    pub tables: Vec<Table>,
    /// What is handled, in this order.
    #[serde(rename = "packet")]
    pub packets: Vec<Packet>,
    /// Every entry of a table that is not as it was in the beginning.
    #[serde(rename = "state", default)]
    pub states: Vec<State>,
}

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packet {
    /// What it shows.
    pub about: String,
    /// The node's time.
    #[serde(default = "first_ms")]
    pub now_ms: u64,
    /// The packet as it comes.
    #[serde(deserialize_with = "hex::serde::deserialize")]
    pub frame: Vec<u8>,
    /// As the packet ABI has it; written `pass`, or `drop` with its reason.
    #[serde(deserialize_with = "verdict")]
    pub verdict: u32,
    /// The packet as it leaves, where that is another.
    #[serde(default, deserialize_with = "bytes")]
    pub after: Option<Vec<u8>>,
    /// Whether handling it over and over says what the function costs.
    #[serde(default = "yes")]
    pub measured: bool,
}

impl Packet {
    /// The packet as it leaves.
    #[must_use]
    pub fn after(&self) -> &[u8] {
        self.after.as_ref().unwrap_or(&self.frame)
    }
}

/// An entry of a table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The table's name.
    pub table: String,
    /// Its place.
    pub entry: u32,
    /// What it holds.
    #[serde(deserialize_with = "hex::serde::deserialize")]
    pub bytes: Vec<u8>,
}

/// The file is damaged.
#[derive(Debug, thiserror::Error)]
#[error("the test vectors are not as they should be: {0}")]
pub struct VectorsError(#[from] toml::de::Error);

impl Vectors {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// When it is not TOML of this form.
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
