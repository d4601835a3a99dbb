//! Routing daemon beside each node: BIRD speaks OSPF or BGP over the nodes' ports; the front door
//! forwards by the routes that it learns, and no longer by those that it withdraws.
//!
//! ```text
//!                 ┌─ 10.77.2.0/24, preferred ─┐
//!  client ── r1 ──┤                           ├── r2 ── server     10.77.4.0/24
//!  10.77.1.0/24   └─ 10.77.3.0/24 ────────────┘
//! ```
//!
//! The lab's own routes to the far networks are removed: without BIRD nothing crosses.

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use crate::common::{PROGRAM_TIME_MAX, SOON};
use crate::flows::LEVELS;
use tempfile::TempDir;
use testkit::{
    Net, NodeUnderTest, Output, Running, Service, root_or_skip, service_module, wait_for,
};

const TOPOLOGY: &str = r#"
[[host]]
name = "client"
[[host]]
name = "server"
[[router]]
name = "r1"
[[router]]
name = "r2"
[[link]]
ends = ["client", "r1"]
[[link]]
ends = ["r1", "r2"]
[[link]]
ends = ["r1", "r2"]
[[link]]
ends = ["r2", "server"]
"#;
/// Datagrams of one count.
const DATAGRAMS: u64 = 200;
const PORT: u16 = 7000;
/// Time for BIRD to converge by its own timers: hellos of a second, BGP's of some seconds until it
/// tries again.
const CONVERGENCE: Duration = Duration::from_secs(30);

/// Router with the settings in which the two differ.
struct Side {
    name: &'static str,
    number: u8,
    /// Network of its own host; the next field is the other router's.
    own: &'static str,
    far: &'static str,
    host: &'static str,
}

const SIDES: [Side; 2] = [
    Side { name: "r1", number: 1, own: "10.77.1.0/24", far: "10.77.4.0/24", host: "client" },
    Side { name: "r2", number: 2, own: "10.77.4.0/24", far: "10.77.1.0/24", host: "server" },
];

/// Returns the configuration that both protocols need: devices as they appear, and learned routes
/// in the kernel.
fn common(side: &Side) -> String {
    format!(
        "log stderr all;\nrouter id 10.0.0.{};\nprotocol device {{ scan time 1; }}\n\
         protocol kernel {{ ipv4 {{ import none; export where source !~ [RTS_DEVICE]; }}; }}\n",
        side.number
    )
}

/// Returns the configuration of OSPF by multicast hellos over both links; the host's network is a
/// stub.
fn ospf(side: &Side) -> String {
    let far = if side.number == 1 { "to-r2" } else { "to-r1" };
    let link = |device: &str, cost| {
        format!(
            "interface \"{device}\" {{ type ptp; hello 1; dead 4; cost {cost}; check link yes; }};\n"
        )
    };
    format!(
        "{}protocol ospf v2 {{ ipv4 {{ import all; export none; }}; area 0 {{\n\
         interface \"to-{}\" {{ stub yes; }};\n{}{}}}; }}\n",
        common(side),
        side.host,
        link(far, 10),
        link(&format!("{far}+2"), 20)
    )
}

/// Returns the configuration of a session of external BGP over each link, its packets with a TTL of
/// 1.
fn bgp(side: &Side) -> String {
    let (own, other) = (side.number, 3 - side.number);
    let session = |link, preference| {
        format!(
            "protocol bgp over{link} {{\n local 10.77.{link}.{own} as 6500{own};\n \
             neighbor 10.77.{link}.{other} as 6500{other};\n direct; check link yes;\n \
             connect delay time 1; connect retry time 1; error wait time 1, 2; hold time 6;\n \
             ipv4 {{ import filter {{ preference = {preference}; accept; }};\n \
             export where net = {}; }};\n}}\n",
            side.own
        )
    };
    let host = format!("protocol direct {{ ipv4; interface \"to-{}\"; }}\n", side.host);
    common(side) + &host + &session(2, 200) + &session(3, 100)
}

/// Lab with a node and a BIRD in each router.
struct Routed {
    // Dropped in this order.
    birds: Vec<Running>,
    nodes: [NodeUnderTest; 2],
    net: Net,
    files: TempDir,
}

