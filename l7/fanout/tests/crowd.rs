//! Test with as many listeners as a small station has. It runs in a process of its own, as it
//! counts file descriptors.

#[path = "fanout/media.rs"]
mod media;
#[path = "fanout/world.rs"]
mod world;

use fanout::Settings;
use media::{frames, in_a_row, numbers};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use world::{CHUNKED, Server, World, chunk};

/// Raises the limit of file descriptors to the maximum: two per listener exceed the default.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Returns the number of open file descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_listeners_come_and_go_and_nothing_is_left() {
    allow_descriptors();
    let before = descriptors();
    {
        let mut world = World::new(Settings::default());
        let origin = Server::new();
        let mut clients = vec![world.ask(&origin.get("/live", "HTTP/1.1", ""))];
        let mut served = origin.accept(&mut world);
        served.send(&mut world, CHUNKED.as_bytes());
        let (mut number, mut joined, mut received) = (0, 1_u64, 0);
        for round in 0..40_u64 {
            served.send(&mut world, &chunk(&frames(number..number + 8)));
            number += 8;
            if round < 20 {
                for at in 0..50 {
                    let version = if at % 2 == 0 { "HTTP/1.1" } else { "HTTP/1.0" };
                    clients.push(world.ask(&origin.get("/live", version, "")));
                    joined += 1;
                }
            } else {
                // Some leave, others come.
                for at in 0..20 {
                    let client = &mut clients[(round * 31 + at * 37) as usize % 900];
                    let next = world.ask(&origin.get("/live", "HTTP/1.1", ""));
                    let mut gone = std::mem::replace(client, next);
                    received += gone.response().map_or(0, |it| numbers(&it.body).0.len());
                    joined += 1;
                }
            }
            world.pass(200);
            for client in &mut clients {
                client.read();
            }
        }
        let stats = world.stats();
        let each = stats.memory.listeners.0 / stats.listeners;
        assert!(each <= 512, "{each} bytes for a listener");
        assert!(stats.memory.payload.0 <= 1024 * 1024 + 64 * 1024, "one copy");
        served.send(&mut world, b"0\r\n\r\n");
        assert_eq!(clients.len(), 1_001);
        for client in &mut clients {
            let response = world.until("all of it", |_| client.whole());
            assert_eq!(in_a_row(&response.body).end, number);
        }
        assert!(received > 0);
        let stats = world.stats();
        assert_eq!((stats.joined, stats.left, stats.origins_opened), (joined, joined, 1));
        assert_eq!((stats.skips, stats.stalled, stats.refused), (0, 0, 0));
        assert!(stats.bytes_out.0 > 900 * frames(0..number).len() as u64 / 2);
        drop(clients);
        world.until("nobody", |world| (world.open() == 0).then_some(()));
        let memory = world.stats().memory;
        assert_eq!((memory.payload.0, memory.index.0, memory.listeners.0), (0, 0, 0));
        assert_eq!(world.poll_timeout(), None);
        world.pass(100);
        drop(served);
    }
    assert!(descriptors() <= before, "{before} descriptors before, {} now", descriptors());
}
