//! Kernel state that a node follows: each change, made while packets of a cached flow and of new
//! ones pass, applies to the next packets, and so does its end. [`TABLE`] is the list of
//! docs/reference/kernel.md, which `the_page_on_the_kernel_lists_everything_that_is_followed` generates.
//!
//! ```text
//!  client ── left  r1  right ── server, with 10.99.0.1 and fd99::1 on its loopback
//!                    └─ spare: a veth whose other end is down
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};

use crate::common::{Line, PROGRAM_TIME_MAX, SOON};
use testkit::{Net, NodeUnderTest, root_or_skip, skip_this, wait_for};

/// Destinations of the packets; routes lead there by a next hop object.
const THERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 99, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1)),
];
const PORT: u16 = 7000;
/// Namespaces beside r1 in which commands run.
const HOSTS: [&str; 2] = ["client", "server"];
/// Datagrams of the cached flow, and of new flows, that are checked together.
const EACH: u64 = 3;
/// Outcomes of packets by which hosts resolve each other.
const OF_HOSTS: [&str; 2] = ["kernel_not_ip", "kernel_link_local"];
/// Bytes of a datagram: more than an MTU of 1,300 accepts.
const LENGTH: usize = 1_400;
/// Time within which a change has to apply: a second, and as long for the test's own part on a busy
/// machine.
const FOLLOWED: Duration = Duration::from_secs(2);
/// Time within which a packet that was not dropped arrives after it was counted on its path.
const ARRIVES: Duration = Duration::from_millis(50);

/// Way in which the node learns of a change.
#[derive(Clone, Copy)]
enum Noticed {
    Told,
    Read,
}

/// Expected effect of a change on packets.
#[derive(Clone, Copy, Debug)]
enum Becomes {
    /// Outcome at the port where they enter, and whether they arrive.
    This(Family, &'static str, bool),
    /// Invalidation: another path may be right, and the cache is not used any more.
    Forgotten(Family),
    /// Effect that another test, named here, checks.
    Elsewhere(&'static str),
}
use Becomes::{Elsewhere, Forgotten, This};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4 = 0,
    V6 = 1,
}
use Family::{V4, V6};

/// Line of the page, with changes that test it. In commands `CLIENT`, `CLIENT6`, `SERVER`, `LEFT6`
/// are addresses, and a host in front (`server:`) selects the namespace.
struct Followed {
    what: &'static str,
    decides: &'static str,
    noticed: Noticed,
    changes: &'static [Change],
}

/// Commands before a change, for it, and to undo both.
struct Change {
    given: &'static [&'static str],
    change: &'static str,
    undo: &'static [&'static str],
    becomes: Becomes,
}

const fn change(
    given: &'static [&'static str],
    change: &'static str,
    undo: &'static [&'static str],
    becomes: Becomes,
) -> Change {
    Change { given, change, undo, becomes }
}

const fn told(what: &'static str, decides: &'static str, changes: &'static [Change]) -> Followed {
    Followed { what, decides, noticed: Noticed::Told, changes }
}

const fn read(what: &'static str, decides: &'static str, changes: &'static [Change]) -> Followed {
    Followed { what, decides, noticed: Noticed::Read, changes }
}

/// Commands for a better route whose device has no carrier, which does not count.
const SPARE: &[&str] = &[
    "ip link add spare type veth peer name spare-end",
    "ip link set spare up",
    "sysctl -qw net.ipv4.conf.spare.ignore_routes_with_linkdown=1",
    "sysctl -qw net.ipv6.conf.spare.ignore_routes_with_linkdown=1",
    "ip route add 10.99.0.1/32 dev spare",
    "ip route add fd99::1/128 dev spare",
];
const BY_THE_OTHER: &[&str] = &["ip route add CLIENT/32 via SERVER dev to-server"];

const OWN_CLIENT: &[&str] = &["ip address add CLIENT/32 dev lo"];

