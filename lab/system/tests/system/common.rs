//! Common parts of the tests of this folder: the usual lab, and modules written as text.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::{Balance, Books, Net, NodeUnderTest, inconsistencies, wait_for};
use trust::{Grant, HeldToken, SecretKey, Seed, Token};
use wire::FrameBuilder;

/// Time for a packet to reach a host.
pub const SOON: Duration = Duration::from_secs(5);
/// Time for an external program that should take seconds.
pub const PROGRAM_TIME_MAX: Duration = Duration::from_secs(60);

/// Guard that tells the threads of a scope to end, also when a check beside them fails: the scope
/// would wait for them for ever.
pub struct Ends<'flag>(pub &'flag AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until the kernel holds no BPF object that it did not hold before; it frees them late.
pub fn assert_no_bpf_since(before: &bpf::Inventory) {
    // systemd loads and unloads programs with its units.
    let ours = |it: &String| !it.contains(" sd_");
    let new = || {
        let new = bpf::Inventory::take().unwrap().new_since(before);
        new.into_iter().filter(ours).collect::<Vec<_>>()
    };
    let left = wait_for(SOON, || new().is_empty().then_some(()));
    assert!(left.is_some(), "{:#?}", new());
}

/// Two hosts, and a node between them.
pub struct Line {
    // Dropped in this order: the node while its devices are still there.
    pub node: NodeUnderTest,
    pub net: Net,
}

impl Line {
    pub fn up() -> Self {
        Self::with_mtu(1500)
    }

    /// Makes a line whose node writes its ledger each second.
    pub fn billed_each_second() -> Self {
        let net = Net::line(1500).unwrap();
        let node = NodeUnderTest::start_with(&net, "r1", "ledger_every = 1").unwrap();
        Self { node, net }
    }

    pub fn with_mtu(mtu: u32) -> Self {
        let net = Net::line(mtu).unwrap();
        let node = NodeUnderTest::start(&net, "r1").unwrap();
        Self { node, net }
    }

    /// Runs a program that must succeed; returns its output.
    pub fn run(&self, host: &str, argv: &[&str]) -> String {
        let output = self.net.run(host, argv, PROGRAM_TIME_MAX).unwrap();
        assert!(output.status.success(), "{argv:?}: {output:#?}");
        output.stdout
    }

    /// Resolves all neighbours, so that counts are those of the test's own packets.
    pub fn resolve_neighbours(&self) {
        let server = self.net.v4("server", "r1").unwrap().to_string();
        self.run("client", &["ping", "-c1", "-W5", &server]);
        let server = self.net.v6("server", "r1").unwrap().to_string();
        self.run("client", &["ping", "-c1", "-W5", &server]);
    }

    /// Returns the counters at rest, after a check for contradictions.
    pub fn books(&self) -> Books {
        let books = Books::settled(&self.net, &self.node).unwrap();
        assert_eq!(inconsistencies(&books.node), [""; 0], "{:#?}", books.node);
        books
    }

    /// Returns the changes since `before`, after a check that sent = received + the sum of drop
    /// counters.
    pub fn balance_since(&self, before: &Books) -> Balance {
        let balance = self.books().since(before);
        assert!(balance.holds(), "{balance}\n{:#?}", self.node.stats().unwrap());
        balance
    }

    /// Returns a frame from client to server by the router, without its L4 part.
    pub fn frame(&self) -> FrameBuilder {
        let (client, router) = (self.net.mac("client", "r1"), self.net.mac("r1", "client"));
        FrameBuilder::new().ethernet(client.unwrap(), router.unwrap()).ipv4(
            self.net.v4("client", "r1").unwrap(),
            self.net.v4("server", "r1").unwrap(),
            64,
        )
    }

    /// Returns a UDP socket of a host with a large receive buffer, bound to its IPv4 address.
    pub fn udp(&self, host: &str, port: u16) -> UdpSocket {
        let address = SocketAddr::from((self.net.v4(host, "r1").unwrap(), port));
        // A socket that this test has closed stays open for a moment in a process that another test
        // forks.
        let bind = || match self.net.within(host, || UdpSocket::bind(address)).unwrap() {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => None,
            bound => Some(bound.unwrap()),
        };
        let socket = wait_for(SOON, bind).expect("the address is free");
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        socket
    }

    /// Returns a UDP socket of the client for packets to this L4 port of the server.
    pub fn sender_to(&self, port: u16) -> UdpSocket {
        let socket = self.udp("client", 0);
        socket.connect(self.server(port)).unwrap();
        socket
    }

    /// Returns the server's address with this L4 port.
    pub fn server(&self, port: u16) -> SocketAddr {
        SocketAddr::from((self.net.v4("server", "r1").unwrap(), port))
    }
}

/// Returns a secret key with this number as seed.
pub fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&Seed::new([number; 32]))
}

/// Returns a token by which the administrator `root` grants rights to a principal.
pub fn token(root: u8, principal: u8, grant: &Grant) -> String {
    let next = Seed::new([99; 32]);
    let token = Token::mint(&key(root), key(principal).public(), grant, &next).unwrap();
    token.held().unwrap().to_string()
}

/// Returns the token narrowed to this grant.
pub fn narrowed(token: &str, to: &Grant) -> String {
    HeldToken::parse(token).unwrap().narrow(to, &Seed::new([98; 32])).unwrap().to_string()
}

/// Returns WebAssembly text of `steps` dependent steps of FNV-1a; it uses the locals `$step` and
/// `$hash`, and the result is in memory at 0x9008.
pub fn steps_of_work(steps: u32) -> String {
    format!(
        r#"(loop $more
        (local.set $hash
          (i32.mul (i32.xor (local.get $hash) (local.get $step)) (i32.const 16777619)))
        (local.set $step (i32.add (local.get $step) (i32.const 1)))
        (br_if $more (i32.lt_u (local.get $step) (i32.const {steps}))))
      (i32.store (i32.const 0x9008) (local.get $hash))"#
    )
}

/// Returns a module that counts and passes.
pub fn passing(name: &str) -> Vec<u8> {
    let pass =
        r#"(memory (export "memory") 1) (func (export "on_packet") (result i32) (i32.const 0))"#;
    module(name, "window = 64\nmemory_pages_max = 1\nlevels = [\"user\"]", pass)
}

/// Returns a module from WebAssembly text: its fields without `(module …)`, and the manifest's
/// lines after ABI, name and version.
pub fn module(name: &str, manifest: &str, fields: &str) -> Vec<u8> {
    let manifest = format!("abi = 1\nname = \"{name}\"\nversion = \"0.1.0\"\n{manifest}");
    module_with_manifest(&manifest, fields)
}

/// Returns a module from WebAssembly text with a whole manifest.
pub fn module_with_manifest(manifest: &str, fields: &str) -> Vec<u8> {
    let section = manifest.escape_default();
    wat::parse_str(format!("(module {fields} (@custom \"tamandua\" \"{section}\"))")).unwrap()
}

/// Offset in linear memory of a UDP payload over untagged IPv4.
pub const PAYLOAD_ADDRESS: usize = 0x8102 + 14 + 20 + 8;

/// Returns true if a frame is IPv4 UDP to this L4 port.
pub fn is_udp_to(frame: &[u8], port: u16) -> bool {
    wire::parse_frame(frame).is_ok_and(|packet| {
        (packet.ip_version, packet.protocol) == (4, wire::protocol::UDP)
            && packet.destination_port == port
    })
}

/// Returns the DSCP of an untagged IPv4 frame.
pub fn dscp(frame: &[u8]) -> u8 {
    frame[15] >> 2
}
