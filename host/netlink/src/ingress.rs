//! Frames at the ingress of a device: taken from the kernel, and given to it.
//!
//! ```text
//!  wire ─▶ device ─▶ packet sockets ─▶ tc ─▶ [Taken: dropped without the mark] ─▶ stack
//!                                      ▲
//!  a frame with the mark ─▶ another ───┘ redirect_to
//!                           device
//! ```
//!
//! [`Taken`] is an nftables table with an owner: it is gone when the last descriptor of its
//! socket is closed, in whatever way the processes ended that had it. Then the kernel has all
//! frames again, unless [`close_ingress`] has made a table without an owner in front of it.

use super::socket::Channel;
use super::{Netlink, NetlinkError};
use rtnetlink::packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use rustix::net::netlink::NETFILTER;
use std::os::fd::{AsFd, BorrowedFd};

/// Names of our tables begin so; the device's number follows.
pub(super) const TABLE: &str = "tamandua-";
const CHAIN: &str = "take";
/// Before chains of other people: they see a frame once, when it comes back.
const PRIORITY: i32 = -1000;

/// include/uapi/linux/netfilter/nfnetlink.h and nf_tables.h.
pub(super) const BATCH_BEGIN: u16 = 0x10;
pub(super) const BATCH_END: u16 = 0x11;
pub(super) const SUBSYSTEM_NFTABLES: u16 = 10;
pub(super) const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_DELTABLE: u16 = 2;
pub(super) const NFT_MSG_NEWCHAIN: u16 = 3;
pub(super) const NFT_MSG_NEWRULE: u16 = 6;
pub(super) const NFPROTO_UNSPEC: u8 = 0;
const NFPROTO_INET: u8 = 1;
const NFPROTO_NETDEV: u8 = 5;
const NF_INET_PRE_ROUTING: u32 = 0;
pub(super) const NFT_TABLE_F_OWNER: u32 = 2;
const NF_NETDEV_INGRESS: u32 = 0;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
const NFT_REG_VERDICT: u32 = 0;
pub(super) const NFT_REG_1: u32 = 1;
const NFT_META_MARK: u32 = 3;
const NFT_META_IIF: u32 = 4;
const NFT_META_IIFNAME: u32 = 6;
/// Length of a device's name with what fills it up (`IFNAMSIZ`).
const IFNAME_LENGTH: usize = 16;
pub(super) const NFT_CMP_EQ: u32 = 0;
const NFT_CMP_NEQ: u32 = 1;
/// To make what is not there.
pub(super) const CREATE: u16 = NLM_F_CREATE | NLM_F_EXCL;
const NLA_F_NESTED: u16 = 1 << 15;

/// include/uapi/linux/pkt_cls.h and tc_act/tc_mirred.h.
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TC_U32_TERMINAL: u8 = 1;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TC_ACT_STOLEN: u32 = 4;
const TCA_INGRESS_REDIR: u32 = 3;
const ETH_P_ALL: u16 = libc::ETH_P_ALL as u16;

/// All frames of a device are kept from the kernel's stack, but those with a mark, which lose
/// it. As long as this or a copy of its descriptor is there (Linux 5.12).
#[derive(Debug)]
pub struct Taken(Channel);

impl Taken {
    /// Takes the frames of a device in the calling thread's namespace.
    ///
    /// # Errors
    /// When the caller lacks `CAP_NET_ADMIN`, the kernel has no nftables at the ingress of
    /// devices, or another node has taken the device.
    pub fn take(device: &str, index: u32, mark: u32) -> Result<Self, NetlinkError> {
        let channel = open()?;
        let hook = Hook { device, priority: PRIORITY };
        let table = Table { name: format!("{TABLE}{index}"), flags: NFT_TABLE_F_OWNER };
        channel
            .batch(taking(device), &batch(table.made(CREATE, &hook, &accept_and_clear(mark))))?;
        Ok(Self(channel))
    }

