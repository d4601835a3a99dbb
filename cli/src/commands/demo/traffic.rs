//! Traffic of the demo: ping, a download, and a numbered UDP stream in which every lost packet
//! shows.

use crate::failure::Failure;
use namespaces::netns::{NetNs, command_in, in_namespace};
use netlink::Netlink;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use topology::Plan;

/// Bytes of one download.
const DOWNLOAD_LENGTH: u64 = 256 << 20;
/// Echo requests of one measurement.
const PINGS: u32 = 20;
/// Packet rate of the UDP stream, per second.
const STREAM_RATE: u64 = 5_000;
const STREAM_LENGTH: usize = 200;
/// Bytes that may wait for the stream's receiver: a second of it, each packet at its true cost.
const STREAM_BUFFER: usize = 4 << 20;
/// Time to wait for packets in flight after the last was sent.
const STREAM_DRAIN_TIME: Duration = Duration::from_millis(300);

/// Measurements of one phase.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    /// Median round trip of ping, in milliseconds.
    pub(super) ping_ms: f64,
    /// Echo requests without answer.
    pub(super) ping_lost: u32,
    /// Download rate, in Mbit/s.
    pub(super) download_mbit_per_second: f64,
    /// Bytes of the download.
    pub(super) download_bytes: u64,
    /// Packets of the stream that were sent meanwhile.
    pub(super) stream_sent: u64,
}

/// Result of the UDP stream.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Stream {
    /// Packets sent, from before the service until after it.
    pub(super) sent: u64,
    /// Packets that arrived.
    pub(super) received: u64,
    /// Packets that arrived behind a later one.
    pub(super) reordered: u64,
}

/// The traffic of the demo while it runs.
pub(super) struct Traffic {
    client: NetNs,
    server_address: IpAddr,
    http_port: u16,
    stopping: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    sender: JoinHandle<()>,
    receiver: JoinHandle<(u64, u64)>,
}

fn failed(what: &str) -> impl Fn(std::io::Error) -> Failure {
    move |error| Failure::io(format!("the demo's {what}"), &error)
}

impl Traffic {
    /// Starts the servers and the stream.
    pub(super) fn start(plan: &Plan) -> Result<Self, Failure> {
        let open = |node: &str| {
            let namespace = plan.node(node).map(|n| n.namespace.as_str()).unwrap_or_default();
            NetNs::open(namespace).map_err(|e| Failure::failed(e.to_string()))
        };
        let (client, server) = (open("client")?, open("server")?);
        let server_address = plan
            .addresses_of("server")
            .map(|(v4, _)| v4)
            .ok_or_else(|| Failure::failed("the demo's server has no address"))?;
        let any = SocketAddr::new(server_address, 0);
        let listener =
            inside(&server, || TcpListener::bind(any))?.map_err(failed("HTTP server"))?;
        let sink = inside(&server, || UdpSocket::bind(any))?.map_err(failed("UDP receiver"))?;
        let source =
            inside(&client, || UdpSocket::bind("0.0.0.0:0"))?.map_err(failed("UDP sender"))?;
        let http_port = listener.local_addr().map_err(failed("HTTP server"))?.port();
        let to = sink.local_addr().map_err(failed("UDP receiver"))?;
        source.connect(to).map_err(failed("UDP sender"))?;
        // A busy machine may not run the receiver for a while. The kernel caps the size.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&sink, STREAM_BUFFER);
        sink.set_read_timeout(Some(STREAM_DRAIN_TIME)).map_err(failed("UDP receiver"))?;
        // Detached: it ends with the process and holds nothing else.
        std::thread::spawn(move || serve(&listener));
        let (stopping, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stop, stop_receiving) = (Arc::clone(&stopping), Arc::clone(&stopping));
        let count = Arc::clone(&sent);
        let sender = std::thread::spawn(move || send(&source, &stop, &count));
        let receiver = std::thread::spawn(move || receive(&sink, &stop_receiving));
        Ok(Self { client, server_address, http_port, stopping, sent, sender, receiver })
    }

    /// Measures ping and a download while the UDP stream runs.
    pub(super) fn measure(&mut self) -> Result<Measured, Failure> {
        let before = self.sent.load(Ordering::Relaxed);
        let (ping_ms, ping_lost) = self.ping()?;
        let (download_mbit_per_second, download_bytes) = self.download()?;
        let stream_sent = self.sent.load(Ordering::Relaxed) - before;
        Ok(Measured { ping_ms, ping_lost, download_mbit_per_second, download_bytes, stream_sent })
    }

    fn ping(&self) -> Result<(f64, u32), Failure> {
        let mut command = Command::new("ping");
        command.args(["-n", "-i", "0.05", "-W", "1", "-c", &PINGS.to_string()]);
        command.arg(self.server_address.to_string());
        let text = self.output(command, "ping", "iputils-ping")?;
        // One line for each answer: "64 bytes from 10.77.2.2: icmp_seq=1 ttl=63 time=0.051 ms".
        let mut times: Vec<f64> = text
            .lines()
            .filter_map(|line| line.split("time=").nth(1)?.split(' ').next()?.parse().ok())
            .collect();
        times.sort_by(f64::total_cmp);
        let lost = PINGS.saturating_sub(u32::try_from(times.len()).unwrap_or(PINGS));
        let median = times.get(times.len() / 2).copied();
        let median = median.ok_or_else(|| {
            let message = format!("none of {PINGS} pings through the demo's router was answered");
            Failure::failed(message).help("`tam doctor` says what this machine lacks")
        })?;
        Ok((median, lost))
    }