impl Routed {
    fn up(config: impl Fn(&Side) -> String) -> Self {
        let net = Net::up(TOPOLOGY).unwrap();
        for side in &SIDES {
            run(&net, side.name, &["ip", "route", "delete", side.far]);
        }
        let nodes = SIDES.each_ref().map(|side| NodeUnderTest::start(&net, side.name).unwrap());
        let files = TempDir::new().unwrap();
        let mut routed = Self { birds: Vec::new(), nodes, net, files };
        assert_eq!(routed.gateways(), ["", ""], "nobody knows a way yet");
        for side in &SIDES {
            let socket = routed.socket(side);
            let (file, pid) = (socket.with_extension("conf"), socket.with_extension("pid"));
            std::fs::write(&file, config(side)).unwrap();
            let [file, socket, pid] = [&file, &socket, &pid].map(|path| path.display().to_string());
            let argv = ["bird", "-f", "-c", &file, "-s", &socket, "-P", &pid];
            let bird = Running::start(&routed.net.namespace(side.name).unwrap(), &argv).unwrap();
            routed.birds.push(bird);
        }
        routed
    }

    /// Returns the kernel's next hop of each router to the other's network; empty without a route.
    fn gateways(&self) -> [String; 2] {
        SIDES.each_ref().map(|side| {
            let listed = run(&self.net, side.name, &["ip", "-j", "route", "show", side.far]);
            let routes: serde_json::Value = serde_json::from_str(&listed).unwrap();
            routes[0]["gateway"].as_str().unwrap_or_default().to_owned()
        })
    }

    /// Waits until both routers route over this link.
    fn converges(&self, link: u8) {
        let wanted = [2, 1].map(|end| format!("10.77.{link}.{end}"));
        let there = || (self.gateways() == wanted).then_some(());
        let converged = wait_for(CONVERGENCE, there).is_some();
        assert!(converged, "over {link}: {:?}{}", self.gateways(), self.views());
    }

    /// Runs a query of BIRD; its report that there is no OSPF is an answer, too.
    fn birdc(&self, side: &Side, what: &[&str]) -> Output {
        let socket = self.socket(side).display().to_string();
        let argv = [&["birdc", "-s", &socket, "show"], what].concat();
        self.net.run(side.name, &argv, PROGRAM_TIME_MAX).unwrap()
    }

    fn socket(&self, side: &Side) -> PathBuf {
        self.files.path().join(format!("{}.sock", side.name))
    }

    /// Describes the state of each router's BIRD and node, for failure messages.
    fn views(&self) -> String {
        let mut views = String::new();
        for (side, node) in SIDES.iter().zip(&self.nodes) {
            views += &format!("\n{}: {:#?}\n", side.name, node.stats());
            for what in [&["interfaces"][..], &["route"], &["ospf", "neighbors"]] {
                views += &self.birdc(side, what).stdout;
            }
        }
        views
    }

    /// Waits until the better link is neither a route nor in the routers' announcements.
    ///
    /// OSPF sends a new announcement no sooner than 5 s after the last one (MinLSInterval, RFC 2328
    /// appendix B). BIRD 2.0.12 announces nothing about a link that came back before that, since
    /// nothing has changed for it, and does not compute a route over it again.
    fn loses_the_better_link(&self) {
        self.converges(3);
        // All announcements that they have received, also of unreachable networks. BGP has no such
        // list.
        let told = |side: &Side| {
            let told = self.birdc(side, &["ospf", "state", "all"]).stdout;
            assert!(told.contains("10.77.3.0/24") != told.contains("no OSPF"), "{told}");
            told.contains("10.77.2.0/24")
        };
        let forgotten = || (!SIDES.iter().any(told)).then_some(());
        assert!(wait_for(CONVERGENCE, forgotten).is_some(), "{}", self.views());
    }

    /// Sets r2's end of a link up or down: r1 sees its carrier go.
    fn link(&self, device: &str, state: &str) {
        run(&self.net, "r2", &["ip", "link", "set", device, state]);
    }

    /// Resolves the neighbours on both paths.
    fn resolve_neighbours(&self) {
        let server = self.net.v4("server", "r2").unwrap().to_string();
        run(&self.net, "client", &["ping", "-c2", "-i0.2", "-W5", &server]);
    }

