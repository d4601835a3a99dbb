//! Radio station, and checks of the part that a listener has received.
//!
//! Each frame contains its number, and every byte of it is known: a listener can tell which frames
//! it has, whether they are whole, and which are missing between two.

use crate::common::{Line, SOON};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a frame of MPEG-1 layer III, 128 kbit/s at 44.1 kHz, without padding.
pub const FRAME: usize = 417;
/// Header of such a frame; the next constant is the offset of its number.
const HEADER: [u8; 4] = [0xff, 0xfb, 0x90, 0x00];
const NUMBER_AT: usize = 36;
/// Frames per second.
pub const REAL_TIME: f64 = 44_100.0 / 1152.0;
/// Interval of the station's loop: less than a frame.
const TICK: Duration = Duration::from_millis(5);
/// Longest head of a request, in bytes.
const HEAD_MAX: usize = 4096;
/// Bytes between two titles.
const TITLES_EVERY: usize = 8192;

/// Returns the frame of this number. The bytes after the number follow from it, and contain no
/// header of another frame.
pub fn mp3_frame(number: u32) -> Vec<u8> {
    let mut frame = vec![(number % 251) as u8; FRAME];
    frame[..NUMBER_AT].fill(0);
    frame[..4].copy_from_slice(&HEADER);
    frame[NUMBER_AT..NUMBER_AT + 4].copy_from_slice(&number.to_be_bytes());
    frame
}

/// Returns the number of a whole frame, after a check of every byte.
pub fn number_of(frame: &[u8]) -> u32 {
    let number = u32::from_be_bytes(frame[NUMBER_AT..NUMBER_AT + 4].try_into().unwrap());
    assert!(frame == mp3_frame(number), "no frame was played like this: {frame:?}");
    number
}

/// Returns the numbers of the frames in received bytes, which begin with a whole one.
pub fn frames(heard: &[u8]) -> Vec<u32> {
    heard.chunks_exact(FRAME).map(number_of).collect()
}

/// Contents of a station: a frame for each number, and the title that it belongs to.
pub struct Programme {
    pub frame: Box<dyn FnMut(u32) -> Vec<u8> + Send>,
    pub title: Option<fn(u32) -> String>,
}

impl Programme {
    /// Returns contents of distinguishable frames.
    pub fn numbered() -> Self {
        Self { frame: Box::new(mp3_frame), title: None }
    }
}

/// Way in which the connections of a station end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// End like that of a killed process: sent bytes arrive.
    Killed,
    /// Reset: unread bytes are lost.
    Reset,
}

/// Framing of the body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Body until the connection ends.
    UntilClose,
    /// Body in chunks: one without the last chunk is incomplete.
    Chunked,
}

/// Station that plays until it is dropped, with or without listeners.
pub struct Station {
    at: SocketAddr,
    air: Arc<Mutex<Air>>,
    thread: Option<JoinHandle<()>>,
}

/// State that changes while it plays.
struct Air {
    programme: Programme,
    listener: Option<TcpListener>,
    framing: Framing,
    playing: Vec<Player>,
    per_second: f64,
    /// Number of the next frame.
    number: u32,
    connections: u32,
    is_over: bool,
}

/// Client of the station itself.
struct Player {
    stream: TcpStream,
    framing: Framing,
    /// Bytes until the next title, if it gets titles, and the last one.
    until_title: Option<usize>,
    title: String,
}

impl Station {
    /// Opens a station at the server that plays at this rate of frames.
    pub fn opens(
        line: &Line,
        port: u16,
        programme: Programme,
        per_second: f64,
        framing: Framing,
    ) -> Self {
        let air = Air {
            programme,
            listener: None,
            framing,
            playing: Vec::new(),
            per_second,
            number: 0,
            connections: 0,
            is_over: false,
        };
        let air = Arc::new(Mutex::new(air));
        let mut station = Self { at: line.server(port), air: Arc::clone(&air), thread: None };
        station.reopens(line, framing);
        station.thread = Some(std::thread::spawn(move || play(&air)));
        station
    }