    /// Keeps the frames of a device from the kernel's stack beside [`Taken::take`], as long as the
    /// returned value is there: frames with the mark pass, and keep it.
    ///
    /// # Errors
    /// As of [`Taken::take`].
    pub fn hold(device: &str, index: u32, mark: u32) -> Result<Self, NetlinkError> {
        let channel = open()?;
        let hook = Hook { device, priority: PRIORITY - 1 };
        let table = Table { name: format!("{TABLE}held-{index}"), flags: NFT_TABLE_F_OWNER };
        channel.batch(taking(device), &batch(table.made(CREATE, &hook, &accept(mark))))?;
        Ok(Self(channel))
    }
}

/// Keeps the frames of a device in the calling thread's namespace from the kernel's stack, but
/// those with a mark, until [`open_ingress`]: whatever becomes of the calling process, unlike
/// [`Taken`]. It makes anew what is there already.
///
/// # Errors
/// When the caller lacks `CAP_NET_ADMIN`, or the kernel has no nftables at the ingress of devices.
pub fn close_ingress(device: &str, index: u32, mark: u32) -> Result<(), NetlinkError> {
    let hook = Hook { device, priority: PRIORITY - 1 };
    let table = Table::closed(index);
    let messages = [table.removed(), table.made(NLM_F_CREATE, &hook, &accept(mark))].concat();
    open()?.batch(taking(device), &batch(messages))
}

/// Ends [`close_ingress`] of the device with a number, which may be gone; it does nothing where
/// nothing was closed.
///
/// # Errors
/// When the caller lacks `CAP_NET_ADMIN`, or the kernel has no nftables.
pub fn open_ingress(index: u32) -> Result<(), NetlinkError> {
    let request = format!("give the frames of device number {index} back to the kernel");
    open()?.batch(request, &batch(Table::closed(index).removed()))
}

/// A device by its name, and by the number of the one whose packets may come in, if one's may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownDevice {
    /// Interface name.
    pub name: String,
    /// Interface index whose packets are accepted; `None`: no device of this name is.
    pub index: Option<u32>,
}

/// Drops IP packets that come in by devices of these names and other numbers, in the calling
/// thread's namespace, whatever becomes of the calling process: at prerouting, which sees devices
/// that are not there yet. In place of what was so closed for `owner`; without devices nothing is.
///
/// # Errors
/// When the caller lacks `CAP_NET_ADMIN`, or the kernel has no nftables of the family inet.
pub fn close_names(owner: &str, devices: &[KnownDevice]) -> Result<(), NetlinkError> {
    let table = text(1, &table_of_names(owner));
    let header = whole(NFPROTO_INET, &[&table[..], &be32(2, 0)].concat());
    let mut messages = vec![
        (kind_of(NFT_MSG_NEWTABLE), NLM_F_CREATE, header.clone()),
        (kind_of(NFT_MSG_DELTABLE), 0, whole(NFPROTO_INET, &table)),
    ];
    if !devices.is_empty() {
        let at = [be32(1, NF_INET_PRE_ROUTING), be32(2, PRIORITY as u32)].concat();
        let chain =
            [&table[..], &text(3, CHAIN), &nested(4, &at), &be32(5, NF_ACCEPT), &text(7, "filter")];
        messages.push((kind_of(NFT_MSG_NEWTABLE), NLM_F_CREATE, header));
        messages.push((kind_of(NFT_MSG_NEWCHAIN), CREATE, whole(NFPROTO_INET, &chain.concat())));
    }
    for KnownDevice { name, index } in devices {
        let mut padded = [0; IFNAME_LENGTH];
        padded.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte);
        let other = index.map(|index| meta(NFT_META_IIF, NFT_CMP_NEQ, &index.to_ne_bytes()));
        let rule = [meta_is(NFT_META_IIFNAME, &padded), other.unwrap_or_default(), judged(NF_DROP)];
        let rule = [&table[..], &text(2, CHAIN), &nested(4, &rule.concat())].concat();
        messages.push((kind_of(NFT_MSG_NEWRULE), NLM_F_CREATE, whole(NFPROTO_INET, &rule)));
    }
    let request =
        format!("close the devices of node {owner} by name (nftables, CONFIG_NF_TABLES_INET)");
    open()?.batch(request, &batch(messages))
}

/// Returns the name of the table of [`close_ingress`].
#[must_use]
pub fn table_of_ingress(index: u32) -> String {
    format!("{TABLE}closed-{index}")
}

