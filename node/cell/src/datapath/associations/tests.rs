//! Unit tests of active packets with frames as the front door delivers them: opened once, counted,
//! and answered with correct frames.

use super::*;
use ::association::{Associations as Table, Budget, Config, Effect, Peer, Protection};
use ::wire::build::FrameBuilder;
use ::wire::parse::{Parsed, parse_frame};
use std::net::SocketAddr;
use std::rc::Rc;
use trust::{SecretKey, Seed};
use units::Nanos;
use xsk::Umem;

const DIGEST: [u8; 32] = [7; 32];
const SERVICE: EntryId = EntryId(3);
const MTU: usize = 1500;

/// Creates both sides of an association: a node's, as its cell gets it, and a client's.
fn associated() -> (Associations, AssociationId, Opener, Sealer) {
    let mut seed = 0u8;
    let mut random = |into: &mut [u8]| {
        for byte in into {
            seed = seed.wrapping_mul(141).wrapping_add(77);
            *byte = seed;
        }
    };
    let mut table = |byte: u8| {
        let key = SecretKey::from_seed(&Seed::from([byte; 32]));
        let config = Config { key, token: String::new(), budget: Budget(1000) };
        Table::new(Nanos::ZERO, config, &mut random).unwrap()
    };
    let mut sides = [table(1), table(2)];
    let at = [1u8, 2].map(|last| SocketAddr::from(([10, 0, 0, last], 7443)));
    let peer = Peer { address: at[1], principal: None };
    let (_, mut effects) = sides[0].connect(Nanos::ZERO, peer, &mut random).unwrap();
    let mut traffic = [None, None];
    let mut from = 0;
    while !effects.is_empty() {
        let mut next = Vec::new();
        for effect in effects {
            match effect {
                Effect::Send { datagram, .. } => next.extend(sides[1 - from].handle(
                    Nanos::ZERO,
                    at[from],
                    &datagram,
                    &mut random,
                )),
                Effect::Established(new) => traffic[from] = Some(new.traffic),
                Effect::Ended { .. } => panic!("it ended"),
            }
        }
        // The answer of each handler is for the other side.
        from = 1 - from;
        effects = next;
    }
    let [client, node] = traffic.map(Option::unwrap);
    let mut associations = Associations::default();
    let id = node.id;
    associations.begin(node);
    let (opener, sealer) = client.split();
    (associations, id, opener, sealer)
}

struct Memory {
    umem: Rc<Umem>,
    pool: FramePool,
}

impl Memory {
    fn new() -> Self {
        let (umem, pool) = Umem::new(16).unwrap();
        Self { umem: Rc::new(umem), pool }
    }

    /// Returns a frame with its metadata, as the front door delivers it.
    fn packet(&mut self, frame: &[u8]) -> (Packet, PacketMeta, Parsed) {
        let parsed = parse_frame(frame).unwrap();
        let mut packet = Packet::allocate(&self.umem, &mut self.pool, frame.len()).unwrap();
        packet.store(0, frame).unwrap();
        let version = u32::from(frame[usize::from(parsed.l3_offset)] >> 4);
        let meta = PacketMeta {
            l3_offset: parsed.l3_offset,
            l4_offset: parsed.l4_offset.unwrap_or(u16::MAX),
            flags: version << 8 | u32::from(parsed.protocol) << 16,
            ..bytemuck::Zeroable::zeroed()
        };
        (packet, meta, parsed)
    }
}

fn bytes(packet: &Packet) -> Vec<u8> {
    packet.chunks().flatten().copied().collect()
}

fn carried(datagram: &[u8], v6: bool) -> FrameBuilder {
    let frame = FrameBuilder::new().ecn(1);
    let frame = match v6 {
        true => frame.vlan(5).ipv6([0xfd00, 0, 0, 0, 0, 0, 0, 1], [0xfd00, 0, 0, 0, 0, 0, 0, 2], 9),
        false => frame.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9),
    };
    frame.udp(40_000, 7443).payload(datagram)
}

fn sealed(sealer: &mut Sealer, protection: Protection, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; payload.len() + OVERHEAD];
    datagram[PAYLOAD_AT..][..payload.len()].copy_from_slice(payload);
    sealer.seal(protection, Role::Call, &DIGEST, &mut datagram).unwrap();
    datagram
}