    fn air(&self) -> MutexGuard<'_, Air> {
        self.air.lock().unwrap()
    }

    /// Returns how many clients have connected directly.
    pub fn connections(&self) -> u32 {
        self.air().connections
    }

    /// Returns the number of the next frame.
    pub fn number(&self) -> u32 {
        self.air().number
    }

    /// Sets the rate, in frames per second.
    pub fn plays_at(&self, per_second: f64) {
        self.air().per_second = per_second;
    }

    /// Closes listener and connections; the station's contents continue.
    pub fn dies(&self, death: Death) {
        let mut air = self.air();
        air.listener = None;
        for player in air.playing.drain(..) {
            if death == Death::Reset {
                rustix::net::sockopt::set_socket_linger(&player.stream, Some(Duration::ZERO))
                    .unwrap();
            }
        }
    }

    /// Reopens at the same address.
    pub fn reopens(&self, line: &Line, framing: Framing) {
        let listener = line.net.within("server", || TcpListener::bind(self.at)).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut air = self.air();
        (air.listener, air.framing) = (Some(listener), framing);
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        if let Ok(mut air) = self.air.lock() {
            air.is_over = true;
        }
        // A station that has panicked plays no more.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn play(air: &Mutex<Air>) {
    let (mut last, mut due) = (Instant::now(), 0.0);
    loop {
        let mut air = air.lock().unwrap();
        if air.is_over {
            return;
        }
        due += last.elapsed().as_secs_f64() * air.per_second;
        last = Instant::now();
        air.admit();
        while due >= 1.0 {
            air.play_one();
            due -= 1.0;
        }
        drop(air);
        std::thread::sleep(TICK);
    }
}

impl Air {
    fn admit(&mut self) {
        let Some(Ok((stream, _))) = self.listener.as_ref().map(TcpListener::accept) else { return };
        self.connections += 1;
        let has_titles = self.programme.title.is_some();
        // A client that leaves before the response is no listener.
        self.playing.extend(Player::admit(stream, self.framing, has_titles).ok());
    }

    fn play_one(&mut self) {
        let frame = (self.programme.frame)(self.number);
        let title = self.programme.title.map(|title| title(self.number)).unwrap_or_default();
        self.number += 1;
        // Clients that have gone are removed.
        self.playing.retain_mut(|player| player.play(&frame, &title).is_ok());
    }
}

impl Player {
    fn admit(mut stream: TcpStream, framing: Framing, has_titles: bool) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SOON))?;
        stream.set_write_timeout(Some(SOON))?;
        let (mut head, mut buffer) = (Vec::new(), [0; HEAD_MAX]);
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut buffer)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                length => head.extend_from_slice(&buffer[..length]),
            }
        }
        let asks = String::from_utf8_lossy(&head).to_ascii_lowercase().contains("icy-metadata: 1");
        let mut answer = String::from("HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\n");
        if framing == Framing::Chunked {
            answer += "Transfer-Encoding: chunked\r\n";
        }
        let until_title = (has_titles && asks).then_some(TITLES_EVERY);
        if until_title.is_some() {
            answer += &format!("icy-name: The station\r\nicy-metaint: {TITLES_EVERY}\r\n");
        }
        stream.write_all((answer + "\r\n").as_bytes())?;
        Ok(Self { stream, framing, until_title, title: String::new() })
    }

    fn play(&mut self, frame: &[u8], title: &str) -> io::Result<()> {
        let with_titles = self.with_titles(frame, title);
        match self.framing {
            Framing::UntilClose => self.stream.write_all(&with_titles),
            Framing::Chunked => {
                let size = format!("{:x}\r\n", with_titles.len());
                self.stream.write_all(&[size.as_bytes(), &with_titles, b"\r\n"].concat())
            }
        }
    }

    fn with_titles(&mut self, frame: &[u8], title: &str) -> Vec<u8> {
        let Some(until) = &mut self.until_title else { return frame.to_vec() };
        if *until > frame.len() {
            *until -= frame.len();
            return frame.to_vec();
        }
        let (before, behind) = frame.split_at(*until);
        *until = TITLES_EVERY - behind.len();
        let mut block = vec![0];
        if self.title != title {
            title.clone_into(&mut self.title);
            block.extend_from_slice(format!("StreamTitle='{title}';").as_bytes());
            block[0] = (block.len() - 1).div_ceil(16) as u8;
            block.resize(1 + usize::from(block[0]) * 16, 0);
        }
        [before, &block, behind].concat()
    }
}
