//! A radio station of 128 kbit/s, and one who listens to every byte of it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use base64ct::{Base64, Encoding as _};
use os::netns::{self, NetNs};

use super::icecast::PASSWORD;
use crate::streams::LOAD_CPU;

/// Bytes of a frame of MPEG-1 layer III, 128 kbit/s at 44.1 kHz, without padding.
const FRAME: usize = 417;
/// Samples of one, and a second's.
const SAMPLES: f64 = 1152.0;
const SAMPLES_PER_S: f64 = 44_100.0;
/// Bytes per second.
pub(super) const RATE: f64 = FRAME as f64 * SAMPLES_PER_S / SAMPLES;
/// The header of such a frame, and where its number is.
const HEADER: [u8; 4] = [0xff, 0xfb, 0x90, 0x00];
const NUMBER_AT: usize = 36;
/// Between two looks whether somebody asks: less than a frame.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Who asks has asked by then, and is given what is played.
const ASK_TIME_MAX: Duration = Duration::from_secs(5);
/// Of a head.
const HEAD_MAX: usize = 4096;
/// Silence by which a stream counts as over.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Plays until it is dropped.
pub(super) struct Station {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Station {
    /// One that plays to whoever connects.
    pub(super) fn asked(namespace: &NetNs, at: SocketAddr) -> Result<Self> {
        let listener = netns::in_namespace(namespace, || TcpListener::bind(at))?
            .context("opening a station")?;
        listener.set_nonblocking(true)?;
        Ok(Self::play(move |playing| {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let head = b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\n\r\n";
            if is_ready(&stream).and_then(|()| Ok(stream.write_all(head)?)).is_ok() {
                playing.push(stream);
            }
        }))
    }

    /// One that sends what it plays to a server of the name.
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
        let mut stream = Some(stream);
        Ok(Self::play(move |playing| playing.extend(stream.take())))
    }

    fn play(mut admit: impl FnMut(&mut Vec<TcpStream>) + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            // Where it does not, it plays elsewhere.
            let _ = os::cores::only(LOAD_CPU);
            let (begun, mut number, mut playing) = (Instant::now(), 0u32, Vec::new());
            while !is_over.load(Ordering::Relaxed) {
                admit(&mut playing);
                let due = begun.elapsed().as_secs_f64() * SAMPLES_PER_S / SAMPLES;
                while f64::from(number) < due {
                    let frame = frame(number);
                    // Who has gone hears nothing more.
                    playing.retain_mut(|stream| stream.write_all(&frame).is_ok());
                    number = number.wrapping_add(1);
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
        });
        Self { over, thread: Some(thread) }
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // One that has panicked plays no more.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Nothing waits for ever, and nothing is gathered.
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

/// A head, and what came of the body with it.
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

/// One who listens from the first to the last minute, so that the stream is there for others, and
/// to every byte.
pub(super) struct Attentive {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<u32>>,
}

impl Attentive {
    pub(super) fn start(namespace: &NetNs, at: SocketAddr, path: &str) -> Result<Self> {
        let connect = || TcpStream::connect_timeout(&at, ASK_TIME_MAX);
        let mut stream = netns::in_namespace(namespace, connect)?
            .with_context(|| format!("listening at {at}"))?;
        is_ready(&stream)?;
        // Without chunks, which HTTP/1.0 does not have.
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
                match stream.read(&mut buffer).context("nothing comes any more")? {
                    0 => bail!("the stream ended after {} frames", frames.count),
                    length => frames.hear(&buffer[..length])?,
                }
            }
            Ok(frames.count)
        });
        Ok(Self { over, thread })
    }

    /// How many frames it has heard: all that were played meanwhile, one after another.
    pub(super) fn end(self) -> Result<u32> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("a listener's thread ended"))?
    }
}

/// Whole frames, one after another.
#[derive(Debug, Default)]
struct Frames {
    /// Of the next one.
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
    fn a_station_plays_whole_frames_to_who_asks_until_it_goes() {
        let here = NetNs::current().unwrap();
        let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let station = Station::asked(&here, at).unwrap();
        let attentive = Attentive::start(&here, at, "/").unwrap();
        assert!(attentive.end().unwrap() > 0);
        drop(station);
        assert!(TcpStream::connect(at).is_err());
        assert!((RATE * 8.0 - 128_000.0).abs() < 500.0, "{RATE}");
    }
}
