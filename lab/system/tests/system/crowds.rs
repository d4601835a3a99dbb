//! Crowds at stream services: a thousand listeners whose origin dies and is slow, and clients that
//! come and leave at any moment.

use crate::common::{Line, SOON};
use crate::crowd::{Crowd, End, Hearing, Listener, descriptors};
use crate::kills::Dice;
use crate::nginx::Nginx;
use crate::radio::{Death, Framing, Programme, REAL_TIME, Station};
use crate::streams::{PORT, deploys, deploys_reflector};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::{root_or_skip, service_module, wait_for};

const PATH: &str = "/live/one.mp3";
/// Time for a crowd to get what one listener gets at once.
const CROWD_TIME_MAX: Duration = Duration::from_secs(20);
/// Tolerated difference in the cell's sockets: it keeps unconnected ones ready, some more or fewer
/// of either kind.
const READY_SPREAD: usize = 160;
/// Tolerated growth of the cell in bytes, which the allocator keeps of freed memory: heads and
/// buffers of some listeners, and far less than a thousand of them had.
const MEMORY_SPREAD: u64 = 4 << 20;

/// Resources that a node holds for connections.
#[derive(Debug)]
struct Held {
    /// Open connections of a service, by its own counter and in the kernel.
    open: u64,
    sockets: usize,
    descriptors: usize,
    memory: u64,
}

fn held(line: &Line, service: &str) -> Held {
    let cell = line.node.cell().unwrap();
    let descriptors = std::fs::read_dir(format!("/proc/{cell}/fd")).unwrap().count();
    let rollup = std::fs::read_to_string(format!("/proc/{cell}/smaps_rollup")).unwrap();
    let anonymous = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    let memory = anonymous.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10;
    Held { open: open(line, service), sockets: sockets(line), descriptors, memory }
}

fn open(line: &Line, service: &str) -> u64 {
    line.node.service(service).unwrap().stats.streams.unwrap().open
}

/// Returns the TCP connections in the router, without those in TIME_WAIT.
fn sockets(line: &Line) -> usize {
    let all = line.run("r1", &["ss", "-Htan"]);
    let is_over = |line: &&str| line.starts_with("LISTEN") || line.starts_with("TIME-WAIT");
    all.lines().filter(|line| !is_over(line)).count()
}

/// Waits until a node holds no more than before.
fn assert_held_as(line: &Line, before: &Held, service: &str) {
    let as_before = || {
        let now = held(line, service);
        let same = (now.open, now.sockets) == (before.open, before.sockets)
            && now.descriptors.abs_diff(before.descriptors) <= READY_SPREAD
            && now.memory <= before.memory + MEMORY_SPREAD;
        same.then_some(now)
    };
    let after = wait_for(CROWD_TIME_MAX, as_before);
    eprintln!("held before {before:?}, after {after:?}");
    assert!(after.is_some(), "{:?} after {before:?}", held(line, service));
}

