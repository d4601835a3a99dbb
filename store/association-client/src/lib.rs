//! The client's end of an association: calls modules at a node by active packets, over one UDP
//! socket, and hears their answers.
//!
//! ```text
//! Caller::connect ─ handshake ─▶ Caller ─ call(digest, payload) ─▶ node
//!                                  └─ answer(within) ◀──────────── what its module left
//! ```
//!
//! It waits where it is asked to, on one thread. `core/association` decides; here are only the
//! socket, the clock and random bytes.

#![forbid(unsafe_code)]

use association::packet::{FromAnyone, OVERHEAD, PAYLOAD_AT, PAYLOAD_LENGTH_MAX};
use association::table::Reason;
use association::wire::{self, Kind};
use association::{
    AssociationError, AssociationId, Associations, Budget, Config, Effect, Opener, Peer,
    Protection, Role, Sealer,
};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use trust::{PublicKey, SecretKey};
use units::Nanos;

/// Diffie-Hellman computations in a second: a client answers nobody.
const BUDGET: Budget = Budget(1000);
/// Longest datagram over UDP.
const DATAGRAM_LENGTH_MAX: usize = 65_535;

/// Why there is nobody to call, or nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The socket. The host's fault, or the network's.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The token.
    #[error(transparent)]
    Association(#[from] AssociationError),
    /// Nobody was there, or nobody who speaks this.
    #[error(
        "{0} does not answer; is it the address of [associations] in the node file, and does UDP pass on the way?"
    )]
    NoAnswer(SocketAddr),
    /// Somebody else was there.
    #[error("at {address} is {found}, and not the node that was meant; 'tam show' names its key")]
    OtherNode {
        /// Where.
        address: SocketAddr,
        /// Who.
        found: Box<PublicKey>,
    },
    /// The node does not take this token, or has ended the association.
    #[error(
        "the node at {0} has ended the association: it takes tokens that one of its administrators has made, for the key that shakes hands, and that let it deploy"
    )]
    Ended(SocketAddr),
    /// More than a datagram holds.
    #[error(
        "a payload of {0} bytes is too long; at most {PAYLOAD_LENGTH_MAX}, and less where packets are shorter"
    )]
    TooLong(usize),
}

fn io(action: &'static str) -> impl Fn(io::Error) -> CallError {
    move |source| CallError::Io { action, source }
}

/// Who calls, and whom.
#[derive(Debug)]
pub struct Settings {
    /// Who calls.
    pub key: SecretKey,
    /// What he may: a token's text.
    pub token: String,
    /// Who has to be there; whoever is there without it.
    pub node: Option<PublicKey>,
    /// How long the handshake may take.
    pub within: Duration,
}

/// What a module left of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The module.
    pub digest: [u8; 32],
    /// What it left.
    pub payload: Vec<u8>,
    /// How it was protected; not at all without an association.
    pub protection: Option<Protection>,
}

/// One who calls.
pub struct Caller {
    socket: UdpSocket,
    node: SocketAddr,
    buffer: Vec<u8>,
    own: Option<Own>,
}

/// With an association.
struct Own {
    table: Associations,
    /// By which answers are opened: the newest and those before it.
    openers: BTreeMap<AssociationId, Opener>,
    /// By which calls are sealed: the newest.
    sealer: Option<Sealer>,
    ended: Option<Reason>,
    principal: Option<PublicKey>,
    took: Duration,
}

impl Caller {
    /// One without an association: calls modules that are for anyone.
    ///
    /// # Errors
    /// When there is no socket.
    pub fn anyone(node: SocketAddr) -> Result<Self, CallError> {
        let any: IpAddr = match node {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).map_err(io("open a UDP socket"))?;
        socket.connect(node).map_err(io("use the way to the node"))?;
        Ok(Self { socket, node, buffer: vec![0; DATAGRAM_LENGTH_MAX], own: None })
    }

    /// Shakes hands with a node.
    ///
    /// # Errors
    /// When nobody answers in time, somebody else does, or the node wants nothing of it.
    pub fn connect(node: SocketAddr, settings: Settings) -> Result<Self, CallError> {
        let begin = Instant::now();
        let Settings { key, token, node: principal, within } = settings;
        let mut caller = Self::anyone(node)?;
        let config = Config { key, token, budget: BUDGET };
        let mut table = Associations::new(now(), config, &mut random)?;
        let peer = Peer { address: node, principal };
        let (_, effects) = table.connect(now(), peer, &mut random)?;
        let (openers, took) = (BTreeMap::new(), Duration::ZERO);
        caller.own = Some(Own { table, openers, sealer: None, ended: None, principal: None, took });
        caller.take(effects);
        loop {
            let own = caller.own.as_mut().ok_or(CallError::NoAnswer(node))?;
            match own.ended {
                Some(Reason::OtherPrincipal(found)) => {
                    return Err(CallError::OtherNode { address: node, found: Box::new(found) });
                }
                Some(Reason::ByPeer) => return Err(CallError::Ended(node)),
                Some(_) => return Err(CallError::NoAnswer(node)),
                None if own.sealer.is_some() => {
                    own.took = begin.elapsed();
                    return Ok(caller);
                }
                None => {}
            }
            let left = within.checked_sub(begin.elapsed()).ok_or(CallError::NoAnswer(node))?;
            caller.step(left)?;
        }
    }

    /// How long the handshake took.
    #[must_use]
    pub fn handshake_took(&self) -> Duration {
        self.own.as_ref().map_or(Duration::ZERO, |own| own.took)
    }