const TABLE: &[Followed] = &[
    told(
        "routes (`ip route`)",
        "egress, next hop, MTU",
        &[
            change(
                &[],
                "ip route add blackhole 10.99.0.1/32",
                &["ip route del blackhole 10.99.0.1/32"],
                This(V4, "kernel_other", false),
            ),
            change(
                &[],
                "ip route add blackhole fd99::1/128",
                &["ip route del blackhole fd99::1/128"],
                This(V6, "kernel_other", false),
            ),
        ],
    ),
    told(
        "next hop objects (`ip nexthop`)",
        "egress, next hop",
        &[change(
            &[],
            "ip nexthop replace id 7 blackhole",
            &["ip nexthop replace id 7 via SERVER dev to-server"],
            This(V4, "kernel_other", false),
        )],
    ),
    told(
        "routing rules (`ip rule`)",
        "whether the kernel must route it",
        &[
            change(
                &[],
                "ip rule add from CLIENT/32 blackhole",
                &["ip rule del from CLIENT/32 blackhole"],
                This(V4, "kernel_slow", false),
            ),
            change(
                &[],
                "ip -6 rule add from CLIENT6/128 blackhole",
                &["ip -6 rule del from CLIENT6/128 blackhole"],
                This(V6, "kernel_slow", false),
            ),
        ],
    ),
    told(
        "neighbours (`ip neighbour`)",
        "the next hop's MAC address",
        &[change(
            &[],
            "ip neighbour replace SERVER dev to-server lladdr 2:0:0:0:0:99 nud permanent",
            &["ip neighbour replace SERVER dev to-server lladdr SERVER_MAC nud permanent"],
            This(V4, "forwarded", false),
        )],
    ),
    told(
        "addresses (`ip address`), local prefixes (`ip route add local`)",
        "whether it is for the router itself, or claims to come from it",
        &[
            change(
                &[],
                "ip address add 10.99.0.1/32 dev lo",
                &["ip address del 10.99.0.1/32 dev lo"],
                This(V4, "kernel_local", false),
            ),
            change(
                &[],
                "ip address add fd99::1/128 dev lo",
                &["ip address del fd99::1/128 dev lo"],
                This(V6, "kernel_local", false),
            ),
            change(
                &[],
                "ip address add CLIENT/32 dev lo",
                &["ip address del CLIENT/32 dev lo"],
                This(V4, "drop_own_source", false),
            ),
            change(
                &[],
                "ip route add local CLIENT/32 dev lo",
                &["ip route del local CLIENT/32 dev lo"],
                This(V4, "drop_own_source", false),
            ),
            // Linux has no such check of IPv6.
            change(
                &[],
                "ip address add CLIENT6/128 dev lo nodad",
                &["ip address del CLIENT6/128 dev lo"],
                This(V6, "forwarded", true),
            ),
        ],
    ),
    told(
        "devices: up, carrier, MTU, MAC, name, master",
        "whether and how it leaves",
        &[
            change(
                &[],
                "ip link set to-server mtu 1300",
                &["ip link set to-server mtu 1500"],
                This(V4, "kernel_too_big", false),
            ),
            change(
                &[],
                "ip link set to-client address 2:0:0:0:0:77",
                &["ip link set to-client address OWN_MAC"],
                This(V4, "kernel_not_for_us", false),
            ),
        ],
    ),
    told(
        "VLAN devices above a port",
        "the tag that it comes or leaves with",
        &[change(&[], "", &[], Elsewhere("tags_are_taken_off_and_put_on"))],
    ),
    told(
        "`net.ipv4.ip_forward`, `net.ipv4.conf.PORT.forwarding`",
        "whether IPv4 is forwarded",
        &[
            change(
                &[],
                "sysctl -qw net.ipv4.ip_forward=0",
                &["sysctl -qw net.ipv4.ip_forward=1"],
                This(V4, "kernel_other", false),
            ),
            change(
                &[],
                "sysctl -qw net.ipv4.conf.to-client.forwarding=0",
                &["sysctl -qw net.ipv4.conf.to-client.forwarding=1"],
                This(V4, "kernel_other", false),
            ),
        ],
    ),
    told(
        "`net.ipv6.conf.{all,PORT}.forwarding`",
        "whether IPv6 is forwarded",
        &[
            change(
                &[],
                "sysctl -qw net.ipv6.conf.all.forwarding=0",
                &["sysctl -qw net.ipv6.conf.all.forwarding=1"],
                This(V6, "kernel_other", false),
            ),
            // The port's alone does not make the kernel forward.
            change(
                &["sysctl -qw net.ipv6.conf.all.forwarding=0"],
                "sysctl -qw net.ipv6.conf.to-client.forwarding=1",
                &["sysctl -qw net.ipv6.conf.all.forwarding=1"],
                This(V6, "kernel_other", false),
            ),
            // Without it the FIB helper finds no route; the kernel does.
            change(
                &[],
                "sysctl -qw net.ipv6.conf.to-client.forwarding=0",
                &["sysctl -qw net.ipv6.conf.to-client.forwarding=1"],
                This(V6, "kernel_other", true),
            ),
        ],
    ),
    told(
        "`net.ipv6.conf.{all,PORT}.force_forwarding`",
        "the same, of one device (Linux 6.17)",
        &[change(
            &["sysctl -qw net.ipv6.conf.all.forwarding=0"],
            "sysctl -qw net.ipv6.conf.to-client.force_forwarding=1",
            &[
                "sysctl -qw net.ipv6.conf.to-client.force_forwarding=0",
                "sysctl -qw net.ipv6.conf.all.forwarding=1",
            ],
            This(V6, "kernel_other", true),
        )],
    ),
    told(
        "`net.ipv4.conf.{all,PORT}.rp_filter`",
        "whether its source may come in there",
        &[
            change(
                BY_THE_OTHER,
                "sysctl -qw net.ipv4.conf.all.rp_filter=1",
                &["sysctl -qw net.ipv4.conf.all.rp_filter=0", "ip route del CLIENT/32"],
                This(V4, "kernel_source", false),
            ),
            change(
                BY_THE_OTHER,
                "sysctl -qw net.ipv4.conf.to-client.rp_filter=1",
                &["sysctl -qw net.ipv4.conf.to-client.rp_filter=0", "ip route del CLIENT/32"],
                This(V4, "kernel_source", false),
            ),
        ],
    ),
    told(
        "`net.ipv{4,6}.conf.{all,PORT}.ignore_routes_with_linkdown`",
        "whether a route without carrier counts",
        &[
            change(
                SPARE,
                "sysctl -qw net.ipv4.conf.spare.ignore_routes_with_linkdown=0",
                &["ip link del spare"],
                This(V4, "kernel_neighbour", false),
            ),
            change(
                SPARE,
                "sysctl -qw net.ipv6.conf.spare.ignore_routes_with_linkdown=0",
                &["ip link del spare"],
                This(V6, "kernel_neighbour", false),
            ),
        ],
    ),
    read(
        "`net.ipv6.conf.{all,PORT}.disable_ipv6`",
        "whether IPv6 comes in there",
        &[change(
            &[],
            "sysctl -qw net.ipv6.conf.to-client.disable_ipv6=1",
            &[
                "sysctl -qw net.ipv6.conf.to-client.disable_ipv6=0",
                "ip address add LEFT6/64 dev to-client nodad",
            ],
            This(V6, "kernel_other", false),
        )],
    ),
    read(
        "`net.ipv6.conf.PORT.mtu`",
        "what fits on its way out",
        &[change(
            &[],
            "sysctl -qw net.ipv6.conf.to-server.mtu=1300",
            &["sysctl -qw net.ipv6.conf.to-server.mtu=1500"],
            This(V6, "kernel_too_big", false),
        )],
    ),
    read(
        "`net.ipv4.conf.{all,PORT}.accept_local`",
        "whether IPv4 packets from the router's own addresses may come in there",
        &[
            change(
                OWN_CLIENT,
                "sysctl -qw net.ipv4.conf.to-client.accept_local=1",
                &[
                    "sysctl -qw net.ipv4.conf.to-client.accept_local=0",
                    "ip address del CLIENT/32 dev lo",
                ],
                This(V4, "forwarded", true),
            ),
            change(
                OWN_CLIENT,
                "sysctl -qw net.ipv4.conf.all.accept_local=1",
                &["sysctl -qw net.ipv4.conf.all.accept_local=0", "ip address del CLIENT/32 dev lo"],
                This(V4, "forwarded", true),
            ),
        ],
    ),
    read(
        "`net.ipv4.fib_multipath_hash_{policy,fields}`",
        "which of several paths it takes",
        &[
            change(
                &[],
                "sysctl -qw net.ipv4.fib_multipath_hash_policy=1",
                &["sysctl -qw net.ipv4.fib_multipath_hash_policy=0"],
                Forgotten(V4),
            ),
            change(
                &[],
                "sysctl -qw net.ipv4.fib_multipath_hash_fields=3",
                &["sysctl -qw net.ipv4.fib_multipath_hash_fields=7"],
                Forgotten(V4),
            ),
        ],
    ),
    read(
        "`net.ipv4.fib_multipath_use_neigh`",
        "the same",
        &[change(
            &[],
            "sysctl -qw net.ipv4.fib_multipath_use_neigh=1",
            &["sysctl -qw net.ipv4.fib_multipath_use_neigh=0"],
            Forgotten(V4),
        )],
    ),
    read(
        "`net.ipv6.fib_multipath_hash_{policy,fields}`",
        "the same, of IPv6",
        &[
            change(
                &[],
                "sysctl -qw net.ipv6.fib_multipath_hash_policy=1",
                &["sysctl -qw net.ipv6.fib_multipath_hash_policy=0"],
                Forgotten(V6),
            ),
            change(
                &[],
                "sysctl -qw net.ipv6.fib_multipath_hash_fields=3",
                &["sysctl -qw net.ipv6.fib_multipath_hash_fields=7"],
                Forgotten(V6),
            ),
        ],
    ),
    read(
        "`net.ipv4.ip_forward_use_pmtu`",
        "whether a path's MTU counts",
        &[change(
            &[],
            "sysctl -qw net.ipv4.ip_forward_use_pmtu=1",
            &["sysctl -qw net.ipv4.ip_forward_use_pmtu=0"],
            Forgotten(V4),
        )],
    ),
    read(
        "netfilter (nftables, iptables)",
        "whether the kernel must see it",
        &[change(
            &["nft add table inet f"],
            "nft add chain inet f f { type filter hook forward priority 0 ; policy drop ; }",
            &["nft delete table inet f"],
            This(V4, "kernel_slow", false),
        )],
    ),
    read(
        "IPsec policies, and the default (`ip xfrm policy`)",
        "whether the kernel must see it",
        &[
            change(
                &[],
                "ip xfrm policy add src CLIENT dst 10.99.0.1 dir fwd action block",
                &["ip xfrm policy flush"],
                This(V4, "kernel_slow", false),
            ),
            change(
                &[],
                "ip xfrm policy setdefault fwd block",
                &["ip xfrm policy setdefault fwd accept"],
                This(V6, "kernel_slow", false),
            ),
        ],
    ),
    read(
        "queueing disciplines of a port (`tc qdisc`)",
        "whether it must wait there",
        &[change(
            &[],
            "tc qdisc add dev to-server root tbf rate 1gbit burst 64kb latency 50ms",
            &["tc qdisc del dev to-server root"],
            This(V4, "kernel_slow", true),
        )],
    ),
    read(
        "whether the egress takes redirected frames (GRO of a veth's other end)",
        "how it leaves",
        &[change(
            &[],
            "server: ethtool -K to-r1 gro off",
            &["server: ethtool -K to-r1 gro on"],
            This(V4, "kernel_slow", true),
        )],
    ),
];

