//! Capacity of a node for sessions, as the machine says it.

use crate::dataplane::live_port::LivePort;
use cell::PacketMemory;
use cell::protocol::HEADER_LENGTH_MAX;
use session::admission::{Capacity, PortCapacity};
use std::collections::BTreeMap;
use units::{Bytes, Name};

/// Divisor that gives the part of the machine's memory for sessions: the rest is the kernel's,
/// packet memory, the daemon's, and what compilers take for a moment.
const MEMORY_DIVISOR: u64 = 2;
/// Bits of what is less than a mebibyte.
const MEBIBYTE_REST: u64 = (1 << 20) - 1;
/// Cells of a node, each on a guest core of its own.
const GUEST_CORES: u16 = 1;

/// Returns the capacity of a node with these ports. `before` has what was known of ports that are
/// away. The daemon has left the guest core to the cell, if there was another. Without a front door
/// the ports are unknown by which the kernel sends what services leave to it.
pub(crate) fn capacity_of(
    ports: &[LivePort],
    guest_core: usize,
    has_front_door: bool,
    before: Option<&Capacity>,
) -> Capacity {
    let queues = ports.iter().map(|port| port.queues()).sum();
    let mut known = before.map_or_else(BTreeMap::new, |before| before.ports.clone());
    known.extend(ports.iter().filter(|port| !port.is_away()).filter_map(port_capacity));
    Capacity {
        guest_cores: GUEST_CORES,
        packet_cores: sandbox::cores::count(),
        // In whole mebibytes, so that what is left can be read.
        memory: Bytes((memory_total().0 / MEMORY_DIVISOR) & !MEBIBYTE_REST),
        packet_memory: PacketMemory::of(queues).promised(),
        ports: known,
        ports_unheld: !has_front_door,
        one_core: sandbox::cores::may_use(guest_core),
    }
}

fn port_capacity(port: &LivePort) -> Option<(Name, PortCapacity)> {
    let spec = port.spec();
    let rate = port.rate()?;
    let packet_max = Bytes(u64::from(port.config().mtu + HEADER_LENGTH_MAX));
    Some((spec.name.clone(), PortCapacity { rate, packet_max }))
}

/// Returns the memory of the machine; none where the kernel does not say.
fn memory_total() -> Bytes {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    Bytes(total_in(&text))
}

/// Returns the bytes of `MemTotal:       16374372 kB` (proc_meminfo(5)).
fn total_in(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_memory_is_read_as_the_kernel_writes_it() {
        assert_eq!(total_in("MemTotal:       16374372 kB\nMemFree: 7 kB\n"), 16_374_372 * 1024);
        assert_eq!(total_in("MemFree: 7 kB\n"), 0);
        assert!(memory_total().0 > 1 << 20);
    }
}
