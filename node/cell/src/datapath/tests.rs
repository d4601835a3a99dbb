//! Unit tests of the data path with packet ports whose sockets are datagram sockets of this
//! process, and without a kernel path.

use super::*;
use crate::memory::Memory;
use crate::packet_memory::PacketMemory;
use bpf_maps::{META_BRIDGED, META_ROUTED, RULE_NONE};
use node::door::Act;
use std::os::unix::net::UnixDatagram;
use units::BitsPerSecond;
use wire::FrameBuilder;

const LEFT: PortId = PortId(0);
const RIGHT: PortId = PortId(1);
const GOLD: SessionId = SessionId(2);
/// Bytes of `virtio_net_hdr` in front of each frame.
const UNFINISHED_LENGTH: usize = 10;

/// Other end of a packet port: the frames it sends, and those returned to the kernel.
pub(crate) struct Wire {
    sent: UnixDatagram,
    back: UnixDatagram,
}

impl Wire {
    /// Creates the other end of a packet port; returns it with the port's own sockets.
    pub(crate) fn new() -> (Self, [OwnedFd; 2]) {
        let pairs = [(); 2].map(|()| UnixDatagram::pair().unwrap());
        let [(sent, own), (back, own_back)] = pairs;
        for socket in [&own, &own_back, &sent, &back] {
            socket.set_nonblocking(true).unwrap();
        }
        (Self { sent, back }, [own.into(), own_back.into()])
    }

    /// Adds a packet port, and returns its other end.
    pub(crate) fn add(
        path: &mut Datapath,
        sessions: &mut Sessions,
        (port, bridge): (PortId, Option<PortId>),
    ) -> Self {
        let (wire, sockets) = Self::new();
        path.add_frames(&facts(port), bridge, sockets, sessions);
        wire
    }

    /// Sends a frame that arrives by the port.
    pub(crate) fn come(&self, frame: &[u8]) {
        self.sent.send(&[&[0; UNFINISHED_LENGTH], frame].concat()).unwrap();
    }

    /// Returns the frames that have arrived at a socket.
    fn frames(socket: &UnixDatagram) -> Vec<Vec<u8>> {
        let mut buffer = [0; 4096];
        std::iter::from_fn(|| {
            let length = socket.recv(&mut buffer).ok()?;
            Some(buffer[UNFINISHED_LENGTH..length].to_vec())
        })
        .collect()
    }

    /// Returns the frames that the port has sent.
    pub(crate) fn sent(&self) -> Vec<Vec<u8>> {
        Self::frames(&self.sent)
    }

    /// Returns the frames that were returned to the kernel.
    pub(crate) fn back(&self) -> Vec<Vec<u8>> {
        Self::frames(&self.back)
    }
}

struct Rig {
    path: Datapath,
    sessions: Sessions,
    left: Wire,
    right: Wire,
}

/// Returns the configuration of a packet port.
pub(crate) fn facts(port: PortId) -> CellPort {
    CellPort {
        port,
        name: ["left", "right"][usize::from(port.0)].into(),
        ifindex: 1,
        queue: 0,
        mac: [2, 0, 0, 0, 0, port.0 as u8],
        mtu: 1500,
        raw: false,
        cabled: false,
        in_driver: false,
        rate: None,
    }
}

impl Rig {
    fn new() -> Self {
        let (umem, pool) = Umem::new(64).unwrap();
        let mut path = Datapath::new(umem, pool);
        let mut sessions = Sessions::new(Nanos::ZERO, PacketMemory::of(1), Memory::new());
        let [left, right] = [(LEFT, Some(RIGHT)), (RIGHT, None)]
            .map(|port| Wire::add(&mut path, &mut sessions, port));
        Self { path, sessions, left, right }
    }

    fn packet(&mut self, bytes: &[u8]) -> Packet {
        self.path.packet_of(bytes).unwrap()
    }

    fn egress_path(&mut self, session: SessionId) -> EgressPath<'_> {
        self.path.egress_path(&mut self.sessions, session)
    }

    fn report(&self) -> CellReport {
        let mut report = CellReport::default();
        self.path.report(&mut report);
        assert_eq!(report.frames_total, 64);
        report
    }

    /// Gives a session this reservation, and a port this rate.
    fn share(&mut self, reservation: &str) {
        let reservation = serde_json::from_str(reservation).unwrap();
        let session = SessionSpec { id: GOLD, reservation };
        self.sessions.set(Nanos::ZERO, &session);
        self.path.set_session(pacer::now(), &session, &mut self.sessions);
        let rate = Some(BitsPerSecond(1_000_000));
        self.path.change_port(&CellPort { rate, ..facts(RIGHT) }, &mut self.sessions);
    }
}

