//! Changes that a node makes on devices, how they are undone, and the file that remembers them for
//! after a crash.

use crate::private;
use anyhow::{Context, Result};
use netlink::offload::{self, Offload, Restore};
use netlink::{Link, Netlink, open_ingress};
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::path::PathBuf;
use units::Name;

/// Offloads that must be off where services run: a packet is one frame as on the wire, tags in line
/// and checksums complete. `LivePort::set_gro` is the exception.
const OFF: [Offload; 4] = [Offload::Gro, Offload::GroHw, Offload::Lro, Offload::RxVlan];

/// Changes made on a device, to be undone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Undo {
    #[serde(flatten)]
    offloads: Restore,
    /// True when it was made to take frames that are addressed to others.
    #[serde(default)]
    promiscuous: bool,
    /// True when the node made it.
    #[serde(default)]
    made: bool,
    /// Number of the packet port's device, whose ingress may be closed.
    #[serde(default)]
    closes: Option<u32>,
}

impl Undo {
    /// Returns the device's name when that was.
    pub(crate) fn device(&self) -> &str {
        self.offloads.device()
    }

    /// Returns true when the device had an offload on, by the kernel's name of it.
    pub(super) fn did(&self, feature: &str) -> bool {
        self.offloads.features().iter().any(|name| name == feature)
    }

    /// Switches off what must be off on a device.
    pub(super) fn of(device: &str) -> Result<Self> {
        Self::without(device, &OFF)
    }

    /// Switches these off.
    pub(super) fn without(device: &str, off: &[Offload]) -> Result<Self> {
        let offloads = offload::disable(device, off)
            .with_context(|| format!("switching offloads of {device} off"))?;
        Ok(Self { offloads, promiscuous: false, made: false, closes: None })
    }

    /// Returns the offloads that were switched off, by the kernel's names.
    pub(super) fn features(&self) -> &[String] {
        self.offloads.features()
    }

    /// Returns the changes of a device that the node makes for a packet port of this number.
    pub(super) fn of_made(device: &str, port: u32) -> Result<Self> {
        Ok(Self { made: true, closes: Some(port), ..Self::of(device)? })
    }

    /// Returns true when the node made the device.
    pub(super) const fn is_made(&self) -> bool {
        self.made
    }

    /// Puts back what was; the device may have another name by now.
    pub(super) fn undo_as(&self, netlink: &Netlink, device: &str) -> Result<()> {
        if let Some(index) = self.closes {
            open_ingress(index)?;
        }
        if self.made {
            return Ok(netlink.delete_link(netlink.link(device)?.index)?);
        }
        if self.promiscuous {
            netlink.set_promiscuous(netlink.link(device)?.index, false)?;
        }
        Ok(self.offloads.restore_as(device)?)
    }
}

/// Returns the devices below this one: those of a bridge or bond, and the one that a macvlan or
/// VLAN device lies on.
fn below<'a>(link: &Link, links: &'a [Link]) -> Vec<&'a Link> {
    let lies_on = |other: &Link| {
        let beside = link.kind.as_deref() == Some("veth") || link.parent_elsewhere;
        link.parent == Some(other.index) && !beside
    };
    links.iter().filter(|other| other.master == Some(link.index) || lies_on(other)).collect()
}

/// Makes frames of a device, and of those below it, whole; returns what is to be undone.
pub(super) fn switch_off(
    netlink: &Netlink,
    link: &Link,
    made: bool,
    is_bridged: bool,
) -> Result<Vec<Undo>> {
    let mut first = Undo::of(&link.name)?;
    first.made = made;
    let mut restore = vec![first];
    // What is joined below a device comes to it joined.
    for below in below(link, &netlink.links()?) {
        restore.push(Undo::of(&below.name)?);
    }
    if is_bridged && !link.promiscuous {
        netlink.set_promiscuous(link.index, true)?;
        restore[0].promiscuous = true;
    }
    Ok(restore)
}

/// Returns the path of the file that remembers what was changed on devices, for after a crash.
fn restore_file(node: &Name) -> PathBuf {
    crate::run_directory(node).join("restore.json")
}

/// Writes down what is to be undone should this process die.
pub(crate) fn remember<'a>(node: &Name, all: impl Iterator<Item = &'a Undo>) -> Result<()> {
    let all: Vec<&Undo> = all.collect();
    let path = restore_file(node);
    let mut file = private::create(&path).with_context(|| format!("making {}", path.display()))?;
    file.write_all(&serde_json::to_vec(&all)?)
        .with_context(|| format!("writing {}", path.display()))
}

/// Reads what a previous daemon wrote down.
pub(crate) fn remembered(node: &Name) -> Result<Vec<Undo>> {
    let path = restore_file(node);
    let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display()))
}

/// Undoes what a dead node changed; returns the devices' names.
pub(crate) fn restore_left_over(node: &Name) -> Result<Vec<String>> {
    let path = restore_file(node);
    let Ok(bytes) = std::fs::read(&path) else { return Ok(Vec::new()) };
    let all: Vec<Undo> = serde_json::from_slice(&bytes)
        .with_context(|| format!("reading the former settings of devices in {}", path.display()))?;
    let netlink = Netlink::open().context("opening netlink")?;
    let mut restored = Vec::new();
    for one in all {
        let device = one.device().to_owned();
        // The device may be gone with its namespace.
        if one.undo_as(&netlink, &device).is_ok() {
            restored.push(device);
        }
    }
    std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    Ok(restored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::fake::link;

    #[test]
    fn changes_that_an_older_daemon_wrote_down_are_read() {
        let text = r#"{"device": "wan", "features": ["rx-gro"], "on": true}"#;
        let undo: Undo = serde_json::from_str(text).unwrap();
        assert!(undo.did("rx-gro") && !undo.did("rx-lro") && !undo.is_made());
        assert_eq!((undo.device(), undo.features()), ("wan", &["rx-gro".to_owned()][..]));
        let text = serde_json::to_string(&Undo { made: true, closes: Some(3), ..undo }).unwrap();
        let undo: Undo = serde_json::from_str(&text).unwrap();
        assert!(undo.is_made() && !undo.promiscuous && undo.closes == Some(3));
    }

    #[test]
    fn frames_are_made_whole_at_every_device_whose_packets_come_here() {
        let mut elsewhere = link(6, "macvlan", 2, 0);
        elsewhere.parent_elsewhere = true;
        let links = [
            link(1, "bridge", 0, 0),
            link(2, "", 0, 1),
            link(3, "veth", 4, 1),
            link(4, "veth", 3, 0),
            link(5, "vlan", 2, 0),
            elsewhere,
        ];
        let below = |at: usize| -> Vec<u32> {
            below(&links[at], &links).iter().map(|link| link.index).collect()
        };
        assert_eq!(below(0), [2, 3], "the members of a bridge");
        assert_eq!(below(4), [2], "the device that a VLAN device lies on");
        assert_eq!(below(2), [0; 0], "the other end of a veth is another device");
        assert_eq!(below(5), [0; 0], "one of another namespace is not seen");
    }
}