/// Returns the name of the table of [`close_names`].
#[must_use]
pub fn table_of_names(owner: &str) -> String {
    format!("{TABLE}ports-{owner}")
}

fn open() -> Result<Channel, NetlinkError> {
    Channel::open(Some(NETFILTER), 0).map_err(|source| NetlinkError::Open { source })
}

fn taking(device: &str) -> String {
    format!(
        "take the frames of {device} from the kernel (nftables at its ingress, CONFIG_NF_TABLES_NETDEV)"
    )
}

/// A message of a batch: its type, flags and payload.
type Message = (u16, u16, Vec<u8>);

/// The place where a chain looks at frames.
struct Hook<'d> {
    device: &'d str,
    priority: i32,
}

/// An nftables table of the family netdev with one chain.
struct Table {
    name: String,
    flags: u32,
}

impl Table {
    /// The table that outlives its maker.
    fn closed(index: u32) -> Self {
        Self { name: table_of_ingress(index), flags: 0 }
    }

    /// Makes the table, with a chain that drops what `rule` does not accept.
    fn made(&self, table_flags: u16, hook: &Hook<'_>, rule: &[u8]) -> Vec<Message> {
        let name = text(1, &self.name);
        let priority = be32(2, hook.priority as u32);
        let at = [be32(1, NF_NETDEV_INGRESS), priority, text(3, hook.device)].concat();
        let chain =
            [&name[..], &text(3, CHAIN), &nested(4, &at), &be32(5, NF_DROP), &text(7, "filter")];
        let rule = [&name[..], &text(2, CHAIN), &nested(4, rule)].concat();
        vec![
            (kind_of(NFT_MSG_NEWTABLE), table_flags, self.header()),
            (kind_of(NFT_MSG_NEWCHAIN), CREATE, whole(NFPROTO_NETDEV, &chain.concat())),
            (kind_of(NFT_MSG_NEWRULE), NLM_F_CREATE, whole(NFPROTO_NETDEV, &rule)),
        ]
    }

    /// Removes the table, whether it is there or not.
    fn removed(&self) -> Vec<Message> {
        let name = whole(NFPROTO_NETDEV, &text(1, &self.name));
        vec![
            (kind_of(NFT_MSG_NEWTABLE), NLM_F_CREATE, self.header()),
            (kind_of(NFT_MSG_DELTABLE), 0, name),
        ]
    }

    fn header(&self) -> Vec<u8> {
        whole(NFPROTO_NETDEV, &[text(1, &self.name), be32(2, self.flags)].concat())
    }
}

/// A message behind `struct nfgenmsg`.
fn whole(family: u8, rest: &[u8]) -> Vec<u8> {
    [&[family, 0, 0, 0][..], rest].concat()
}

/// Messages as one transaction.
fn batch(messages: Vec<Message>) -> Vec<Message> {
    // The subsystem of the batch, in network byte order.
    let subsystem = vec![NFPROTO_UNSPEC, 0, 0, SUBSYSTEM_NFTABLES as u8];
    let mut all = vec![(BATCH_BEGIN, 0, subsystem.clone())];
    all.extend(messages);
    all.push((BATCH_END, 0, subsystem));
    all
}

impl AsFd for Taken {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd().as_fd()
    }
}

/// `meta mark MARK meta mark set 0 accept`
fn accept_and_clear(mark: u32) -> Vec<u8> {
    let zero = nested(2, &attribute(1, &0u32.to_ne_bytes()));
    [
        meta_is(NFT_META_MARK, &mark.to_ne_bytes()),
        expression("immediate", &[be32(1, NFT_REG_1), zero]),
        expression("meta", &[be32(2, NFT_META_MARK), be32(3, NFT_REG_1)]),
        accepted(),
    ]
    .concat()
}

/// `meta mark MARK accept`
fn accept(mark: u32) -> Vec<u8> {
    [meta_is(NFT_META_MARK, &mark.to_ne_bytes()), accepted()].concat()
}

fn accepted() -> Vec<u8> {
    judged(NF_ACCEPT)
}