/// Answers the cell's questions, and returns the decision on a frame.
fn taken(
    associations: &mut Associations,
    packet: &mut Packet,
    meta: &PacketMeta,
) -> ActiveDecision {
    if let Some(calls) = associations.calls_of(None) {
        calls.answered(DIGEST, Answer::Service(SERVICE), CoarseInstant::ZERO);
    }
    for held in associations.held.values_mut() {
        held.calls.answered(DIGEST, Answer::Service(SERVICE), CoarseInstant::ZERO);
    }
    associations.take(packet, meta, CoarseInstant::ZERO)
}

#[test]
fn a_call_is_opened_and_its_answer_is_a_right_frame_back() {
    for (v6, length, protection) in [
        (false, 1, Protection::Encrypted),
        (true, 64, Protection::Authenticated),
        (false, 1300, Protection::Encrypted),
        // Packets of several frames of memory.
        (false, 6000, Protection::Encrypted),
    ] {
        let (mut associations, _, mut opener, mut sealer) = associated();
        let mut memory = Memory::new();
        let payload: Vec<u8> = (0..length).map(|at| at as u8).collect();
        let frame = carried(&sealed(&mut sealer, protection, &payload), v6).build();
        let (mut packet, meta, asked) = memory.packet(&frame);
        let ActiveDecision::Call(SERVICE) = taken(&mut associations, &mut packet, &meta) else {
            panic!("{:?}", associations.report);
        };
        assert_eq!(bytes(&packet), payload);
        // The service makes the payload longer, and changes it.
        packet.resize_tail(20).unwrap();
        packet.store(0, b"!").unwrap();
        let mtu = if length > MTU { 9000 } else { MTU };
        associations.answer(&mut packet, mtu).unwrap();
        let answer = bytes(&packet);
        let parsed = parse_frame(&answer).unwrap();
        assert!(::wire::checksum::verify_l4(&answer, &parsed));
        assert_eq!((&answer[..6], &answer[6..12]), (&frame[6..12], &frame[..6]));
        assert_eq!(
            (parsed.source, parsed.destination, parsed.source_port, parsed.destination_port),
            (asked.destination, asked.source, asked.destination_port, asked.source_port)
        );
        let at = usize::from(parsed.l4_offset.unwrap()) + 8;
        let mut datagram = answer[at..].to_vec();
        let opened = opener.open(&mut datagram).unwrap();
        assert_eq!((opened.role, opened.protection), (Role::Answer, protection));
        assert_eq!(opened.payload[0], b'!');
        assert_eq!(opened.payload[1..length], payload[1..]);
        assert_eq!(opened.payload[length..], [0; 20]);
    }
}

#[test]
fn replayed_changed_and_misaddressed_packets_are_counted_and_dropped() {
    let (mut associations, id, _, mut sealer) = associated();
    let mut memory = Memory::new();
    let datagram = sealed(&mut sealer, Protection::Encrypted, b"payload");
    let mut give = |associations: &mut Associations, datagram: &[u8]| {
        let (mut packet, meta, _) = memory.packet(&carried(datagram, false).build());
        let taken = taken(associations, &mut packet, &meta);
        packet.recycle(&mut memory.pool);
        taken
    };
    for bit in 0..datagram.len() * 8 {
        let mut changed = datagram.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        // A packet changed into another kind of message goes to the daemon, which refuses it.
        let taken = give(&mut associations, &changed);
        assert!(matches!(taken, ActiveDecision::End | ActiveDecision::Kernel), "bit {bit}");
    }
    assert_eq!(associations.report.calls, 0);
    assert!(matches!(give(&mut associations, &datagram), ActiveDecision::Call(SERVICE)));
    assert!(matches!(give(&mut associations, &datagram), ActiveDecision::End));
    let report = associations.report;
    assert!(report.forged > 0 && report.unknown > 0 && report.malformed > 0, "{report:?}");
    assert_eq!((report.stale, report.calls), (1, 1));
    // The association expires, and then its keys are removed.
    let later = sealed(&mut sealer, Protection::Encrypted, b"payload");
    let (mut packet, meta, _) = memory.packet(&carried(&later, false).build());
    let end = associations.held[&id].until;
    assert!(matches!(associations.take(&mut packet, &meta, end), ActiveDecision::End));
    associations.end(id, &mut memory.pool);
    let (mut packet, meta, _) = memory.packet(&carried(&later, false).build());
    assert!(matches!(
        associations.take(&mut packet, &meta, CoarseInstant::ZERO),
        ActiveDecision::End
    ));
    let sum: u64 = associations.report.dropped().iter().map(|(_, count)| count).sum();
    let AssociationReport { received, calls, to_kernel, waiting, .. } = associations.report;
    assert_eq!(received, calls + to_kernel + waiting + sum);
}

