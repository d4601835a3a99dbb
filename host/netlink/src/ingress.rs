//! Frames at the ingress of a device: diverted from the kernel's stack, and returned to it.
//!
//! ```text
//!  wire ─▶ device ─▶ packet sockets ─▶ tc ─▶ [diverted: dropped without the mark] ─▶ stack
//!                                      ▲
//!  a frame with the mark ─▶ another ───┘ redirect_to
//!                           device
//! ```
//!
//! [`Diversion`] is an nftables table with an owner: it is removed when the last descriptor of its
//! socket is closed, however the processes that had it ended. Then the kernel gets all frames
//! again, unless [`close_ingress`] has put a table without an owner before it.

use super::NetlinkError;
use super::nftables::{
    self, CREATE, Comparison, Family, Hook, Meta, Rule, TABLE, Table, Transaction, Verdict,
};
use super::socket::Socket;
use rtnetlink::packet_core::NLM_F_CREATE;
use std::os::fd::{AsFd, BorrowedFd};

const CHAIN: &str = "take";
/// Priority before the chains of other programs: they see a frame once, when it comes back.
const PRIORITY: i32 = -1000;
/// Priority before [`Diversion::take`].
const PRIORITY_HELD: i32 = PRIORITY - 1;
/// Length of a device's name with its padding (`IFNAMSIZ`).
const IFNAME_LENGTH: usize = 16;

/// Diversion of a device's frames from the kernel's stack, except frames with a mark, which is
/// cleared. It lasts as long as this value or a copy of its descriptor (Linux 5.12).
#[derive(Debug)]
pub struct Diversion(Socket);

impl Diversion {
    /// Diverts the frames of a device in the calling thread's namespace.
    ///
    /// # Errors
    /// The caller lacks `CAP_NET_ADMIN`, the kernel has no nftables at the ingress of devices,
    /// or another node has taken the device.
    pub fn take(device: &str, index: u32, mark: u32) -> Result<Self, NetlinkError> {
        let socket = nftables::open()?;
        take(device, index, mark).commit(&socket, &taking(device))?;
        Ok(Self(socket))
    }

    /// Holds the frames of a device back from the kernel's stack in addition to [`Diversion::take`], as
    /// long as the returned value exists; frames with the mark pass, and keep it.
    ///
    /// # Errors
    /// Same as [`Diversion::take`].
    pub fn hold(device: &str, index: u32, mark: u32) -> Result<Self, NetlinkError> {
        let socket = nftables::open()?;
        hold(device, index, mark).commit(&socket, &taking(device))?;
        Ok(Self(socket))
    }
}

impl AsFd for Diversion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd().as_fd()
    }
}

/// Keeps all frames of a device in the calling thread's namespace from the kernel's stack, except
/// frames with a mark, until [`open_ingress`]. Unlike [`Diversion`] it outlives the calling process. An
/// existing table is made again.
///
/// # Errors
/// The caller lacks `CAP_NET_ADMIN`, or the kernel has no nftables at the ingress of devices.
pub fn close_ingress(device: &str, index: u32, mark: u32) -> Result<(), NetlinkError> {
    close(device, index, mark).commit(&nftables::open()?, &taking(device))
}

/// Ends [`close_ingress`] for the device of this index, which may be gone. Without a table to
/// remove it does nothing.
///
/// # Errors
/// The caller lacks `CAP_NET_ADMIN`, or the kernel has no nftables.
pub fn open_ingress(index: u32) -> Result<(), NetlinkError> {
    let request = format!("give the frames of device number {index} back to the kernel");
    Transaction::new().remove_table(&closed(index)).commit(&nftables::open()?, &request)
}

/// Device name, with the index of the device whose packets are accepted under it, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownDevice {
    /// Interface name.
    pub name: String,
    /// Index of the device whose packets are accepted; `None` accepts none.
    pub index: Option<u32>,
}

