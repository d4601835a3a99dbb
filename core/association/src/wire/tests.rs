//! Tests of the wire format: each message parses as it was written, and has no other encoding.

use super::*;

fn id() -> AssociationId {
    AssociationId::new(0xa1b2_c3d4).unwrap()
}

fn initiation() -> Vec<u8> {
    let noise = [vec![9; EPHEMERAL_LENGTH], initiation_payload(id())].concat();
    write_initiation(&[7; COOKIE_LENGTH], &noise)
}

/// Encodings of one message of each type.
fn all() -> Vec<Vec<u8>> {
    vec![
        initiation(),
        write_answer(id(), &[1; 200]),
        write_finish(id(), &[2; 200]),
        write_cookie(id(), &[3; COOKIE_LENGTH], &[4; EPHEMERAL_LENGTH]),
        write_confirm(id(), &[5; MAC_LENGTH]),
        write_end(id(), &[6; MAC_LENGTH]),
    ]
}

#[test]
fn every_message_is_read_as_it_was_written() {
    for datagram in all() {
        assert_eq!(kind(&datagram), Ok(Kind::Handshake));
        let again = match Message::read(&datagram).unwrap() {
            Message::Initiation { cookie, ephemeral, noise } => {
                assert!(noise.starts_with(ephemeral));
                assert_eq!(initiator_of(&noise[EPHEMERAL_LENGTH..]), Some(id()));
                write_initiation(cookie, noise)
            }
            Message::Answer { to, noise } => write_answer(to, noise),
            Message::Finish { to, noise } => write_finish(to, noise),
            Message::Cookie { to, cookie, ephemeral } => write_cookie(to, cookie, ephemeral),
            Message::Confirm { to, mac } => write_confirm(to, mac),
            Message::End { to, mac } => write_end(to, mac),
        };
        assert_eq!(again, datagram);
    }
}

#[test]
fn no_answer_to_an_unproven_address_is_longer_than_its_message() {
    assert_eq!(initiation().len(), INITIATION_LENGTH);
    let cookie = write_cookie(id(), &[3; COOKIE_LENGTH], &[4; EPHEMERAL_LENGTH]);
    assert!(cookie.len() < INITIATION_LENGTH);
}

#[test]
fn cut_off_or_longer_messages_are_refused() {
    for datagram in all() {
        let longer = [&datagram[..], &[0]].concat();
        let is_fixed = !matches!(datagram[0] & 0x0f, 2 | 3);
        for length in 0..datagram.len() {
            let read = Message::read(&datagram[..length]);
            assert!(read.is_err() || !is_fixed, "{length} of {}", datagram.len());
        }
        assert_eq!(Message::read(&longer).is_err(), is_fixed);
    }
    let long = write_answer(id(), &vec![0; MESSAGE_LENGTH_MAX]);
    assert!(matches!(Message::read(&long), Err(WireError::TooLong { .. })));
}

#[test]
fn reserved_bytes_and_unknown_values_are_refused() {
    for datagram in all() {
        let with = |at: usize, byte: u8| {
            let mut changed = datagram.clone();
            changed[at] = byte;
            Message::read(&changed).unwrap_err()
        };
        assert_eq!(with(0, 0x20 | datagram[0] & 0x0f), WireError::Version(2));
        assert_eq!(with(0, 0x1f), WireError::Type(15));
        assert_eq!(with(1, 1), WireError::Flags(1));
        assert_eq!((with(2, 1), with(3, 1)), (WireError::NotZero, WireError::NotZero));
    }
    let mut padded = initiation();
    *padded.last_mut().unwrap() = 1;
    assert_eq!(Message::read(&padded), Err(WireError::NotZero));
    let mut addressed = initiation();
    addressed[7] = 1;
    assert_eq!(Message::read(&addressed), Err(WireError::Association));
    for mut datagram in all().split_off(1) {
        datagram[4..8].fill(0);
        assert_eq!(Message::read(&datagram), Err(WireError::Association));
    }
}
