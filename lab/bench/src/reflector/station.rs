//! Radio station of 128 kbit/s, and a listener that checks every byte of it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use base64ct::{Base64, Encoding as _};
use namespaces::netns::{self, NetNs};

use super::icecast::PASSWORD;
use crate::streams::LOAD_CPU;
use crate::streams::worker::Worker;

/// Bytes of a frame of MPEG-1 layer III, 128 kbit/s at 44.1 kHz, without padding.
const FRAME: usize = 417;
/// Samples of a frame, and of a second.
const SAMPLES: f64 = 1152.0;
const SAMPLES_PER_S: f64 = 44_100.0;
/// Bytes per second.
pub(crate) const RATE: f64 = FRAME as f64 * SAMPLES_PER_S / SAMPLES;
/// Header of a frame, and the offset of its number.
const HEADER: [u8; 4] = [0xff, 0xfb, 0x90, 0x00];
const NUMBER_AT: usize = 36;
/// Buffer for a slow listener, as the node's, and the most bytes of one send.
const BEHIND_MAX: u64 = 1 << 20;
const PART_MAX: u64 = 16 << 10;
/// Polling interval for new connections: less than a frame.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time within which a request must arrive and the response begin.
const ASK_TIME_MAX: Duration = Duration::from_secs(5);
/// Longest head, in bytes.
const HEAD_MAX: usize = 4096;
/// Time without data after which a stream counts as ended.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Station that plays until it is dropped.
pub(crate) struct Station {
    listeners: Arc<AtomicUsize>,
    _player: Worker,
}

impl Station {
    /// Starts a station that plays to each client that connects, `together` frames at a time.
    pub(crate) fn asked(namespace: &NetNs, at: SocketAddr, together: u64) -> Result<Self> {
        let listener = netns::in_namespace(namespace, || TcpListener::bind(at))?
            .context("opening a station")?;
        listener.set_nonblocking(true)?;
        Ok(Self::play(Some(listener), Vec::new(), together))
    }

    /// Starts a station that sends its stream to a server under this path.
    pub(super) fn sends(namespace: &NetNs, at: SocketAddr, path: &str) -> Result<Self> {
        let connect = || TcpStream::connect_timeout(&at, ASK_TIME_MAX);
        let mut stream = netns::in_namespace(namespace, connect)?.context("calling Icecast")?;
        is_ready(&stream)?;
        let token = Base64::encode_string(format!("source:{PASSWORD}").as_bytes());
        let head = format!(
            "SOURCE {path} HTTP/1.0\r\nAuthorization: Basic {token}\r\n\
             Content-Type: audio/mpeg\r\nIce-Name: bench\r\nIce-Bitrate: 128\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        let answer = read_head(&mut stream).context("what Icecast answers to a station")?;
        ensure!(answer.0.contains(" 200 "), "Icecast does not take a station: {}", answer.0);
        stream.set_nonblocking(true)?;
        Ok(Self::play(None, vec![Playing { stream, at: 0 }], 1))
    }

    fn play(listener: Option<TcpListener>, playing: Vec<Playing>, together: u64) -> Self {
        let listeners = Arc::new(AtomicUsize::new(playing.len()));
        let counted = Arc::clone(&listeners);
        let mut player = Player { begun: Instant::now(), listener, playing, together };
        let player = Worker::start(LOAD_CPU, move || {
            player.turn();
            counted.store(player.playing.len(), Ordering::Relaxed);
            std::thread::sleep(POLL_INTERVAL);
            Ok(())
        });
        Self { listeners, _player: player }
    }

    /// Returns the number of connections that it plays to now.
    pub(crate) fn listeners(&self) -> usize {
        self.listeners.load(Ordering::Relaxed)
    }
}

struct Player {
    begun: Instant,
    listener: Option<TcpListener>,
    playing: Vec<Playing>,
    /// Frames sent together.
    together: u64,
}

/// Client that receives the stream.
struct Playing {
    stream: TcpStream,
    /// Position of the next byte in the stream.
    at: u64,
}

impl Player {
    fn turn(&mut self) {
        let due = self.begun.elapsed().as_secs_f64() * SAMPLES_PER_S / SAMPLES;
        let played = due.ceil() as u64 * FRAME as u64;
        while let Some(Ok((stream, _))) = self.listener.as_ref().map(TcpListener::accept) {
            let mut playing = Playing { stream, at: played };
            if playing.begins().is_ok() {
                self.playing.push(playing);
            }
        }
        let together = self.together * FRAME as u64;
        self.playing.retain_mut(|playing| playing.send_due(played, together));
    }
}

impl Playing {
    fn begins(&mut self) -> Result<()> {
        is_ready(&self.stream)?;
        self.stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\n\r\n")?;
        Ok(self.stream.set_nonblocking(true)?)
    }