    /// Who is at the other side.
    #[must_use]
    pub fn principal(&self) -> Option<PublicKey> {
        self.own.as_ref().and_then(|own| own.principal)
    }

    /// Sends a payload for a module; encrypted, if the association is not to be read by others.
    ///
    /// # Errors
    /// When the association has ended, the payload is too long, or the socket refuses.
    pub fn call(
        &mut self,
        digest: &[u8; 32],
        payload: &[u8],
        protection: Protection,
    ) -> Result<(), CallError> {
        let datagram = self.sealed(digest, payload, protection)?;
        self.send(&datagram)
    }

    /// The same packet without sending it.
    ///
    /// # Errors
    /// When the association has ended, or the payload is too long.
    pub fn sealed(
        &mut self,
        digest: &[u8; 32],
        payload: &[u8],
        protection: Protection,
    ) -> Result<Vec<u8>, CallError> {
        if payload.len() > PAYLOAD_LENGTH_MAX {
            return Err(CallError::TooLong(payload.len()));
        }
        let Some(own) = &mut self.own else {
            return Ok([&FromAnyone::head(Role::Call, digest)[..], payload].concat());
        };
        let sealer = own.sealer.as_mut().ok_or(CallError::Ended(self.node))?;
        let mut datagram = vec![0; payload.len() + OVERHEAD];
        datagram[PAYLOAD_AT..][..payload.len()].copy_from_slice(payload);
        let sealed = sealer.seal(protection, Role::Call, digest, &mut datagram);
        sealed.map_err(|_| CallError::Ended(self.node))?;
        Ok(datagram)
    }

    /// Sends a datagram as it is.
    ///
    /// # Errors
    /// When the socket refuses.
    pub fn send(&self, datagram: &[u8]) -> Result<(), CallError> {
        match self.socket.send(datagram) {
            Ok(_) => Ok(()),
            // Of a datagram before: the node was not there then.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
            Err(error) => Err(io("send to the node")(error)),
        }
    }

    /// The next answer, or nothing within that time.
    ///
    /// # Errors
    /// When the association has ended, or the socket fails.
    pub fn answer(&mut self, within: Duration) -> Result<Option<Answer>, CallError> {
        let begin = Instant::now();
        loop {
            if self.own.as_ref().is_some_and(|own| own.sealer.is_none()) {
                return Err(CallError::Ended(self.node));
            }
            let Some(left) = within.checked_sub(begin.elapsed()) else { return Ok(None) };
            if let Some(answer) = self.step(left)? {
                return Ok(Some(answer));
            }
        }
    }

    /// Ends the association, and tells the node.
    pub fn end(mut self) {
        if let Some(own) = &mut self.own {
            let ids: Vec<AssociationId> = own.table.ids().collect();
            let effects = ids.into_iter().flat_map(|id| own.table.end(id)).collect();
            self.take(effects);
        }
    }

    /// One datagram, or what time has brought, or so much time.
    fn step(&mut self, at_most: Duration) -> Result<Option<Answer>, CallError> {
        let due = self.own.as_ref().and_then(|own| own.table.next_timeout());
        let due = due.map(|at| Duration::from_nanos(at.saturating_sub(now()).0));
        let wait = due.map_or(at_most, |due| due.min(at_most)).max(Duration::from_micros(1));
        self.socket.set_read_timeout(Some(wait)).map_err(io("wait for the node"))?;
        match self.socket.recv(&mut self.buffer) {
            Ok(length) => Ok(self.datagram(length)),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    if let Some(own) = &mut self.own {
                        let effects = own.table.handle_timeout(now(), &mut random);
                        self.take(effects);
                    }
                    Ok(None)
                }
                ErrorKind::Interrupted | ErrorKind::ConnectionRefused => Ok(None),
                _ => Err(io("hear the node")(error)),
            },
        }
    }

    fn datagram(&mut self, length: usize) -> Option<Answer> {
        let datagram = &mut self.buffer[..length];
        match wire::kind(datagram) {
            Ok(Kind::Handshake) => {
                let own = self.own.as_mut()?;
                let effects = own.table.handle(now(), self.node, datagram, &mut random);
                self.take(effects);
                None
            }
            Ok(Kind::Active(id)) => {
                let opened = self.own.as_mut()?.openers.get_mut(&id)?.open(datagram).ok()?;
                (opened.role == Role::Answer).then(|| Answer {
                    digest: *opened.digest,
                    payload: opened.payload.to_vec(),
                    protection: Some(opened.protection),
                })
            }
            Ok(Kind::Anyone) if self.own.is_none() => {
                let read = FromAnyone::read(datagram).ok()?;
                (read.role == Role::Answer).then(|| Answer {
                    digest: *read.digest,
                    payload: read.payload.to_vec(),
                    protection: None,
                })
            }
            Ok(Kind::Anyone) | Err(_) => None,
        }
    }

    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                // What is lost is sent again.
                Effect::Send { datagram, .. } => drop(self.socket.send(&datagram)),
                Effect::Established(new) => {
                    let Some(own) = &mut self.own else { continue };
                    own.principal = Some(new.principal);
                    let (opener, sealer) = new.traffic.split();
                    own.openers.insert(new.id, opener);
                    own.sealer = Some(sealer);
                }
                Effect::Ended { id, reason } => {
                    let Some(own) = &mut self.own else { continue };
                    own.openers.remove(&id);
                    if own.openers.is_empty() {
                        (own.sealer, own.ended) = (None, Some(reason));
                    }
                }
            }
        }
    }
}

fn now() -> Nanos {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

fn random(into: &mut [u8]) {
    getrandom::fill(into).expect("a running system has random bytes");
}
