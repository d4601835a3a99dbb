//! Client's side of an association: calls modules at a node by active packets over one UDP socket,
//! and receives the answers.
//!
//! ```text
//! Caller::connect ─ handshake ─▶ Caller ─ call(digest, payload) ─▶ node
//!                                  └─ answer(within) ◀──────────── output of the module
//! ```
//!
//! Blocks only in the calls that say so; starts no thread. The protocol is in `core/association`;
//! this crate adds the socket, the clock and random bytes.

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

/// Budget of Diffie-Hellman computations per second: a client answers no handshakes.
const BUDGET: Budget = Budget(1000);
/// Longest UDP datagram in bytes.
const DATAGRAM_LENGTH_MAX: usize = 65_535;

/// Error of connecting or calling.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// A socket operation failed. The host's fault, or the network's.
    #[error("cannot {action}: {source}")]
    Io {
        /// Operation that failed.
        action: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// The association cannot be started, for instance because the token is too long.
    #[error(transparent)]
    Association(#[from] AssociationError),
    /// The address does not answer, or not in this protocol.
    #[error(
        "{0} does not answer; is it the address of [associations] in the node file, and does UDP pass on the way?"
    )]
    NoAnswer(SocketAddr),
    /// Another node than the requested one has answered.
    #[error("at {address} is {found}, and not the node that was meant; 'tam show' names its key")]
    OtherNode {
        /// Address of the node.
        address: SocketAddr,
        /// Public key of the node that answered.
        found: Box<PublicKey>,
    },
    /// The node refuses this token, or has ended the association.
    #[error(
        "the node at {0} has ended the association: it takes tokens that one of its administrators has made, for the key that shakes hands, and that let it deploy"
    )]
    Ended(SocketAddr),
    /// The payload does not fit into a datagram.
    #[error(
        "a payload of {0} bytes is too long; at most {PAYLOAD_LENGTH_MAX}, and less where packets are shorter"
    )]
    TooLong(usize),
}

fn io(action: &'static str) -> impl Fn(io::Error) -> CallError {
    move |source| CallError::Io { action, source }
}

/// Identity of the client and of the node.
#[derive(Debug)]
pub struct Settings {
    /// Key of the client, which is its principal.
    pub key: SecretKey,
    /// Capability of the client in text form.
    pub token: String,
    /// Key of the node; `None` accepts any node at the address.
    pub node: Option<PublicKey>,
    /// Time limit of the handshake.
    pub within: Duration,
}

/// Output of a module for one payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Digest of the module.
    pub digest: [u8; 32],
    /// Payload after the module has run.
    pub payload: Vec<u8>,
    /// Protection of the packet; `None` without an association.
    pub protection: Option<Protection>,
}

/// Client of one node.
pub struct Caller {
    socket: UdpSocket,
    node: SocketAddr,
    buffer: Vec<u8>,
    association: Option<AssociationState>,
}

/// State of an association and its predecessors.
struct AssociationState {
    table: Associations,
    /// Keys that open answers: those of the newest association and of its predecessors.
    openers: BTreeMap<AssociationId, Opener>,
    /// Key that seals calls: that of the newest association.
    sealer: Option<Sealer>,
    ended: Option<Reason>,
    principal: Option<PublicKey>,
    took: Duration,
}

