//! Test harness: nodes and a network between them, with simulated time and seeded randomness.

#![allow(dead_code, reason = "each test file uses a part of it")]

use association::{
    AssociationId, Associations, Budget, Config, Effect, Established, Opener, Peer, Reason, Sealer,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use trust::{PublicKey, SecretKey, Seed};
use units::Nanos;

pub use testbase::Chance;

pub fn secret_key(byte: u8) -> SecretKey {
    SecretKey::from_seed(&Seed::from([byte; 32]))
}

pub fn principal(byte: u8) -> PublicKey {
    secret_key(byte).public()
}

pub fn address(byte: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, byte, 1], 3322))
}

pub fn config(byte: u8, token: &str) -> Config {
    Config { key: secret_key(byte), token: token.to_owned(), budget: Budget(100_000) }
}

/// Keys of an association at one node, with what [`Established`] said of it.
pub struct Keys {
    pub opener: Opener,
    pub sealer: Sealer,
    pub peer: PublicKey,
    pub token: String,
    pub is_ours: bool,
    pub replaces: Option<AssociationId>,
}

/// Node under test: its table, and the associations that it has reported.
pub struct Node {
    pub byte: u8,
    pub table: Associations,
    pub chance: Chance,
    pub keys: BTreeMap<AssociationId, Keys>,
    /// Associations in the order in which they were established.
    pub newest: Vec<AssociationId>,
    pub ended: Vec<(AssociationId, Reason)>,
    /// Every association id that was ever used.
    pub all: BTreeSet<AssociationId>,
}

impl Node {
    pub fn new(now: Nanos, byte: u8, token: &str, seed: u64) -> Self {
        Self::with(now, byte, config(byte, token), seed)
    }

    pub fn with(now: Nanos, byte: u8, config: Config, seed: u64) -> Self {
        let mut chance = Chance(seed ^ u64::from(byte) << 32);
        let table = Associations::new(now, config, &mut |into| chance.fill(into)).unwrap();
        let (keys, all) = Default::default();
        Self { byte, table, chance, keys, newest: vec![], ended: vec![], all }
    }

    pub fn connect(&mut self, now: Nanos, to: u8, who: Option<u8>) -> (AssociationId, Sent) {
        let peer = Peer { address: address(to), principal: who.map(principal) };
        let Self { table, chance, .. } = self;
        let (id, effects) = table.connect(now, peer, &mut |into| chance.fill(into)).unwrap();
        (id, self.take(effects))
    }

    pub fn handle(&mut self, now: Nanos, from: SocketAddr, datagram: &[u8]) -> Sent {
        let Self { table, chance, .. } = self;
        let effects = table.handle(now, from, datagram, &mut |into| chance.fill(into));
        self.take(effects)
    }

    pub fn timeout(&mut self, now: Nanos) -> Sent {
        let Self { table, chance, .. } = self;
        let effects = table.handle_timeout(now, &mut |into| chance.fill(into));
        self.take(effects)
    }

    pub fn end(&mut self, id: AssociationId) -> Sent {
        let effects = self.table.end(id);
        self.take(effects)
    }

    pub fn newest(&mut self) -> Option<&mut Keys> {
        let id = self.newest.iter().rev().find(|id| self.keys.contains_key(id))?;
        self.keys.get_mut(id)
    }

    pub fn take(&mut self, effects: Vec<Effect>) -> Sent {
        let mut sent = Sent::new();
        for effect in effects {
            match effect {
                Effect::Send { to, datagram } => sent.push((to, datagram)),
                Effect::Established(new) => self.established(*new),
                Effect::Ended { id, reason } => {
                    self.ended.push((id, reason));
                    self.keys.remove(&id);
                }
            }
        }
        sent
    }

    fn established(&mut self, new: Established) {
        let Established { id, principal: peer, token, is_ours, replaces, traffic, .. } = new;
        assert!(self.all.insert(id), "a number was used twice");
        assert_eq!(traffic.principal, peer);
        let (opener, sealer) = traffic.split();
        self.keys.insert(id, Keys { opener, sealer, peer, token, is_ours, replaces });
        self.newest.push(id);
    }
}

