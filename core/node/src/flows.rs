//! Lists of exact flows: one rule for up to a million of them.
//!
//! ```text
//! udp 10.0.0.1 4000 10.0.2.9 53          PROTO SOURCE L4-PORT DESTINATION L4-PORT
//! tcp 2001:db8::1 4000 2001:db8::9 443   # and comments
//! ```
//!
//! A list is one mask of the front door with a hash table of its own there. The table is filled
//! once: changes of other rules do not touch it.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use std::sync::Arc;

use bpf_maps::{FLOW_KEY_LENGTH, FLOWS_LISTED_MAX, FlowKey, Key};
use serde::{Deserialize, Serialize};

use crate::message::shown;
use crate::protocol::Protocol;

/// Flows, each once, sorted by their bytes.
#[derive(Clone, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FlowList(Arc<[FlowKey]>);

/// Error of parsing a list of flows. Fault of the text's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowListError {
    /// The line is no flow.
    #[error(
        "line {line} of the flows: {fault}; write a flow as in 'udp 10.0.0.1 4000 10.0.2.9 53'"
    )]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// Description of the fault.
        fault: String,
    },
    /// The list has more than [`FLOWS_LISTED_MAX`] flows.
    #[error(
        "these are more than {FLOWS_LISTED_MAX} flows, which is the most of a node; match more by prefix"
    )]
    TooMany,
    /// The list is empty.
    #[error("there is no flow in it; write one a line, as in 'udp 10.0.0.1 4000 10.0.2.9 53'")]
    Empty,
}

impl FlowList {
    /// Returns the list of flows that are sorted already; `None` if they are not.
    pub(crate) fn sorted(flows: Vec<FlowKey>) -> Option<Self> {
        flows.is_sorted().then(|| Self(flows.into()))
    }

    /// Returns the number of flows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the keys that the front door compares.
    #[must_use]
    pub fn keys(&self) -> &Arc<[FlowKey]> {
        &self.0
    }

    /// Returns true if a packet with this key belongs to a listed flow.
    #[must_use]
    pub fn has(&self, packet: &Key) -> bool {
        self.0.binary_search(&packet.flow()).is_ok()
    }
}

impl PartialEq for FlowList {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl FromStr for FlowList {
    type Err = FlowListError;

    fn from_str(text: &str) -> Result<Self, FlowListError> {
        let mut keys = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let flow = line.split('#').next().unwrap_or_default().trim();
            if flow.is_empty() {
                continue;
            }
            if keys.len() == FLOWS_LISTED_MAX {
                return Err(FlowListError::TooMany);
            }
            let key = key_of(flow);
            keys.push(key.map_err(|fault| FlowListError::Line { line: number + 1, fault })?);
        }
        if keys.is_empty() {
            return Err(FlowListError::Empty);
        }
        keys.sort_unstable();
        keys.dedup();
        Ok(Self(keys.into()))
    }
}

fn key_of(text: &str) -> Result<FlowKey, String> {
    let mut words = text.split_ascii_whitespace();
    let mut next = |what: &str| words.next().ok_or_else(|| format!("it ends before {what}"));
    let protocol: Protocol = next("the protocol")?.parse().map_err(|e| format!("{e}"))?;
    if !protocol.has_ports() {
        return Err(format!("{protocol} has no L4 ports"));
    }
    let address = |word: &str| -> Result<IpAddr, String> {
        word.parse().map_err(|_| format!("'{}' is no address", shown(word)))
    };
    let port = |word: &str| -> Result<u16, String> {
        let digits = word.bytes().all(|digit| digit.is_ascii_digit());
        let number = word.parse().ok().filter(|&number| digits && number != 0);
        number.ok_or_else(|| format!("'{}' is no L4 port from 1 to 65535", shown(word)))
    };
    let source = address(next("the source address")?)?;
    let source_port = port(next("the source L4 port")?)?;
    let destination = address(next("the destination address")?)?;
    let destination_port = port(next("the destination L4 port")?)?;
    if let Some(more) = words.next() {
        return Err(format!("'{}' comes behind a whole flow", shown(more)));
    }
    if source.is_ipv4() != destination.is_ipv4() {
        return Err("its addresses are of two IP versions".to_owned());
    }
    let key = Key {
        source: padded(source),
        destination: padded(destination),
        source_port_be: source_port.to_be_bytes(),
        destination_port_be: destination_port.to_be_bytes(),
        protocol: protocol.0,
        ip_version: if source.is_ipv4() { 4 } else { 6 },
        ..Key::default()
    };
    Ok(key.flow())
}

