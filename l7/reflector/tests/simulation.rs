//! Simulation of a minute of a radio station: 1,000 listeners, 100 leave and 100 come each second,
//! some are slow, some take nothing, while the origin is killed, restarted and slowed.
//!
//! Checked after every step: a listener that reads has every byte since it joined; one that does
//! not affects no other; memory is constant. Checked at the end: nothing is left.

mod common;

use common::{Media, head};
use http1::Framing;
use reflector::limits::{ICY_INTERVAL, LISTENER_STALL_MAX, UNFRAMED_LENGTH_MAX};
use reflector::{Channel, Config, Connection, Effect, Ending, Failure, ListenerId, Piece, Wants};
use std::collections::BTreeMap;
use testbase::Chance;
use units::{Bytes, Nanos};

const STEP_MILLIS: u64 = 50;
const MEDIA: Media = Media::Mp3;
/// Small ring, so that slow listeners skip: 8 s.
const RING: u64 = 128 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    /// Takes all bytes at once.
    Reads,
    /// Takes fewer bytes than come.
    Slow,
    /// Takes nothing.
    Stalled,
}

/// Parser that separates title blocks from payload, by byte counts only.
#[derive(Debug)]
struct Blocks {
    until: u32,
    left: usize,
    count: usize,
}

impl Blocks {
    /// Returns the payload in a piece; a piece never has both kinds.
    fn payload<'p>(&mut self, piece: &'p [u8]) -> &'p [u8] {
        if self.until > 0 {
            assert!(piece.len() <= self.until as usize, "a block is due");
            self.until -= piece.len() as u32;
            return piece;
        }
        if self.left == 0 {
            self.left = 1 + usize::from(piece[0]) * 16;
            self.count += usize::from(piece[0] > 0);
        }
        assert!(piece.len() <= self.left);
        self.left -= piece.len();
        if self.left == 0 {
            self.until = ICY_INTERVAL;
        }
        &[]
    }
}

#[derive(Debug)]
struct Player {
    habit: Habit,
    titles: Option<Blocks>,
    has_head: bool,
    joined: Nanos,
    /// Position within all bytes of the stream, known once the listener has a frame's header.
    at: Option<usize>,
    /// First bytes received; all of them, for a slow listener.
    first: Vec<u8>,
    taken: u64,
}

struct Station {
    numbers: Chance,
    now: Nanos,
    channel: Channel,
    players: BTreeMap<ListenerId, Player>,
    next_id: u64,
    /// Bytes received by the listener that was there from the beginning.
    given: Vec<u8>,
    /// Position of each frame's start in these bytes.
    places: BTreeMap<u64, usize>,
    indexed: usize,
    connection: Option<Connection>,
    is_answered: bool,
    frame: u64,
    source: Vec<u8>,
    until_title: usize,
    ended: BTreeMap<Ending, u64>,
    taken: u64,
    payload_max: Bytes,
}

/// Listener that stays from the beginning to the end.
const WITNESS: ListenerId = ListenerId(0);
const METAINT: usize = 8_192;

impl Station {
    fn new(seed: u64, listeners: u64) -> Self {
        let ask = common::ask(Wants::Media);
        let mut station = Self {
            numbers: Chance(seed),
            now: Nanos::from_millis(1),
            channel: Channel::new(Config { ring_audio: Bytes(RING), ..Config::default() }, &ask),
            players: BTreeMap::new(),
            next_id: 0,
            given: Vec::new(),
            places: BTreeMap::new(),
            indexed: 0,
            connection: None,
            is_answered: false,
            frame: 0,
            source: Vec::new(),
            until_title: METAINT,
            ended: BTreeMap::new(),
            taken: 0,
            payload_max: Bytes::ZERO,
        };
        station.join(Habit::Reads, false);
        for _ in 1..listeners {
            station.join_any();
        }
        station
    }

    fn join_any(&mut self) {
        let habit = match self.numbers.below(100) {
            0..85 => Habit::Reads,
            85..95 => Habit::Slow,
            _ => Habit::Stalled,
        };
        let titles = self.numbers.below(2) == 0;
        self.join(habit, titles);
    }

    fn join(&mut self, habit: Habit, titles: bool) {
        let id = ListenerId(self.next_id);
        self.next_id += 1;
        let wants = if titles { Wants::Titles } else { Wants::Media };
        let titles = titles.then_some(Blocks { until: ICY_INTERVAL, left: 0, count: 0 });
        let player = Player {
            habit,
            titles,
            has_head: false,
            joined: self.now,
            at: None,
            first: Vec::new(),
            taken: 0,
        };
        self.channel.handle_join(self.now, id, wants).unwrap();
        self.players.insert(id, player);
        self.poll();
    }