/// Effect [`Becomes::This`] of an unchanged state.
const PLAIN: [Becomes; 2] = [This(V4, "forwarded", true), This(V6, "forwarded", true)];

/// Lab, its node, and the sockets of both families.
struct Flows {
    line: Line,
    server: [UdpSocket; 2],
    /// Sockets of the cached flows.
    cached: [UdpSocket; 2],
    client: [IpAddr; 2],
    names: BTreeMap<&'static str, String>,
}

/// Returns the addresses of a host.
fn own(line: &Line, host: &str) -> [IpAddr; 2] {
    [line.net.v4(host, "r1").unwrap().into(), line.net.v6(host, "r1").unwrap().into()]
}

impl Flows {
    fn up() -> Self {
        let net = Net::line(1500).unwrap();
        let mac =
            |host, peer| net.mac(host, peer).unwrap().map(|byte| format!("{byte:x}")).join(":");
        let names = BTreeMap::from([
            ("CLIENT6", net.v6("client", "r1").unwrap().to_string()),
            ("CLIENT", net.v4("client", "r1").unwrap().to_string()),
            ("SERVER6", net.v6("server", "r1").unwrap().to_string()),
            ("SERVER", net.v4("server", "r1").unwrap().to_string()),
            ("LEFT", net.v4("r1", "client").unwrap().to_string()),
            ("LEFT6", net.v6("r1", "client").unwrap().to_string()),
            ("OWN_MAC", mac("r1", "client")),
            ("CLIENT_MAC", mac("client", "r1")),
            ("SERVER_MAC", mac("server", "r1")),
        ]);
        let node = NodeUnderTest::start(&net, "r1").unwrap();
        let line = Line { node, net };
        let client = own(&line, "client");
        let mut this = Self {
            server: sockets(&line, "server", own(&line, "server"), 0),
            cached: sockets(&line, "client", client, 0),
            client,
            line,
            names,
        };
        for command in [
            "client: ip route add 10.99.0.0/24 via LEFT",
            "client: ip route add fd99::/64 via LEFT6",
            "server: ip address add 10.99.0.1/32 dev lo",
            "server: ip address add fd99::1/128 dev lo nodad",
            "sysctl -qw net.ipv4.nexthop_compat_mode=0",
            "ip nexthop add id 7 via SERVER dev to-server",
            "ip route add 10.99.0.0/24 nhid 7",
            "ip route add fd99::/64 via SERVER6 dev to-server",
            // Otherwise the kernel probes them now and then, which flushes the cache each time.
            "ip neighbour replace CLIENT dev to-client lladdr CLIENT_MAC nud permanent",
            "ip neighbour replace CLIENT6 dev to-client lladdr CLIENT_MAC nud permanent",
            "ip neighbour replace SERVER dev to-server lladdr SERVER_MAC nud permanent",
            "ip neighbour replace SERVER6 dev to-server lladdr SERVER_MAC nud permanent",
        ] {
            this.run(command).unwrap();
        }
        this.server = sockets(&this.line, "server", THERE, PORT);
        this.line.resolve_neighbours();
        this
    }

