//! Source addresses that only this machine may send from ("martian sources").

use bpf_maps::OwnPrefix;
use std::collections::BTreeSet;
use units::PortId;

/// IPv4 addresses of the machine itself, and the ports by which packets from them may come in.
///
/// Linux drops such packets unless `accept_local` of their device says otherwise
/// (`fib_validate_source`, net/ipv4/fib_frontend.c); IPv6 is forwarded whatever its source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnSources {
    prefixes: BTreeSet<OwnPrefix>,
    accepting: BTreeSet<PortId>,
    /// Prefix lengths in use: each takes one lookup.
    lengths: BTreeSet<u32>,
}

impl OwnSources {
    /// Creates the set from prefixes and the ports that accept packets from them.
    #[must_use]
    pub fn new(prefixes: BTreeSet<OwnPrefix>, accepting: BTreeSet<PortId>) -> Self {
        let lengths = prefixes.iter().map(|prefix| prefix.length).collect();
        Self { prefixes, accepting, lengths }
    }

    /// Returns the prefixes.
    #[must_use]
    pub fn prefixes(&self) -> &BTreeSet<OwnPrefix> {
        &self.prefixes
    }

    /// Returns the ports by which packets from these addresses may come in.
    #[must_use]
    pub fn accepting(&self) -> &BTreeSet<PortId> {
        &self.accepting
    }

    /// Returns true if a packet that came in by a port is dropped for its source address.
    #[must_use]
    pub(super) fn refuse(&self, port: PortId, parsed: &wire::Parsed) -> bool {
        let [a, b, c, d, ..] = parsed.source;
        let address = u32::from_be_bytes([a, b, c, d]);
        let has = |&length: &u32| {
            let mask = u32::MAX.checked_shl(32 - length.min(32)).unwrap_or(0);
            let address_be = (address & mask).to_be_bytes();
            self.prefixes.contains(&OwnPrefix { length, address_be })
        };
        parsed.ip_version == 4 && !self.accepting.contains(&port) && self.lengths.iter().any(has)
    }
}