#[test]
fn a_thousand_listeners_at_a_node_outlive_their_origin_and_each_other() {
    const LISTENERS: usize = 1_000;
    /// Numbers of listeners that pause for most of the time, and that come after the first death.
    const PAUSE: usize = 10;
    const LATE: usize = 50;
    if !root_or_skip("a thousand listeners") {
        return;
    }
    descriptors(LISTENERS as u64);
    let line = Line::up();
    line.resolve_neighbours();
    deploys_reflector(&line);
    let programme = Programme::numbered();
    let station = Station::opens(&line, PORT, programme, REAL_TIME, Framing::Chunked);
    let before = held(&line, "streams");
    let mut crowd = Crowd::new(&line, line.server(PORT), PATH);
    crowd.join(LISTENERS);
    let up_to = |crowd: &mut Crowd<'_>, number: u32, among: std::ops::Range<usize>| {
        let waits =
            crowd.hear_until(CROWD_TIME_MAX, among, |listener| listener.hearing.next >= number);
        assert_eq!(waits, 0, "have not heard frame {number}");
    };
    up_to(&mut crowd, station.number() + 40, 0..LISTENERS);
    assert_eq!((station.connections(), open(&line, "streams")), (1, LISTENERS as u64));
    (0..PAUSE).for_each(|number| crowd.pauses(number));

    // The station is killed in the middle of a body, which is then incomplete, and returns after a
    // while.
    station.dies(Death::Killed);
    crowd.hear(Duration::from_millis(1_500));
    station.reopens(&line, Framing::UntilClose);
    up_to(&mut crowd, station.number(), PAUSE..LISTENERS);
    crowd.join(LATE);
    let joined = station.number();
    up_to(&mut crowd, joined, PAUSE..LISTENERS + LATE);
    assert_eq!(station.connections(), 2);

    // At a tenth of the rate, at zero, and as before: no listener misses a frame.
    for per_second in [REAL_TIME / 10.0, 0.0, REAL_TIME] {
        station.plays_at(per_second);
        crowd.hear(Duration::from_secs(1));
    }
    up_to(&mut crowd, station.number(), PAUSE..LISTENERS + LATE);
    assert_eq!(station.connections(), 2);

    // Cut off, and there again at once.
    station.dies(Death::Reset);
    station.reopens(&line, Framing::UntilClose);
    // Frames that only the next connection has.
    up_to(&mut crowd, station.number() + 10, PAUSE..LISTENERS + LATE);
    assert_eq!(station.connections(), 3);

    // Listeners that paused receive everything now.
    (0..PAUSE).for_each(|number| crowd.listens(number));
    up_to(&mut crowd, station.number(), 0..LISTENERS + LATE);
    assert_eq!(open(&line, "streams"), (LISTENERS + LATE) as u64);

    // A body that is over with its connection is whole.
    station.dies(Death::Killed);
    let all = 0..LISTENERS + LATE;
    let stay = crowd.hear_until(CROWD_TIME_MAX, all, |listener| listener.end.is_some());
    assert_eq!(stay, 0, "listen to nobody");
    let (first, late) = (&crowd.listeners[0].hearing, &crowd.listeners[LISTENERS].hearing);
    assert_eq!(first.skips.len(), 2, "what nobody sent: {first:?}");
    for (number, listener) in crowd.listeners.iter().enumerate() {
        let Listener { hearing, end, .. } = listener;
        assert_eq!(*end, Some(End::Complete), "{number}");
        assert!(hearing.is_whole() && hearing.next == first.next, "{number}: {hearing:?}");
        let begun = hearing.first.unwrap();
        let missed = first.skips.iter().filter(|(from, _)| *from > begun);
        assert!(hearing.skips.iter().eq(missed), "{number}: all miss the same: {hearing:?}");
    }
    assert!(late.first.unwrap() < joined, "they begin with what there was");
    drop(crowd);
    assert_held_as(&line, &before, "streams");
    let stats = crate::streams::stats(&line);
    assert_eq!(stats.accepted, (LISTENERS + LATE) as u64, "{stats:?}");
}

#[test]
fn a_paused_listener_skips_whole_frames_and_others_miss_none() {
    const LISTENERS: usize = 10;
    if !root_or_skip("listeners who pause") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    deploys_reflector(&line);
    let programme = Programme::numbered();
    let station = Station::opens(&line, PORT, programme, REAL_TIME, Framing::UntilClose);
    let mut crowd = Crowd::new(&line, line.server(PORT), PATH);
    crowd.join(LISTENERS);
    let has_heard = |listener: &Listener| listener.hearing.count() > 10;
    assert_eq!(crowd.hear_until(SOON, 0..LISTENERS, has_heard), 0);
    crowd.pauses(0);
    // More than twice what is kept for it, in 3 s.
    let end = station.number() + 6_000;
    station.plays_at(2_000.0);
    let is_there = |listener: &Listener| listener.hearing.next >= end;
    assert_eq!(crowd.hear_until(CROWD_TIME_MAX, 1..LISTENERS, is_there), 0);
    station.plays_at(REAL_TIME);
    crowd.listens(0);
    assert_eq!(crowd.hear_until(CROWD_TIME_MAX, 0..1, is_there), 0);
    let hearing = |number: usize| &crowd.listeners[number].hearing;
    assert!(!hearing(0).skips.is_empty(), "{:?}", hearing(0));
    let skip = (1..LISTENERS).find(|number| !hearing(*number).skips.is_empty());
    assert_eq!(skip.map(hearing).map(|hearing| &hearing.skips), None);
}

/// New clients per second.
const VISITS_PER_S: u32 = 100;
/// Duration of the arrivals, and with `TAM_SOAK`.
const CHURN: Duration = Duration::from_secs(4);
const CHURN_SOAK: Duration = Duration::from_secs(60);
const SEED: u64 = 0x7a6d_616e_6475_6102;
/// Listeners that stay.
const STEADY: usize = 5;
/// Time for the whole response to a short request, on a busy machine.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// L4 port of the page server, and the page.
const PAGES: u16 = PORT + 1;
fn page() -> Vec<u8> {
    (0..10_000).flat_map(|at| format!("line {at} of a page\n").into_bytes()).collect()
}

