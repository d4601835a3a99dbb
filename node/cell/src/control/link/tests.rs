//! Unit tests of the cell's end of the link, with a daemon's end that the test controls.

use super::*;

/// Creates a link; returns it with the daemon's end and the directory in which the next daemon
/// finds the cell.
fn linked() -> (Link, OwnedFd, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let (daemon, cell) = fd_passing::pair().unwrap();
    (Link::new(cell, directory.path()).unwrap(), daemon, directory)
}

/// Receives the messages that have arrived at the daemon's end.
pub(crate) fn received(daemon: &OwnedFd) -> Vec<FromCell> {
    let mut buffer = vec![0; fd_passing::MESSAGE_LENGTH_MAX];
    std::iter::from_fn(|| match fd_passing::receive(daemon.as_fd(), &mut buffer).unwrap() {
        Received::Message(length, _) => Some(crate::protocol::decode(&buffer[..length]).unwrap()),
        Received::Nothing | Received::Closed => None,
    })
    .collect()
}

const fn at(millis: u64) -> CoarseInstant {
    CoarseInstant::from_millis(millis)
}

#[test]
fn a_storm_of_notices_is_cut_each_round_and_counted() {
    let (mut link, daemon, _directory) = linked();
    for _ in 0..NOTICES_PER_ROUND_MAX + 3 {
        link.notice(&FromCell::SessionsReported);
    }
    // Replies are not limited like notices.
    link.send(&FromCell::Started(EntryId(1))).unwrap();
    assert_eq!((received(&daemon).len(), link.dropped()), (NOTICES_PER_ROUND_MAX + 1, 3));
    link.handle_round();
    link.notice(&FromCell::SessionsReported);
    assert_eq!((received(&daemon).len(), link.dropped()), (1, 3));
}

#[test]
fn a_message_that_is_too_long_is_lost_and_ends_nothing() {
    let (mut link, daemon, _directory) = linked();
    let long = vec![0; fd_passing::MESSAGE_LENGTH_MAX];
    link.send(&FromCell::Event(EntryId(1), 7, long)).unwrap();
    assert_eq!((received(&daemon).len(), link.dropped()), (0, 1));
    link.send(&FromCell::Started(EntryId(1))).unwrap();
    assert_eq!(received(&daemon).len(), 1);
}

#[test]
fn a_daemon_that_does_not_read_loses_notices_and_nothing_waits() {
    let (link, daemon, _directory) = linked();
    let message = FromCell::Event(EntryId(1), 7, vec![0; 4096]);
    let sent = (0..1 << 16).take_while(|_| link.try_send(&message).unwrap()).count();
    assert!(sent > 0 && sent < 1 << 16, "{sent}");
    assert_eq!(received(&daemon).len(), sent);
    assert!(link.try_send(&message).unwrap());
}

#[test]
fn the_next_daemon_takes_the_place_of_one_that_is_gone() {
    let (mut link, daemon, directory) = linked();
    let mut buffer = vec![0; fd_passing::MESSAGE_LENGTH_MAX];
    assert!(matches!(link.receive(&mut buffer, at(5)), Ok(Some(Received::Nothing))));
    drop(daemon);
    assert!(matches!(link.receive(&mut buffer, at(7)), Ok(None)));
    link.send(&FromCell::Started(EntryId(1))).unwrap();
    assert_eq!(link.dropped(), 1, "nobody is there");
    assert!(!link.is_given_up(at(6) + ALONE_MAX) && link.is_given_up(at(7) + ALONE_MAX));
    let path = crate::socket_in(directory.path(), std::process::id());
    let (next, _) = fd_passing::connect(&path).unwrap();
    fd_passing::send(next.as_fd(), &encode(&ToCell::Report).unwrap(), &[]).unwrap();
    assert!(matches!(link.receive(&mut buffer, at(9)), Ok(Some(Received::Message(..)))));
    link.send(&FromCell::Started(EntryId(1))).unwrap();
    assert_eq!((received(&next).len(), link.dropped()), (1, 1));
}