impl Caller {
    /// Makes a client without an association, which can call only modules marked `anyone`.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn anyone(node: SocketAddr) -> Result<Self, CallError> {
        let any: IpAddr = match node {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).map_err(io("open a UDP socket"))?;
        socket.connect(node).map_err(io("use the way to the node"))?;
        Ok(Self { socket, node, buffer: vec![0; DATAGRAM_LENGTH_MAX], association: None })
    }

    /// Makes a client with an association: performs the handshake with a node.
    ///
    /// # Errors
    /// The node does not answer in time, is another one, or refuses the association.
    pub fn connect(node: SocketAddr, settings: Settings) -> Result<Self, CallError> {
        let begin = Instant::now();
        let Settings { key, token, node: principal, within } = settings;
        let mut caller = Self::anyone(node)?;
        let config = Config { key, token, budget: BUDGET };
        let mut table = Associations::new(now(), config, &mut random)?;
        let peer = Peer { address: node, principal };
        let (_, effects) = table.connect(now(), peer, &mut random)?;
        let (openers, took) = (BTreeMap::new(), Duration::ZERO);
        caller.association = Some(AssociationState {
            table,
            openers,
            sealer: None,
            ended: None,
            principal: None,
            took,
        });
        caller.apply(effects);
        loop {
            let association = caller.association.as_mut().ok_or(CallError::NoAnswer(node))?;
            match association.ended {
                Some(Reason::OtherPrincipal(found)) => {
                    return Err(CallError::OtherNode { address: node, found: Box::new(found) });
                }
                Some(Reason::ByPeer) => return Err(CallError::Ended(node)),
                Some(_) => return Err(CallError::NoAnswer(node)),
                None if association.sealer.is_some() => {
                    association.took = begin.elapsed();
                    return Ok(caller);
                }
                None => {}
            }
            let left = within.checked_sub(begin.elapsed()).ok_or(CallError::NoAnswer(node))?;
            caller.step(left)?;
        }
    }

    /// Returns the duration of the handshake.
    #[must_use]
    pub fn handshake_took(&self) -> Duration {
        self.association.as_ref().map_or(Duration::ZERO, |association| association.took)
    }

    /// Returns the principal of the node.
    #[must_use]
    pub fn principal(&self) -> Option<PublicKey> {
        self.association.as_ref().and_then(|association| association.principal)
    }

    /// Sends a payload to a module, encrypted or only authenticated.
    ///
    /// # Errors
    /// The association has ended, the payload is too long, or sending fails.
    pub fn call(
        &mut self,
        digest: &[u8; 32],
        payload: &[u8],
        protection: Protection,
    ) -> Result<(), CallError> {
        let datagram = self.sealed(digest, payload, protection)?;
        self.send(&datagram)
    }

    /// Returns the sealed packet of a call without sending it.
    ///
    /// # Errors
    /// The association has ended, or the payload is too long.
    pub fn sealed(
        &mut self,
        digest: &[u8; 32],
        payload: &[u8],
        protection: Protection,
    ) -> Result<Vec<u8>, CallError> {
        if payload.len() > PAYLOAD_LENGTH_MAX {
            return Err(CallError::TooLong(payload.len()));
        }
        let Some(association) = &mut self.association else {
            return Ok([&FromAnyone::head(Role::Call, digest)[..], payload].concat());
        };
        let sealer = association.sealer.as_mut().ok_or(CallError::Ended(self.node))?;
        let mut datagram = vec![0; payload.len() + OVERHEAD];
        datagram[PAYLOAD_AT..][..payload.len()].copy_from_slice(payload);
        let sealed = sealer.seal(protection, Role::Call, digest, &mut datagram);
        sealed.map_err(|_| CallError::Ended(self.node))?;
        Ok(datagram)
    }

    /// Sends a datagram unchanged.
    ///
    /// # Errors
    /// Sending fails.
    pub fn send(&self, datagram: &[u8]) -> Result<(), CallError> {
        match self.socket.send(datagram) {
            Ok(_) => Ok(()),
            // Reports an earlier datagram: the node was not running then.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
            Err(error) => Err(io("send to the node")(error)),
        }
    }

    /// Waits for the next answer; `None` after the time limit.
    ///
    /// # Errors
    /// The association has ended, or the socket fails.
    pub fn answer(&mut self, within: Duration) -> Result<Option<Answer>, CallError> {
        let begin = Instant::now();
        loop {
            if self.association.as_ref().is_some_and(|association| association.sealer.is_none()) {
                return Err(CallError::Ended(self.node));
            }
            let Some(left) = within.checked_sub(begin.elapsed()) else { return Ok(None) };
            if let Some(answer) = self.step(left)? {
                return Ok(Some(answer));
            }
        }
    }

    /// Ends the association and notifies the node.
    pub fn end(mut self) {
        if let Some(association) = &mut self.association {
            let ids: Vec<AssociationId> = association.table.ids().collect();
            let effects = ids.into_iter().flat_map(|id| association.table.end(id)).collect();
            self.apply(effects);
        }
    }

    /// Handles one datagram, or an expired deadline; waits at most for the given time.
    fn step(&mut self, at_most: Duration) -> Result<Option<Answer>, CallError> {
        let due =
            self.association.as_ref().and_then(|association| association.table.next_timeout());
        let due = due.map(|at| Duration::from_nanos(at.saturating_sub(now()).0));
        let wait = due.map_or(at_most, |due| due.min(at_most)).max(Duration::from_micros(1));
        self.socket.set_read_timeout(Some(wait)).map_err(io("wait for the node"))?;
        match self.socket.recv(&mut self.buffer) {
            Ok(length) => Ok(self.datagram(length)),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    if let Some(association) = &mut self.association {
                        let effects = association.table.handle_timeout(now(), &mut random);
                        self.apply(effects);
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
                let association = self.association.as_mut()?;
                let effects = association.table.handle(now(), self.node, datagram, &mut random);
                self.apply(effects);
                None
            }
            Ok(Kind::Active(id)) => {
                let opened =
                    self.association.as_mut()?.openers.get_mut(&id)?.open(datagram).ok()?;
                (opened.role == Role::Answer).then(|| Answer {
                    digest: *opened.digest,
                    payload: opened.payload.to_vec(),
                    protection: Some(opened.protection),
                })
            }
            Ok(Kind::Anyone) if self.association.is_none() => {
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

    fn apply(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                // Lost datagrams are repeated by the protocol.
                Effect::Send { datagram, .. } => drop(self.socket.send(&datagram)),
                Effect::Established(new) => {
                    let Some(association) = &mut self.association else { continue };
                    association.principal = Some(new.principal);
                    let (opener, sealer) = new.traffic.split();
                    association.openers.insert(new.id, opener);
                    association.sealer = Some(sealer);
                }
                Effect::Ended { id, reason } => {
                    let Some(association) = &mut self.association else { continue };
                    association.openers.remove(&id);
                    if association.openers.is_empty() {
                        (association.sealer, association.ended) = (None, Some(reason));
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