fn padded(address: IpAddr) -> [u8; 16] {
    crate::prefix::Prefix::containing(address, u8::MAX).key_bytes()
}

impl fmt::Display for FlowList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for flow in self.0.iter() {
            let key = Key::of_flow(flow);
            let address = |bytes: [u8; 16]| match key.ip_version {
                4 => IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]),
                _ => IpAddr::from(bytes),
            };
            writeln!(
                f,
                "{} {} {} {} {}",
                Protocol(key.protocol),
                address(key.source),
                u16::from_be_bytes(key.source_port_be),
                address(key.destination),
                u16::from_be_bytes(key.destination_port_be),
            )?;
        }
        Ok(())
    }
}

impl fmt::Debug for FlowList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlowList({} flows)", self.count())
    }
}

impl TryFrom<String> for FlowList {
    type Error = FlowListError;
    fn try_from(text: String) -> Result<Self, FlowListError> {
        text.parse()
    }
}

impl From<FlowList> for String {
    fn from(list: FlowList) -> Self {
        list.to_string()
    }
}

const _: () = assert!(FLOW_KEY_LENGTH == 38, "addresses, L4 ports, protocol and IP version");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_back_as_it_is_shown() {
        let text = "udp 10.0.0.1 4000 10.0.2.9 53\ntcp 2001:db8::1 4000 2001:db8::9 443\n";
        let commented = format!("# flows\n\n{text}udp 10.0.0.1 4000 10.0.2.9 53 # again\r\n");
        let list: FlowList = commented.parse().unwrap();
        assert_eq!(list.count(), 2);
        assert_eq!(list.to_string(), text);
        assert_eq!(text.parse(), Ok(list));
    }

    #[test]
    fn an_error_in_a_flow_list_has_its_line_and_what_to_write() {
        for (line, fault) in [
            ("udp 10.0.0.1 4000 10.0.2.9", "it ends before the destination L4 port"),
            ("icmp 10.0.0.1 1 10.0.2.9 1", "icmp has no L4 ports"),
            ("udpp 10.0.0.1 1 10.0.2.9 1", "did you mean 'udp'?"),
            ("udp 10.0.0 1 10.0.2.9 1", "'10.0.0' is no address"),
            ("udp 10.0.0.1 0 10.0.2.9 1", "'0' is no L4 port from 1 to 65535"),
            ("udp 10.0.0.1 +1 10.0.2.9 1", "'+1' is no L4 port"),
            ("udp 10.0.0.1 1 ::1 1", "two IP versions"),
            ("udp 10.0.0.1 1 10.0.2.9 1 x", "'x' comes behind"),
        ] {
            let text = format!("tcp 10.0.0.1 1 10.0.0.2 2\n{line}\n");
            let message = text.parse::<FlowList>().unwrap_err().to_string();
            assert!(message.starts_with("line 2 of the flows:"), "{message}");
            assert!(message.contains(fault) && message.contains("write a flow as in"), "{message}");
        }
        assert_eq!("# none\n".parse::<FlowList>(), Err(FlowListError::Empty));
    }

    #[test]
    fn a_flow_list_holds_1048576_flows_and_no_more() {
        use std::fmt::Write as _;
        let mut text = String::new();
        for number in 0..FLOWS_LISTED_MAX as u32 {
            let [_, a, b, c] = number.to_be_bytes();
            writeln!(text, "udp 10.{a}.{b}.{c} 4000 10.201.0.1 53").unwrap();
        }
        let list: FlowList = text.parse().unwrap();
        assert_eq!(list.count(), FLOWS_LISTED_MAX);
        text.push_str("udp 10.0.0.0 1 10.201.0.1 53\n");
        assert_eq!(text.parse::<FlowList>(), Err(FlowListError::TooMany));
    }
}
