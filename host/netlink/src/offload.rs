//! Offloads of a network device: checksums, segmentation, coalescing, VLAN tags; also its queues,
//! its rate and its driver. They are read and set by the ethtool ioctl, in the calling thread's
//! namespace.
//!
//! A node's port shows every packet as one frame as on the wire, so the node turns off offloads
//! that join, split, or half finish frames, remembers which were on, and restores them on exit. The
//! port decides which offloads must be off.

use std::io;

use serde::{Deserialize, Serialize};
use units::BitsPerSecond;

mod ioctl;

use ioctl::Device;

/// Offload of a device; each stands for one or more of the kernel's features (`ethtool -k`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Offload {
    /// Completion of checksums on sending; the stack leaves them partial.
    TxChecksum,
    /// Verification of checksums on reception.
    RxChecksum,
    /// Sending of packets in several fragments; segmentation needs it.
    ScatterGather,
    /// Segmentation of TCP super-packets by the device.
    Tso,
    /// Late segmentation of other super-packets, by the stack or the device.
    Gso,
    /// Coalescing of received packets by the stack. On veth it also switches the receiving side to
    /// NAPI.
    Gro,
    /// Reversible coalescing of received packets by the device.
    GroHw,
    /// Irreversible coalescing of received packets by the device.
    Lro,
    /// Stripping of VLAN tags into metadata by the device.
    RxVlan,
    /// Insertion of VLAN tags from metadata by the device.
    TxVlan,
}

impl Offload {
    /// All offloads.
    pub const ALL: [Self; 10] = [
        Self::TxChecksum,
        Self::RxChecksum,
        Self::ScatterGather,
        Self::Tso,
        Self::Gso,
        Self::Gro,
        Self::GroHw,
        Self::Lro,
        Self::RxVlan,
        Self::TxVlan,
    ];

    /// Returns true if the kernel's feature of this name (net/ethtool/common.c) belongs to the
    /// offload.
    fn covers(self, feature: &str) -> bool {
        let segmentation = feature.starts_with("tx-") && feature.ends_with("-segmentation");
        let tcp = feature.starts_with("tx-tcp");
        match self {
            Self::TxChecksum => feature.starts_with("tx-checksum-"),
            Self::RxChecksum => feature == "rx-checksum",
            Self::ScatterGather => feature.starts_with("tx-scatter-gather"),
            Self::Tso => segmentation && tcp,
            Self::Gso => segmentation && !tcp || feature == "tx-gso-list",
            Self::Gro => matches!(feature, "rx-gro" | "rx-gro-list" | "rx-udp-gro-forwarding"),
            Self::GroHw => feature == "rx-gro-hw",
            Self::Lro => feature == "rx-lro",
            Self::RxVlan => matches!(feature, "rx-vlan-hw-parse" | "rx-vlan-stag-hw-parse"),
            Self::TxVlan => matches!(feature, "tx-vlan-hw-insert" | "tx-vlan-stag-hw-insert"),
        }
    }

    /// Returns true if enabling the offload turns this feature on. Variants that change what
    /// applications see are left to an explicit choice.
    fn covers_usually(self, feature: &str) -> bool {
        match self {
            Self::Gro => feature == "rx-gro",
            other => other.covers(feature),
        }
    }
}

/// Error of reading or setting offloads.
#[derive(Debug, thiserror::Error)]
pub enum OffloadError {
    /// The device's name is empty, or longer than it can be.
    #[error("'{device}' cannot name a network device: use 1 to 15 bytes")]
    Name {
        /// Name as given.
        device: String,
    },
    /// The device does not exist.
    #[error("there is no network device '{device}' in this network namespace")]
    NoDevice {
        /// Name of the device.
        device: String,
    },
    /// The kernel refused.
    #[error("cannot {action} of the network device '{device}': {source}")]
    Refused {
        /// Action that failed.
        action: &'static str,
        /// Name of the device.
        device: String,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The device keeps an offload on that was to be turned off. The device's fault.
    #[error(
        "the network device '{device}' cannot turn off {}; use another device, or one whose driver can",
        features.join(", ")
    )]
    Fixed {
        /// Name of the device.
        device: String,
        /// Kernel's names of the features that stay on.
        features: Vec<String>,
    },
}

/// Offloads of a device at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OffloadState {
    /// Kernel's names of the features that are on.
    pub active: Vec<String>,
    /// Features among [`OffloadState::active`] that cannot be turned off.
    pub fixed: Vec<String>,
}