fn frame() -> Vec<u8> {
    let frame = FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 1, 2], 64).udp(1, 2);
    frame.payload(&[7; 100]).build()
}

fn meta() -> PacketMeta {
    PacketMeta { then: [RULE_NONE; 2], flags: 4 << 8, l3_offset: 14, ..PacketMeta::default() }
}

#[test]
fn ports_are_known_by_their_names() {
    let rig = Rig::new();
    let numbers = BTreeMap::from([("left".to_owned(), 0), ("right".to_owned(), 1)]);
    assert_eq!((rig.path.port_numbers(), rig.path.port_range()), (numbers, 0..2));
    assert_eq!(rig.path.readable_fds().count(), 2);
    assert!(rig.path.given().unwrap().is_empty(), "packet ports are not adopted");
}

#[test]
fn a_packet_leaves_by_the_port_that_its_module_names_as_it_is() {
    let mut rig = Rig::new();
    let packet = rig.packet(&frame());
    let mut egress_path = rig.egress_path(SessionId::BEST_EFFORT);
    assert_eq!(egress_path.redirect(packet, LEFT.0, RIGHT.0), End::Sent);
    assert_eq!(egress_path.sent(), frame().len() as u64);
    assert_eq!((rig.right.sent(), rig.left.sent().len()), (vec![frame()], 0));
    let packet = rig.packet(&frame());
    assert_eq!(rig.egress_path(GOLD).redirect(packet, LEFT.0, 9), End::Failed(SendFailure::NoPort));
    assert_eq!(rig.report().frames_free, 64);
}

#[test]
fn a_packet_that_bounces_goes_back_to_its_sender() {
    let mut rig = Rig::new();
    let packet = rig.packet(&frame());
    assert_eq!(rig.egress_path(GOLD).bounce(packet, LEFT.0), End::Sent);
    let sent = rig.left.sent();
    assert_eq!((&sent[0][..6], &sent[0][6..12]), (&frame()[6..12], &frame()[..6]));
    assert_eq!(sent[0][12..], frame()[12..]);
}

#[test]
fn a_packet_with_a_route_is_addressed_to_its_next_hop_and_a_hop_older() {
    let mut rig = Rig::new();
    let next_hop = [4, 4, 4, 4, 4, 4];
    let flags = meta().flags | META_ROUTED;
    let routed = PacketMeta { flags, egress_port: RIGHT.0, next_hop, ..meta() };
    let packet = rig.packet(&frame());
    assert_eq!(rig.egress_path(GOLD).forward(packet, &routed), End::Sent);
    let sent = rig.right.sent();
    assert_eq!((&sent[0][..6], &sent[0][6..12]), (&next_hop[..], &[2, 0, 0, 0, 0, 1][..]));
    assert_eq!(sent[0][22], 63, "its TTL");
    // A packet that is too long for its egress, or at its last hop, must be answered by the kernel,
    // which is missing here.
    let mut last = frame();
    last[22] = 1;
    for bytes in [vec![0x45; 14 + 1501], last] {
        let mut bytes = bytes;
        bytes[12..14].copy_from_slice(&[8, 0]);
        let packet = rig.packet(&bytes);
        let end = rig.egress_path(GOLD).forward(packet, &routed);
        assert!(matches!(end, End::KernelRefused | End::Malformed), "{end:?}");
        assert!(end.is_lost());
    }
}

#[test]
fn a_bridged_packet_leaves_by_the_other_end_if_that_takes_it() {
    let mut rig = Rig::new();
    let flags = meta().flags | META_BRIDGED;
    let bridged = PacketMeta { flags, egress_port: RIGHT.0, ..meta() };
    let packet = rig.packet(&frame());
    assert_eq!(rig.egress_path(GOLD).forward(packet, &bridged), End::Sent);
    assert_eq!(rig.right.sent(), [frame()]);
    let packet = rig.packet(&[0; 1500 + 14 + 4 + 1]);
    assert_eq!(rig.egress_path(GOLD).forward(packet, &bridged), End::TooLong);
}

