//! Lab of the interception tests: a client, a server, and a router between them with one stream
//! service.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use namespaces::netns::{NetNs, command_in};
use netlink::{Interception, MARK, Netlink};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, getrlimit};
use sockets::socket::unacknowledged;
use sockets::transparent::{Listeners, unconnected};
use tcp_intercept::{Application, Counts, Sockets, Streams};
use testkit::Net;
use units::Nanos;

/// First L4 port of the servers.
pub const PORT: u16 = 7000;
/// L4 port without a server.
pub const REFUSED: u16 = 7001;

/// Router that intercepts connections to the L4 ports from [`PORT`] on.
pub struct Intercepting {
    pub net: Net,
    seen: Arc<Mutex<(Counts, usize)>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Fresh;

impl Sockets for Fresh {
    fn take(&mut self, v6: bool) -> Option<OwnedFd> {
        unconnected(v6).ok()
    }
}

impl Intercepting {
    pub fn up() -> Self {
        Self::up_with(|| None)
    }

    /// Makes such a lab with an application that gets the connections' bytes.
    pub fn up_with(application: fn() -> Option<Box<dyn Application>>) -> Self {
        let net = Net::line(1500).unwrap();
        let seen = Arc::new(Mutex::new((Counts::default(), 0)));
        let is_over = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let namespace = net.namespace("r1").unwrap();
        let thread = std::thread::spawn({
            let (seen, is_over) = (Arc::clone(&seen), Arc::clone(&is_over));
            move || {
                own_descriptors();
                enter(&namespace);
                intercept(application(), &ready, &seen, &is_over).unwrap();
            }
        });
        let port: u16 = is_ready.recv().expect("the router intercepts");
        let lab = Self { net, seen, is_over, thread: Some(thread) };
        lab.mark(port);
        lab
    }

    /// Marks packets of connections to the L4 ports from [`PORT`] on, in both directions.
    fn mark(&self, port: u16) {
        let mark = MARK | u32::from(port);
        let device = |peer| self.net.device("r1", peer).unwrap().name;
        let (client, server) = (device("client"), device("server"));
        let rule = |device: &str, which: &str| {
            format!(
                "add rule inet marks c iifname {device} tcp {which} {PORT}-7999 meta mark set {mark}"
            )
        };
        self.nft("add table inet marks");
        self.nft("add chain inet marks c { type filter hook prerouting priority -160 ; }");
        self.nft(&rule(&client, "dport"));
        self.nft(&rule(&server, "sport"));
    }

    pub fn remove_marks(&self) {
        self.nft("delete table inet marks");
    }

    /// Counts the packets that the router sends to client and server: see [`Self::counter`].
    pub fn count_sent(&self) {
        self.nft("add table inet sent");
        self.nft("add chain inet sent c { type filter hook postrouting priority 0 ; }");
        for peer in ["client", "server"] {
            let device = self.net.device("r1", peer).unwrap().name;
            for (name, which) in [
                // Headers alone: 20 bytes of IPv4, 32 of TCP with time stamps.
                ("acks", "tcp flags == ack ip length 52"),
                ("ends", "tcp flags & fin == fin ip length > 52"),
            ] {
                self.nft(&format!("add counter inet sent {peer}-{name}"));
                self.nft(&format!(
                    "add rule inet sent c oifname {device} {which} counter name {peer}-{name}"
                ));
            }
        }
    }

    /// Returns the packets sent to a peer, `client` or `server`: `PEER-acks` only acknowledge,
    /// `PEER-ends` carry bytes and end the stream.
    pub fn counter(&self, name: &str) -> u64 {
        let text = self.nft(&format!("list counter inet sent {name}"));
        let mut words = text.split_whitespace().skip_while(|&word| word != "packets");
        words.nth(1).and_then(|count| count.parse().ok()).expect("nft says how many packets")
    }

