//! Server of the film: all at once, or at the speed that it plays.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use namespaces::netns::{self, NetNs};

use crate::streams::LOAD_CPU;
use crate::streams::process::FFMPEG;

/// Paths of the film at once, and as it plays.
pub(super) const FILM: &str = "/film.mpg";
pub(super) const LIVE: &str = "/live.mpg";
/// Frames per second of the film.
pub(super) const RATE: u32 = 25;
/// Interval at which pieces of the playing film are sent.
const BEAT: Duration = Duration::from_millis(10);
/// Polling interval for new connections.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Returns a film of `seconds`, the same each time.
pub(super) fn film(seconds: u32) -> Result<Vec<u8>> {
    let picture = format!("testsrc2=size=352x288:rate={RATE}:duration={seconds}");
    let output = Command::new(FFMPEG.find()?)
        .args(["-hide_banner", "-nostdin", "-v", "error", "-f", "lavfi", "-i", &picture])
        .args(["-c:v", "mpeg2video", "-b:v", "1500k", "-maxrate", "1500k", "-bufsize", "1000k"])
        .args(["-g", "12", "-bf", "2", "-f", "vob", "pipe:1"])
        .stdin(Stdio::null())
        .output()
        .context("having ffmpeg make a film")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ffmpeg makes no film: {}", said.trim());
    Ok(output.stdout)
}

/// Server that runs until it is dropped.
#[derive(Debug)]
pub(super) struct Cinema {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Cinema {
    pub(super) fn open(
        namespace: &NetNs,
        at: SocketAddr,
        film: &[u8],
        seconds: u32,
    ) -> Result<Self> {
        let listener = netns::in_namespace(namespace, || TcpListener::bind(at))?
            .with_context(|| format!("listening at {at}"))?;
        listener.set_nonblocking(true)?;
        let over = Arc::new(AtomicBool::new(false));
        let film: Arc<[u8]> = film.into();
        let for_all = Arc::clone(&over);
        let thread = std::thread::Builder::new().name("cinema".to_owned()).spawn(move || {
            // Running on another CPU would be as good.
            let _ = sandbox::cores::pin_to(LOAD_CPU);
            while !for_all.load(Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    std::thread::sleep(POLL_INTERVAL);
                    continue;
                };
                let (film, over) = (Arc::clone(&film), Arc::clone(&for_all));
                // A client that leaves early is no error.
                std::thread::spawn(move || drop(show(stream, &film, seconds, &over)));
            }
        });
        Ok(Self { over, thread: Some(thread.context("opening a cinema")?) })
    }
}

impl Drop for Cinema {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

fn show(
    mut stream: TcpStream,
    film: &[u8],
    seconds: u32,
    over: &AtomicBool,
) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => request.extend_from_slice(&buffer[..count]),
        }
    }
    let head = "HTTP/1.1 200 OK\r\nContent-Type: video/mpeg\r\nConnection: close\r\n";
    stream.write_all(head.as_bytes())?;
    if !request.starts_with(format!("GET {LIVE}").as_bytes()) {
        stream.write_all(format!("Content-Length: {}\r\n\r\n", film.len()).as_bytes())?;
        return stream.write_all(film);
    }
    stream.write_all(b"\r\n")?;
    let (begun, mut given) = (Instant::now(), 0);
    let rate = film.len() as f64 / f64::from(seconds);
    while given < film.len() && !over.load(Ordering::Relaxed) {
        let due = ((begun.elapsed().as_secs_f64() * rate) as usize).min(film.len());
        stream.write_all(&film[given..due])?;
        given = due;
        std::thread::sleep(BEAT);
    }
    Ok(())
}
