//! Ports of a node: where packets enter and leave it.

use std::collections::{BTreeMap, BTreeSet};

use bpf_maps::PORTS_MAX;
use serde::{Deserialize, Serialize};
use units::{BitsPerSecond, Name, PortId};

use crate::message::shown;

/// Longest name of a network device, in bytes (Linux `IFNAMSIZ` without the final zero).
pub const DEVICE_LENGTH_MAX: usize = 15;

/// Kind of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortKind {
    /// Network device with Ethernet frames.
    #[default]
    Device,
    /// TUN device with IP packets; created if it does not exist.
    Tun,
}

/// Mode in which packets come in by a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortMode {
    /// Best mode that the device supports; each fallback is reported.
    #[default]
    Auto,
    /// XDP in the driver.
    Native,
    /// XDP in the stack, where a socket buffer was made already.
    Generic,
    /// No XDP: the front door at tc, after the kernel's receive path, for stream services only.
    Tc,
    /// No XDP: a packet socket, for services at user level only.
    Packet,
}

/// Port as configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortSpec {
    /// Name in rules and messages.
    pub name: Name,
    /// Network device; empty for a TUN device that has the port's name.
    #[serde(default)]
    pub device: String,
    /// Kind of the port.
    #[serde(default)]
    pub kind: PortKind,
    /// Mode of reception.
    #[serde(default)]
    pub mode: PortMode,
    /// Send rate, of which shares are parts; `None` takes the rate that the device reports.
    #[serde(
        default,
        with = "session::text::optional_rate",
        skip_serializing_if = "Option::is_none"
    )]
    pub rate: Option<BitsPerSecond>,
}

impl PortSpec {
    /// Returns the port `name` on a network device, in the best mode.
    #[must_use]
    pub const fn new(name: Name, device: String) -> Self {
        Self { name, device, kind: PortKind::Device, mode: PortMode::Auto, rate: None }
    }
}

/// Port of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Number of the port in BPF maps and packet metadata.
    pub id: PortId,
    /// Configuration of the port.
    #[serde(flatten)]
    pub spec: PortSpec,
}

/// Error of a port configuration. Fault of the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The configuration has more than [`PORTS_MAX`] ports.
    #[error(
        "{found} ports are configured, a node has at most {PORTS_MAX}; run a second node for the others"
    )]
    TooMany {
        /// Number of ports configured.
        found: usize,
    },
    /// Two ports have the same name.
    #[error("two ports are called '{name}'; rules could not tell them apart, rename one")]
    NameTwice {
        /// Name of both.
        name: Name,
    },
    /// Two ports have the same device.
    #[error("the ports '{name}' and another one are both the device '{device}'; keep one of them")]
    DeviceTwice {
        /// Name of the later port.
        name: Name,
        /// Device of both.
        device: String,
    },
    /// An end of a bridge is no port.
    #[error("the bridge names the port '{name}', which is not there{meant}")]
    BridgeUnknown {
        /// Name as given.
        name: Name,
        /// Nearest name, as the end of the message.
        meant: String,
    },
    /// The port is an end of more than one bridge.
    #[error(
        "the port '{name}' is an end of a bridge twice; a bridge has two ends, and a port is in one bridge"
    )]
    BridgeTwice {
        /// Name of the port.
        name: Name,
    },
    /// The port is a TUN device with a mode that needs no XDP.
    #[error(
        "the port '{name}' is a TUN device, which packet sockets do not serve, nor tc; leave its mode out"
    )]
    PacketTun {
        /// Name of the port.
        name: Name,
    },
    /// An end of a bridge has mode `tc`.
    #[error(
        "the port '{name}' has mode \"tc\", where the kernel routes and no frame is bridged; leave its mode out"
    )]
    BridgeTc {
        /// Name of the port.
        name: Name,
    },
    /// An end of a bridge has no Ethernet frames.
    #[error("the port '{name}' is a TUN device, which has no frames to bridge")]
    BridgeTun {
        /// Name of the port.
        name: Name,
    },
    /// The device's name is not valid.
    #[error(
        "the port '{name}' names the device '{device}'; a device's name has 1 to {DEVICE_LENGTH_MAX} characters without spaces, '/' and ':'"
    )]
    DeviceName {
        /// Name of the port.
        name: Name,
        /// Device as given, escaped and shortened.
        device: String,
    },
}

/// Numbers ports in the order in which they are given.
///
/// # Errors
/// The ports are too many, or two have the same name or device.
pub(crate) fn numbered(mut specs: Vec<PortSpec>) -> Result<Vec<Port>, PortError> {
    for spec in specs.iter_mut().filter(|spec| spec.kind == PortKind::Tun) {
        if spec.device.is_empty() {
            spec.device = spec.name.to_string();
        }
    }
    if specs.len() > PORTS_MAX {
        return Err(PortError::TooMany { found: specs.len() });
    }
    let (mut names, mut devices) = (BTreeSet::new(), BTreeSet::new());
    for PortSpec { name, device, kind, mode, .. } in &specs {
        if *kind == PortKind::Tun && matches!(mode, PortMode::Packet | PortMode::Tc) {
            return Err(PortError::PacketTun { name: name.clone() });
        }
        if !is_device_name(device) {
            return Err(PortError::DeviceName { name: name.clone(), device: shown(device) });
        }
        if !names.insert(name) {
            return Err(PortError::NameTwice { name: name.clone() });
        }
        if !devices.insert(device) {
            return Err(PortError::DeviceTwice { name: name.clone(), device: device.clone() });
        }
    }
    Ok((0..).map(PortId).zip(specs).map(|(id, spec)| Port { id, spec }).collect())
}

