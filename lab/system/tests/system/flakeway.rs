//! Links of a lab that delay, lose, reorder, duplicate and limit packets: `tam lab` with a node in
//! the link, and `services/flakeway` in it.
//!
//! ```text
//!  client ── to-server ═══ left  link-1  right ═══ to-client ── server
//! ```

use api::{Client, ServiceInfo};
use namespaces::netns::{self, NetNs, in_namespace};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use testkit::{leftovers, root_or_skip, tam, wait_for};
use units::Name;

use crate::common::{PROGRAM_TIME_MAX, SOON};

const CLIENT: &str = "10.77.1.1";
const SERVER: &str = "10.77.1.2";
/// Datagrams of a stream; the next constant is the time between them.
const DATAGRAMS: usize = 1_500;
const INTERVAL: Duration = Duration::from_millis(1);
const DELAY: Duration = Duration::from_millis(20);
/// Bytes that TCP transfers: at 20 Mbit/s half a second.
const BYTES: usize = 1 << 20;

/// Lab made by `tam lab up`; it is removed on drop.
struct Lab {
    name: String,
    node: Name,
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = Command::new(tam()).args(["lab", "down", &self.name]).output();
    }
}

impl Lab {
    /// Makes a client and a server with a link of this quality between them.
    fn up(purpose: &str, quality: &str) -> (Self, Output) {
        let name = format!("fw{purpose}-{}", std::process::id());
        let hosts = "host = [{ name = \"client\" }, { name = \"server\" }]";
        let link = format!("[[link]]\nends = [\"client\", \"server\"]\n{quality}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lab.toml");
        std::fs::write(&file, format!("name = \"{name}\"\n{hosts}\n{link}\n")).unwrap();
        let module = concat!(env!("CARGO_MANIFEST_DIR"), "/../../services/flakeway/flakeway.wasm");
        let mut command = Command::new(tam());
        command.args(["lab", "up", "--flakeway", module]).arg(&file);
        let output = command.output().unwrap();
        let node = Name::new(format!("{name}-link-1")).unwrap();
        (Self { name, node }, output)
    }

    /// Makes such a lab and waits until neighbours are resolved and the link's clock runs.
    fn ready(purpose: &str, quality: &str) -> Self {
        let (lab, output) = Self::up(purpose, quality);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let pair = [("client", "to-server", CLIENT), ("server", "to-client", SERVER)];
        for ((host, device, _), (peer, its, address)) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            let said = lab.run(peer, &["ip", "-oneline", "link", "show", "dev", its]);
            let mac = said.split_whitespace().skip_while(|word| *word != "link/ether").nth(1);
            let argv = ["ip", "neigh", "replace", address, "lladdr", mac.expect("a MAC address")];
            lab.run(host, &[&argv[..], &["dev", device, "nud", "permanent"]].concat());
        }
        // The first packets find the clock standing; some of them may be lost.
        lab.try_run("client", &["ping", "-c3", "-i0.1", "-W1", SERVER]);
        lab.quiet();
        lab
    }

    fn try_run(&self, host: &str, argv: &[&str]) -> Output {
        Command::new(tam())
            .args(["lab", "exec", &self.name, host, "--"])
            .args(argv)
            .output()
            .unwrap()
    }

    fn run(&self, host: &str, argv: &[&str]) -> String {
        let output = self.try_run(host, argv);
        assert!(output.status.success(), "{argv:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn within<T: Send>(&self, host: &str, act: impl FnOnce() -> T + Send) -> T {
        let namespace = NetNs::open(&format!("tam-{}-{host}", self.name)).unwrap();
        in_namespace(&namespace, act).unwrap()
    }

    fn service(&self) -> ServiceInfo {
        Client::of(&self.node).service("flakeway").unwrap()
    }

    /// Returns the service's counters once it holds no packet and none arrives.
    fn quiet(&self) -> Counters {
        let mut before = None;
        let same = || {
            std::thread::sleep(SOON / 20);
            let now = Counters(self.service().stats);
            let last = before.replace(now.of("received"));
            (now.of("held") == 0 && last == Some(now.of("received"))).then_some(now)
        };
        wait_for(PROGRAM_TIME_MAX, same).expect("it comes to rest")
    }

    /// Returns the packets that the front door dropped because the cell's queue was full.
    fn overrun(&self) -> u64 {
        let ports = Client::of(&self.node).stats().unwrap().ports;
        let dropped = |name: &str| name.starts_with("drop_");
        let outcomes = ports.iter().flat_map(|port| &port.outcomes);
        outcomes.filter(|(name, _)| dropped(name)).map(|(_, count)| count).sum()
    }
}