/// Datagrams with their destinations.
pub type Sent = Vec<(SocketAddr, Vec<u8>)>;

/// Faults of the network: one datagram in so many.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub lost: u64,
    pub doubled: u64,
    pub changed: u64,
    /// Longest delay of a datagram.
    pub delay_max: Nanos,
}

/// Nodes at `address(byte)`, and datagrams in flight between them.
pub struct Network {
    pub now: Nanos,
    pub nodes: BTreeMap<u8, Node>,
    pub faults: Faults,
    pub chance: Chance,
    on_the_way: BTreeMap<(Nanos, u64), (SocketAddr, SocketAddr, Vec<u8>)>,
    number: u64,
    /// Every datagram sent, for replays.
    pub recorded: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
}

impl Network {
    pub fn new(seed: u64, faults: Faults, nodes: impl IntoIterator<Item = Node>) -> Self {
        let nodes = nodes.into_iter().map(|node| (node.byte, node)).collect();
        let (on_the_way, recorded) = Default::default();
        let (now, chance) = (Nanos(1), Chance(seed));
        Self { now, nodes, faults, chance, on_the_way, number: 0, recorded }
    }

    pub fn node(&mut self, byte: u8) -> &mut Node {
        self.nodes.get_mut(&byte).unwrap()
    }

    pub fn connect(&mut self, from: u8, to: u8) -> AssociationId {
        let now = self.now;
        let (id, sent) = self.node(from).connect(now, to, None);
        self.send(from, sent);
        id
    }

    pub fn send(&mut self, from: u8, sent: Sent) {
        for (to, datagram) in sent {
            self.recorded.push((address(from), to, datagram.clone()));
            let copies = 1 + u64::from(self.chance.one_in(self.faults.doubled));
            for _ in 0..copies {
                if !self.chance.one_in(self.faults.lost) {
                    self.post(address(from), to, datagram.clone());
                }
            }
        }
    }

    fn post(&mut self, from: SocketAddr, to: SocketAddr, mut datagram: Vec<u8>) {
        if self.chance.one_in(self.faults.changed) {
            let bit = self.chance.below(datagram.len() as u64 * 8) as usize;
            datagram[bit / 8] ^= 1 << (bit % 8);
        }
        let at = self.now + Nanos(1 + self.chance.below(self.faults.delay_max.0));
        self.number += 1;
        self.on_the_way.insert((at, self.number), (from, to, datagram));
    }

    /// Advances the simulation by this much time.
    pub fn run(&mut self, time: Nanos) {
        let end = self.now + time;
        while let Some(at) = self.next().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.step();
        }
        self.now = end;
    }

    fn next(&self) -> Option<Nanos> {
        let arrival = self.on_the_way.keys().next().map(|(at, _)| *at);
        let timeouts = self.nodes.values().filter_map(|node| node.table.next_timeout());
        arrival.into_iter().chain(timeouts).min()
    }

    fn step(&mut self) {
        let now = self.now;
        while let Some(entry) = self.on_the_way.first_entry()
            && entry.key().0 <= now
        {
            let (from, to, datagram) = entry.remove();
            let Some(byte) = self.nodes.keys().copied().find(|byte| address(*byte) == to) else {
                continue;
            };
            let sent = self.node(byte).handle(now, from, &datagram);
            self.send(byte, sent);
        }
        let due: Vec<u8> = self.nodes.keys().copied().collect();
        for byte in due {
            if self.node(byte).table.next_timeout().is_some_and(|at| at <= now) {
                let sent = self.node(byte).timeout(now);
                self.send(byte, sent);
            }
        }
    }
}

/// Returns two nodes with an association, over a network without faults.
pub fn pair(seed: u64) -> Network {
    let nodes = [Node::new(Nanos(1), 1, "token of 1", seed), Node::new(Nanos(1), 2, "", seed)];
    let faults = Faults { delay_max: Nanos::from_millis(20), ..Faults::default() };
    let mut network = Network::new(seed, faults, nodes);
    network.connect(1, 2);
    network.run(Nanos::from_millis(200));
    network
}
