//! Property test: clients and origins act in any order, and nothing is left of them.

use crate::media::frames;
use crate::world::{CHUNKED, Client, LIVE, Served, Server, World, chunk};
use fanout::{FanoutMemory, Settings};
use proptest::prelude::*;
use proptest::sample::Index;
use reflector::Config;
use rustix::net::sockopt;
use std::time::Duration;
use units::Bytes;

#[derive(Clone, Debug)]
enum Act {
    Ask { target: u8, version: bool, titles: bool, slow: bool },
    Post,
    Read(Index),
    Say(Index),
    Close { target: Index, by_reset: bool },
    Answer(Index, usize),
    Send { whom: Index, count: u64, cut: usize },
    End { target: Index, by_reset: bool },
    Stop,
    Start,
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let index = any::<Index>;
    prop_oneof![
        6 => (0..3_u8, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            |(target, version, titles, slow)| Act::Ask { target, version, titles, slow }
        ),
        1 => Just(Act::Post),
        3 => index().prop_map(Act::Read),
        1 => index().prop_map(Act::Say),
        3 => (index(), any::<bool>()).prop_map(|(target, by_reset)| Act::Close { target, by_reset }),
        5 => (index(), 0..ANSWERS.len()).prop_map(|(whom, with)| Act::Answer(whom, with)),
        8 => (index(), 0..60_u64, 0..500_usize)
            .prop_map(|(whom, count, cut)| Act::Send { whom, count, cut }),
        2 => (index(), any::<bool>()).prop_map(|(target, by_reset)| Act::End { target, by_reset }),
        1 => Just(Act::Stop),
        1 => Just(Act::Start),
        5 => (0..3_000_u64).prop_map(Act::Pass),
        1 => (0..40_000_u64).prop_map(Act::Pass),
    ]
}

const ANSWERS: [&str; 9] = [
    LIVE,
    LIVE,
    CHUNKED,
    "ICY 200 OK\r\nicy-metaint: 700\r\nContent-Type: audio/mpeg\r\n\r\n",
    "HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 9\r\n\r\n",
    "HTTP/1.1 404 Not Found\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nContent-Length: 90000\r\n\r\n",
    "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: video/mp2t\r\n\r\n",
    "220 smtp.example ESMTP\r\n",
];

fn close(stream: &impl std::os::fd::AsFd, by_reset: bool) {
    if by_reset {
        sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
    }
}

struct Scene {
    world: World,
    server: Server,
    is_up: bool,
    clients: Vec<Client>,
    served: Vec<(Served, bool)>,
    number: u64,
}

impl Scene {
    fn new() -> Self {
        let channel = Config {
            ring_audio: Bytes(64 * 1024),
            ring_video: Bytes(64 * 1024),
            ..Config::default()
        };
        let settings =
            Settings { channel, channels_max: 3, listeners_max: 6, ..Settings::default() };
        Self {
            world: World::new(settings),
            server: Server::new(),
            is_up: true,
            clients: Vec::new(),
            served: Vec::new(),
            number: 0,
        }
    }

    fn act(&mut self, act: Act) {
        let Self { world, server, is_up, clients, served, number } = self;
        match act {
            Act::Ask { target, version, titles, slow } => {
                let version = if version { "HTTP/1.1" } else { "HTTP/1.0" };
                let fields = if titles { "Icy-MetaData: 1\r\n" } else { "" };
                let request = server.get(&format!("/{target}"), version, fields);
                let client = if slow { world.ask_slowly(&request) } else { world.ask(&request) };
                clients.push(client);
            }
            Act::Post => {
                let request = server.get("/0", "HTTP/1.1", "Content-Length: 2\r\n");
                clients.push(world.ask(&request.replace("GET", "POST")));
            }
            Act::Read(target) if !clients.is_empty() => {
                let at = target.index(clients.len());
                clients[at].read();
            }
            Act::Say(target) if !clients.is_empty() => {
                let at = target.index(clients.len());
                clients[at].say(&[b'x'; 3_000]);
            }
            Act::Close { target, by_reset } if !clients.is_empty() => {
                let client = clients.swap_remove(target.index(clients.len()));
                close(&client.stream, by_reset);
            }
            Act::Answer(whom, with) if !served.is_empty() => {
                let at = whom.index(served.len());
                let (served, is_chunked) = &mut served[at];
                *is_chunked = ANSWERS[with] == CHUNKED;
                served.try_send(ANSWERS[with].as_bytes());
            }
            Act::Send { whom, count, cut } if !served.is_empty() => {
                let at = whom.index(served.len());
                let (served, is_chunked) = &mut served[at];
                let mut bytes = frames(*number..*number + count);
                *number += count;
                bytes.drain(..cut.min(bytes.len()));
                served.try_send(&if *is_chunked { chunk(&bytes) } else { bytes });
            }
            Act::End { target, by_reset } if !served.is_empty() => {
                let (served, _) = served.swap_remove(target.index(served.len()));
                close(&served, by_reset);
            }
            Act::Stop => {
                server.stop();
                *is_up = false;
            }
            Act::Start if !*is_up => {
                server.start();
                *is_up = true;
            }
            Act::Pass(millis) => world.pass(millis),
            _ => {}
        }
        self.world.work();
        while let Some(served) = self.server.accept_now() {
            self.served.push((served, false));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_is_left_after_any_sequence_of_acts(acts in proptest::collection::vec(act(), 1..80)) {
        let mut scene = Scene::new();
        for act in acts {
            scene.act(act);
            let stats = scene.world.stats();
            prop_assert!(stats.channels <= 3 && stats.listeners <= 18);
            prop_assert!(stats.memory.payload.0 <= stats.channels * (64 + 3 * 64 + 8) * 1024);
        }
        // The bytes that listeners have received can be decoded, whatever the origin did.
        for client in &mut scene.clients {
            client.read();
            let is_shared = |head: &[u8]| {
                let fields = b"\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
                head.windows(fields.len()).any(|part| part == fields)
            };
            if is_shared(&client.wire) {
                prop_assert!(client.response().is_some());
            }
        }
        let Scene { mut world, server, clients, served, .. } = scene;
        drop((server, clients, served));
        // An origin is given up after 30 s, a departing end after 10 s.
        world.pass(45_000);
        world.until("nobody", |world| (world.open() == 0).then_some(()));
        let stats = world.stats();
        prop_assert_eq!((stats.channels, stats.listeners, stats.left), (0, 0, stats.joined));
        prop_assert_eq!((stats.payload_max, stats.waiting), (Bytes(0), Bytes(0)));
        let memory = FanoutMemory { others: stats.memory.others, ..FanoutMemory::default() };
        prop_assert_eq!(stats.memory, memory);
        prop_assert_eq!(world.poll_timeout(), None);
    }
}