#[test]
fn a_packet_without_a_route_returns_to_the_kernel_by_its_arrival_port() {
    let mut rig = Rig::new();
    let packet = rig.packet(&frame());
    assert_eq!(rig.egress_path(GOLD).forward(packet, &meta()), End::ToKernel);
    let back = rig.left.back();
    assert_eq!(back[0][..6], facts(LEFT).mac, "addressed to the port");
    assert_eq!(back[0][6..], frame()[6..]);
    // Frames that a service sends by route have no port, and there is no device.
    let packet = rig.packet(&frame());
    assert_eq!(rig.egress_path(GOLD).hand_to_kernel(packet), End::KernelRefused);
}

#[test]
fn a_frame_does_not_loop_for_ever_between_cabled_ports() {
    for bounces in [false, true] {
        let mut rig = Rig::new();
        for port in [LEFT, RIGHT] {
            let cabled = CellPort { cabled: true, ..facts(port) };
            rig.path.change_port(&cabled, &mut rig.sessions);
        }
        rig.path.set_time(CoarseInstant::from_millis(1_000));
        let mut rounds = 0;
        loop {
            let packet = rig.packet(&frame());
            let mut egress_path = rig.egress_path(GOLD);
            let end = match bounces {
                true => egress_path.bounce(packet, LEFT.0),
                false => egress_path.redirect(packet, LEFT.0, RIGHT.0),
            };
            if end != End::Sent {
                assert_eq!(end, End::Cycle);
                break;
            }
            rounds += 1;
            rig.left.sent();
            rig.right.sent();
        }
        assert_eq!(rounds, bpf_maps::CYCLE_ROUNDS, "bounces: {bounces}");
    }
}

#[test]
fn frames_cross_a_bridge_and_return_to_the_kernel_as_they_came() {
    let mut rig = Rig::new();
    let mut buffer = Buffer::default();
    rig.left.come(&frame());
    let (port, received) = rig.path.receive_frame(LEFT.0, &mut buffer).unwrap();
    assert_eq!((port.id, port.bridge, received.bytes), (LEFT, Some(RIGHT), &frame()[..]));
    assert!(rig.path.return_frame(LEFT.0, received));
    assert_eq!(rig.left.back(), [frame()]);
    assert_eq!(rig.path.cross(RIGHT, received), Ok(()));
    assert_eq!(rig.right.sent(), [frame()]);
    assert_eq!(rig.path.cross(PortId(7), received), Err(DROP_EGRESS_GONE));
    let long = vec![0; 1500 + LINK_LENGTH + 1];
    let long = Frame { bytes: &long, ..received };
    assert_eq!(rig.path.cross(RIGHT, long), Err(DROP_TOO_LONG));
    assert!(rig.path.receive_frame(LEFT.0, &mut Buffer::default()).is_none(), "that was all");
}

#[test]
fn a_rule_may_send_a_frame_out_on_its_sessions_account() {
    let mut rig = Rig::new();
    rig.share("{}");
    let mut door = node::door::Door::default();
    let port = DoorPort { id: LEFT, mac: facts(LEFT).mac, bridge: None };
    let mut decision = door.decide(&port, &frame());
    decision.act = Act::Out(RIGHT, GOLD);
    let Rig { path, sessions, .. } = &mut rig;
    let outcome = path.send_by(&frame(), &decision, (LEFT.0, RIGHT), (GOLD, sessions));
    assert_eq!(outcome, decision.outcome);
    let outcome = path.send_by(&frame(), &decision, (LEFT.0, PortId(7)), (GOLD, sessions));
    assert_eq!(outcome, DROP_EGRESS_GONE);
    assert_eq!(rig.right.sent(), [frame()]);
    let sent = rig.sessions.poll_report(2, Bytes::ZERO, true).unwrap().sent;
    assert_eq!(sent, Bytes(frame().len() as u64));
}