#[test]
fn an_unauthenticated_packet_needs_a_right_checksum_and_is_answered_without_a_tag() {
    let mut associations = Associations::default();
    let mut memory = Memory::new();
    let datagram = [&FromAnyone::head(Role::Call, &DIGEST)[..], b"payload"].concat();
    let frame = carried(&datagram, false).build();
    let mut wrong = frame.clone();
    *wrong.last_mut().unwrap() ^= 1;
    let (mut packet, meta, _) = memory.packet(&wrong);
    assert!(matches!(taken(&mut associations, &mut packet, &meta), ActiveDecision::End));
    assert_eq!(associations.report.checksum, 1);
    let (mut packet, meta, _) = memory.packet(&frame);
    assert!(matches!(taken(&mut associations, &mut packet, &meta), ActiveDecision::Call(SERVICE)));
    assert_eq!(bytes(&packet), b"payload");
    associations.answer(&mut packet, MTU).unwrap();
    let mut answer = bytes(&packet);
    assert!(::wire::checksum::verify_l4(&answer, &parse_frame(&answer).unwrap()));
    let read = FromAnyone::read(&mut answer[42..]).unwrap();
    assert_eq!((read.role, &*read.payload), (Role::Answer, &b"payload"[..]));
    // An answer is not run: two nodes would answer each other forever.
    let (mut packet, meta, _) = memory.packet(&carried(&answer[42..], false).build());
    assert!(matches!(taken(&mut associations, &mut packet, &meta), ActiveDecision::End));
    assert_eq!(associations.report.answers, 1);
}

#[test]
fn an_answer_that_does_not_fit_its_port_is_not_sent() {
    let (mut associations, _, _, mut sealer) = associated();
    let mut memory = Memory::new();
    let payload = vec![0; MTU - 28 - OVERHEAD];
    let datagram = sealed(&mut sealer, Protection::Encrypted, &payload);
    let (mut packet, meta, _) = memory.packet(&carried(&datagram, false).build());
    assert!(matches!(taken(&mut associations, &mut packet, &meta), ActiveDecision::Call(SERVICE)));
    let (mut longer, meta, _) = memory
        .packet(&carried(&sealed(&mut sealer, Protection::Encrypted, &payload), false).build());
    associations.answer(&mut packet, MTU).unwrap();
    assert!(matches!(taken(&mut associations, &mut longer, &meta), ActiveDecision::Call(SERVICE)));
    longer.resize_tail(1).unwrap();
    assert_eq!(associations.answer(&mut longer, MTU), Err(Unanswered::TooLong));
}