/// Visit of a client that leaves early or late.
struct Visit {
    stream: TcpStream,
    does: Does,
    /// Time at which the client leaves, unless it has this many bytes before.
    until: Instant,
    bytes_max: usize,
    bytes: usize,
    by_reset: bool,
}

enum Does {
    /// Client that listens to the stream.
    Hears(Hearing),
    /// Client that requested a page, with the response so far.
    Reads(Vec<u8>),
    /// Client that has not sent its whole request.
    Asks,
}

/// Ends of visits by kind.
#[derive(Debug, Default)]
struct Ends {
    heard: u32,
    nothing: u32,
    whole: u32,
    left: u32,
}

#[test]
fn clients_who_come_and_leave_at_any_moment_leave_nothing_and_disturb_nobody() {
    if !root_or_skip("clients who come and leave") {
        return;
    }
    let length = if std::env::var_os("TAM_SOAK").is_some() { CHURN_SOAK } else { CHURN };
    let seed = std::env::var("TAM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED);
    eprintln!("{length:?}, TAM_SEED={seed}");
    descriptors(u64::from(VISITS_PER_S) * 10);
    let line = Line::up();
    line.resolve_neighbours();
    deploys_reflector(&line);
    let compress = service_module("compress").unwrap();
    deploys(&line, "compress", PAGES, &compress, &[("capabilities", "code-responses")]);
    let nginx = Nginx::start(&line, PAGES);
    nginx.serves("page.txt", &page());
    let programme = Programme::numbered();
    let station = Station::opens(&line, PORT, programme, REAL_TIME, Framing::UntilClose);
    let mut crowd = Crowd::new(&line, line.server(PORT), PATH);
    crowd.join(STEADY);
    let mut dice = Dice(seed | 1);
    // One visit before, since objects of the first visit stay.
    let warm = visits(&line, &mut dice, Duration::from_secs(1));
    settled(&line);
    let before = held(&line, "streams");
    let over = AtomicBool::new(false);
    let (ends, last) = std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            let _ends = crate::common::Ends(&over);
            visits(&line, &mut dice, length)
        });
        while !over.load(Ordering::Relaxed) {
            crowd.hear(Duration::from_millis(50));
        }
        (churn.join().unwrap(), station.number())
    });
    eprintln!("{warm:?}, {ends:?}");
    let count = length.as_secs() as u32 * VISITS_PER_S;
    assert_eq!(ends.heard + ends.nothing + ends.whole + ends.left, count, "{ends:?}");
    assert!(ends.heard > count / 8 && ends.whole > count / 8, "{ends:?}");
    let all = |listener: &Listener| listener.hearing.next >= last;
    assert_eq!(crowd.hear_until(CROWD_TIME_MAX, 0..STEADY, all), 0);
    for Listener { hearing, end, .. } in &crowd.listeners {
        assert!(hearing.skips.is_empty() && end.is_none(), "{end:?}, {hearing:?}");
    }
    assert_eq!(station.connections(), 1, "one for all who listen");
    settled(&line);
    assert_held_as(&line, &before, "streams");
}

/// Waits until only the staying listeners have connections.
fn settled(line: &Line) {
    // And one to the station.
    let is_so = || {
        let open = [open(line, "streams"), open(line, "compress")];
        (open == [STEADY as u64, 0] && sockets(line) == STEADY + 1).then_some(())
    };
    let over = wait_for(CROWD_TIME_MAX, is_so);
    let open = [open(line, "streams"), open(line, "compress")];
    assert!(over.is_some(), "{open:?} are open:\n{}", line.run("r1", &["ss", "-tanp"]));
}