    fn leave_any(&mut self) {
        let ids: Vec<ListenerId> =
            self.players.keys().copied().filter(|id| *id != WITNESS).collect();
        let id = ids[self.numbers.below(ids.len() as u64) as usize];
        self.leave(id);
    }

    fn leave(&mut self, id: ListenerId) {
        self.channel.handle_leave(id);
        let player = self.players.remove(&id).unwrap();
        if player.habit == Habit::Slow && player.titles.is_none() {
            let (numbers, rest) = MEDIA.numbers(&player.first);
            assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]) && rest < 418);
        }
        self.poll();
    }

    fn poll(&mut self) {
        while let Some(effect) = self.channel.poll_effect() {
            match effect {
                Effect::Open { connection, .. } => {
                    assert_eq!(self.connection.replace(connection), None);
                    self.is_answered = false;
                }
                Effect::Close { connection } => {
                    assert_eq!(self.connection.take(), Some(connection));
                }
                Effect::Head { to, head, .. } => {
                    let player = self.players.get_mut(&to).unwrap();
                    assert_eq!(head.headers.contains(b"icy-metaint"), player.titles.is_some());
                    player.has_head = true;
                }
                Effect::Ready { to } => assert!(self.players[&to].has_head),
                Effect::End { to, ending } => {
                    *self.ended.entry(ending).or_default() += 1;
                    let player = self.players.remove(&to).unwrap();
                    if ending == Ending::Stalled {
                        assert_eq!(player.habit, Habit::Stalled);
                        assert!(self.now >= player.joined + LISTENER_STALL_MAX);
                    }
                }
                Effect::Pass { why, .. } | Effect::Alone { why, .. } => panic!("{why}"),
            }
        }
    }

    fn pass(&mut self) {
        self.now += Nanos::from_millis(STEP_MILLIS);
        while self.channel.poll_timeout().is_some_and(|at| at <= self.now) {
            self.channel.handle_timeout(self.now);
            self.poll();
        }
    }

    /// Lets the origin, if it is up, respond and send what is due.
    fn origin(&mut self, bytes: usize, is_there: bool) {
        let Some(connection) = self.connection else { return };
        if !is_there {
            self.connection = None;
            let failure = if self.is_answered { Failure::Reset } else { Failure::Connect };
            self.channel.handle_upstream_failed(self.now, connection, failure);
            return self.poll();
        }
        if !self.is_answered {
            self.is_answered = true;
            let fields = [("Content-Type", MEDIA.content_type()), ("icy-metaint", "8192")];
            let head = head(200, &fields);
            self.channel.handle_upstream_head(self.now, connection, &head, Framing::UntilClose);
            // A restarted origin begins anywhere in a frame.
            self.source = MEDIA.frame(self.frame).split_off(99);
            self.frame += 1;
            self.until_title = METAINT;
        }
        while self.source.len() < bytes {
            self.source.extend(MEDIA.frame(self.frame));
            self.frame += 1;
        }
        let mut wire = Vec::new();
        for byte in self.source.drain(..bytes) {
            wire.push(byte);
            self.until_title -= 1;
            if self.until_title == 0 {
                self.until_title = METAINT;
                let title = format!("StreamTitle='{:010}';", self.frame / 400);
                wire.push(2);
                wire.extend(format!("{title:\0<32}").bytes());
            }
        }
        self.channel.handle_upstream_bytes(self.now, connection, &wire);
        self.poll();
    }

    fn listen(&mut self) {
        let ids: Vec<ListenerId> = self.players.keys().copied().collect();
        for id in ids {
            let Some(player) = self.players.get_mut(&id) else { continue };
            let limit = match player.habit {
                Habit::Reads => usize::MAX,
                Habit::Slow => 100,
                Habit::Stalled => 0,
            };
            let mut taken = 0;
            for piece in self.channel.pieces(id, limit) {
                taken += piece.len();
                if id == WITNESS {
                    self.given.extend_from_slice(&piece);
                } else if player.habit == Habit::Reads {
                    check_received(player, &piece, &self.given, &self.places);
                } else if player.titles.is_none() {
                    player.first.extend_from_slice(&piece);
                }
            }
            player.taken += taken as u64;
            self.taken += taken as u64;
            self.channel.handle_taken(self.now, id, taken);
            self.poll();
            if id == WITNESS {
                self.index();
            }
        }
        for (id, player) in &self.players {
            let has_all = player.at.is_none_or(|at| at == self.given.len());
            assert!(player.habit != Habit::Reads || *id == WITNESS || has_all, "{id:?}");
        }
        let memory = self.channel.memory();
        self.payload_max = self.payload_max.max(memory.payload);
        assert!(memory.listeners.0 <= self.players.len() as u64 * 1_024, "{memory:?}");
    }

    /// Records the starts of frames in the bytes sent.
    fn index(&mut self) {
        let (numbers, rest) = MEDIA.numbers(&self.given[self.indexed..]);
        assert_eq!(rest, 0);
        for number in numbers {
            assert!(self.places.last_key_value().is_none_or(|(last, _)| *last < number));
            self.places.insert(number, self.indexed);
            self.indexed += MEDIA.frame(number).len();
        }
    }
}

