//! Tests that the node for unit tests follows the ABI where a service can observe it.

use tam::testing::Node;
use tam::{HostError, Packet, Verdict};

/// Returns a frame: Ethernet, VLAN 7, IPv6, fragment header (first fragment), UDP.
fn tagged_ipv6() -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x81, 0, 0, 7, 0x86, 0xdd]);
    frame.extend([0x60, 0, 0, 0, 0, 16, 44, 64]);
    frame.extend([0; 32]);
    frame.extend([17, 0, 0, 1, 0, 0, 0, 1]);
    frame.extend([0x13, 0x89, 0x13, 0x89, 0, 8, 0, 0]);
    frame
}

#[test]
fn the_metadata_names_the_headers() {
    fn look(packet: &mut Packet<'_>) -> Verdict {
        assert_eq!((packet.l3_offset(), packet.l4_offset()), (Some(18), Some(66)));
        assert_eq!((packet.ip_version(), packet.protocol()), (6, 17));
        assert!(packet.is_fragment() && !packet.is_later_fragment());
        assert_eq!((packet.length(), packet.window().len()), (74, 64));
        assert_eq!((packet.arrival_port(), packet.now_ms()), (3, 1 << 40));
        assert_eq!(packet.ipv6().unwrap().hop_limit(), 64);
        assert!(packet.ipv4().is_none());
        packet.set_mark([9; 16]);
        Verdict::PASS
    }
    let mut node = Node::new().with_window(64).arriving_at(3);
    node.set_now_ms(1 << 40);
    assert_eq!(node.packet(look, &tagged_ipv6()).mark, [9; 16]);
}

#[test]
fn what_is_no_ip_has_no_headers() {
    fn look(packet: &mut Packet<'_>) -> Verdict {
        assert_eq!((packet.l3_offset(), packet.l4_offset(), packet.ip_version()), (None, None, 0));
        Verdict::PASS
    }
    for frame in [&[0; 60][..], &[0xff], &tagged_ipv6()[..30]] {
        assert_eq!(Node::new().packet(look, frame).verdict, Verdict::PASS);
    }
}

#[test]
fn the_rest_of_the_packet_is_reached_by_functions() {
    fn touch(packet: &mut Packet<'_>) -> Verdict {
        let mut last = [0; 2];
        assert_eq!(packet.load(99, &mut last), Err(HostError::OutOfRange));
        assert_eq!(packet.load(98, &mut last), Ok(()));
        assert_eq!(packet.store(98, &[last[0] + 1, 8]), Ok(()));
        assert_eq!(packet.store(usize::MAX, &[1]), Err(HostError::OutOfRange));
        Verdict::PASS
    }
    let outcome = Node::new().with_window(0).packet(touch, &[1; 100]);
    assert_eq!(outcome.bytes[97..], [1, 2, 8]);
}

#[test]
fn a_packet_grows_and_shrinks_within_its_room() {
    fn resize(packet: &mut Packet<'_>) -> Verdict {
        assert_eq!(packet.resize_head(4), Ok(()));
        assert_eq!((packet.length(), packet.window().len()), (64, 32));
        assert_eq!(packet.resize_head(125), Err(HostError::OverLimit));
        assert_eq!(packet.resize_tail(129), Err(HostError::OverLimit));
        assert_eq!(packet.resize_tail(-50), Ok(()));
        assert_eq!(packet.resize_tail(-1), Err(HostError::OverLimit));
        assert_eq!(packet.window().len(), 14);
        Verdict::PASS
    }
    assert_eq!(
        Node::new().with_window(32).packet(resize, &[1; 60]).bytes,
        [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    );
}

#[test]
fn functions_work_in_their_hooks_only() {
    fn start() -> Result<(), u16> {
        assert_eq!(tam::parameter("limit"), Some(513_u16));
        assert_eq!(tam::parameter::<u16>("none"), None);
        assert_eq!((tam::port("right"), tam::port("up")), (Some(1), None));
        assert_eq!(tam::send(1, &[0; 60]), Err(HostError::WrongHook));
        Err(7)
    }
    fn packet(_: &mut Packet<'_>) -> Verdict {
        assert_eq!(tam::parameter::<u16>("limit"), None);
        assert_eq!(tam::send(9, &[0; 60]), Err(HostError::NotFound));
        assert_eq!(tam::send(tam::BY_ROUTE, &[0; 60]), Ok(()));
        for _ in 0..3 {
            assert_eq!(tam::send(1, &[5; 60]), Ok(()));
        }
        assert_eq!(tam::send(1, &[5; 60]), Err(HostError::OverLimit));
        assert_eq!(tam::event(3, &[0; 257]), Err(HostError::OverLimit));
        assert_eq!(tam::event(3, b"seen"), Ok(()));
        Verdict::Drop { reason: 2 }
    }
    let mut node = Node::new().with_port("right", 1).with_parameter("limit", &[1, 2]);
    assert_eq!(node.start(start), Err(7));
    let outcome = node.packet(packet, &[0; 60]);
    let by_port = vec![(1, vec![5; 60]); 3];
    assert_eq!(outcome.sent, [vec![(tam::BY_ROUTE, vec![0; 60])], by_port].concat());
    assert_eq!(outcome.events, [(3, b"seen".to_vec())]);
    assert_eq!(outcome.verdict, Verdict::Drop { reason: 2 });
}