    /// Runs a command, in r1 unless it names a host; an error has the command's output.
    fn run(&self, command: &str) -> Result<(), String> {
        let elsewhere = command.split_once(": ").filter(|(host, _)| HOSTS.contains(host));
        let (host, text) = elsewhere.unwrap_or(("r1", command));
        // Longer names first, since one may be the prefix of another.
        let text = self
            .names
            .iter()
            .rev()
            .fold(text.to_owned(), |text, (name, value)| text.replace(name, value));
        let argv: Vec<&str> = text.split(' ').collect();
        let output = self.line.net.run(host, &argv, PROGRAM_TIME_MAX).unwrap();
        if output.status.success() { Ok(()) } else { Err(format!("{text}: {}", output.stderr)) }
    }

    /// Returns outcomes and cache hits of the port where packets enter.
    fn counters(&self) -> (BTreeMap<String, u64>, u64) {
        let ports = self.line.node.stats().unwrap().ports;
        let left = ports.into_iter().find(|port| port.port == "left").unwrap();
        (left.outcomes, left.cache_hits)
    }

    /// Sends packets of the cached flow and of new ones; returns their outcome, if all had the
    /// same.
    fn send(&self, family: Family) -> Option<(String, bool)> {
        let (at, server) = (family as usize, &self.server[family as usize]);
        while server.recv(&mut [0; 8]).is_ok() {}
        let (before, _) = self.counters();
        for _ in 0..EACH {
            let new = &sockets(&self.line, "client", self.client, 0)[at];
            for socket in [&self.cached[at], new] {
                socket.send_to(&[7; LENGTH], SocketAddr::from((THERE[at], PORT))).ok()?;
            }
        }
        let became = wait_for(SOON, || {
            let (now, _) = self.counters();
            let more = now.iter().map(|(name, n)| (name, n - before.get(name).unwrap_or(&0)));
            let more: Vec<_> =
                more.filter(|(name, n)| *n > 0 && !OF_HOSTS.contains(&name.as_str())).collect();
            let all = more.iter().map(|(_, n)| n).sum::<u64>() >= 2 * EACH;
            all.then(|| (more.len() == 1).then(|| more[0].0.clone()))
        })??;
        std::thread::sleep(ARRIVES);
        match (0..).take_while(|_| server.recv(&mut [0; 8]).is_ok()).count() as u64 {
            0 => Some((became, false)),
            all if all == 2 * EACH => Some((became, true)),
            _ => None,
        }
    }