/// Finds the other end of each bridged port.
///
/// # Errors
/// A name is no port, or a port is in two bridges, or at both ends of one.
pub fn other_ends(
    ports: &[Port],
    bridges: &[[Name; 2]],
) -> Result<BTreeMap<PortId, PortId>, PortError> {
    let find = |name: &Name| {
        let known = ports.iter().map(|port| port.spec.name.as_str());
        ports.iter().find(|port| port.spec.name == *name).map(|port| port.id).ok_or_else(|| {
            let meant = abi::manifest::Meant::new(name.as_str(), known).to_string();
            PortError::BridgeUnknown { name: name.clone(), meant }
        })
    };
    let mut ends = BTreeMap::new();
    for [a, b] in bridges {
        let (x, y) = (find(a)?, find(b)?);
        let is_tun = |port: &&Port| [x, y].contains(&port.id) && port.spec.kind == PortKind::Tun;
        if let Some(port) = ports.iter().find(is_tun) {
            return Err(PortError::BridgeTun { name: port.spec.name.clone() });
        }
        let at_tc = |port: &&Port| [x, y].contains(&port.id) && port.spec.mode == PortMode::Tc;
        if let Some(port) = ports.iter().find(at_tc) {
            return Err(PortError::BridgeTc { name: port.spec.name.clone() });
        }
        for (name, from, to) in [(a, x, y), (b, y, x)] {
            if from == to || ends.insert(from, to).is_some() {
                return Err(PortError::BridgeTwice { name: name.clone() });
            }
        }
    }
    Ok(ends)
}

/// Returns true if the kernel accepts the name (`dev_valid_name` in net/core/dev.c) and it has no
/// control characters.
fn is_device_name(device: &str) -> bool {
    let refused = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    (1..=DEVICE_LENGTH_MAX).contains(&device.len())
        && device != "."
        && device != ".."
        && !device.contains(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, device: &str) -> PortSpec {
        PortSpec::new(Name::new(name).unwrap(), device.into())
    }

    #[test]
    fn ports_are_numbered_in_their_order() {
        let ports = numbered(vec![spec("right", "eth1"), spec("left", "eth0")]).unwrap();
        assert_eq!((ports[0].id, ports[1].id), (PortId(0), PortId(1)));
        assert_eq!(ports[0].spec.name.as_str(), "right");
    }

    #[test]
    fn a_tun_device_is_called_as_its_port_unless_it_has_a_name() {
        let tun = |device: &str| PortSpec { kind: PortKind::Tun, ..spec("t", device) };
        let device = |spec| numbered(vec![spec]).unwrap().remove(0).spec.device;
        assert_eq!((device(tun("")), device(tun("tun9"))), ("t".to_owned(), "tun9".to_owned()));
        assert!(numbered(vec![spec("t", "")]).is_err());
        let ports = numbered(vec![tun(""), spec("a", "eth0")]).unwrap();
        let pair = ["a", "t"].map(|name| Name::new(name).unwrap());
        assert!(matches!(other_ends(&ports, &[pair]), Err(PortError::BridgeTun { .. })));
    }

    #[test]
    fn a_port_at_tc_is_an_ethernet_device_and_no_end_of_a_bridge() {
        let at_tc = PortSpec { mode: PortMode::Tc, ..spec("t", "eth1") };
        let ports = numbered(vec![at_tc.clone(), spec("a", "eth0")]).unwrap();
        let pair = ["a", "t"].map(|name| Name::new(name).unwrap());
        assert!(matches!(other_ends(&ports, &[pair]), Err(PortError::BridgeTc { .. })));
        let tun = numbered(vec![PortSpec { kind: PortKind::Tun, ..at_tc }]);
        assert!(matches!(tun, Err(PortError::PacketTun { .. })));
    }

    #[test]
    fn a_bridge_has_two_ends_and_a_port_is_in_one() {
        let named = |name: &str| Name::new(name).unwrap();
        let ports = ["a", "b", "c"].map(|name| spec(name, &format!("eth-{name}")));
        let ports = numbered(ports.into()).unwrap();
        let ends = |pairs: &[[&str; 2]]| {
            let pairs: Vec<_> = pairs.iter().map(|pair| pair.map(named)).collect();
            other_ends(&ports, &pairs)
        };
        let found: Vec<_> = ends(&[["a", "c"]]).unwrap().into_iter().collect();
        assert_eq!(found, [(PortId(0), PortId(2)), (PortId(2), PortId(0))]);
        let twice = |name: &str| Err(PortError::BridgeTwice { name: named(name) });
        assert_eq!(ends(&[["a", "a"]]), twice("a"));
        assert_eq!(ends(&[["a", "b"], ["c", "b"]]), twice("b"));
        let message = ends(&[["a", "bb"]]).unwrap_err().to_string();
        assert!(message.contains("'bb'") && message.contains("did you mean 'b'"), "{message}");
    }

    #[test]
    fn ports_that_share_a_name_or_device_are_refused() {
        let error = |specs| numbered(specs).unwrap_err();
        let twice = error(vec![spec("a", "eth0"), spec("a", "eth1")]);
        assert!(matches!(twice, PortError::NameTwice { .. }));
        let twice = error(vec![spec("a", "eth0"), spec("b", "eth0")]);
        assert!(matches!(twice, PortError::DeviceTwice { .. }));
        for device in ["", "..", "a/b", "a b", "sixteen-letters!", "a\u{1b}"] {
            assert!(matches!(error(vec![spec("a", device)]), PortError::DeviceName { .. }));
        }
        let many = (0..65).map(|i| spec(&format!("p{i}"), &format!("d{i}"))).collect();
        assert_eq!(error(many), PortError::TooMany { found: 65 });
    }
}
