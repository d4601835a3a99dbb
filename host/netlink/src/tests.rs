//! Tests of every request against the kernel, in fresh namespaces. Need root and report when they
//! lack it.

use std::process::Command;
use std::time::{Duration, Instant};

use units::BitsPerSecond;

use super::*;
use namespaces::netns::{command_in, in_namespace};
use namespaces::scratch::Scratch;

/// Runs a program in the namespace and requires success.
fn run(scratch: &Scratch, words: &str) -> String {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let output = command_in(&scratch.ns, command.args(words)).unwrap().output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Makes two namespaces with a veth pair `a`, `b` between them, up.
fn pair(purpose: &str, mtu: u32) -> [(Scratch, Netlink); 2] {
    let ends = [1, 2].map(|end| {
        let scratch = Scratch::new(&format!("{purpose}{end}"));
        let netlink = Netlink::open_in(&scratch.ns).unwrap();
        (scratch, netlink)
    });
    let [(first, netlink), (second, _)] = &ends;
    let veth =
        [VethEnd { name: "a", namespace: &first.ns }, VethEnd { name: "b", namespace: &second.ns }];
    netlink.create_veth(veth, mtu).unwrap();
    for (end, name) in ends.iter().zip(["a", "b"]) {
        end.1.set_up(end.1.link(name).unwrap().index).unwrap();
    }
    ends
}

#[test]
fn a_prefix_is_its_text_and_knows_its_network() {
    let prefix: AddressPrefix = "10.1.2.3/20".parse().unwrap();
    assert_eq!(prefix.network().to_string(), "10.1.0.0/20");
    assert_eq!("fd77::1/64".parse::<AddressPrefix>().unwrap().network().to_string(), "fd77::/64");
    assert_eq!("1.2.3.4/0".parse::<AddressPrefix>().unwrap().network().to_string(), "0.0.0.0/0");
    for bad in ["10.1.2.3", "10.1.2.3/33", "::/129", "/8", "x/8", "::/-1"] {
        assert!(bad.parse::<AddressPrefix>().is_err(), "{bad}");
    }
}

#[test]
fn a_veth_pair_appears_in_its_namespaces_and_counts() {
    if !testbase::root_or_skip("a network namespace") {
        return;
    }
    let [(first, netlink), (_second, other)] = pair("veth", 9000);
    let link = netlink.link("a").unwrap();
    assert_eq!((link.mtu, link.rx_queues, link.kind.as_deref()), (9000, 1, Some("veth")));
    assert!(link.up && link.parent_elsewhere && link.mac.is_some());
    assert_eq!(netlink.link_at(link.index).unwrap().name, "a");
    assert_eq!(other.link("b").unwrap().mtu, 9000);
    let names: Vec<_> = netlink.links().unwrap().into_iter().map(|link| link.name).collect();
    assert_eq!(names, ["lo", "a"]);

    let prefix = |text: &str| text.parse().unwrap();
    netlink.add_address(link.index, prefix("10.9.0.1/24"), DuplicateDetection::Usual).unwrap();
    let end = other.link("b").unwrap().index;
    other.add_address(end, prefix("10.9.0.2/24"), DuplicateDetection::Usual).unwrap();
    run(&first, "ping -c 2 -i 0.2 -W 2 10.9.0.2");
    assert!(netlink.link("a").unwrap().stats.tx_packets.0 >= 2);
    let neighbours = netlink.neighbours().unwrap();
    let peer = neighbours.iter().find(|n| n.address.to_string() == "10.9.0.2").unwrap();
    assert!(peer.state.usable());
    assert_eq!(peer.mac, other.link("b").unwrap().mac);

    netlink.delete_link(link.index).unwrap();
    assert!(matches!(netlink.link("a"), Err(NetlinkError::NoDevice { .. })));
    assert!(matches!(other.link("b"), Err(NetlinkError::NoDevice { .. })));
}

#[test]
fn the_kernels_own_words_are_in_the_message() {
    if !testbase::root_or_skip("a network namespace") {
        return;
    }
    let [(first, netlink), _second] = pair("words", 1500);
    let index = netlink.link("a").unwrap().index;
    let error = netlink.set_mtu(index, 70_000).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("cannot set an MTU of 70000 on the network device"), "{message}");
    assert!(message.contains("(mtu greater than device maximum)"), "{message}");

    let taken =
        netlink.create_veth(["a", "c"].map(|name| VethEnd { name, namespace: &first.ns }), 1500);
    assert_eq!(taken.unwrap_err().errno(), Some(libc::EEXIST));
    let nowhere = Route { destination: "10.0.0.0/8".parse().unwrap(), via: None, index: Some(999) };
    assert_eq!(netlink.add_route(&nowhere).unwrap_err().errno(), Some(libc::ENODEV));
    assert!(matches!(netlink.link("a-name-that-is-too-long"), Err(NetlinkError::NoDevice { .. })));
}