    /// Sends as much of the stream as the socket accepts; returns whether the client is still
    /// there. A client too far behind is dropped.
    fn send_due(&mut self, played: u64, together: u64) -> bool {
        let behind = played.saturating_sub(self.at);
        if behind < together {
            return true;
        }
        while self.at < played {
            let part = part(self.at, played);
            match self.stream.write(&part) {
                Ok(length) if length > 0 => self.at += length as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return played - self.at <= BEHIND_MAX;
                }
                // The client has gone.
                _ => return false,
            }
        }
        true
    }
}

/// Returns the bytes of the stream from one position to another, or the first of them.
fn part(from: u64, to: u64) -> Vec<u8> {
    let length = (to - from).min(PART_MAX) as usize;
    let frames = from / FRAME as u64..to.div_ceil(FRAME as u64);
    let bytes = frames.flat_map(|number| frame(number as u32));
    bytes.skip((from % FRAME as u64) as usize).take(length).collect()
}

/// Makes the socket blocking with timeouts of [`ASK_TIME_MAX`], and disables Nagle's algorithm.
fn is_ready(stream: &TcpStream) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(ASK_TIME_MAX))?;
    Ok(stream.set_read_timeout(Some(ASK_TIME_MAX))?)
}

fn frame(number: u32) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[..HEADER.len()].copy_from_slice(&HEADER);
    frame[NUMBER_AT..NUMBER_AT + 4].copy_from_slice(&number.to_be_bytes());
    frame
}

/// Reads a head, and the part of the body that arrived with it.
fn read_head(stream: &mut TcpStream) -> Result<(String, Vec<u8>)> {
    let (mut read, mut buffer) = (Vec::new(), [0; 1024]);
    loop {
        let ends = read.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(at) = ends {
            let body = read.split_off(at + 4);
            return Ok((String::from_utf8_lossy(&read).into_owned(), body));
        }
        ensure!(read.len() < HEAD_MAX, "a head of more than {HEAD_MAX} bytes");
        match stream.read(&mut buffer)? {
            0 => bail!("the connection ended: {}", String::from_utf8_lossy(&read)),
            length => read.extend_from_slice(&buffer[..length]),
        }
    }
}

/// Listener that stays for the whole run, so that the channel stays open for others, which
/// checks every byte.
pub(crate) struct Attentive {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<u32>>,
}

impl Attentive {
    pub(crate) fn start(namespace: &NetNs, at: SocketAddr, path: &str) -> Result<Self> {
        let connect = || TcpStream::connect_timeout(&at, ASK_TIME_MAX);
        let mut stream = netns::in_namespace(namespace, connect)?
            .with_context(|| format!("listening at {at}"))?;
        is_ready(&stream)?;
        // HTTP/1.0, which has no chunks.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {at}\r\nUser-Agent: attentive\r\n\r\n")?;
        let (head, body) = read_head(&mut stream).context("what a listener is answered")?;
        ensure!(head.contains(" 200 "), "no stream at {at}{path}: {head}");
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut frames = Frames::default();
            frames.hear(&body)?;
            let mut buffer = [0; 16_384];
            // At least one frame, or it has heard nothing.
            while frames.count == 0 || !is_over.load(Ordering::Relaxed) {
                let read = match stream.read(&mut buffer) {
                    // The process was stopped and continues.
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    read => read.context("nothing comes any more")?,
                };
                match read {
                    0 => bail!("the stream ended after {} frames", frames.count),
                    length => frames.hear(&buffer[..length])?,
                }
            }
            Ok(frames.count)
        });
        Ok(Self { over, thread })
    }

    /// Ends; returns the number of frames received, which were consecutive.
    pub(crate) fn end(self) -> Result<u32> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("a listener's thread ended"))?
    }
}