    /// Waits until packets have this effect.
    fn expect(&self, becomes: Becomes, because: &str) {
        let This(family, outcome, arrive) = becomes else { return };
        let mut last = None;
        let is_so = wait_for(FOLLOWED, || {
            last = self.send(family);
            (last.as_ref() == Some(&(outcome.to_owned(), arrive))).then_some(())
        });
        assert!(
            is_so.is_some(),
            "{because}: expected {becomes:?}, saw {last:?}\n{:#?}",
            self.counters()
        );
    }

    /// Makes a change after which the flow's next packet misses the cache.
    fn is_forgotten(&self, family: Family, change: &str) -> Result<(), String> {
        let at = family as usize;
        let hits = || {
            let (_, before) = self.counters();
            self.cached[at].send_to(&[7; 8], SocketAddr::from((THERE[at], PORT))).unwrap();
            self.server[at].set_nonblocking(false).unwrap();
            let came = self.server[at].recv(&mut [0; 8]);
            self.server[at].set_nonblocking(true).unwrap();
            assert!(came.is_ok(), "{change}");
            self.counters().1 - before
        };
        // It is cached, for longer than anything else is forgotten in between.
        assert!(wait_for(SOON, || (hits() == 1 && hits() == 1).then_some(())).is_some());
        self.run(change)?;
        assert!(wait_for(FOLLOWED, || (hits() == 0).then_some(())).is_some(), "{change}");
        Ok(())
    }