#[test]
fn packets_wait_for_their_service_in_order_and_within_bounds() {
    let (mut associations, id, _, mut sealer) = associated();
    let (umem, pool) = Umem::new(4096).unwrap();
    let mut memory = Memory { umem: Rc::new(umem), pool };
    let free = memory.pool.free();
    let mut questions = Vec::new();
    let mut give = |associations: &mut Associations, memory: &mut Memory, number: u8| {
        let datagram = sealed(&mut sealer, Protection::Encrypted, &[number]);
        let (mut packet, meta, _) = memory.packet(&carried(&datagram, false).build());
        let ActiveDecision::Wait(question) =
            associations.take(&mut packet, &meta, CoarseInstant::ZERO)
        else {
            panic!("nobody has said whom it calls");
        };
        associations.keep(packet, meta, CoarseInstant::ZERO, &mut memory.pool);
        questions.extend(question);
    };
    for number in 0..=WAITING_EACH_MAX {
        give(&mut associations, &mut memory, number as u8);
    }
    let question = Question { association: Some(id), digest: DIGEST };
    assert_eq!((associations.report.waiting_full, associations.waiting.len()), (1, 128));
    associations.answered(
        question,
        Answer::Service(SERVICE),
        CoarseInstant::ZERO,
        &mut memory.pool,
    );
    for number in 0..WAITING_EACH_MAX {
        let (packet, _, entry) = associations.next_ready().unwrap();
        assert_eq!((bytes(&packet), entry), (vec![number as u8], SERVICE));
        packet.recycle(&mut memory.pool);
    }
    assert!(associations.next_ready().is_none());
    // A removed service is forgotten; packets that wait for the next are dropped in time.
    associations.forget_service(SERVICE);
    give(&mut associations, &mut memory, 0);
    associations.expire(CoarseInstant::from_millis(WAIT_MAX.0 - 1), &mut memory.pool);
    assert_eq!(associations.report.waited_too_long, 0);
    associations.expire(CoarseInstant::ZERO + WAIT_MAX, &mut memory.pool);
    assert_eq!((associations.report.waited_too_long, associations.report.waiting), (1, 0));
    give(&mut associations, &mut memory, 0);
    associations.answered(
        question,
        Answer::Refused { for_ms: 0 },
        CoarseInstant::ZERO,
        &mut memory.pool,
    );
    assert_eq!(associations.report.refused, 1);
    give(&mut associations, &mut memory, 0);
    associations.end_all(&mut memory.pool);
    assert_eq!((associations.report.gone, memory.pool.free()), (1, free));
    // Questions: at first, after the service was removed, and after the refusal had expired.
    assert_eq!(questions, vec![question; 3]);
}

/// Returns an unauthenticated datagram that calls this digest.
fn from_anyone(digest: [u8; 32]) -> Vec<u8> {
    [&FromAnyone::head(Role::Call, &digest)[..], b"payload"].concat()
}

#[test]
fn each_frame_is_counted_where_it_ended_whatever_it_is() {
    let whole = carried(&from_anyone(DIGEST), false);
    let mut handshake = from_anyone(DIGEST);
    handshake[0] = handshake[0] & 0xf0 | 1;
    let mut later_version = from_anyone(DIGEST);
    later_version[0] ^= 0x10;
    let mut unknown = from_anyone(DIGEST);
    unknown[0] |= 0x0f;
    let cut = from_anyone(DIGEST)[..PAYLOAD_AT - 1].to_vec();
    let fragment = |flags: u32| move |meta: &mut PacketMeta| meta.flags |= flags;
    let as_it_is = |_: &mut PacketMeta| {};
    type Change = Box<dyn Fn(&mut PacketMeta)>;
    let cases: Vec<(Vec<u8>, Change, [u64; 2])> = vec![
        (carried(&handshake, false).build(), Box::new(as_it_is), [1, 0]),
        (carried(&handshake, true).build(), Box::new(as_it_is), [1, 0]),
        (whole.build(), Box::new(fragment(bpf_maps::META_FRAGMENT)), [1, 0]),
        (whole.build(), Box::new(fragment(bpf_maps::META_LATER_FRAGMENT)), [1, 0]),
        // IP options, or no UDP: for the kernel to handle.
        (whole.build(), Box::new(|meta| meta.l4_offset += 4), [1, 0]),
        (whole.build(), Box::new(|meta| meta.flags = meta.flags & 0xffff | 6 << 16), [1, 0]),
        (carried(&later_version, false).build(), Box::new(as_it_is), [0, 1]),
        (carried(&unknown, false).build(), Box::new(as_it_is), [0, 1]),
        (carried(&cut, false).build(), Box::new(as_it_is), [0, 1]),
        (carried(b"1234567", true).build(), Box::new(as_it_is), [0, 1]),
        (carried(b"", false).build(), Box::new(as_it_is), [0, 1]),
    ];
    for (number, (frame, change, [to_kernel, malformed])) in cases.into_iter().enumerate() {
        let mut associations = Associations::default();
        let mut memory = Memory::new();
        let (mut packet, mut meta, _) = memory.packet(&frame);
        change(&mut meta);
        let taken = taken(&mut associations, &mut packet, &meta);
        let AssociationReport { received, .. } = associations.report;
        let ends = [associations.report.to_kernel, associations.report.malformed];
        assert_eq!((received, ends), (1, [to_kernel, malformed]), "case {number}");
        assert_eq!(matches!(taken, ActiveDecision::Kernel), to_kernel == 1, "case {number}");
        packet.recycle(&mut memory.pool);
    }
}