struct Counters(api::ServiceStats);

impl Counters {
    fn of(&self, name: &str) -> u64 {
        self.0.counters.get(name).copied().unwrap_or_else(|| panic!("no counter {name}"))
    }

    /// Checks that every packet that entered has exactly one outcome.
    fn assert_balance(&self) {
        let sum = |names: &[&str]| names.iter().map(|name| self.of(name)).sum::<u64>();
        let ends = sum(&["sent", "lost", "queue_full", "no_room", "held"]);
        assert_eq!(sum(&["received", "duplicated"]), ends, "{:#?}", self.0);
    }
}

/// Datagram that arrived: its number, and its delay.
type Arrival = (usize, Duration);

/// Sends numbered datagrams from client to server; returns those that arrive, in this order.
fn stream(lab: &Lab) -> Vec<Arrival> {
    let bind = |host, address: &str| {
        let address: SocketAddr = format!("{address}:0").parse().unwrap();
        lab.within(host, || UdpSocket::bind(address)).unwrap()
    };
    let (from, to) = (bind("client", CLIENT), bind("server", SERVER));
    from.connect(to.local_addr().unwrap()).unwrap();
    to.set_read_timeout(Some(SOON)).unwrap();
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let send = |number: usize| {
                std::thread::sleep(INTERVAL);
                let sent = Instant::now();
                from.send(&(number as u32).to_be_bytes()).unwrap();
                sent
            };
            (0..DATAGRAMS).map(send).collect::<Vec<_>>()
        });
        let mut arrived = Vec::new();
        let mut bytes = [0; 4];
        loop {
            match to.recv(&mut bytes) {
                Ok(_) => arrived.push((u32::from_be_bytes(bytes) as usize, Instant::now())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        let sent = sender.join().unwrap();
        arrived.into_iter().map(|(number, at)| (number, at - sent[number])).collect()
    })
}

#[test]
fn a_link_delays_loses_reorders_and_repeats_and_each_packet_is_counted() {
    if !root_or_skip("a link with delay and loss") {
        return;
    }
    let quality = "delay = \"20ms\"\nloss = \"5%\"\nreorder = \"5%\"\nlate = \"10ms\"\n\
                   duplicate = \"3%\"";
    let lab = Lab::ready("all", quality);
    let (before, overrun) = (lab.quiet(), lab.overrun());
    let arrived = stream(&lab);
    let after = lab.quiet();
    let since = |name: &str| (after.of(name) - before.of(name)) as usize;
    after.assert_balance();

    // Missing packets were lost, repeated ones duplicated, and nothing else happened.
    let overrun = (lab.overrun() - overrun) as usize;
    assert_eq!(since("received"), DATAGRAMS - overrun);
    let mut numbers: Vec<usize> = arrived.iter().map(|(number, _)| *number).collect();
    let passed = |most: &mut usize, number: usize| {
        *most = number.max(*most);
        Some(number < *most)
    };
    let late = numbers.iter().scan(0, |most, number| passed(most, *number));
    let late = late.filter(|is_late| *is_late).count();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), DATAGRAMS - since("lost") - overrun);
    assert_eq!(arrived.len(), numbers.len() + since("duplicated"));
    for (name, most) in [("lost", 150), ("reordered", 150), ("duplicated", 100)] {
        let count = since(name);
        assert!((20..most).contains(&count), "{count} {name} of {DATAGRAMS}");
    }
    // Both copies of one that is late are passed.
    assert!(late >= 1 && late <= since("reordered") + since("duplicated"), "{late}");

    // A machine that is busy makes it later and never much earlier.
    let mut delays: Vec<Duration> = arrived.iter().map(|(_, delay)| *delay).collect();
    delays.sort_unstable();
    assert!(delays[0] >= DELAY / 2, "{:?}", delays[0]);
    let median = delays[delays.len() / 2];
    assert!((DELAY * 9 / 10..DELAY * 4).contains(&median), "{median:?}");
}

