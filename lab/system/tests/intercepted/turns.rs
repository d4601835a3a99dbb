//! Packets of the router's own to both ends, counted where they leave.
//!
//! ```text
//!  client ── question ─▶ Turns ── question, ACK of the server's SYN ─▶ server
//!         ◀─ answer, ACK of the question, FIN ──◀── answer, FIN ──────
//! ```

use super::{SOON, lab::Intercepting, lab::PORT, read_all};
use rustix::net::{SendFlags, send};
use std::collections::BTreeMap;
use std::io::{IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;
use tcp_intercept::{Application, Closed, End, Io, Received, State, Talk};
use testkit::{root_or_skip, wait_for};

/// Application that connects when a question is complete, which a `?` ends, and passes on one
/// answer, after which the stream ends.
#[derive(Default)]
struct Turns {
    clients: BTreeMap<End, Client>,
    servers: BTreeMap<End, (End, Vec<u8>)>,
}

struct Client {
    addresses: (SocketAddr, SocketAddr),
    question: Vec<u8>,
}

impl Turns {
    fn hear_client(&mut self, io: &mut Io<'_>, end: End) {
        let Some(client) = self.clients.get_mut(&end) else { return };
        let mut buffer = [0; 100];
        loop {
            match io.receive(end, &mut buffer) {
                Received::Bytes(count) => client.question.extend(&buffer[..count]),
                Received::Ended => {
                    self.clients.remove(&end);
                    return io.close(end, Closed::Ended);
                }
                Received::Nothing => return,
            }
            if !client.question.ends_with(b"?") {
                io.await_more(end);
                continue;
            }
            let (from, to) = client.addresses;
            let server = io.connect(Some(from), to, Talk::ByTurns);
            self.servers.insert(server, (end, std::mem::take(&mut client.question)));
        }
    }

    fn hear_server(&mut self, io: &mut Io<'_>, end: End) {
        let Some((client, question)) = self.servers.get_mut(&end) else { return };
        if io.state(end) != State::Open {
            return;
        }
        let sent = io.send(end, &[IoSlice::new(question)]);
        question.drain(..sent);
        let mut buffer = [0; 100];
        if let Received::Bytes(count) = io.receive(end, &mut buffer) {
            // The kernel takes so little at once.
            assert_eq!(io.send_last(*client, &[IoSlice::new(&buffer[..count])]), count);
            io.finish(*client);
            self.servers.remove(&end);
            io.close(end, Closed::Ended);
        }
    }
}

impl Application for Turns {
    fn talk(&self) -> Talk {
        Talk::ByTurns
    }

    fn accepted(&mut self, _: &mut Io<'_>, end: End, client: SocketAddr, server: SocketAddr) {
        let client = Client { addresses: (client, server), question: Vec::new() };
        self.clients.insert(end, client);
    }

    fn ready(&mut self, io: &mut Io<'_>, end: End) {
        self.hear_client(io, end);
        self.hear_server(io, end);
    }
}

/// Sends the last bytes and the FIN in one packet.
fn say_last(stream: &mut TcpStream, words: &[u8]) {
    assert_eq!(send(&*stream, words, SendFlags::MORE), Ok(words.len()));
    stream.shutdown(Shutdown::Write).unwrap();
}

/// Returns the packets that the router has sent to one of the two: pure acknowledgements, and those
/// that carry bytes and end the stream.
fn sent_to(lab: &Intercepting, peer: &str) -> (u64, u64) {
    (lab.counter(&format!("{peer}-acks")), lab.counter(&format!("{peer}-ends")))
}

/// Rounds, of which one has to take the minimum of packets. A busy machine may keep a process from
/// running for 40 ms, and then the kernel acknowledges by itself.
const ROUNDS: u64 = 50;

#[test]
fn in_request_response_traffic_data_and_acknowledgements_share_segments() {
    if !root_or_skip("packets of intercepted connections") {
        return;
    }
    let lab = Intercepting::up_with(|| Some(Box::new(Turns::default())));
    lab.count_sent();
    let listener = lab.listener(false, PORT);
    // Packets that the router has sent to client and server when the answer is there.
    let ask = |parts: &[&str]| {
        let ended = lab.counts().ended;
        let before = ["client", "server"].map(|peer| sent_to(&lab, peer));
        let mut client = lab.connect(listener.local_addr().unwrap());
        for part in parts {
            let before = sent_to(&lab, "client").0;
            client.write_all(part.as_bytes()).unwrap();
            if !part.ends_with('?') {
                // An open sender gets its bytes acknowledged.
                wait_for(SOON, || (sent_to(&lab, "client").0 > before).then_some(())).unwrap();
            }
        }
        let (mut accepted, _) = listener.accept().unwrap();
        let mut question = [0; 5];
        accepted.read_exact(&mut question).unwrap();
        assert_eq!(&question, b"what?");
        let server = sent_to(&lab, "server").0 - before[1].0;
        say_last(&mut accepted, b"that");
        assert_eq!(read_all(&mut client), b"that");
        let client_got = sent_to(&lab, "client");
        drop(client);
        wait_for(SOON, || (lab.counts().ended > ended).then_some(())).expect("it has ended");
        (client_got.0 - before[0].0, client_got.1 - before[0].1, server)
    };
    // The question acknowledges the server's SYN; the answer the question, and it ends.
    let mut rounds = (0..ROUNDS).map(|_| ask(&["what?"]));
    assert!(rounds.any(|sent| sent == (0, 1, 0)), "nothing is ever said by itself");
    assert!(ask(&["wh", "at?"]).0 > 0);
}

#[test]
fn a_fin_is_sent_with_the_last_bytes() {
    if !root_or_skip("packets of intercepted connections") {
        return;
    }
    let lab = Intercepting::up();
    lab.count_sent();
    let listener = lab.listener(false, PORT);
    let mut end = |_| {
        let ended = lab.counts().ended;
        let mut client = lab.connect(listener.local_addr().unwrap());
        let (mut accepted, _) = listener.accept().unwrap();
        say_last(&mut accepted, b"all there is");
        assert_eq!(read_all(&mut client), b"all there is");
        // The other way goes on meanwhile.
        std::thread::sleep(Duration::from_millis(10));
        say_last(&mut client, b"thanks");
        assert_eq!(read_all(&mut accepted), b"thanks");
        wait_for(SOON, || (lab.counts().ended > ended).then_some(())).expect("it has ended");
        ["client", "server"].map(|peer| sent_to(&lab, peer).1)
    };
    assert!((0..ROUNDS).map(&mut end).any(|ends| ends.into_iter().all(|count| count > 0)));
    assert_eq!(lab.counts().reset, 0);
}
