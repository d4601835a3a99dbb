//! Associations with an independent implementation at the other end, over UDP on loopback: once as
//! the initiator, once as the responder. Each packet that is opened here is sent back with its
//! payload reversed.

use anyhow::{Context, Result, bail, ensure};
use association::packet::{OVERHEAD, PAYLOAD_AT};
use association::wire::{self, Kind};
use association::{Associations, Budget, Config, Effect, Opener, Peer, Protection, Reason, Sealer};
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use trust::{SecretKey, Seed};
use units::Nanos;

/// Time that one program may take.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Interval at which this side checks whether the program has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Length of a token longer than message 1, so that the program gets a cookie first, in bytes.
const LONG_TOKEN: usize = 3000;

/// Runs the program in both roles.
pub fn run(program: &[String]) -> Result<()> {
    for token in ["", &"t".repeat(LONG_TOKEN)] {
        let side = Side::new(token)?;
        let port = side.socket.local_addr()?.port();
        let child = start(program, "ask", port, Stdio::inherit())?;
        side.serve(child).with_context(|| format!("{program:?} asks"))?;
    }
    let mut side = Side::new("the token of a node")?;
    // A port that was free a moment ago.
    let port = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let mut child = start(program, "answer", port, Stdio::piped())?;
    ready(&mut child)?;
    let peer = Peer { address: (Ipv4Addr::LOCALHOST, port).into(), principal: None };
    let (_, effects) = side.table.connect(side.now(), peer, &mut random)?;
    side.take(effects)?;
    side.serve(child).with_context(|| format!("{program:?} answers"))
}

fn start(program: &[String], role: &str, port: u16, out: Stdio) -> Result<Child> {
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).arg(role).arg(port.to_string()).stdout(out);
    command.spawn().with_context(|| format!("starting {program:?}"))
}

/// Waits until the program reports that it listens, and forwards its further output.
fn ready(child: &mut Child) -> Result<()> {
    let mut lines = BufReader::new(child.stdout.take().context("its output is ours")?).lines();
    let first = lines.next().context("it said nothing")??;
    ensure!(first.ends_with("ready"), "it said '{first}' instead of being ready");
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| println!("{line}")));
    Ok(())
}

/// Fills a buffer with random bytes from the kernel.
fn random(into: &mut [u8]) {
    getrandom::fill(into).expect("the kernel has random bytes");
}

/// State of this side of one test.
struct Side {
    socket: UdpSocket,
    start: Instant,
    table: Associations,
    keys: Option<(Opener, Sealer)>,
    /// Packets that were opened, and those that were refused.
    packets: [u64; 2],
    reason: Option<Reason>,
}

impl Side {
    fn new(token: &str) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_read_timeout(Some(POLL_INTERVAL))?;
        let mut seed = Seed::from([0; 32]);
        random(&mut *seed);
        let key = SecretKey::from_seed(&seed);
        let config = Config { key, token: token.to_owned(), budget: Budget(1000) };
        let table = Associations::new(Nanos::ZERO, config, &mut random)?;
        let start = Instant::now();
        Ok(Self { socket, start, table, keys: None, packets: [0, 0], reason: None })
    }

    fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// Serves the program's requests until it ends.
    fn serve(mut self, mut child: Child) -> Result<()> {
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if self.start.elapsed() > TIME_MAX {
                child.kill()?;
                child.wait()?;
                bail!("it did not end within {} s", TIME_MAX.as_secs());
            }
            self.step()?;
        };
        ensure!(status.success(), "it ended with {status}");
        while self.step()? {}
        ensure!(self.reason == Some(Reason::ByPeer), "it did not end the association");
        let [opened, refused] = self.packets;
        ensure!(opened > 0 && refused > 0, "{opened} packets opened, {refused} refused");
        println!("peers: {opened} packets opened, {refused} refused");
        Ok(())
    }

    /// Handles one datagram, or due timers; returns true if there was a datagram.
    fn step(&mut self) -> Result<bool> {
        let mut buffer = [0; 65_535];
        let received = self.socket.recv_from(&mut buffer);
        let now = self.now();
        let (effects, was_one) = match received {
            Ok((length, from)) => (self.datagram(now, from, &mut buffer[..length])?, true),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                (self.table.handle_timeout(now, &mut random), false)
            }
            Err(error) => return Err(error.into()),
        };
        self.take(effects)?;
        Ok(was_one)
    }

    fn datagram(
        &mut self,
        now: Nanos,
        from: SocketAddr,
        datagram: &mut [u8],
    ) -> Result<Vec<Effect>> {
        match wire::kind(datagram) {
            Ok(Kind::Handshake) => Ok(self.table.handle(now, from, datagram, &mut random)),
            Ok(Kind::Active(_)) => {
                let back = self.reversed(datagram)?;
                self.packets[usize::from(back.is_none())] += 1;
                if let Some(back) = back {
                    self.socket.send_to(&back, from)?;
                }
                Ok(Vec::new())
            }
            Ok(Kind::Anyone) | Err(_) => {
                self.packets[1] += 1;
                Ok(Vec::new())
            }
        }
    }

    /// Returns the answer to a packet, if it is accepted.
    fn reversed(&mut self, datagram: &mut [u8]) -> Result<Option<Vec<u8>>> {
        let Some((opener, sealer)) = &mut self.keys else { return Ok(None) };
        let Ok(opened) = opener.open(datagram) else { return Ok(None) };
        let mut back = vec![0; opened.payload.len() + OVERHEAD];
        opened.payload.reverse();
        back[PAYLOAD_AT..][..opened.payload.len()].copy_from_slice(opened.payload);
        let protection: Protection = opened.protection;
        sealer.seal(protection, opened.role, opened.digest, &mut back)?;
        Ok(Some(back))
    }

    fn take(&mut self, effects: Vec<Effect>) -> Result<()> {
        for effect in effects {
            match effect {
                Effect::Send { to, datagram } => drop(self.socket.send_to(&datagram, to)?),
                Effect::Established(new) => {
                    ensure!(new.token == "the token of a peer", "another token: {}", new.token);
                    self.keys = Some(new.traffic.split());
                }
                Effect::Ended { reason, .. } => self.reason = Some(reason),
            }
        }
        Ok(())
    }
}
