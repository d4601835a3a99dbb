//! Ways by which packets come in at a port, and what each costs.

use bpf::XdpMode;
use node::{PortKind, PortMode, PortSpec};

/// Way by which packets come in at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Native,
    Generic,
    Tc,
    Packet,
}

impl Mode {
    /// Returns the name that the API and the log use.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Tc => "tc",
            Self::Packet => "packet",
        }
    }

    /// Returns the price of the mode, for a reader.
    pub(crate) const fn cost(self) -> &'static str {
        match self {
            Self::Native => "nothing",
            Self::Generic => "each packet has a socket buffer, and often a copy, before it is seen",
            Self::Tc => "services of streams only, and no fast path",
            Self::Packet => {
                "each packet is copied to the cell, and back into the kernel if no service has it; there is no fast path and no flow cache, and services run at user level only"
            }
        }
    }
}

impl From<XdpMode> for Mode {
    fn from(mode: XdpMode) -> Self {
        match mode {
            XdpMode::Native => Self::Native,
            XdpMode::Generic => Self::Generic,
        }
    }
}

/// Returns true when a port may be served by packet sockets.
pub(crate) fn may_be_packets(spec: &PortSpec) -> bool {
    let asked = matches!(spec.mode, PortMode::Auto | PortMode::Packet);
    asked && spec.kind == PortKind::Device
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::fake::served;

    #[test]
    fn packet_sockets_serve_devices_whose_mode_allows_it() {
        let with = |mode, kind| PortSpec { mode, kind, ..served(1).spec().clone() };
        for (mode, may) in [
            (PortMode::Auto, true),
            (PortMode::Packet, true),
            (PortMode::Native, false),
            (PortMode::Generic, false),
            (PortMode::Tc, false),
        ] {
            assert_eq!(may_be_packets(&with(mode, PortKind::Device)), may, "{mode:?}");
            assert!(!may_be_packets(&with(mode, PortKind::Tun)), "{mode:?}");
        }
    }

    #[test]
    fn modes_of_xdp_keep_their_names() {
        assert_eq!(Mode::from(XdpMode::Native).name(), "native");
        assert_eq!(Mode::from(XdpMode::Generic).name(), "generic");
        assert_eq!([Mode::Tc, Mode::Packet].map(Mode::name), ["tc", "packet"]);
    }
}