/// Drops IP packets that come in by a device of one of these names with another index, in the
/// calling thread's namespace, also after the calling process has ended. The chain is at
/// prerouting, which covers devices that do not exist yet. It replaces the previous list of
/// `owner`; an empty list drops nothing.
///
/// # Errors
/// The caller lacks `CAP_NET_ADMIN`, or the kernel has no nftables of the family inet.
pub fn close_names(owner: &str, devices: &[KnownDevice]) -> Result<(), NetlinkError> {
    let request =
        format!("close the devices of node {owner} by name (nftables, CONFIG_NF_TABLES_INET)");
    close_by_name(owner, devices).commit(&nftables::open()?, &request)
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

fn taking(device: &str) -> String {
    format!(
        "take the frames of {device} from the kernel (nftables at its ingress, CONFIG_NF_TABLES_NETDEV)"
    )
}

/// Returns the table of [`close_ingress`], which outlives its creator.
fn closed(index: u32) -> Table {
    Table { family: Family::Netdev, name: table_of_ingress(index), is_owned: false }
}

/// Returns a table of [`Diversion`], which ends with its socket.
fn owned(name: String) -> Table {
    Table { family: Family::Netdev, name, is_owned: true }
}

fn take(device: &str, index: u32, mark: u32) -> Transaction {
    let table = owned(format!("{TABLE}{index}"));
    let hook = Hook { device: Some(device), priority: PRIORITY };
    let rule = marked(mark).clear_mark().judge(Verdict::Accept);
    make(Transaction::new(), CREATE, &table, hook, rule)
}

fn hold(device: &str, index: u32, mark: u32) -> Transaction {
    let table = owned(format!("{TABLE}held-{index}"));
    let hook = Hook { device: Some(device), priority: PRIORITY_HELD };
    let rule = marked(mark).judge(Verdict::Accept);
    make(Transaction::new(), CREATE, &table, hook, rule)
}

fn close(device: &str, index: u32, mark: u32) -> Transaction {
    let table = closed(index);
    let hook = Hook { device: Some(device), priority: PRIORITY_HELD };
    let rule = marked(mark).judge(Verdict::Accept);
    let removed = Transaction::new().remove_table(&table);
    make(removed, NLM_F_CREATE, &table, hook, rule)
}

/// Creates a table with a chain that drops everything that `rule` does not accept.
fn make(
    transaction: Transaction,
    flags: u16,
    table: &Table,
    hook: Hook<'_>,
    rule: Rule,
) -> Transaction {
    transaction
        .make_table(flags, table)
        .make_chain(table, CHAIN, hook, Some(Verdict::Drop))
        .add_rule(table, CHAIN, rule)
}

/// Returns the expression `meta mark MARK`.
fn marked(mark: u32) -> Rule {
    Rule::new().meta_is(Meta::Mark, &mark.to_ne_bytes())
}

fn close_by_name(owner: &str, devices: &[KnownDevice]) -> Transaction {
    let name = table_of_names(owner);
    let table = Table { family: Family::Inet, name, is_owned: false };
    let mut transaction = Transaction::new().remove_table(&table);
    if !devices.is_empty() {
        let hook = Hook { device: None, priority: PRIORITY };
        transaction = transaction.make_table(NLM_F_CREATE, &table).make_chain(
            &table,
            CHAIN,
            hook,
            Some(Verdict::Accept),
        );
    }
    for KnownDevice { name, index } in devices {
        let mut padded = [0; IFNAME_LENGTH];
        padded.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte);
        let mut rule = Rule::new().meta_is(Meta::IifName, &padded);
        if let Some(index) = index {
            rule = rule.meta(Meta::Iif, Comparison::NotEqual, &index.to_ne_bytes());
        }
        transaction = transaction.add_rule(&table, CHAIN, rule.judge(Verdict::Drop));
    }
    transaction
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::same;

    fn named(name: &str, index: Option<u32>) -> KnownDevice {
        KnownDevice { name: name.to_owned(), index }
    }

    #[test]
    fn the_tables_of_devices_are_these_bytes() {
        same(
            &take("eth0", 7, 0x1234_5678).messages(),
            &[
                (0x10, 0x0, "0000000a"),
                (0xa00, 0x600, "050000000f00010074616d616e6475612d3700000800020000000002"),
                (
                    0xa03,
                    0x600,
                    "050000000f00010074616d616e6475612d3700000900030074616b650000000020000480\
             080001000000000008000200fffffc180900030065746830000000000800050000000000\
             0b00070066696c7465720000",
                ),
                (
                    0xa06,
                    0x400,
                    "050000000f00010074616d616e6475612d3700000900020074616b6500000000d4000480\
             24000180090001006d657461000000001400028008000100000000010800020000000003\
             2c00018008000100636d700020000280080001000000000108000200000000000c000380\
             08000100785634122c0001800e000100696d6d6564696174650000001800028008000100\
             000000010c000280080001000000000024000180090001006d6574610000000014000280\
             08000200000000030800030000000001300001800e000100696d6d656469617465000000\
             1c0002800800010000000000100002800c0002800800010000000001",
                ),
                (0x11, 0x0, "0000000a"),
            ],
        );
        same(
            &hold("eth0", 7, 0x1234_5678).messages(),
            &[
                (0x10, 0x0, "0000000a"),
                (0xa00, 0x600, "050000001400010074616d616e6475612d68656c642d37000800020000000002"),
                (
                    0xa03,
                    0x600,
                    "050000001400010074616d616e6475612d68656c642d37000900030074616b6500000000\
             20000480080001000000000008000200fffffc1709000300657468300000000008000500\
             000000000b00070066696c7465720000",
                ),
                (
                    0xa06,
                    0x400,
                    "050000001400010074616d616e6475612d68656c642d37000900020074616b6500000000\
             8400048024000180090001006d6574610000000014000280080001000000000108000200\
             000000032c00018008000100636d70002000028008000100000000010800020000000000\
             0c0003800800010078563412300001800e000100696d6d6564696174650000001c000280\
             0800010000000000100002800c0002800800010000000001",
                ),
                (0x11, 0x0, "0000000a"),
            ],
        );
        same(
            &close("eth0", 7, 0x1234_5678).messages(),
            &[
                (0x10, 0x0, "0000000a"),
                (
                    0xa00,
                    0x400,
                    "050000001600010074616d616e6475612d636c6f7365642d370000000800020000000000",
                ),
                (0xa02, 0x0, "050000001600010074616d616e6475612d636c6f7365642d37000000"),
                (
                    0xa00,
                    0x400,
                    "050000001600010074616d616e6475612d636c6f7365642d370000000800020000000000",
                ),
                (
                    0xa03,
                    0x600,
                    "050000001600010074616d616e6475612d636c6f7365642d370000000900030074616b65\
             0000000020000480080001000000000008000200fffffc17090003006574683000000000\
             08000500000000000b00070066696c7465720000",
                ),
                (
                    0xa06,
                    0x400,
                    "050000001600010074616d616e6475612d636c6f7365642d370000000900020074616b65\
             000000008400048024000180090001006d65746100000000140002800800010000000001\
             08000200000000032c00018008000100636d700020000280080001000000000108000200\
             000000000c0003800800010078563412300001800e000100696d6d656469617465000000\
             1c0002800800010000000000100002800c0002800800010000000001",
                ),
                (0x11, 0x0, "0000000a"),
            ],
        );
        same(
            &Transaction::new().remove_table(&closed(7)).messages(),
            &[
                (0x10, 0x0, "0000000a"),
                (
                    0xa00,
                    0x400,
                    "050000001600010074616d616e6475612d636c6f7365642d370000000800020000000000",
                ),
                (0xa02, 0x0, "050000001600010074616d616e6475612d636c6f7365642d37000000"),
                (0x11, 0x0, "0000000a"),
            ],
        );
    }

    #[test]
    fn the_table_of_names_is_these_bytes() {
        let devices = [named("eth0", Some(3)), named("tam0", None)];
        same(
            &close_by_name("n1", &devices).messages(),
            &[
                (0x10, 0x0, "0000000a"),
                (
                    0xa00,
                    0x400,
                    "010000001600010074616d616e6475612d706f7274732d6e310000000800020000000000",
                ),
                (0xa02, 0x0, "010000001600010074616d616e6475612d706f7274732d6e31000000"),
                (
                    0xa00,
                    0x400,
                    "010000001600010074616d616e6475612d706f7274732d6e310000000800020000000000",
                ),
                (
                    0xa03,
                    0x600,
                    "010000001600010074616d616e6475612d706f7274732d6e310000000900030074616b65\
             0000000014000480080001000000000008000200fffffc1808000500000000010b000700\
             66696c7465720000",
                ),
                (
                    0xa06,
                    0x400,
                    "010000001600010074616d616e6475612d706f7274732d6e310000000900020074616b65\
             00000000e000048024000180090001006d65746100000000140002800800010000000001\
             08000200000000063800018008000100636d70002c000280080001000000000108000200\
             000000001800038014000100657468300000000000000000000000002400018009000100\
             6d6574610000000014000280080001000000000108000200000000042c00018008000100\
             636d700020000280080001000000000108000200000000010c0003800800010003000000\
             300001800e000100696d6d6564696174650000001c000280080001000000000010000280\
             0c0002800800010000000000",
                ),
                (
                    0xa06,
                    0x400,
                    "010000001600010074616d616e6475612d706f7274732d6e310000000900020074616b65\
             000000009000048024000180090001006d65746100000000140002800800010000000001\
             08000200000000063800018008000100636d70002c000280080001000000000108000200\
             00000000180003801400010074616d30000000000000000000000000300001800e000100\
             696d6d6564696174650000001c0002800800010000000000100002800c00028008000100\
             00000000",
                ),
                (0x11, 0x0, "0000000a"),
            ],
        );
        same(
            &close_by_name("n1", &[]).messages(),
            &[
                (0x10, 0x0, "0000000a"),
                (
                    0xa00,
                    0x400,
                    "010000001600010074616d616e6475612d706f7274732d6e310000000800020000000000",
                ),
                (0xa02, 0x0, "010000001600010074616d616e6475612d706f7274732d6e31000000"),
                (0x11, 0x0, "0000000a"),
            ],
        );
    }
}
