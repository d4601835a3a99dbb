//! nftables: tables, base chains, rules and their expressions, as messages of one transaction
//! (include/uapi/linux/netfilter/nfnetlink.h and nf_tables.h).
//!
//! ```text
//!  Transaction: begin │ table, chain, rule … │ end    one datagram, done as a whole or not at all
//!                       └ Attributes ─ Rule: expressions, one after the other
//! ```

use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rustix::net::netlink::NETFILTER;

use super::NetlinkError;
use super::attributes::Attributes;
use super::socket::{Message, Socket};

/// Prefix of the names of our tables.
pub(super) const TABLE: &str = "tamandua-";

/// Flags that create an object, and fail if it exists.
pub(super) const CREATE: u16 = NLM_F_CREATE | NLM_F_EXCL;

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const SUBSYSTEM_NFTABLES: u16 = 10;
const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_GETTABLE: u16 = 1;
const NFT_MSG_DELTABLE: u16 = 2;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_NEWRULE: u16 = 6;
const NFPROTO_UNSPEC: u8 = 0;
const NFT_TABLE_F_OWNER: u32 = 2;
const NF_INET_PRE_ROUTING: u32 = 0;
const NF_NETDEV_INGRESS: u32 = 0;
const NFT_REG_VERDICT: u32 = 0;
const NFT_REG_1: u32 = 1;
const NFT_REG_2: u32 = 2;
const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;

/// Family of a table (`NFPROTO_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// IPv4 and IPv6.
    Inet = 1,
    /// Frames of devices.
    Netdev = 5,
}

/// Verdict on a packet (`NF_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Drop = 0,
    Accept = 1,
}

/// Property of a packet outside its bytes (`NFT_META_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meta {
    Mark = 3,
    /// Index of the device that the packet came in by.
    Iif = 4,
    /// Name of the device that the packet came in by, in 16 bytes.
    IifName = 6,
    /// Family of the packet's protocol, one byte.
    NfProto = 15,
}

/// Comparison (`NFT_CMP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal = 0,
    NotEqual = 1,
}

/// Table of nftables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) family: Family,
    pub(super) name: String,
    /// True if the table ends with the socket that created it.
    pub(super) is_owned: bool,
}

impl Table {
    fn named(&self) -> Attributes {
        Attributes::new().text(1, &self.name)
    }

    fn message(&self, kind: u16, flags: u16, attributes: &Attributes) -> Message {
        Message { kind: kind_of(kind), flags, payload: header(self.family as u8, attributes) }
    }
}

/// Hook of a base chain: the ingress of a device, or prerouting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hook<'d> {
    pub(super) device: Option<&'d str>,
    pub(super) priority: i32,
}

/// Messages that are executed as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transaction(Vec<Message>);

impl Transaction {
    pub(super) fn new() -> Self {
        Self(vec![Self::border(BATCH_BEGIN)])
    }

    fn border(kind: u16) -> Message {
        // The subsystem of the batch, in network byte order.
        let payload = vec![NFPROTO_UNSPEC, 0, 0, SUBSYSTEM_NFTABLES as u8];
        Message { kind, flags: 0, payload }
    }

    /// Creates a table.
    pub(super) fn make_table(mut self, flags: u16, table: &Table) -> Self {
        let table_flags = if table.is_owned { NFT_TABLE_F_OWNER } else { 0 };
        let attributes = table.named().be32(2, table_flags);
        self.0.push(table.message(NFT_MSG_NEWTABLE, flags, &attributes));
        self
    }

    /// Removes a table, if it exists.
    pub(super) fn remove_table(self, table: &Table) -> Self {
        let mut made = self.make_table(NLM_F_CREATE, table);
        made.0.push(table.message(NFT_MSG_DELTABLE, 0, &table.named()));
        made
    }

    /// Creates a base chain of the type `filter`.
    pub(super) fn make_chain(
        mut self,
        table: &Table,
        name: &str,
        hook: Hook<'_>,
        policy: Option<Verdict>,
    ) -> Self {
        let Hook { device, priority } = hook;
        let number = if device.is_some() { NF_NETDEV_INGRESS } else { NF_INET_PRE_ROUTING };
        let mut at = Attributes::new().be32(1, number).be32(2, priority as u32);
        if let Some(device) = device {
            at = at.text(3, device);
        }
        let mut chain = table.named().text(3, name).nested(4, at);
        if let Some(policy) = policy {
            chain = chain.be32(5, policy as u32);
        }
        self.0.push(table.message(NFT_MSG_NEWCHAIN, CREATE, &chain.text(7, "filter")));
        self
    }

    /// Appends a rule to a chain.
    pub(super) fn add_rule(mut self, table: &Table, chain: &str, rule: Rule) -> Self {
        let attributes = table.named().text(2, chain).nested(4, rule.0);
        self.0.push(table.message(NFT_MSG_NEWRULE, NLM_F_CREATE, &attributes));
        self
    }