    fn nft(&self, words: &str) -> String {
        let mut command = Command::new("nft");
        command.args(words.split(' '));
        let namespace = self.net.namespace("r1").unwrap();
        let output = command_in(&namespace, &mut command).unwrap().output().unwrap();
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn counts(&self) -> Counts {
        self.seen.lock().unwrap().0
    }

    pub fn pipes(&self) -> usize {
        self.seen.lock().unwrap().1
    }

    pub fn server_address(&self, v6: bool) -> IpAddr {
        match v6 {
            true => self.net.v6("server", "r1").unwrap().into(),
            false => self.net.v4("server", "r1").unwrap().into(),
        }
    }

    pub fn listener(&self, v6: bool, port: u16) -> TcpListener {
        let at = SocketAddr::new(self.server_address(v6), port);
        self.net.within("server", || listen(at)).unwrap()
    }

    pub fn connect(&self, server: SocketAddr) -> TcpStream {
        let stream = self.net.within("client", || TcpStream::connect(server)).unwrap().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Returns a listener of a thread that has a descriptor table of its own.
    pub fn listener_of_own(&self, at: SocketAddr) -> TcpListener {
        let namespace = self.net.namespace("server").unwrap();
        own_descriptors();
        enter(&namespace);
        listen(at)
    }

    /// Returns connections of a thread that has a descriptor table of its own, once a server
    /// listens.
    pub fn connect_of_own(
        &self,
        server: SocketAddr,
        count: usize,
        wait: impl FnOnce(),
    ) -> Vec<TcpStream> {
        let namespace = self.net.namespace("client").unwrap();
        own_descriptors();
        enter(&namespace);
        wait();
        let connect = |_| {
            let stream = TcpStream::connect(server).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream
        };
        (0..count).map(connect).collect()
    }

    /// Ends the interception; returns the lab's network, which stays.
    pub fn end(mut self) -> Net {
        self.stop();
        let other = Net::line(1500).unwrap();
        std::mem::replace(&mut self.net, other)
    }

    fn stop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "the router's thread failed");
        }
    }
}

impl Drop for Intercepting {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs the router's thread.
fn intercept(
    application: Option<Box<dyn Application>>,
    ready: &std::sync::mpsc::Sender<u16>,
    seen: &Mutex<(Counts, usize)>,
    is_over: &AtomicBool,
) -> io::Result<()> {
    let netlink = Netlink::open().map_err(io::Error::other)?;
    let listeners = Listeners::open()?;
    let interception = Interception::begin(&netlink, listeners.port).map_err(io::Error::other)?;
    let mut streams = Streams::new(most_connections(), unacknowledged)?;
    let both = [Some(listeners.v4), listeners.v6].into_iter().flatten().collect();
    let service = streams.add(both, application)?;
    ready.send(listeners.port).map_err(io::Error::other)?;
    let begin = Instant::now();
    while !is_over.load(Ordering::Relaxed) {
        let wait = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        let fd = streams.as_fd();
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&wait))?;
        let now = Nanos(begin.elapsed().as_nanos() as u64);
        streams.poll(now)?;
        while streams.work(service, &mut Fresh, now, now) {}
        let counts = streams.counts(service).unwrap_or_default();
        *seen.lock().unwrap() = (counts, streams.pipes());
    }
    streams.remove(service);
    interception.end(&netlink).map_err(io::Error::other)
}

/// Returns a listener with a queue for many simultaneous connections.
fn listen(at: SocketAddr) -> TcpListener {
    let listener = TcpListener::bind(at).unwrap();
    rustix::net::listen(listener.as_fd(), 4096).unwrap();
    listener
}

/// Resets a connection, as a host does that gives up.
pub fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

/// Returns how many connections one descriptor table has space for on a router: two sockets each,
/// and the process's other descriptors.
pub fn most_connections() -> usize {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from((most - 128) / 2).unwrap_or(usize::MAX)
}

/// Gives the thread a descriptor table of its own: the limit of descriptors is one of each table,
/// and a process may have several.
fn own_descriptors() {
    unshare(CloneFlags::CLONE_FILES).unwrap();
}

/// Moves this thread into the namespace.
fn enter(namespace: &NetNs) {
    setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
}
