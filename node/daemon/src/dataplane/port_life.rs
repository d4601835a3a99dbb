//! Next step of a port whose device vanishes, comes back, or becomes another one.
//!
//! ```text
//!           gone, renamed, unfit (MTU)
//!  served ─────────────────────────────▶ away: nothing of the node is on the device, packets
//!    ▲                                     │   routed to it are the kernel's
//!    └─────────────────────────────────────┘
//!       a device of that name, fit: offloads, programs and sockets as at the start
//! ```
//!
//! A port is the device of its name; its number, rules and counters stay while it is away.

use super::live_port::{LivePort, Tried};
use super::requirements;
use netlink::Link;

/// Step that follows from what the kernel says of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing has changed.
    Stay,
    /// The port's device is served, and may have another address or MTU.
    Refresh,
    /// The port is taken out of service, for this reason; `tried` names a device that is there and
    /// unfit.
    Leave { reason: String, tried: Tried },
    /// The port is taken out of service, and another device of its name is tried at once.
    Replace { reason: String },
    /// A device of its name is there, and has not been tried.
    Return,
}

/// Returns the step of a port, and the device that has its name.
pub(super) fn step<'a>(port: &LivePort, links: &'a [Link]) -> (Step, Option<&'a Link>) {
    let device = &port.spec().device;
    let link = links.iter().find(|link| link.name == *device);
    (next(port, link, links), link)
}

fn next(port: &LivePort, link: Option<&Link>, links: &[Link]) -> Step {
    let (is_served, index) = (!port.is_away(), port.config().ifindex);
    let device = &port.spec().device;
    match link {
        None if is_served => {
            let reason = match links.iter().find(|link| link.index == index) {
                Some(link) => format!("the device {device} is called {} now", link.name),
                None => format!("the device {device} is gone"),
            };
            Step::Leave { reason, tried: None }
        }
        None => Step::Stay,
        Some(link) if is_served && link.index == index => {
            match requirements::check_fit(link, port.spec().kind) {
                Err(unfit) => {
                    Step::Leave { reason: unfit.to_string(), tried: Some((link.index, link.mtu)) }
                }
                Ok(()) => Step::Refresh,
            }
        }
        Some(_) if is_served => {
            Step::Replace { reason: format!("the device {device} is another one now") }
        }
        Some(link) if port.tried() == Some((link.index, link.mtu)) => Step::Stay,
        Some(_) => Step::Return,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::fake::{absent, link, served};

    fn leaves(step: &Step) -> &str {
        match step {
            Step::Leave { reason, .. } | Step::Replace { reason } => reason,
            other => panic!("it does not leave: {other:?}"),
        }
    }

    #[test]
    fn a_served_port_stays_while_its_device_is_there_and_fit() {
        assert_eq!(step(&served(3), &[link(3, "", 0, 0)]).0, Step::Refresh);
        let mut wide = link(3, "", 0, 0);
        wide.mtu = 9001;
        let (found, _) = step(&served(3), &[wide]);
        assert!(leaves(&found).contains("9001"), "{found:?}");
        let Step::Leave { tried, .. } = found else { panic!("{found:?}") };
        assert_eq!(tried, Some((3, 9001)), "its device is not tried again as it is");
    }

    #[test]
    fn a_device_that_is_gone_or_renamed_takes_its_port_away() {
        assert_eq!(leaves(&step(&served(3), &[]).0), "the device device3 is gone");
        let mut renamed = link(3, "", 0, 0);
        renamed.name = "wan".to_owned();
        let (found, link) = step(&served(3), std::slice::from_ref(&renamed));
        assert_eq!(leaves(&found), "the device device3 is called wan now");
        assert!(link.is_none());
    }

    #[test]
    fn another_device_of_the_name_takes_the_place_at_once() {
        let mut other = link(9, "", 0, 0);
        other.name = "device3".to_owned();
        let (found, link) = step(&served(3), std::slice::from_ref(&other));
        assert!(matches!(found, Step::Replace { .. }), "{found:?}");
        assert_eq!(link.map(|link| link.index), Some(9));
    }

    #[test]
    fn a_port_that_is_away_tries_each_device_once() {
        let mut port = absent(3);
        assert_eq!(step(&port, &[]).0, Step::Stay);
        let here = link(3, "", 0, 0);
        assert_eq!(step(&port, std::slice::from_ref(&here)).0, Step::Return);
        port.leave("it is busy".to_owned(), Some((3, 1500)));
        assert_eq!(step(&port, std::slice::from_ref(&here)).0, Step::Stay);
        let smaller = Link { mtu: 1400, ..here.clone() };
        assert_eq!(step(&port, &[smaller]).0, Step::Return, "another MTU may do");
        assert!(port.try_again() && !port.try_again());
        assert_eq!(step(&port, &[here]).0, Step::Return);
    }
}