/// Check that the stream consists of whole, consecutive frames.
#[derive(Debug, Default)]
struct Frames {
    /// Bytes of the next frame so far.
    begun: Vec<u8>,
    next: Option<u32>,
    count: u32,
}

impl Frames {
    fn hear(&mut self, bytes: &[u8]) -> Result<()> {
        self.begun.extend_from_slice(bytes);
        if self.next.is_none() {
            // A server that knows nothing of frames begins in the middle of one.
            match self.begun.windows(HEADER.len()).position(|four| four == HEADER) {
                Some(at) => drop(self.begun.drain(..at)),
                None if self.begun.len() < FRAME + HEADER.len() => return Ok(()),
                None => bail!("no frame begins in {} bytes", self.begun.len()),
            }
        }
        let whole = self.begun.len() / FRAME * FRAME;
        let heard: Vec<u8> = self.begun.drain(..whole).collect();
        for frame in heard.chunks_exact(FRAME) {
            ensure!(frame.starts_with(&HEADER), "after {} frames comes no frame", self.count);
            let number = frame
                .get(NUMBER_AT..)
                .and_then(|rest| rest.first_chunk())
                .map_or(0, |number| u32::from_be_bytes(*number));
            if let Some(next) = self.next {
                ensure!(number == next, "frame {number} comes in place of {next}");
            }
            (self.next, self.count) = (Some(number.wrapping_add(1)), self.count + 1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_is_heard_wherever_bytes_are_cut() {
        let played: Vec<u8> = (7..12).flat_map(frame).collect();
        for cut in [1, 100, FRAME, 1000, played.len()] {
            let mut frames = Frames::default();
            // It begins in the middle of one.
            for part in played[10..].chunks(cut) {
                frames.hear(part).unwrap();
            }
            assert_eq!((frames.count, frames.next), (4, Some(12)), "{cut}");
        }
        let mut frames = Frames::default();
        frames.hear(&frame(3)).unwrap();
        let missing = frames.hear(&frame(5)).unwrap_err().to_string();
        assert!(missing.contains("frame 5 comes in place of 4"), "{missing}");
        let mut frames = Frames::default();
        frames.hear(&frame(3)).unwrap();
        let broken = frames.hear(&[0; FRAME]).unwrap_err().to_string();
        assert!(broken.contains("comes no frame"), "{broken}");
        assert!(Frames::default().hear(&[0; 2 * FRAME]).is_err());
    }

    #[test]
    fn a_station_plays_the_same_bytes_from_any_offset() {
        let all: Vec<u8> = (0..60).flat_map(frame).collect();
        let to = all.len() as u64;
        for from in [0, 1, 416, 417, 418, 20_000, to - 1] {
            let part = part(from, to);
            assert_eq!(part.len() as u64, (to - from).min(PART_MAX), "{from}");
            assert!(all[from as usize..].starts_with(&part), "{from}");
        }
        assert!(part(7, 7).is_empty());
    }

    #[test]
    fn a_station_plays_whole_frames_to_each_client_until_it_is_dropped() {
        let here = NetNs::current().unwrap();
        let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let station = Station::asked(&here, at, 1).unwrap();
        let attentive = Attentive::start(&here, at, "/").unwrap();
        assert!(attentive.end().unwrap() > 0);
        testbase::wait_for(ASK_TIME_MAX, || (station.listeners() == 0).then_some(())).unwrap();
        drop(station);
        assert!(TcpStream::connect(at).is_err());
        assert!((RATE * 8.0 - 128_000.0).abs() < 500.0, "{RATE}");
    }
}