    fn udp(&self, host: &str, router: &str, port: u16) -> UdpSocket {
        let address = SocketAddr::from((self.net.v4(host, router).unwrap(), port));
        let socket = self.net.within(host, || UdpSocket::bind(address)).unwrap().unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        socket
    }

    /// Returns the packets with this outcome at a port of a node.
    fn outcome(&self, node: usize, port: &str, outcome: &str) -> u64 {
        let stats = self.nodes[node].stats().unwrap();
        let port = stats.ports.into_iter().find(|it| it.port == port).unwrap();
        port.outcomes.get(outcome).copied().unwrap_or(0)
    }

    /// Sends datagrams from client to server: all arrive, and r2 received all by this port.
    fn carries(&self, port: &str) {
        self.resolve_neighbours();
        let (server, client) = (self.udp("server", "r2", PORT), self.udp("client", "r1", 0));
        client.connect(server.local_addr().unwrap()).unwrap();
        let before = ["left", "right"].map(|port| self.outcome(1, port, "forwarded"));
        for number in 0..DATAGRAMS {
            client.send(&number.to_be_bytes()).unwrap();
            let mut word = [0; 8];
            assert_eq!(server.recv(&mut word).unwrap(), 8, "datagram {number} by {port}");
            assert_eq!(u64::from_be_bytes(word), number);
        }
        let after = ["left", "right"].map(|port| self.outcome(1, port, "forwarded"));
        let grown = [0, 1].map(|at| after[at] - before[at]);
        let expected = if port == "left" { [DATAGRAMS, 0] } else { [0, DATAGRAMS] };
        assert_eq!(grown, expected, "by the fast path of r2: {:#?}", self.nodes[1].stats());
    }
}

fn run(net: &Net, node: &str, argv: &[&str]) -> String {
    let output = net.run(node, argv, PROGRAM_TIME_MAX).unwrap();
    assert!(output.status.success(), "{argv:?}: {output:#?}");
    output.stdout
}

/// Checks that routes appear and that traffic follows them on the fast path, through changes of
/// links and beside services that get all packets.
fn routed(config: impl Fn(&Side) -> String) {
    let routed = Routed::up(config);
    routed.converges(2);
    let before = routed.outcome(0, "left", "forwarded");
    routed.carries("left");
    assert!(routed.outcome(0, "left", "forwarded") >= before + DATAGRAMS, "by r1's fast path, too");

    // The better link goes down, and comes back.
    routed.link("to-r1", "down");
    routed.loses_the_better_link();
    routed.carries("right");
    routed.link("to-r1", "up");
    routed.converges(2);
    routed.carries("left");

    // A service that takes all that comes in leaves the daemon what is the daemon's.
    let wasm = service_module("monitor").unwrap();
    let rules = ["in left", "in right", "in port3"];
    for level in LEVELS {
        let service = Service { rules: &rules, level, ..Service::default() };
        routed.nodes[0].deploy(&wasm, &service).unwrap();
        routed.carries("left");
        routed.link("to-r1", "down");
        routed.loses_the_better_link();
        routed.carries("right");
        routed.link("to-r1", "up");
        routed.converges(2);
        assert!(routed.nodes[0].service("monitor").unwrap().stats.packets > DATAGRAMS, "{level}");
        routed.nodes[0].remove("monitor").unwrap();
    }

    // Without any link the route is withdrawn, and the sender hears of it.
    routed.link("to-r1", "down");
    routed.link("to-r1+2", "down");
    let gone = || (routed.gateways() == ["", ""]).then_some(());
    assert!(wait_for(CONVERGENCE, gone).is_some(), "{:?}", routed.gateways());
    let server = routed.net.v4("server", "r2").unwrap().to_string();
    let ping = ["ping", "-c1", "-W5", &server];
    let refused = routed.net.run("client", &ping, PROGRAM_TIME_MAX).unwrap();
    assert!(refused.stdout.contains("Destination Net Unreachable"), "{refused:#?}");
}

#[test]
fn traffic_follows_the_routes_that_ospf_learns_and_withdraws() {
    if root_or_skip("OSPF beside nodes") {
        routed(ospf);
    }
}

#[test]
fn traffic_follows_the_routes_that_bgp_learns_and_withdraws() {
    if root_or_skip("BGP beside nodes") {
        routed(bgp);
    }
}