impl OffloadState {
    /// Reads a device's offloads.
    ///
    /// # Errors
    /// The device does not exist.
    pub fn read(device: &str) -> Result<Self, OffloadError> {
        let features = Device::open(device)?.features()?;
        let names = |wanted: &dyn Fn(&Feature) -> bool| {
            features.iter().filter(|feature| wanted(feature)).map(|f| f.name.clone()).collect()
        };
        Ok(Self {
            active: names(&|feature| feature.active),
            fixed: names(&|feature| feature.active && !feature.changeable),
        })
    }

    /// Returns true if any feature of an offload is on.
    #[must_use]
    pub fn is_on(&self, offload: Offload) -> bool {
        self.active.iter().any(|feature| offload.covers(feature))
    }

    /// Turns a set of offloads off; the returned value turns those on again that were on.
    ///
    /// # Errors
    /// The device cannot; every change is then undone.
    pub fn disable(device: &str, set: &[Offload]) -> Result<Restore, OffloadError> {
        disable(device, set)
    }
}

/// Features of a device before a change. Plain data, so that it can outlive the process.
#[must_use = "without it nobody knows what the device did before"]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restore {
    device: String,
    features: Vec<String>,
    on: bool,
}

impl Restore {
    /// Returns the name of the device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Returns the kernel's names of the features that were changed.
    #[must_use]
    pub fn features(&self) -> &[String] {
        &self.features
    }

    /// Restores the features, in the calling thread's namespace.
    ///
    /// # Errors
    /// The device is gone.
    pub fn restore(&self) -> Result<(), OffloadError> {
        self.restore_as(&self.device)
    }

    /// Restores the features of a device that was renamed.
    ///
    /// # Errors
    /// The device does not exist.
    pub fn restore_as(&self, device: &str) -> Result<(), OffloadError> {
        if self.features.is_empty() {
            return Ok(());
        }
        let device = Device::open(device)?;
        let features = device.features()?;
        let change = |feature: &Feature| self.features.contains(&feature.name).then_some(self.on);
        device.set_features(&features, &change)
    }
}

/// Feature at its position in the kernel's list.
struct Feature {
    name: String,
    changeable: bool,
    wanted: bool,
    active: bool,
}

/// Turns a set of offloads off; the returned value turns those on again that were on.
///
/// # Errors
/// The device cannot; every change is then undone.
pub fn disable(device: &str, set: &[Offload]) -> Result<Restore, OffloadError> {
    let covered = |feature: &Feature| set.iter().any(|offload| offload.covers(&feature.name));
    let restore = change(device, false, &covered)?;
    let still_on: Vec<String> = Device::open(device)?
        .features()?
        .into_iter()
        .filter(|feature| feature.active && covered(feature))
        .map(|feature| feature.name)
        .collect();
    if still_on.is_empty() {
        return Ok(restore);
    }
    restore.restore()?;
    Err(OffloadError::Fixed { device: device.to_owned(), features: still_on })
}

/// Turns a set of offloads on as far as the device can; the returned value turns them off again.
///
/// # Errors
/// The device does not exist or the caller lacks `CAP_NET_ADMIN`.
pub fn enable(device: &str, set: &[Offload]) -> Result<Restore, OffloadError> {
    change(device, true, &|feature| set.iter().any(|offload| offload.covers_usually(&feature.name)))
}

fn change(
    name: &str,
    on: bool,
    covered: &dyn Fn(&Feature) -> bool,
) -> Result<Restore, OffloadError> {
    let device = Device::open(name)?;
    let features = device.features()?;
    let changes = |feature: &Feature| {
        (feature.changeable && feature.wanted != on && covered(feature)).then_some(on)
    };
    device.set_features(&features, &changes)?;
    let changed = features.iter().filter(|feature| changes(feature).is_some());
    Ok(Restore {
        device: name.to_owned(),
        features: changed.map(|feature| feature.name.clone()).collect(),
        on: !on,
    })
}

/// Number of queues that a device has and could have (`ethtool -l`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Channels {
    /// Receive queues, dedicated and combined.
    pub rx: u32,
    /// Transmit queues, dedicated and combined.
    pub tx: u32,
    /// Largest possible number of receive queues.
    pub rx_max: u32,
    /// Largest possible number of transmit queues.
    pub tx_max: u32,
}