/// Lets clients come for `length`; returns when all have left.
fn visits(line: &Line, dice: &mut Dice, length: Duration) -> Ends {
    let sites = [PORT, PAGES].map(|port| line.server(port));
    let page = page();
    let come = || {
        let (begun, mut ends) = (Instant::now(), Ends::default());
        let (mut visits, mut came) = (Vec::new(), 0);
        let count = length.as_secs() as u32 * VISITS_PER_S;
        while came < count || !visits.is_empty() {
            let due = begun.elapsed().as_secs_f64() * f64::from(VISITS_PER_S);
            while came < count && f64::from(came) < due {
                visits.push(Visit::begin(dice, sites));
                came += 1;
            }
            let ready = readable(&visits);
            let looked = visits.drain(..).zip(ready).filter_map(|(mut visit, is_ready)| {
                let is_over = is_ready && visit.read();
                let leaves = visit.bytes >= visit.bytes_max || Instant::now() >= visit.until;
                if is_over || leaves {
                    visit.end(is_over, &page, &mut ends);
                    return None;
                }
                Some(visit)
            });
            visits = looked.collect();
        }
        ends
    };
    line.net.within("client", come).unwrap()
}

/// Returns for each visit whether bytes are available.
fn readable(visits: &[Visit]) -> Vec<bool> {
    let mut sockets: Vec<PollFd<'_>> =
        visits.iter().map(|visit| PollFd::new(&visit.stream, PollFlags::IN)).collect();
    let tick = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
    poll(&mut sockets, Some(&tick)).unwrap();
    sockets.iter().map(|socket| !socket.revents().is_empty()).collect()
}

impl Visit {
    fn begin(dice: &mut Dice, [radio, pages]: [SocketAddr; 2]) -> Self {
        let listens = dice.below(2) == 0;
        let (at, path) = if listens { (radio, PATH) } else { (pages, "/page.txt") };
        let request = format!("GET {path} HTTP/1.0\r\nHost: {at}\r\nAccept-Encoding: gzip\r\n\r\n");
        // One of four does not ask to the end; of the others one of three leaves in the middle.
        let asks = dice.below(4) == 0;
        let sent = if asks { dice.below(request.len() as u64) as usize } else { request.len() };
        let leaves_early = !asks && dice.below(3) == 0;
        let bytes_max = if leaves_early { 1 + dice.below(8_000) as usize } else { usize::MAX };
        let stays = Duration::from_millis(dice.below(if asks { 300 } else { 2_000 }));
        let is_patient = !asks && !listens && !leaves_early;
        let stays = if is_patient { ANSWER_TIME_MAX } else { stays };
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(&request.as_bytes()[..sent]).unwrap();
        stream.set_nonblocking(true).unwrap();
        let does = match (asks, listens) {
            (true, _) => Does::Asks,
            (false, true) => Does::Hears(Hearing::default()),
            (false, false) => Does::Reads(Vec::new()),
        };
        let by_reset = dice.below(2) == 0;
        Self { stream, does, until: Instant::now() + stays, bytes_max, bytes: 0, by_reset }
    }

    /// Reads the available bytes; returns true at the end of the stream.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 16 << 10];
        let length = match self.stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => panic!("a client: {error}"),
        };
        self.bytes += length;
        match &mut self.does {
            Does::Hears(hearing) => hearing.hear(&buffer[..length]),
            Does::Reads(answer) => answer.extend_from_slice(&buffer[..length]),
            Does::Asks => panic!("an answer to half a request"),
        }
        false
    }

    /// Ends the visit, and checks the received bytes.
    fn end(self, is_over: bool, page: &[u8], ends: &mut Ends) {
        match self.does {
            Does::Hears(hearing) => {
                assert!(!is_over, "the station plays on: {hearing:?}");
                assert!(hearing.skips.is_empty(), "{hearing:?}");
                let count = if hearing.count() > 0 { &mut ends.heard } else { &mut ends.nothing };
                *count += 1;
            }
            Does::Reads(answer) if is_over => {
                assert!(page_of(&answer) == page, "{} bytes of an answer", answer.len());
                ends.whole += 1;
            }
            Does::Reads(answer) => {
                let waits = self.bytes_max == usize::MAX;
                assert!(!waits, "{} bytes of an answer in {ANSWER_TIME_MAX:?}", answer.len());
                ends.left += 1;
            }
            Does::Asks => ends.left += 1,
        }
        if self.by_reset {
            rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
        }
    }
}

/// Returns the decoded body of a gzip response.
fn page_of(answer: &[u8]) -> Vec<u8> {
    let at = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&answer[..at]).to_ascii_lowercase();
    assert!(head.contains(" 200 ") && head.contains("content-encoding: gzip"), "{head}");
    let mut page = Vec::new();
    flate2::read::GzDecoder::new(&answer[at + 4..]).read_to_end(&mut page).unwrap();
    page
}
