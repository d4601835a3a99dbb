//! Device that plays a film and changes its format meanwhile (docs/guides/transcode.md).

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use namespaces::netns::{self, NetNs};

/// Bytes of the head before each frame's pixels.
const HEAD_LENGTH: usize = 20;
/// Time for a response; longer than any that works.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);
/// Largest frame in bytes: more than any device of the benchmark shows.
const FRAME_LENGTH_MAX: usize = 1 << 20;

/// Received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) width: usize,
    pub(super) height: usize,
    /// Bytes of its pixels.
    pub(super) length: usize,
}

/// Playing device.
pub(super) struct Device {
    namespace: NetNs,
    at: SocketAddr,
    stream: BufReader<TcpStream>,
    /// Identifier by which the device names its own stream.
    id: String,
}

impl Device {
    /// Requests a film with the device's format, in HTTP/1.0, whose bodies end with the connection.
    pub(super) fn play(namespace: &NetNs, at: SocketAddr, path: &str) -> Result<Self> {
        let mut stream = connect(namespace, at)?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {at}\r\n\r\n").context("asking for a film")?;
        let mut stream = BufReader::with_capacity(1 << 18, stream);
        let head = head(&mut stream)?;
        ensure!(head.starts_with("HTTP/1.1 200 ") || head.starts_with("HTTP/1.0 200 "), "{head}");
        let id = field(&head, "tamandua-stream").with_context(|| format!("no stream in {head}"))?;
        Ok(Self { namespace: NetNs::open(namespace.name())?, at, stream, id: id.to_owned() })
    }

    /// Returns the next frame; `None` when the film has ended.
    pub(super) fn frame(&mut self) -> Result<Option<Seen>> {
        if self.stream.fill_buf().context("waiting for a frame")?.is_empty() {
            return Ok(None);
        }
        let mut head = [0; HEAD_LENGTH];
        self.stream.read_exact(&mut head).context("reading a frame")?;
        let seen = read(&head).context("what came is no frame")?;
        let taken = std::io::copy(
            &mut self.stream.by_ref().take(seen.length as u64),
            &mut std::io::sink(),
        )?;
        ensure!(taken == seen.length as u64, "a frame ends early");
        Ok(Some(seen))
    }

    /// Requests another format while the film plays.
    pub(super) fn choose(&self, wish: &str) -> Result<()> {
        let Self { namespace, at, id, .. } = self;
        let mut stream = connect(namespace, *at)?;
        write!(
            stream,
            "POST /tamandua/control?tamandua-stream={id}&{wish} HTTP/1.1\r\nHost: {at}\r\n\
             Content-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .context("asking for a change")?;
        let answer = head(&mut BufReader::new(stream))?;
        if !answer.starts_with("HTTP/1.1 200 ") {
            bail!("{wish} was answered: {answer}");
        }
        Ok(())
    }
}

fn connect(namespace: &NetNs, at: SocketAddr) -> Result<TcpStream> {
    let stream = netns::in_namespace(namespace, || TcpStream::connect(at))?
        .with_context(|| format!("connecting to {at}"))?;
    stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads a response's head.
fn head(stream: &mut BufReader<TcpStream>) -> Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let count = stream.read_line(&mut head).context("waiting for an answer")?;
        ensure!(count > 0, "the answer ends early: {head}");
    }
    Ok(head)
}

fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    fields.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, it)| it.trim())
}

/// Parses a frame's head: `TF`, width, height, palette, flags, time, length, change, number of
/// frames skipped.
fn read(head: &[u8; HEAD_LENGTH]) -> Option<Seen> {
    let two = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
    let length = u32::from_be_bytes([head[12], head[13], head[14], head[15]]) as usize;
    let is_one = head.starts_with(b"TF") && length <= FRAME_LENGTH_MAX;
    is_one.then(|| Seen { width: two(2), height: two(4), length })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frames_head_is_read() {
        let mut head =
            *b"TF\x00\xa0\x00\x78\x04\x00\x00\x00\x00\x28\x00\x00\x25\x80\x00\x01\x00\x00";
        let seen = Seen { width: 160, height: 120, length: 9_600 };
        assert_eq!(read(&head), Some(seen));
        head[12] = 1;
        assert_eq!(read(&head), None, "too long");
        assert_eq!(read(&[0; HEAD_LENGTH]), None);
        assert_eq!(
            field("HTTP/1.1 200 OK\r\nA: b\r\nTamandua-Stream: ab\r\n", "tamandua-stream"),
            Some("ab")
        );
        assert_eq!(field("HTTP/1.1 200 OK\r\n", "a"), None);
    }
}
