//! Network namespace for one test: loopback as the arrival port and one egress device.
//!
//! The namespace belongs to the test's thread and ends with it.

use std::process::Command;

/// Loopback's index in a new network namespace.
pub const LOOPBACK: u32 = 1;
/// MAC address of the next hop.
pub const NEXT_HOP: [u8; 6] = [0x02, 0, 0, 0, 0xbb, 0x02];
/// MAC address of the egress device.
pub const OUT_MAC: [u8; 6] = [0x02, 0, 0, 0, 0xbb, 0x01];
/// MTU of the egress device.
pub const OUT_MTU: u32 = 1500;

/// Enters a new network namespace; returns false, and counts the test as skipped, where this
/// process may not.
pub fn enter(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        testbase::skip(test, "loading BPF programs needs root");
        return false;
    }
    // SAFETY: unshare of the network namespace shares no memory or descriptors anew.
    let answer = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    stay_on_this_cpu();
    ip("link set lo up");
    true
}

/// Makes the egress device with a default route for both versions; returns its index.
pub fn add_way_out() -> u32 {
    let mac = |bytes: [u8; 6]| bytes.map(|byte| format!("{byte:02x}")).join(":");
    ip(&format!("link add out mtu {OUT_MTU} address {} type veth peer name far", mac(OUT_MAC)));
    ip("link set far up");
    ip("link set out up");
    ip("address add 198.51.100.1/24 dev out");
    ip("address add 2001:db8:ff::1/64 dev out nodad");
    let neighbour = mac(NEXT_HOP);
    ip(&format!("neigh add 198.51.100.2 lladdr {neighbour} dev out nud permanent"));
    ip(&format!("neigh add 2001:db8:ff::2 lladdr {neighbour} dev out nud permanent"));
    ip("route add default via 198.51.100.2");
    ip("-6 route add default via 2001:db8:ff::2");
    for version in ["ipv4", "ipv6"] {
        let forwarding = format!("/proc/sys/net/{version}/conf/all/forwarding");
        std::fs::write(forwarding, "1").unwrap();
    }
    ifindex("out")
}

/// Returns the index of a device of this namespace.
pub fn ifindex(device: &str) -> u32 {
    let shown = ip(&format!("-oneline link show dev {device}"));
    shown.split(':').next().unwrap().trim().parse().unwrap()
}

/// Runs iproute2's `ip` in this thread's namespace; returns its output.
pub fn ip(arguments: &str) -> String {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let mut command = Command::new("ip");
    command.env("PATH", path).args(arguments.split_whitespace());
    let output = command.output().unwrap_or_else(|error| panic!("ip {arguments}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Pins the thread to its CPU: per-CPU maps are read on the CPU that the program ran on.
fn stay_on_this_cpu() {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
}