/// Returns the queues of a device.
///
/// # Errors
/// The device does not exist, or its driver does not say (`EOPNOTSUPP`).
pub fn channels(device: &str) -> Result<Channels, OffloadError> {
    Device::open(device)?.channels()
}

/// Returns the rate at which a device sends, by its driver; `None` where that is unknown, as of a
/// link that is down.
///
/// # Errors
/// The device does not exist, or its driver does not say (`EOPNOTSUPP`).
pub fn speed(device: &str) -> Result<Option<BitsPerSecond>, OffloadError> {
    let megabits = Device::open(device)?.speed()?;
    Ok(megabits.map(|megabits| BitsPerSecond(u64::from(megabits) * 1_000_000)))
}

/// Returns the name of a device's driver: `veth`, `virtio_net`, `ixgbe`, ...
///
/// # Errors
/// The device does not exist, or has no driver to name (`EOPNOTSUPP`, as loopback).
pub fn driver(device: &str) -> Result<String, OffloadError> {
    Device::open(device)?.driver()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Netlink, VethEnd};
    use namespaces::netns::in_namespace;
    use namespaces::scratch::Scratch;

    fn with_veth(purpose: &str, test: impl FnOnce() + Send) {
        if !testbase::root_or_skip("a network namespace") {
            return;
        }
        let scratch = Scratch::new(purpose);
        let end = |name| VethEnd { name, namespace: &scratch.ns };
        Netlink::open_in(&scratch.ns).unwrap().create_veth([end("a"), end("b")], 1500).unwrap();
        in_namespace(&scratch.ns, test).unwrap();
    }

    #[test]
    fn offloads_are_turned_off_and_restored() {
        with_veth("offload", || {
            let before = OffloadState::read("a").unwrap();
            assert!(before.is_on(Offload::TxChecksum) && before.is_on(Offload::Tso));

            let set = [Offload::TxChecksum, Offload::Tso, Offload::Gso, Offload::TxVlan];
            let restore = OffloadState::disable("a", &set).unwrap();
            let during = OffloadState::read("a").unwrap();
            assert!(set.iter().all(|&offload| !during.is_on(offload)), "{during:?}");
            assert!(during.is_on(Offload::RxVlan), "untouched");

            restore.restore().unwrap();
            assert_eq!(OffloadState::read("a").unwrap(), before);
        });
    }

    #[test]
    fn a_veth_reports_ten_gigabits() {
        with_veth("speed", || {
            assert_eq!(speed("a").unwrap(), Some(BitsPerSecond(10_000_000_000)));
            assert!(speed("lo").is_err() && speed("none").is_err());
        });
    }

    #[test]
    fn gro_is_turned_on_and_back() {
        with_veth("gro", || {
            assert!(!OffloadState::read("b").unwrap().is_on(Offload::Gro));
            let restore = enable("b", &[Offload::Gro]).unwrap();
            assert_eq!(restore.features(), ["rx-gro"]);
            assert!(OffloadState::read("b").unwrap().is_on(Offload::Gro));
            restore.restore().unwrap();
            assert!(!OffloadState::read("b").unwrap().is_on(Offload::Gro));
        });
    }

    #[test]
    fn a_feature_that_stays_on_is_named_and_the_rest_put_back() {
        if !testbase::root_or_skip("a network namespace") {
            return;
        }
        let scratch = Scratch::new("fixed");
        in_namespace(&scratch.ns, || {
            let before = OffloadState::read("lo").unwrap();
            let error = disable("lo", &[Offload::TxChecksum, Offload::Gro]).unwrap_err();
            let OffloadError::Fixed { features, .. } = &error else { panic!("{error}") };
            assert_eq!(features, &["tx-checksum-ip-generic", "tx-checksum-sctp"]);
            assert_eq!(OffloadState::read("lo").unwrap(), before);
        })
        .unwrap();
    }

    #[test]
    fn the_driver_and_the_queues_are_known() {
        with_veth("driver", || {
            assert_eq!(driver("a").unwrap(), "veth");
            let channels = channels("a").unwrap();
            assert_eq!((channels.rx, channels.tx), (1, 1));
        });
    }

    #[test]
    fn a_missing_device_is_named() {
        let missing = OffloadState::read("no-such-device");
        assert!(
            matches!(missing, Err(OffloadError::NoDevice { device }) if device == "no-such-device")
        );
        let too_long = OffloadState::read("sixteen-letters-");
        assert!(matches!(too_long, Err(OffloadError::Name { .. })));
    }
}