    fn download(&self) -> Result<(f64, u64), Failure> {
        /// Fields read from curl's report.
        #[derive(Deserialize)]
        struct Curl {
            speed_download: f64,
            size_download: u64,
        }
        let url = format!("http://{}:{}/", self.server_address, self.http_port);
        let mut command = Command::new("curl");
        command.args(["--silent", "--output", "/dev/null", "--max-time", "60"]);
        command.args(["--write-out", "%{json}", &url]);
        let text = self.output(command, "curl", "curl")?;
        let report: Curl = serde_json::from_str(&text)
            .map_err(|error| Failure::failed(format!("reading curl's report: {error}")))?;
        if report.size_download != DOWNLOAD_LENGTH {
            let got = report.size_download;
            return Err(Failure::failed(format!(
                "curl got {got} of {DOWNLOAD_LENGTH} bytes: the download broke off"
            )));
        }
        Ok((report.speed_download * 8.0 / 1e6, report.size_download))
    }

    fn output(&self, mut command: Command, name: &str, package: &str) -> Result<String, Failure> {
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command_in(&self.client, &mut command).map_err(|e| Failure::failed(e.to_string()))?;
        let output = command.output().map_err(|error| {
            Failure::io(format!("running {name}"), &error).help(format!("install {package}"))
        })?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Ends the stream and returns its result.
    pub(super) fn finish(self) -> Result<Stream, Failure> {
        self.stopping.store(true, Ordering::Relaxed);
        let ended = |_| Failure::failed("a thread of the demo's stream ended early");
        self.sender.join().map_err(ended)?;
        let (received, reordered) = self.receiver.join().map_err(ended)?;
        Ok(Stream { sent: self.sent.load(Ordering::Relaxed), received, reordered })
    }
}

/// Returns the packets lost by the links from the hosts: their queues were full.
pub(super) fn lost_by_links(plan: &Plan) -> Result<u64, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::failed(error.to_string());
    let mut lost = 0;
    for host in ["client", "server"] {
        let namespace = plan.node(host).map(|n| n.namespace.as_str()).unwrap_or_default();
        let namespace = NetNs::open(namespace).map_err(|error| failed(&error))?;
        let netlink = Netlink::open_in(&namespace).map_err(|error| failed(&error))?;
        let links = netlink.links().map_err(|error| failed(&error))?;
        lost += links.iter().map(|link| link.stats.tx_packets_dropped.0).sum::<u64>();
    }
    Ok(lost)
}

fn inside<T: Send>(namespace: &NetNs, act: impl FnOnce() -> T + Send) -> Result<T, Failure> {
    in_namespace(namespace, act).map_err(|e| Failure::failed(e.to_string()))
}

/// Serves one file of [`DOWNLOAD_LENGTH`] bytes over HTTP.
fn serve(listener: &TcpListener) {
    for connection in listener.incoming().flatten() {
        std::thread::spawn(move || answer(connection));
    }
}

fn answer(mut connection: TcpStream) -> std::io::Result<()> {
    let mut request = [0; 4096];
    let length = connection.read(&mut request)?;
    if !request[..length].starts_with(b"GET ") {
        return connection.write_all(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n");
    }
    write!(
        connection,
        "HTTP/1.1 200 OK\r\nContent-Length: {DOWNLOAD_LENGTH}\r\nConnection: close\r\n\r\n"
    )?;
    let block = [b'.'; 64 << 10];
    let mut left = DOWNLOAD_LENGTH as usize;
    while left > 0 {
        let length = left.min(block.len());
        connection.write_all(&block[..length])?;
        left -= length;
    }
    Ok(())
}

/// Sends numbered packets at an even rate, in steps of a millisecond.
fn send(source: &UdpSocket, stopping: &AtomicBool, sent: &AtomicU64) {
    // A packet queued on the previous core would be overtaken, which is not the node's fault.
    // Without such a core the measured order is reported as it is.
    let _ = sandbox::cores::pin_to(sandbox::cores::first());
    let begin = Instant::now();
    let mut packet = [0; STREAM_LENGTH];
    let mut number = 0_u64;
    while !stopping.load(Ordering::Relaxed) {
        let due = begin.elapsed().as_millis() as u64 * STREAM_RATE / 1000;
        while number < due {
            packet[..8].copy_from_slice(&number.to_be_bytes());
            if source.send(&packet).is_err() {
                break;
            }
            number += 1;
            sent.store(number, Ordering::Relaxed);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Counts packets until the stream has stopped and no more arrive; returns packets received and
/// reordered.
fn receive(sink: &UdpSocket, stopping: &AtomicBool) -> (u64, u64) {
    let (mut received, mut reordered, mut highest) = (0, 0, None);
    let mut packet = [0; STREAM_LENGTH];
    loop {
        match sink.recv(&mut packet) {
            Ok(STREAM_LENGTH) => {
                let mut number = [0; 8];
                number.copy_from_slice(&packet[..8]);
                let number = Some(u64::from_be_bytes(number));
                received += 1;
                reordered += u64::from(number <= highest);
                highest = highest.max(number);
            }
            Ok(_) => {}
            Err(_) if stopping.load(Ordering::Relaxed) => return (received, reordered),
            Err(_) => {}
        }
    }
}