    fn check_change(&self, it: &Change) -> Result<(), String> {
        let ran = it.given.iter().try_for_each(|command| self.run(command));
        let changed = match it.becomes {
            Elsewhere(test) => {
                eprintln!("shown by {test}");
                return Ok(());
            }
            Forgotten(family) => ran.and_then(|()| self.is_forgotten(family, it.change)),
            This(..) => {
                if it.given.is_empty() {
                    PLAIN.iter().for_each(|plain| self.expect(*plain, it.change));
                }
                ran.and_then(|()| self.run(it.change))
                    .inspect(|()| self.expect(it.becomes, it.change))
            }
        };
        let undone = it.undo.iter().map(|command| self.run(command));
        let undone = undone.fold(Ok(()), Result::and);
        // What could not be changed need not be undone.
        changed.and(undone)?;
        PLAIN.iter().for_each(|plain| self.expect(*plain, &format!("undone: {}", it.change)));
        Ok(())
    }
}

/// Returns sockets of a host for both families, which send packets beyond the path MTU, too.
fn sockets(line: &Line, host: &str, own: [IpAddr; 2], port: u16) -> [UdpSocket; 2] {
    let open = |at: IpAddr| {
        let socket = line.net.within(host, || UdpSocket::bind((at, port))).unwrap().unwrap();
        match at {
            IpAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE).unwrap(),
            IpAddr::V6(_) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE).unwrap(),
        }
        socket.set_nonblocking(true).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        socket
    };
    own.map(open)
}

#[test]
fn the_page_on_the_kernel_lists_everything_that_is_followed() {
    const PAGE: &str = include_str!("../../../../docs/reference/kernel.md");
    const HEAD: &str = "| in the kernel | what it decides | noticed |\n|---|---|---|\n";
    let row = |it: &Followed| {
        let noticed = match it.noticed {
            Noticed::Told => "notified by netlink",
            Noticed::Read => "read every 400 ms",
        };
        format!("| {} | {} | {noticed} |\n", it.what, it.decides)
    };
    let table: String = TABLE.iter().map(row).collect();
    let expected = format!("{HEAD}{table}\n");
    assert!(PAGE.contains(&expected), "docs/reference/kernel.md needs this table:\n{expected}");
}

#[test]
fn each_change_in_the_kernel_is_followed_and_its_end_too() {
    if !root_or_skip("what a node follows of the kernel") {
        return;
    }
    let flows = Flows::up();
    for followed in TABLE {
        for change in followed.changes {
            if let Err(problem) = flows.check_change(change) {
                skip_this(&format!("{}: {problem}", followed.what));
            }
        }
    }
    flows.line.books();
}