#[test]
fn a_cell_whose_daemon_is_gone_does_not_begin() {
    let directory = tempfile::tempdir().unwrap();
    let (daemon, cell) = fd_passing::pair().unwrap();
    drop(daemon);
    assert!(Link::new(cell, directory.path()).is_err());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "it is not found");
}

/// Adopts a cell that sends these answers, each with a descriptor or without; returns the number of
/// descriptors, or the text of the error.
fn adopted(answers: &[(FromCell, bool)]) -> Result<usize, String> {
    let (daemon, cell) = fd_passing::pair().unwrap();
    let (one, _other) = fd_passing::pair().unwrap();
    for (answer, with_fd) in answers {
        let fds = if *with_fd { vec![one.as_fd()] } else { Vec::new() };
        fd_passing::send(cell.as_fd(), &encode(answer).unwrap(), &fds).unwrap();
    }
    let taken = adopt(&daemon, vec![EntryId(4)], 0);
    let mut buffer = vec![0; fd_passing::MESSAGE_LENGTH_MAX];
    let Received::Message(length, _) = fd_passing::receive(cell.as_fd(), &mut buffer).unwrap()
    else {
        panic!("the cell was not asked");
    };
    let asked = crate::protocol::decode(&buffer[..length]).unwrap();
    assert!(matches!(asked, ToCell::Adopt(keep) if keep == [EntryId(4)]));
    taken.map(|(_, given)| given.len()).map_err(|error| error.to_string())
}

fn adopted_reply(protocol: u32, given: u32) -> FromCell {
    FromCell::Adopted(Adopted { protocol, services: Vec::new(), given })
}

#[test]
fn an_adopted_cell_returns_all_its_descriptors_after_any_earlier_messages() {
    let before = (FromCell::Started(EntryId(9)), false);
    let there = (adopted_reply(PROTOCOL_VERSION, 2), false);
    let given = [ReturnedFd::Kernel, ReturnedFd::Tap].map(|what| (FromCell::Returned(what), true));
    let [kernel, up] = given;
    assert_eq!(adopted(&[before.clone(), there.clone(), kernel.clone(), before, up]), Ok(2));
    assert_eq!(adopted(&[(adopted_reply(PROTOCOL_VERSION, 0), false)]), Ok(0));
}

#[test]
fn a_cell_with_another_protocol_or_missing_descriptors_is_not_adopted_with_the_reason() {
    let there = |given| (adopted_reply(PROTOCOL_VERSION, given), false);
    let up = |with_fd| (FromCell::Returned(ReturnedFd::Tap), with_fd);
    for (answers, reason) in [
        (vec![(adopted_reply(PROTOCOL_VERSION + 1, 0), false)], "the cell speaks version"),
        (
            vec![(adopted_reply(PROTOCOL_VERSION - 1, 1), false), up(true)],
            "the cell speaks version",
        ),
        (vec![there(GIVEN_MAX as u32 + 1)], "descriptors, and"),
        (vec![there(u32::MAX)], "descriptors, and"),
        (vec![there(1), up(false)], "a descriptor is missing"),
        (vec![there(1), there(1)], "the cell sent an unexpected message"),
        (vec![up(true)], "the cell sent an unexpected message"),
        (vec![there(2), up(true)], "does not answer within 0 ms"),
        (Vec::new(), "does not answer within 0 ms"),
    ] {
        let error = adopted(&answers).unwrap_err();
        assert!(error.contains(reason), "{error}, not {reason}");
    }
}

#[test]
fn a_cell_that_ends_or_speaks_no_language_is_not_taken_over() {
    let (daemon, cell) = fd_passing::pair().unwrap();
    fd_passing::send(cell.as_fd(), &[0xff; 5], &[]).unwrap();
    let error = adopt(&daemon, Vec::new(), 0).map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("a message between daemon and cell cannot be read"), "{error}");
    drop(cell);
    assert!(adopt(&daemon, Vec::new(), 0).is_err(), "it is gone");
}