#[test]
fn packets_of_a_shared_port_wait_for_their_sessions_turn() {
    let mut rig = Rig::new();
    assert!(!rig.path.poll_waiting(&mut rig.sessions), "nobody has a share");
    rig.share(r#"{"send":{"right":"2ms/4ms"}}"#);
    for _ in 0..16 {
        let packet = rig.packet(&frame());
        assert_eq!(rig.egress_path(GOLD).send(RIGHT.0, packet), End::Sent);
    }
    assert!(rig.path.waits(GOLD) && rig.right.sent().is_empty());
    assert!(rig.path.poll_waiting(&mut rig.sessions));
    // At 1 Mbit/s each takes more than a millisecond, and no more than 4 are caught up with.
    assert!(!rig.right.sent().is_empty() && rig.path.waits(GOLD));
    assert!(rig.path.poll_timeout().is_some());
    rig.path.remove_port(RIGHT, &mut rig.sessions);
    let report = rig.report();
    assert!(report.egress_gone >= 1 && !rig.path.waits(GOLD));
    assert_eq!(report.frames_free, 64);
    let queue = rig.sessions.poll_report(2, Bytes::ZERO, true).unwrap().queue;
    assert_eq!(queue, Bytes::ZERO, "what waited has given its room back");
}

#[test]
fn waiting_packets_leave_at_once_when_the_last_share_is_gone() {
    let mut rig = Rig::new();
    rig.share(r#"{"send":{"right":"2ms/4ms"}}"#);
    for _ in 0..3 {
        let packet = rig.packet(&frame());
        rig.egress_path(SessionId::BEST_EFFORT).send(RIGHT.0, packet);
    }
    assert!(rig.path.waits(SessionId::BEST_EFFORT));
    rig.path.forget_session(pacer::now(), GOLD, &mut rig.sessions);
    assert!(!rig.path.waits(SessionId::BEST_EFFORT));
    assert_eq!(rig.right.sent().len(), 3);
    assert_eq!(rig.report().egress_gone, 0);
}

#[test]
fn packets_handled_below_user_level_leave_the_cell_by_their_port() {
    let mut rig = Rig::new();
    rig.share("{}");
    let from = PacketMeta { arrival_port: GOLD.0, egress_port: RIGHT.0, ..meta() };
    let packet = rig.packet(&frame());
    rig.path.handle_from_below(packet, from, &mut rig.sessions);
    assert_eq!(rig.right.sent(), [frame()], "the port is not shared");
    rig.share(r#"{"send":{"right":"2ms/4ms"}}"#);
    let packet = rig.packet(&frame());
    rig.path.handle_from_below(packet, from, &mut rig.sessions);
    assert!(rig.path.waits(GOLD) && rig.right.sent().is_empty());
    rig.path.poll_waiting(&mut rig.sessions);
    assert_eq!(rig.right.sent(), [frame()]);
    // Packets that the kernel is to route, which is missing here.
    let kernel = PacketMeta { flags: from.flags | META_BY_KERNEL, egress_port: 9, ..from };
    let packet = rig.packet(&frame());
    rig.path.handle_from_below(packet, kernel, &mut rig.sessions);
    assert_eq!((rig.report().egress_gone, rig.report().frames_free), (1, 64));
}

#[test]
fn a_capture_sees_departures_up_to_its_snap_length() {
    let mut rig = Rig::new();
    let facts = CaptureSpec { snap: 20, arriving: false, dropped_only: false };
    rig.path.set_capture(Some(facts));
    let packet = rig.packet(&frame());
    rig.egress_path(GOLD).send(RIGHT.0, packet);
    let (tapped, lost) = rig.path.capture().unwrap().take();
    assert_eq!((tapped.len(), lost), (1, 0));
    assert_eq!((tapped[0].port, tapped[0].length as usize), (RIGHT, frame().len()));
    assert_eq!(tapped[0].bytes, frame()[..20]);
    rig.path.count_lost_captures(3);
    rig.path.set_capture(None);
    assert!(rig.path.capture().is_none());
    assert_eq!(rig.report().tapped_lost, 3);
}

#[test]
fn invalid_association_keys_are_refused_and_all_can_be_removed() {
    let mut rig = Rig::new();
    let keys = SecretBytes(zeroize::Zeroizing::new(vec![1, 2, 3]));
    assert!(rig.path.associate(&keys).is_err());
    rig.path.end_associations();
    rig.path.forget_service(EntryId(1));
    rig.path.handle_timeout(CoarseInstant::from_millis(1));
    assert!(rig.path.poll_call().is_none());
    assert_eq!(rig.report().associations.live, 0);
}
