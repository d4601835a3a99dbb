//! Detection of netfilter in the calling thread's namespace, through the kernel and not the `nft`
//! program.

use std::collections::BTreeSet;
use std::io;

use rtnetlink::packet_core::NlasIterator;
use rustix::net::netlink::NETFILTER;

use super::NetlinkError;
use super::nftables::{TABLE, kind_of};
use super::socket::Socket;

/// Messages of include/uapi/linux/netfilter/nf_tables.h.
const NFT_MSG_NEWCHAIN: u16 = kind_of(3);
const NFT_MSG_GETCHAIN: u16 = kind_of(4);
/// Attributes of a chain: the name of its table, and the hook, which only base chains have.
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_HOOK: u16 = 4;
/// Length of `struct nfgenmsg`, zero for all families and version 0.
const NETFILTER_HEADER_LENGTH: usize = 4;
/// Mask of an attribute's type without the two flags above it (`NLA_TYPE_MASK`).
const ATTRIBUTE_TYPE: u16 = 0x3fff;

/// Lists of tables made by legacy iptables, of the reading thread's namespace.
const LEGACY_TABLES: [&str; 2] =
    ["/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"];

/// Returns true if netfilter may process packets here: an nftables chain is on a hook (iptables-nft
/// makes these, too), or a table of legacy iptables is loaded, whose rules cannot be counted
/// without changing it.
///
/// # Errors
/// The caller lacks `CAP_NET_ADMIN`, or `/proc` is not mounted.
pub fn netfilter_in_use() -> io::Result<bool> {
    for path in LEGACY_TABLES {
        match std::fs::read_to_string(path) {
            Ok(names) if !names.trim().is_empty() => return Ok(true),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    nftables_chain_on_a_hook()
}

/// Returns the names of the tables of nodes that have a chain on a hook in the calling thread's
/// namespace.
///
/// # Errors
/// The caller lacks `CAP_NET_ADMIN`.
pub fn tables_of_nodes() -> io::Result<BTreeSet<String>> {
    let hooked = chains()?.into_iter().filter(|chain| chain.hooked && chain.is_ours());
    Ok(hooked.map(|chain| chain.table).collect())
}

fn nftables_chain_on_a_hook() -> io::Result<bool> {
    // Tables by which packet ports divert frames, and by which ports are closed, are the node's
    // own.
    Ok(chains()?.iter().any(|chain| chain.hooked && !chain.is_ours()))
}

/// Chain of nftables.
#[derive(Default)]
struct Chain {
    table: String,
    /// True for a base chain, which is on a hook.
    hooked: bool,
}

impl Chain {
    fn of(attributes: &[u8]) -> Self {
        let mut chain = Self::default();
        for attribute in NlasIterator::new(attributes).flatten() {
            match attribute.kind() & ATTRIBUTE_TYPE {
                NFTA_CHAIN_HOOK => chain.hooked = true,
                NFTA_CHAIN_TABLE => {
                    let name = String::from_utf8_lossy(attribute.value());
                    chain.table = name.trim_end_matches('\0').to_owned();
                }
                _ => {}
            }
        }
        chain
    }

    fn is_ours(&self) -> bool {
        self.table.starts_with(TABLE)
    }
}

/// Lists the nftables chains; empty where the kernel has no nftables.
fn chains() -> io::Result<Vec<Chain>> {
    // A kernel without netfilter has no such protocol.
    let Ok(socket) = Socket::open(Some(NETFILTER), 0) else { return Ok(Vec::new()) };
    let request = "list the nftables chains";
    match socket.dump(request, NFT_MSG_GETCHAIN, &[0; NETFILTER_HEADER_LENGTH]) {
        Ok(answers) => {
            let chains = answers.iter().filter(|answer| answer.kind == NFT_MSG_NEWCHAIN);
            Ok(chains
                .filter_map(|answer| answer.payload.get(NETFILTER_HEADER_LENGTH..))
                .map(Chain::of)
                .collect())
        }
        // A kernel with netfilter and without nftables does not know the subsystem.
        Err(error) if matches!(error.errno(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            Ok(Vec::new())
        }
        Err(NetlinkError::Refused { source, .. } | NetlinkError::Socket { source, .. }) => {
            Err(source)
        }
        Err(other) => Err(io::Error::other(other)),
    }
}
