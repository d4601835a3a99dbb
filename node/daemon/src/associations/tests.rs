//! Unit tests of associations with a neighbour on the loopback interface; cells are sockets.

use super::*;
use crate::cells::CellNumber;
use crate::cells::fake::FakeCell;
use crate::completion::Completion;
use crate::config::{AssociationsText, NodeFile};
use crate::control::testbed;
use module_store::Store;
use trust::Seed;

/// Node that listens, and a neighbour that asks it.
struct World {
    node: Neighbours,
    control: Control,
    cells: Cells,
    cell: FakeCell,
    neighbour: Associations,
    socket: UdpSocket,
    /// Established associations of the neighbour, and those that have ended.
    established: Vec<AssociationId>,
    ended: Vec<AssociationId>,
    _folder: tempfile::TempDir,
}

impl World {
    async fn new(key: SecretKey, token: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (_, _, administrator) = testbed::token();
        let mut file = NodeFile::parse("name = \"r1\"\n", "node.toml").unwrap();
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        file.associations = Some(AssociationsText { listen, token: None });
        let gate = Arc::new(Gate::new(vec![administrator.public()], false));
        let own = SecretKey::from_seed(&Seed::new([7; 32]));
        let config = Config { key, token: token.to_owned(), budget: BUDGET };
        let cell = FakeCell::default();
        let mut cells = Cells::new(0, cell.spawn(), Completion::new(drop));
        let link = cells.spawn(folder.path(), 0).unwrap();
        cells.insert(CellNumber::FIRST, link);
        Self {
            node: Neighbours::listen(&file, &own, gate).unwrap().unwrap(),
            control: testbed::control(Store::open(folder.path()).unwrap()),
            cells,
            cell,
            neighbour: Associations::new(now(), config, &mut random).unwrap(),
            socket: UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            established: Vec::new(),
            ended: Vec::new(),
            _folder: folder,
        }
    }

    /// Establishes an association at the neighbour's request.
    async fn connect(&mut self) -> AssociationId {
        let address = self.node.sockets[0].local_addr().unwrap();
        let peer = association::table::Peer { address, principal: None };
        let (id, effects) = self.neighbour.connect(now(), peer, &mut random).unwrap();
        self.send(effects).await;
        id
    }

    async fn send(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { to, datagram } => {
                    self.socket.send_to(&datagram, to).await.unwrap();
                }
                Effect::Established(new) => self.established.push(new.id),
                Effect::Ended { id, .. } => self.ended.push(id),
            }
        }
    }

    /// Handles one datagram at the node, and returns whether cells got keys of an association.
    async fn node_receives(&mut self) -> bool {
        let news = receive(&self.node.sockets, &mut self.node.buffer).await;
        self.node.handle_news(&mut self.control, &self.cells, news);
        self.cell.turn();
        self.cell.count(|it| matches!(it, ToCell::Associate(_))) > 0
    }

    /// Handles one datagram at the neighbour.
    async fn neighbour_receives(&mut self) {
        let mut buffer = [0; 2048];
        let (length, from) = self.socket.recv_from(&mut buffer).await.unwrap();
        let effects = self.neighbour.handle(now(), from, &buffer[..length], &mut random);
        self.send(effects).await;
    }

    /// Does the handshake as far as the node's decision.
    async fn shake_hands(&mut self) -> bool {
        self.connect().await;
        self.node_receives().await;
        self.neighbour_receives().await;
        self.node_receives().await
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_neighbour_may_send_when_cells_have_the_keys_and_no_sooner() {
    let (token, key, _) = testbed::token();
    let mut world = World::new(key.clone(), token).await;
    assert!(world.shake_hands().await, "cells get the keys");
    let listed = world.node.list();
    assert_eq!((listed.len(), &listed[0].principal), (1, &key.public().to_string()));
    assert!(world.socket.try_recv(&mut [0; 2048]).is_err(), "nothing is confirmed yet");
    let id = *world.node.live.keys().next().unwrap();
    world.node.handle_associated(id);
    world.neighbour_receives().await;
    assert_eq!(world.established.len(), 1);
    world.node.handle_associated(id);
    assert!(world.socket.try_recv(&mut [0; 2048]).is_err(), "it is confirmed once");
    let question = |association| CallQuestion { association, digest: [0; 32] };
    let sender = world.node.sender_of(question(Some(id))).unwrap();
    assert_eq!(sender.principal, Some(key.public()));
    assert!(world.node.sender_of(question(None)).unwrap().principal.is_none());
    let stats = world.node.stats(&AssociationReport::default());
    assert_eq!((stats.live, stats.established, stats.handshakes_refused.len()), (1, 1, 0));
    // Its capability counts as long as it is not revoked.
    world.node.end_without_right(&mut world.control, &world.cells);
    assert_eq!(world.node.list().len(), 1);
    world.node.end_all(&mut world.control, &world.cells);
    world.cell.turn();
    assert_eq!(world.cell.count(|it| matches!(it, ToCell::Disassociate(of) if *of == id)), 1);
    assert!(world.node.list().is_empty() && world.node.sender_of(question(Some(id))).is_none());
    world.neighbour_receives().await;
    assert_eq!(world.ended, world.established, "the other side hears of the end");
}

#[tokio::test(flavor = "current_thread")]
async fn a_token_counts_for_the_key_that_it_is_for_and_from_an_administrator_alone() {
    let (token, key, _) = testbed::token();
    let other = SecretKey::from_seed(&Seed::new([5; 32]));
    for (key, token) in [(other, token), (key.clone(), ""), (key, "no token")] {
        let mut world = World::new(key, token).await;
        assert!(!world.shake_hands().await);
        assert!(world.node.list().is_empty());
        let stats = world.node.stats(&AssociationReport::default());
        assert_eq!((stats.live, stats.established), (0, 0));
        assert_eq!(stats.handshakes_refused.get("not_granted"), Some(&1));
    }
}

#[tokio::test(flavor = "current_thread")]
async fn there_is_no_association_without_a_cell_to_have_its_keys() {
    let (token, key, _) = testbed::token();
    let mut world = World::new(key, token).await;
    world.cells.remove(CellNumber::FIRST);
    assert!(!world.shake_hands().await);
    let stats = world.node.stats(&AssociationReport::default());
    assert_eq!((stats.live, stats.handshakes_refused.len()), (0, 0), "nobody is to blame");
}

#[tokio::test(flavor = "current_thread")]
async fn what_is_no_handshake_is_counted_and_not_answered() {
    let (token, key, _) = testbed::token();
    let mut world = World::new(key, token).await;
    let address = world.node.sockets[0].local_addr().unwrap();
    // Nothing, another version, and an active packet, which is the cell's.
    let active = [wire::VERSION << 4 | 7, 0, 0, 0, 0, 0, 0, 1];
    let datagrams: [&[u8]; 3] = [&[], &[0xff; 40], &active];
    for datagram in datagrams {
        world.socket.send_to(datagram, address).await.unwrap();
        world.node_receives().await;
    }
    let report = AssociationReport { received: 9, stale: 2, ..AssociationReport::default() };
    let stats = world.node.stats(&report);
    assert_eq!(stats.received, 9);
    let refused = stats.handshakes_refused.get("malformed").copied().unwrap_or(0);
    let past_cell = stats.dropped.get("active_past_cell").copied().unwrap_or(0);
    assert_eq!(refused + past_cell, 3, "{stats:?}");
    assert_eq!(stats.dropped.get("active_stale"), Some(&2), "what cells dropped is there, too");
    assert!(world.socket.try_recv(&mut [0; 2048]).is_err());
}
