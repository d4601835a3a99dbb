//! Taps of a capture: on ports with XDP and behind them, and sockets at packet ports.

use crate::answer::{Answer, error, failed, quoted};
use crate::dataplane::live_port::LivePort;
use crate::dataplane::mode::Mode;
use crate::observe::view::View;
use api::ErrorCode;
use bpf::front_door::capture::{ModuleTap, Tap, TapRing, TapSpec};
use bpf::front_door::{Arrival, StackTap};
use sockets::frame_socket::FrameSocket;
use units::PortId;

/// Bytes of a capture's ring.
const RING_LENGTH: u32 = 4 << 20;

/// Taps on ports with XDP, and their ring.
pub(super) struct XdpTaps {
    pub(super) ring: TapRing,
    ports: Vec<Tap>,
    modules: ModuleTap,
    /// Tap on the kernel's drops, where they are known.
    stack: Option<StackTap>,
}

impl XdpTaps {
    /// Returns the number of packets for which the ring was full.
    pub(super) fn lost(&self) -> u64 {
        self.ports.iter().map(Tap::lost).sum::<u64>()
            + self.modules.lost()
            + self.stack.as_ref().map_or(0, StackTap::lost)
    }
}

/// Returns the ports of these names; all that are served for no name.
///
/// # Errors
/// A port does not exist, or is not served.
pub(super) fn ports_of(view: &View<'_>, names: &[String]) -> Answer<Vec<PortId>> {
    if names.is_empty() {
        return Ok(served(view).map(|port| port.id()).collect());
    }
    let find = |name: &String| {
        let found = served(view).find(|port| port.name().as_str() == name);
        found.map(|port| port.id()).ok_or_else(|| {
            let known: Vec<String> = served(view).map(|port| port.name().to_string()).collect();
            let help = format!("the ports that are served are {}", known.join(", "));
            let message = format!("there is no port '{}' to capture at", quoted(name));
            error(ErrorCode::NotFound, message, Some(&help))
        })
    };
    names.iter().map(find).collect()
}

fn served<'a>(view: &View<'a>) -> impl Iterator<Item = &'a LivePort> {
    view.plane.ports().iter().filter(|port| !port.is_away())
}

/// Attaches taps to the listed ports that are served by XDP; with `own` also to packets that enter
/// by no port, such as the cell's own. Dropping the result detaches them. `None` if no port has XDP.
///
/// # Errors
/// The kernel does not take one.
pub(super) fn tap_xdp(
    view: &View<'_>,
    ports: &[PortId],
    own: bool,
    spec: TapSpec,
) -> Answer<Option<XdpTaps>> {
    let mut served = served(view).filter(|port| port.mode() != Mode::Packet).peekable();
    let Ok(front) = view.plane.front_door() else { return Ok(None) };
    if served.peek().is_none() {
        return Ok(None);
    }
    let untapped = |problem| {
        error(ErrorCode::Unsupported, format!("the ports cannot be tapped: {problem}"), None)
    };
    let ring = TapRing::new(RING_LENGTH).map_err(failed)?;
    let modules = front.tap_modules(&spec, &ring).map_err(untapped)?;
    let by_ports = ports.iter().copied().map(Arrival::Port);
    let wanted: Vec<Arrival> = by_ports.chain(own.then_some(Arrival::Own)).collect();
    let stack = spec.arriving.then(|| front.tap_stack(&wanted, &spec, &ring)).transpose();
    let stack = stack.map_err(untapped)?.flatten();
    // What leaves by a port is seen where it came in: by any.
    let tapped = served.filter(|port| spec.leaving || ports.contains(&port.id()));
    let taps = tapped.map(|port| {
        let arriving = spec.arriving && ports.contains(&port.id());
        let spec = TapSpec { arriving, ..spec };
        front.tap(port.id(), port.config().ifindex, &spec, &ring)
    });
    let ports = taps.collect::<Result<Vec<_>, _>>().map_err(untapped)?;
    Ok(Some(XdpTaps { ring, ports, modules, stack }))
}

/// Captures what the kernel sends by packet ports; the cell captures what arrives by them.
///
/// # Errors
/// A socket cannot be opened.
pub(super) fn watch_packets(
    view: &View<'_>,
    ports: &[PortId],
    spec: TapSpec,
) -> Answer<Vec<(PortId, FrameSocket)>> {
    let watched = served(view)
        .filter(|port| port.mode() == Mode::Packet && ports.contains(&port.id()) && spec.leaving);
    let watches = watched.map(|port| {
        let watch = FrameSocket::watch(port.config().ifindex);
        Ok((port.id(), watch.map_err(failed)?))
    });
    watches.collect()
}