#[test]
fn tcp_crosses_a_link_with_delay_loss_and_a_rate_whole_and_no_faster() {
    if !root_or_skip("TCP over a link with a rate") {
        return;
    }
    let lab = Lab::ready("tcp", "delay = \"5ms/10ms\"\nloss = \"0.5%\"\nrate = \"20Mbit\"");
    let address: SocketAddr = format!("{SERVER}:0").parse().unwrap();
    let listener = lab.within("server", || TcpListener::bind(address)).unwrap();
    let to = listener.local_addr().unwrap();
    let sent: Vec<u8> = (0..BYTES as u32).map(|at| (at % 251) as u8).collect();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut connection, _) = listener.accept().unwrap();
            let mut bytes = vec![0; sent.len()];
            connection.read_exact(&mut bytes).unwrap();
            connection.write_all(&bytes).unwrap();
        });
        let mut connection =
            lab.within("client", || TcpStream::connect_timeout(&to, SOON)).unwrap();
        connection.set_read_timeout(Some(PROGRAM_TIME_MAX)).unwrap();
        connection.write_all(&sent).unwrap();
        let mut came = vec![0; sent.len()];
        connection.read_exact(&mut came).unwrap();
        assert!(came == sent, "the bytes that were sent come back");
    });
    // A megabyte each way, without what headers and losses add.
    let least = Duration::from_secs_f64(2.0 * 8.0 * BYTES as f64 / 20e6);
    let queued = Duration::from_millis(2 * 64 * 1024 * 8 / 20_000);
    assert!(begun.elapsed() + queued > least, "{:?} instead of {least:?}", begun.elapsed());
    let counters = lab.quiet();
    counters.assert_balance();
    assert!(counters.of("received") > 2 * (BYTES / 1_448) as u64 && counters.of("lost") > 0);
}

#[test]
fn a_lab_shows_the_properties_of_its_links_and_removes_them() {
    if !root_or_skip("links of a lab") {
        return;
    }
    let (lab, output) =
        Lab::up("say", "delay = \"10ms/20ms\"\nrate = \"10Mbit\"\nqueue = \"64KiB\"");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = "client to server, through link-1: delay 10ms/20ms, rate 10Mbit, queue 64KiB";
    assert!(said.contains(line), "{said}");
    let show = |more: &[&str]| {
        let output = Command::new(tam()).args(["lab", "show", &lab.name]).args(more).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert!(show(&[]).contains(line));
    let document: serde_json::Value = serde_json::from_str(&show(&["--json"])).unwrap();
    let through = &document["plan"]["links"][0]["through"];
    assert_eq!(through["quality"]["delay_ns"][1], 20_000_000, "{document:#}");
    assert_eq!(document["nodes"][0].as_str(), Some(lab.node.as_str()));
    assert_eq!(lab.service().parameters["delay"], "10ms/20ms");

    let down = Command::new(tam()).args(["lab", "down", &lab.name]).output().unwrap();
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    let left = netns::list().unwrap().into_iter().filter(|name| name.contains(&lab.name));
    assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new());
    assert_eq!(leftovers(&lab.node), Vec::<String>::new());
}
