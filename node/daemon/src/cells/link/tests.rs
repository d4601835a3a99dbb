//! Unit tests of a link whose other end is in the same process.

use super::*;
use std::future::poll_fn;
use units::EntryId;

/// Process that is none.
#[derive(Debug)]
struct Nobody;

impl Process for Nobody {
    fn pid(&self) -> u32 {
        9
    }

    fn end(self: Box<Self>) -> io::Result<String> {
        Err(io::ErrorKind::TimedOut.into())
    }
}

fn link(known_at: &Path) -> (CellLink, OwnedFd) {
    let (ours, theirs) = fd_passing::pair().unwrap();
    (CellLink::join(Box::new(Nobody), known_at.to_owned(), ours).unwrap(), theirs)
}

fn say(socket: &OwnedFd, message: &FromCell) {
    fd_passing::send(socket.as_fd(), &encode(message).unwrap(), &[]).unwrap();
}

async fn receive(link: &mut CellLink) -> Result<Option<FromCell>> {
    poll_fn(|context| link.poll_receive(context)).await
}

#[tokio::test(flavor = "current_thread")]
async fn a_cell_and_a_daemon_that_both_talk_before_they_listen_do_not_wait_for_each_other() {
    const MESSAGES: u16 = 400;
    let (mut link, theirs) = link(Path::new("/nowhere/cell.sock"));
    let cell = std::thread::spawn(move || {
        // More data than the send buffer holds: the peer reads nothing until all of it is sent.
        let data = vec![7; 30_000];
        (0..MESSAGES).for_each(|at| say(&theirs, &FromCell::Event(EntryId(at), 0, data.clone())));
        let (mut received, mut buffer) = (0, vec![0; fd_passing::MESSAGE_LENGTH_MAX]);
        while received < MESSAGES {
            match fd_passing::receive(theirs.as_fd(), &mut buffer).unwrap() {
                Received::Message(length, _) => {
                    let message: ToCell = decode(&buffer[..length]).unwrap();
                    let is_it = matches!(message, ToCell::Message(entry, _) if entry.0 == received);
                    assert!(is_it, "{received}: {message:?}");
                    received += 1;
                }
                Received::Nothing => {
                    fd_passing::wait_readable_or_writable(theirs.as_fd(), READ_WITHIN).unwrap();
                }
                Received::Closed => panic!("it is closed"),
            }
        }
    });
    let data = vec![8; 30_000];
    for at in 0..MESSAGES {
        link.send(&ToCell::Message(EntryId(at), data.clone()), &[]).unwrap();
    }
    cell.join().unwrap();
    for at in 0..MESSAGES {
        let received = receive(&mut link).await.unwrap().unwrap();
        assert!(matches!(received, FromCell::Event(entry, ..) if entry.0 == at), "{at}");
    }
    assert!(receive(&mut link).await.unwrap().is_none(), "it has ended");
}

#[tokio::test(flavor = "current_thread")]
async fn messages_sent_by_a_cell_before_its_end_are_received() {
    let (mut link, theirs) = link(Path::new("/nowhere/cell.sock"));
    assert!(link.receive_next().unwrap().is_none());
    (1..4).for_each(|at| say(&theirs, &FromCell::Started(EntryId(at))));
    drop(theirs);
    assert!(link.send(&ToCell::Report, &[]).is_err());
    for at in 1..4 {
        let received = receive(&mut link).await.unwrap();
        assert!(
            matches!(received, Some(FromCell::Started(entry)) if entry.0 == at),
            "{received:?}"
        );
    }
    assert!(receive(&mut link).await.unwrap().is_none());
}

#[tokio::test(flavor = "current_thread")]
async fn a_cell_message_of_another_version_is_an_error() {
    let (mut link, theirs) = link(Path::new("/nowhere/cell.sock"));
    let mut bytes = encode(&FromCell::Started(EntryId(1))).unwrap();
    bytes.push(0);
    fd_passing::send(theirs.as_fd(), &bytes, &[]).unwrap();
    let error = receive(&mut link).await.unwrap_err();
    assert!(format!("{error:#}").contains("1 bytes too many"), "{error:#}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_cell_that_has_ended_is_known_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let known_at = folder.path().join("cell-9.sock");
    std::fs::write(&known_at, "").unwrap();
    let (link, _theirs) = link(&known_at);
    assert_eq!(link.pid(), 9);
    assert_eq!(link.end(), "the cell ended: timed out");
    assert!(!known_at.exists());
}

#[test]
fn a_name_without_a_cell_behind_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let pid = std::process::id();
    let path = cell::socket_in(folder.path(), pid);
    std::fs::write(&path, "").unwrap();
    assert!(find(folder.path(), pid).is_none());
    assert!(!path.exists());
}

#[test]
fn a_cell_is_found_by_the_process_that_listens_at_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let pid = std::process::id();
    let _listener = fd_passing::listen(&cell::socket_in(folder.path(), pid)).unwrap();
    let (process, _socket) = find(folder.path(), pid).unwrap();
    assert_eq!(process.pid(), pid);
    // The same socket under the number of another process.
    let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
    let other = u32::try_from(parent).unwrap();
    std::fs::rename(cell::socket_in(folder.path(), pid), cell::socket_in(folder.path(), other))
        .unwrap();
    assert!(find(folder.path(), other).is_none(), "its process is another one");
}