#[test]
fn a_vlan_device_and_its_routes_carry_packets_or_the_kernel_has_none_and_that_is_said() {
    if !testbase::root_or_skip("a network namespace") {
        return;
    }
    let ends = pair("vlan", 1500);
    for ((_, netlink), (base, v4, v6)) in
        ends.iter().zip([("a", "10.9.1.1/24", "fd09::1/64"), ("b", "10.9.1.2/24", "fd09::2/64")])
    {
        let parent = netlink.link(base).unwrap().index;
        match netlink.create_vlan("v10", parent, 10) {
            // A kernel without VLAN devices reports it, with advice.
            Err(error @ NetlinkError::NoKind { .. }) => {
                assert!(error.to_string().contains("8021q"), "{error}");
                return;
            }
            made => made.unwrap(),
        }
        let link = netlink.link("v10").unwrap();
        assert_eq!(
            (link.vlan, link.parent, link.kind.as_deref()),
            (Some(10), Some(parent), Some("vlan"))
        );
        netlink.set_mac(link.index, [2, 0, 0, 0, 0, 9]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(netlink.link("v10").unwrap().mac, Some([2, 0, 0, 0, 0, 9]));
        netlink.set_mac(link.index, netlink.link(base).unwrap().mac.unwrap()).unwrap();
        netlink.set_up(link.index).unwrap();
        for address in [v4, v6] {
            let address = address.parse().unwrap();
            netlink.add_address(link.index, address, DuplicateDetection::Skip).unwrap();
        }
    }
    let [(first, netlink), _] = &ends;
    for (destination, via) in [("0.0.0.0/0", "10.9.1.2"), ("fd99::/16", "fd09::2")] {
        let destination = destination.parse().unwrap();
        let route = Route { destination, via: Some(via.parse().unwrap()), index: None };
        netlink.add_route(&route).unwrap();
        netlink.add_route(&route).unwrap();
    }
    assert!(run(first, "ip route get 192.0.2.1").contains("via 10.9.1.2 dev v10"));
    assert!(run(first, "ip -6 route get fd99::5").contains("via fd09::2 dev v10"));
    run(first, "ping -c 1 -W 2 10.9.1.2");
    run(first, "ping -c 1 -W 2 fd09::2");
}

#[test]
fn an_address_is_the_machines_own_by_its_devices_and_by_its_routes() {
    if !testbase::root_or_skip("a network namespace") {
        return;
    }
    let [(first, netlink), (second, _)] = pair("own", 1500);
    run(&first, "ip link set lo up");
    run(&first, "ip address add 10.9.0.1/24 dev a");
    run(&first, "ip address add 10.9.0.3/24 dev a");
    run(&first, "ip address add 10.9.1.1 peer 10.9.1.2 dev a");
    run(&first, "ip address add fd09::1/64 dev a nodad");
    // Whole prefixes that end here without a device that has their addresses.
    run(&first, "ip route add local 198.51.100.0/24 dev lo");
    run(&first, "ip -6 route add local 2001:db8:9::/48 dev lo");
    run(&first, "ip route add unreachable 203.0.113.0/24");
    run(&second, "ip address add 10.9.0.2/24 dev b");
    for own in [
        "127.0.0.1",
        "127.9.9.9",
        "::1",
        "10.9.0.1",
        "10.9.0.3",
        "10.9.0.255",
        "10.9.1.1",
        "fd09::1",
        "198.51.100.77",
        "2001:db8:9:7::1",
    ] {
        assert!(netlink.is_own(own.parse().unwrap()).unwrap(), "{own}");
    }
    let mut v4 = netlink.own_v4().unwrap();
    v4.sort();
    let prefix = |text: &str, length| (text.parse().unwrap(), length);
    let expected = [
        prefix("10.9.0.1", 32),
        prefix("10.9.0.3", 32),
        prefix("10.9.1.1", 32),
        prefix("127.0.0.0", 8),
        prefix("127.0.0.1", 32),
        prefix("198.51.100.0", 24),
    ];
    assert_eq!(v4, expected, "no broadcasts, no other tables");
    for other in ["10.9.0.2", "10.9.1.2", "fd09::2", "192.0.2.1", "2001:db8::1", "203.0.113.1"] {
        assert!(!netlink.is_own(other.parse().unwrap()).unwrap(), "{other}");
    }
    // An address in a VRF is in none of the tables that an ordinary lookup goes through.
    let mut ip = Command::new("ip");
    let vrf = command_in(&first.ns, ip.args("link add red type vrf table 10".split(' ')));
    if vrf.unwrap().output().unwrap().status.success() {
        run(&first, "ip link set red up");
        run(&first, "ip link set a master red");
        assert!(netlink.is_own("10.9.0.1".parse().unwrap()).unwrap(), "in a VRF");
    }
}

#[test]
fn a_rate_is_a_bucket_at_the_root() {
    if !testbase::root_or_skip("a network namespace") {
        return;
    }
    let [(first, netlink), _second] = pair("rate", 1500);
    let index = netlink.link("a").unwrap().index;
    let own = |netlink: &Netlink| netlink.qdiscs().unwrap().into_iter().find(|q| q.index == index);
    assert!(own(&netlink).is_none_or(|qdisc| qdisc.is_default));
    netlink.set_rate(index, BitsPerSecond(100_000_000)).unwrap();
    let qdisc = own(&netlink).unwrap();
    assert_eq!((qdisc.kind.as_str(), qdisc.is_default), ("tbf", false));
    let shown = run(&first, "tc qdisc show dev a");
    assert!(shown.contains("rate 100Mbit"), "{shown}");
    assert_eq!(netlink.link("a").unwrap().qdisc.as_deref(), Some("tbf"));
    // Above 32 bits of bytes per second.
    netlink.set_rate(index, BitsPerSecond(40_000_000_000)).unwrap();
    assert!(run(&first, "tc qdisc show dev a").contains("rate 40Gbit"));
}

#[test]
fn a_devices_queue_is_as_long_as_it_is_to_be() {
    if !testbase::root_or_skip("a network namespace") {
        return;
    }
    let [(first, netlink), _second] = pair("queue", 1500);
    let index = netlink.link("a").unwrap().index;
    netlink.set_queue_length(index, 4096).unwrap();
    assert!(run(&first, "ip link show dev a").contains("qlen 4096"));
    netlink.set_queue_length(index + 1_000, 4096).unwrap_err();
}

#[test]
fn what_keeps_the_fast_path_slow_is_seen() {
    if !testbase::root_or_skip("a network namespace") {
        return;
    }
    let scratch = Scratch::new("slow");
    let netlink = Netlink::open_in(&scratch.ns).unwrap();
    let rules = netlink.rules().unwrap();
    assert!(rules.iter().all(|rule| rule.standard), "{rules:?}");
    assert!(rules.iter().any(|rule| rule.v6) && rules.iter().any(|rule| !rule.v6));
    run(&scratch, "ip rule add from 10.0.0.0/8 lookup 100");
    run(&scratch, "ip -6 rule add fwmark 1 lookup 100");
    assert_eq!(netlink.extra_rules().unwrap(), 2);

    let policies = || Netlink::ipsec_policies_in(&scratch.ns).unwrap();
    assert_eq!(policies(), 0);
    let policy = "ip xfrm policy add src 10.0.0.0/8 dst 10.1.0.0/16 dir out priority 5";
    let mut command = Command::new("ip");
    let output =
        command_in(&scratch.ns, command.args(policy.split(' ').skip(1))).unwrap().output().unwrap();
    let in_use = || Netlink::ipsec_in_use_in(&scratch.ns).unwrap();
    if !output.status.success() {
        // A kernel without IPsec has no policies.
        assert_eq!((policies(), in_use()), (0, false));
        return;
    }
    assert_eq!((policies(), in_use()), (1, true));
    run(&scratch, "ip xfrm policy flush");
    assert!(!in_use());
    run(&scratch, "ip xfrm policy setdefault fwd block");
    assert_eq!((policies(), in_use()), (0, true));
    run(&scratch, "ip xfrm policy setdefault fwd accept");
    assert!(!in_use());
}

#[test]
fn settings_come_with_their_device() {
    if !testbase::root_or_skip("a network namespace") {
        return;
    }
    let [(first, netlink), _second] = pair("settings", 1500);
    let index = netlink.link("a").unwrap().index;
    let settings = || netlink.link_at(index).unwrap().settings;
    let set = |key: &str, value: &str| {
        in_namespace(&first.ns, || {
            namespaces::sysctl::write(&format!("net/{key}"), value).unwrap()
        })
        .unwrap();
    };
    let before = settings();
    assert_eq!((before.v4_rp_filter, before.v4_accept_local, before.v6_mtu), (0, 0, 1500));
    set("ipv4/conf/a/rp_filter", "2");
    set("ipv4/conf/a/accept_local", "1");
    set("ipv4/conf/a/forwarding", "1");
    set("ipv6/conf/a/mtu", "1400");
    let now = settings();
    assert_eq!((now.v4_rp_filter, now.v4_accept_local, now.v4_forwarding), (2, 1, 1));
    assert_eq!((now.v6_mtu, now.v6_disabled), (1400, 0));
    set("ipv6/conf/a/disable_ipv6", "1");
    assert_eq!(settings().v6_disabled, 1);
}

#[test]
fn netfilter_is_in_use_from_the_first_chain_on_a_hook() {
    if !testbase::root_or_skip("a network namespace") {
        return;
    }
    let scratch = Scratch::new("nft");
    let in_use = || in_namespace(&scratch.ns, netfilter_in_use).unwrap().unwrap();
    assert!(!in_use());
    let mut command = Command::new("nft");
    match command_in(&scratch.ns, command.args(["add", "table", "inet", "t"])).unwrap().output() {
        Ok(output) if output.status.success() => {}
        other => return testbase::skip_this(&format!("nft cannot make a table: {other:?}")),
    }
    run(&scratch, "nft add chain inet t unused");
    assert!(!in_use(), "no packet comes to a chain without a hook");
    run(&scratch, "nft add chain inet t c { type filter hook forward priority 0 ; }");
    assert!(in_use());
}

#[test]
fn changes_are_told_as_they_happen() {
    if !testbase::root_or_skip("a network namespace") {
        return;
    }
    let scratch = Scratch::new("monitor");
    let mut monitor = Monitor::open_in(&scratch.ns).unwrap();
    assert_eq!(monitor.next_within(Duration::from_millis(20)).unwrap(), None);

    let mut expect = |words: &str, expected: Change| {
        run(&scratch, words);
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            if monitor.next_within(Duration::from_millis(100)).unwrap() == Some(expected) {
                return;
            }
        }
        panic!("{expected:?} did not come after {words}");
    };
    expect("ip link set lo up", Change::Link);
    expect("ip address add 10.3.3.3/24 dev lo", Change::Address);
    expect("ip -6 route add fd44::/64 dev lo", Change::Route);
    expect("ip -6 rule add from fd44::/64 lookup 7", Change::Rule);
    expect("ip neighbour add 10.3.3.4 lladdr 2:0:0:0:0:1 dev lo", Change::Neighbour);
    for key in ["ipv4.ip_forward", "ipv4.conf.lo.forwarding", "ipv4.conf.all.rp_filter"] {
        expect(&format!("sysctl -qw net.{key}=1"), Change::Setting);
    }
    for key in ["ipv6.conf.all.forwarding", "ipv6.conf.lo.ignore_routes_with_linkdown"] {
        expect(&format!("sysctl -qw net.{key}=1"), Change::Setting);
    }
    // Without the routes that hang on it a next hop object changes alone.
    run(&scratch, "sysctl -qw net.ipv4.nexthop_compat_mode=0");
    expect("ip nexthop add id 5 dev lo", Change::Route);
}

#[test]
fn changes_are_told_to_async_code() {
    if !testbase::root_or_skip("a network namespace") {
        return;
    }
    let scratch = Scratch::new("async");
    let mut monitor = Monitor::open_in(&scratch.ns).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let change = runtime.block_on(async {
        let nothing = tokio::time::timeout(Duration::from_millis(20), monitor.next()).await;
        assert!(nothing.is_err(), "{nothing:?}");
        run(&scratch, "ip link set lo up");
        tokio::time::timeout(Duration::from_secs(5), monitor.next()).await.unwrap().unwrap()
    });
    assert_eq!(change, Change::Link);
}
