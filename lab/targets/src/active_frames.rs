//! Any frame as an active packet for a node's associations: the call that is read ends with the
//! frame, and its answer is a valid frame with source and destination exchanged.

use association::Role;
use association::packet::FromAnyone;
use wire::build::FrameBuilder;
use wire::checksum::verify_l4;
use wire::parse_frame;

pub fn take(frame: &[u8]) {
    let Some((payload, answer)) = cell::bounced(frame) else { return };
    let parsed = parse_frame(frame).expect("what calls was parsed");
    assert!(frame[..parsed.ip_end()].ends_with(&payload) || frame.ends_with(&payload));
    let Some(answer) = answer else { return };
    let back = parse_frame(&answer).expect("an answer is a frame");
    assert_eq!((back.source, back.destination), (parsed.destination, parsed.source));
    assert_eq!(back.ip_end(), answer.len());
    assert!(verify_l4(&answer, &back));
    let l4 = usize::from(back.l4_offset.expect("UDP"));
    let mut datagram = answer[l4 + 8..].to_vec();
    let read = FromAnyone::read(&mut datagram).expect("it is an active packet");
    assert_eq!((read.role, &*read.payload), (Role::Answer, &payload[..]));
}

pub fn seeds() -> Vec<Vec<u8>> {
    let head = FromAnyone::head(Role::Call, &[7; 32]);
    let with = |payload: &[u8]| [&head[..], payload].concat();
    let v4 = || FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9).udp(4000, 7443);
    let v6 = FrameBuilder::new().vlan(5).ipv6(
        [0xfd00, 0, 0, 0, 0, 0, 0, 1],
        [0xfd00, 0, 0, 0, 0, 0, 0, 2],
        9,
    );
    vec![
        v4().payload(&with(b"payload")).build(),
        v4().payload(&with(&[9; 1400])).build(),
        v6.udp(4000, 7443).payload(&with(b"x")).build(),
        v4().payload(&head).build(),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_seeds_but_the_one_without_a_payload_are_answered() {
        let answered = |frame: &Vec<u8>| cell::bounced(frame).is_some_and(|(_, it)| it.is_some());
        let all: Vec<bool> = super::seeds().iter().map(answered).collect();
        assert_eq!(all, [true, true, true, false]);
    }
}