    /// Returns the messages, with the end of the batch.
    pub(super) fn messages(mut self) -> Vec<Message> {
        self.0.push(Self::border(BATCH_END));
        self.0
    }

    /// Executes the messages; `request` describes them, as a verb with its object.
    ///
    /// # Errors
    /// The kernel refuses one of them: then none is executed.
    pub(super) fn commit(self, socket: &Socket, request: &str) -> Result<(), NetlinkError> {
        socket.batch(request, &self.messages())
    }
}

/// Expressions of a rule: each one continues to the next, or ends the rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rule(Attributes);

impl Rule {
    pub(super) const fn new() -> Self {
        Self(Attributes::new())
    }

    fn expression(self, name: &str, fields: Attributes) -> Self {
        let expression = Attributes::new().text(1, name).nested(2, fields);
        Self(self.0.nested(1, expression))
    }

    /// Adds `meta KEY VALUE`: the following expressions apply to matching packets only.
    pub(super) fn meta_is(self, key: Meta, value: &[u8]) -> Self {
        self.meta(key, Comparison::Equal, value)
    }

    /// Adds `meta KEY COMPARISON VALUE`: the following expressions apply to matching packets only.
    pub(super) fn meta(self, key: Meta, comparison: Comparison, value: &[u8]) -> Self {
        self.expression("meta", Attributes::new().be32(1, NFT_REG_1).be32(2, key as u32))
            .compare(comparison, value)
    }

    fn compare(self, comparison: Comparison, value: &[u8]) -> Self {
        let fields = Attributes::new().be32(1, NFT_REG_1).be32(2, comparison as u32);
        self.expression("cmp", fields.nested(3, Attributes::new().bytes(1, value)))
    }

    fn load(self, register: u32, value: &[u8]) -> Self {
        let value = Attributes::new().bytes(1, value);
        self.expression("immediate", Attributes::new().be32(1, register).nested(2, value))
    }

    /// Adds `meta mark set 0`.
    pub(super) fn clear_mark(self) -> Self {
        let fields = Attributes::new().be32(2, Meta::Mark as u32).be32(3, NFT_REG_1);
        self.load(NFT_REG_1, &0u32.to_ne_bytes()).expression("meta", fields)
    }

    /// Adds `accept` or `drop`.
    pub(super) fn judge(self, verdict: Verdict) -> Self {
        let code = Attributes::new().be32(1, verdict as u32);
        let verdict = Attributes::new().nested(2, code);
        let fields = Attributes::new().be32(1, NFT_REG_VERDICT).nested(2, verdict);
        self.expression("immediate", fields)
    }

    /// Adds `@th,OFFSET,8 & MASK == VALUE`: the following expressions apply only to packets with
    /// this byte at an offset, in bytes, of the transport header.
    pub(super) fn transport_byte_is(self, offset: u32, mask: u8, value: u8) -> Self {
        let byte = |byte: u8| Attributes::new().bytes(1, &[byte]);
        let load = Attributes::new()
            .be32(1, NFT_REG_1)
            .be32(2, NFT_PAYLOAD_TRANSPORT_HEADER)
            .be32(3, offset)
            .be32(4, 1);
        let masked = Attributes::new()
            .be32(1, NFT_REG_1)
            .be32(2, NFT_REG_1)
            .be32(3, 1)
            .nested(4, byte(mask))
            .nested(5, byte(0));
        self.expression("payload", load)
            .expression("bitwise", masked)
            .compare(Comparison::Equal, &[value])
    }

    /// Adds `tproxy FAMILY to ADDRESS:PORT`, with `AF_INET` or `AF_INET6`.
    pub(super) fn tproxy(self, family: u8, address: &[u8], port: u16) -> Self {
        let fields =
            Attributes::new().be32(1, u32::from(family)).be32(2, NFT_REG_1).be32(3, NFT_REG_2);
        self.load(NFT_REG_1, address)
            .load(NFT_REG_2, &port.to_be_bytes())
            .expression("tproxy", fields)
    }
}

/// Opens a socket to the kernel's netfilter.
pub(super) fn open() -> Result<Socket, NetlinkError> {
    Socket::open(Some(NETFILTER), 0).map_err(|source| NetlinkError::Open { source })
}

/// Returns true if a table exists.
pub(super) fn has_table(socket: &Socket, table: &Table) -> Result<bool, NetlinkError> {
    let message = table.message(NFT_MSG_GETTABLE, 0, &table.named());
    match socket.ask_raw("look for a table", &message) {
        Ok(_) => Ok(true),
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the netlink message type of an nftables message.
pub(super) const fn kind_of(message: u16) -> u16 {
    SUBSYSTEM_NFTABLES << 8 | message
}

/// Returns `struct nfgenmsg` followed by attributes.
fn header(family: u8, attributes: &Attributes) -> Vec<u8> {
    [&[family, 0, 0, 0][..], &attributes.emit()].concat()
}