/// Asserts that a listener's bytes equal the stream's, from where it began.
fn check_received(
    player: &mut Player,
    piece: &Piece<'_>,
    given: &[u8],
    places: &BTreeMap<u64, usize>,
) {
    let mut payload: &[u8] = piece;
    if let Some(blocks) = &mut player.titles {
        payload = blocks.payload(piece);
    }
    let Some(at) = player.at else {
        player.first.extend_from_slice(payload);
        let length = 417 + player.first.get(2).map_or(0, |third| usize::from(third >> 1 & 1));
        if player.first.len() >= length {
            let first = std::mem::take(&mut player.first);
            let (numbers, _) = MEDIA.numbers(&first[..length]);
            let at = places[&numbers[0]];
            assert!(given[at..].starts_with(&first), "not what was given");
            player.at = Some(at + first.len());
        }
        return;
    };
    assert!(given[at..].starts_with(payload), "not what was given");
    player.at = Some(at + payload.len());
}

fn minute(seed: u64, listeners: u64, churn_per_step: u64) -> Station {
    let mut station = Station::new(seed, listeners);
    for step in 0..60_000 / STEP_MILLIS {
        let millis = step * STEP_MILLIS;
        station.pass();
        let is_there = !matches!(millis, 10_000..12_000 | 40_000..41_000 | 50_000..50_050);
        // 128 kbit/s: 800 bytes in 50 ms; reduced to a quarter, with the backlog sent at once
        // later.
        let bytes = match millis {
            25_000..30_000 => 200,
            30_000 => 60_000,
            _ => 700 + station.numbers.below(201) as usize,
        };
        station.origin(bytes, is_there);
        station.listen();
        for _ in 0..churn_per_step {
            station.leave_any();
            station.join_any();
        }
    }
    station
}

#[test]
fn a_thousand_listeners_outlive_their_origin_and_each_other() {
    let mut station = minute(1, 1_000, 5);
    let counters = station.channel.counters();
    assert_eq!(counters.reconnects, 3);
    assert_eq!(counters.listeners_total, station.next_id);
    assert!(counters.listeners_total > 6_900 && counters.listeners_peak <= 1_000);
    assert!(counters.joins_from_ring > 5_900);
    assert_eq!(counters.bytes_out, Bytes(station.taken));
    assert!(counters.titles > 3);
    assert_eq!(station.ended.get(&Ending::Stalled).copied().unwrap_or(0), counters.dropped);
    assert!(counters.dropped > 0 && station.ended.len() == 1);
    assert!(counters.skips > 100, "{counters:?}");
    assert!(station.payload_max <= Bytes(RING + 2 * UNFRAMED_LENGTH_MAX as u64 + 8_192));
    // 1,000 listeners, bytes of one connection.
    assert!(counters.bytes_out.0 > 500 * counters.bytes_in.0);
    let ids: Vec<ListenerId> = station.players.keys().copied().collect();
    for id in ids {
        station.leave(id);
    }
    assert!(station.channel.is_over() && station.connection.is_none());
    assert_eq!(station.channel.counters().listeners_now, 0);
    assert_eq!(station.channel.poll_timeout(), None);
    let memory = station.channel.memory();
    assert_eq!((memory.payload, memory.index, memory.listeners), (Bytes(0), Bytes(0), Bytes(0)));
}

#[test]
fn the_same_seed_is_the_same_minute() {
    let (one, other) = (minute(7, 50, 1), minute(7, 50, 1));
    assert_eq!(one.channel.counters(), other.channel.counters());
    assert_eq!(one.given, other.given);
    assert_ne!(one.channel.counters(), minute(8, 50, 1).channel.counters());
}