fn judged(verdict: u32) -> Vec<u8> {
    let verdict = nested(2, &nested(2, &be32(1, verdict)));
    expression("immediate", &[be32(1, NFT_REG_VERDICT), verdict])
}

/// A type of message of nftables, as netlink names it.
pub(super) const fn kind_of(message: u16) -> u16 {
    SUBSYSTEM_NFTABLES << 8 | message
}

/// `meta KEY VALUE`, which the rest of the rule is for.
pub(super) fn meta_is(key: u32, value: &[u8]) -> Vec<u8> {
    meta(key, NFT_CMP_EQ, value)
}

fn meta(key: u32, comparison: u32, value: &[u8]) -> Vec<u8> {
    let value = nested(3, &attribute(1, value));
    [
        expression("meta", &[be32(1, NFT_REG_1), be32(2, key)]),
        expression("cmp", &[be32(1, NFT_REG_1), be32(2, comparison), value]),
    ]
    .concat()
}

pub(super) fn expression(name: &str, fields: &[Vec<u8>]) -> Vec<u8> {
    nested(1, &[text(1, name), nested(2, &fields.concat())].concat())
}

/// One attribute, with what fills it up to four bytes.
pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len() as u16;
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

pub(super) fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind | NLA_F_NESTED, value)
}

pub(super) fn be32(kind: u16, number: u32) -> Vec<u8> {
    attribute(kind, &number.to_be_bytes())
}

pub(super) fn text(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), &[0]].concat())
}

impl Netlink {
    /// Has the kernel treat what comes in by one device as if it had come in by another.
    ///
    /// # Errors
    /// When the caller lacks `CAP_NET_ADMIN`, or the kernel has no ingress queueing discipline,
    /// u32 filter or mirred action.
    pub fn redirect_to(&self, from: u32, to: u32) -> Result<(), NetlinkError> {
        let index = i32::try_from(from).unwrap_or(i32::MAX);
        let request = format!(
            "redirect what comes in by device number {from} to number {to} (sch_ingress, cls_u32, act_mirred)"
        );
        let mut message = TcMessage::with_index(index);
        message.header.parent = TcHandle::INGRESS;
        message.header.handle = TcHandle { major: 0xffff, minor: 0 };
        message.attributes.push(TcAttribute::Kind("ingress".to_owned()));
        let message = RouteNetlinkMessage::NewQueueDiscipline(message);
        self.channel.change(&request, &message, NLM_F_CREATE | NLM_F_EXCL)?;
        let mut message = TcMessage::with_index(index);
        message.header.parent = TcHandle { major: 0xffff, minor: 0 };
        // Priority 1, all protocols.
        message.header.info = 1 << 16 | u32::from(ETH_P_ALL.to_be());
        message.attributes.push(TcAttribute::Kind("u32".to_owned()));
        let option = |kind, value| TcOption::Other(DefaultNla::new(kind, value));
        message.attributes.push(TcAttribute::Options(vec![
            option(TCA_U32_SEL, everything()),
            option(TCA_U32_ACT | NLA_F_NESTED, nested(1, &redirection(to))),
        ]));
        let message = RouteNetlinkMessage::NewTrafficFilter(message);
        self.channel.change(&request, &message, NLM_F_CREATE | NLM_F_EXCL)
    }
}

/// `struct tc_u32_sel` with one key whose mask is empty.
fn everything() -> Vec<u8> {
    const SELECTOR_LENGTH: usize = 16;
    const KEY_LENGTH: usize = 16;
    let mut bytes = vec![0; SELECTOR_LENGTH + KEY_LENGTH];
    (bytes[0], bytes[2]) = (TC_U32_TERMINAL, 1);
    bytes
}

/// The action of one filter: `struct tc_mirred`.
fn redirection(to: u32) -> Vec<u8> {
    let words = [0, 0, TC_ACT_STOLEN, 0, 0, TCA_INGRESS_REDIR, to];
    let parameters = words.map(u32::to_ne_bytes).concat();
    let options = attribute(TCA_MIRRED_PARMS, &parameters);
    [text(TCA_ACT_KIND, "mirred"), nested(TCA_ACT_OPTIONS, &options)].concat()
}