#[test]
fn a_wrong_udp_length_is_malformed_and_padding_is_removed() {
    let frame = carried(&from_anyone(DIGEST), false).build();
    let length = frame.len() - 34;
    for (said, is_taken) in [(length, true), (length + 1, false), (8, false), (0, false)] {
        let mut frame = frame.clone();
        frame[38..40].copy_from_slice(&(said as u16).to_be_bytes());
        // The checksum is optional over IPv4.
        frame[40..42].fill(0);
        frame.extend([0; 3]);
        let (mut associations, mut memory) = (Associations::default(), Memory::new());
        let (mut packet, meta, _) = memory.packet(&frame);
        // Three bytes of padding, and a UDP length that is one too large.
        let taken = taken(&mut associations, &mut packet, &meta);
        let is_call = matches!(taken, ActiveDecision::Call(SERVICE));
        if said == length + 1 {
            assert!(is_call, "it is there, if not the sender's");
            assert_eq!(bytes(&packet), b"payload\0");
        } else {
            assert_eq!(is_call, is_taken, "{said}");
            assert_eq!(associations.report.malformed, u64::from(!is_taken), "{said}");
        }
    }
}

#[test]
fn no_more_is_asked_in_a_second_than_the_daemon_can_answer() {
    let mut associations = Associations::default();
    let mut memory = Memory::new();
    let mut ask = |associations: &mut Associations, number: u16, now: CoarseInstant| {
        let mut digest = [0; 32];
        digest[..2].copy_from_slice(&number.to_be_bytes());
        let (mut packet, meta, _) = memory.packet(&carried(&from_anyone(digest), false).build());
        let taken = associations.take(&mut packet, &meta, now);
        packet.recycle(&mut memory.pool);
        matches!(taken, ActiveDecision::Wait(Some(Question { association: None, digest: asked })) if asked == digest)
    };
    let second = |number: u64| CoarseInstant::from_millis(10_000 + number * 1_000);
    let mut asked = [0; 2];
    for number in 0..100 {
        asked[0] += u32::from(ask(&mut associations, number, second(0)));
    }
    for number in 100..200 {
        asked[1] += u32::from(ask(&mut associations, number, second(1)));
    }
    assert_eq!(asked, [QUESTIONS_UNAUTHENTICATED_MAX; 2]);
    assert_eq!(associations.report.not_asked, 2 * (100 - u64::from(QUESTIONS_UNAUTHENTICATED_MAX)));
    // A question is not repeated while its answer may arrive.
    assert!(!ask(&mut associations, 163, second(2)));
    assert_eq!(associations.report.not_asked, 2 * (100 - u64::from(QUESTIONS_UNAUTHENTICATED_MAX)));
}

#[test]
fn one_association_that_has_too_much_waiting_takes_no_room_of_another() {
    let (mut associations, _, _, mut sealer) = associated();
    let (umem, pool) = Umem::new(4096).unwrap();
    let mut memory = Memory { umem: Rc::new(umem), pool };
    let now = CoarseInstant::ZERO;
    let mut give = |associations: &mut Associations, datagram: &[u8]| {
        let (mut packet, meta, _) = memory.packet(&carried(datagram, false).build());
        assert!(matches!(associations.take(&mut packet, &meta, now), ActiveDecision::Wait(_)));
        associations.keep(packet, meta, now, &mut memory.pool);
    };
    for _ in 0..WAITING_EACH_MAX + 5 {
        give(&mut associations, &sealed(&mut sealer, Protection::Encrypted, b"waits"));
    }
    assert_eq!(associations.report.waiting_full, 5);
    for _ in 0..WAITING_EACH_MAX + 1 {
        give(&mut associations, &from_anyone(DIGEST));
    }
    assert_eq!((associations.report.waiting_full, associations.report.waiting), (6, 256));
    associations.end_all(&mut memory.pool);
    assert_eq!((associations.report.gone, associations.report.waiting), (256, 0));
    assert_eq!(memory.pool.free(), memory.pool.total());
}
