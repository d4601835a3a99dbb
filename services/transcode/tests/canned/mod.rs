//! Server that behaves towards a device as a node with `transcode`, without a node and without a
//! video: the module's own code packs generated pictures.
//!
//! ```text
//!  GET /tamandua/viewer         the page
//!  GET /bars.m2v, /scene.m2v    a stream: three bars of red, green and blue, or a landscape
//!  GET /busy.m2v                the response of a node without capacity
//!  POST /tamandua/control       a change
//! ```
//!
//! The caller handles all other requests.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use transcode::answer::{Answer, Reason, Refusal};
use transcode::choice::{Choice, Format, Size};
use transcode::config::Config;
use transcode::frame::{FRAMES_TYPE, MJPEG_TYPE};
use transcode::playing::{CannotChange, Playing};
use transcode::request::{Asked, Place};

/// Red, green and blue, each a third of 96 x 64; made with ffmpeg 5.1 (`hstack` of three `color`).
const BARS: &[u8] = include_bytes!("bars.jpg");

/// Handler of other requests: takes method, path and body; returns type and body of the response.
pub type Others = dyn Fn(&str, &str, &str) -> Option<(&'static str, String)> + Send + Sync;

type Streams = Arc<Mutex<HashMap<String, Arc<Mutex<Stream>>>>>;

/// Stream, with the parameters that its codec would have.
struct Stream {
    playing: Playing,
    /// Choice that the pictures follow, with the number of the node's change.
    codec: (Choice, u16),
}

/// Serves connections until the process ends.
pub fn serve(listener: TcpListener, others: Arc<Others>) {
    let streams = Streams::default();
    for (number, socket) in listener.incoming().flatten().enumerate() {
        let (streams, others) = (Arc::clone(&streams), Arc::clone(&others));
        std::thread::spawn(move || {
            // A browser may close its connection at any time.
            let _ = answer(socket, number, &streams, others.as_ref());
        });
    }
}

/// Handles one request of a connection.
fn answer(socket: TcpStream, number: usize, streams: &Streams, others: &Others) -> Result<()> {
    socket.set_nodelay(true)?;
    let mut reader = BufReader::new(socket.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut length = 0;
    loop {
        let mut field = String::new();
        reader.read_line(&mut field)?;
        let (name, value) = field.trim().split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap_or(0);
        }
        if field.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let body = String::from_utf8_lossy(&body);
    match Config::default().place(method, "any", path) {
        Place::Viewer => send(socket, &Answer::viewer()),
        Place::Control => send(socket, &control(path, streams)),
        _ if path.contains(".m2v") => play(socket, number, path, streams),
        _ => match others(method, path, &body) {
            Some((content_type, text)) => {
                write_head(&socket, 200, &[("content-type", content_type.to_owned())], &text)
            }
            None => send(socket, &Answer::nowhere("/tamandua/")),
        },
    }
}

fn send(socket: TcpStream, answer: &Answer) -> Result<()> {
    write_head(&socket, answer.status, &answer.fields, &answer.body)
}

fn write_head(
    mut to: impl Write,
    status: u16,
    fields: &[(&str, String)],
    body: &str,
) -> Result<()> {
    let mut head = format!("HTTP/1.1 {status} Answer\r\nConnection: close\r\n");
    for (name, value) in fields {
        head += &format!("{name}: {value}\r\n");
    }
    if !fields.iter().any(|(name, _)| *name == "tamandua-stream") {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    to.write_all(format!("{head}\r\n{body}").as_bytes())
}

fn asked(path: &str) -> Asked {
    let no_fields: [(&str, &[u8]); 0] = [];
    Asked::read(path, no_fields).unwrap()
}

fn play(mut socket: TcpStream, number: usize, path: &str, streams: &Streams) -> Result<()> {
    let asked = asked(path);
    let choice = match Choice::default().with(asked.pairs()) {
        Ok(choice) => choice,
        Err(wrong) => return send(socket, &Answer::wrong(&wrong)),
    };
    if path.starts_with("/busy") {
        let sentence = "both cores are taken".to_owned();
        return send(socket, &Answer::refused(&Refusal { reason: Reason::Busy, sentence }));
    }
    let id = format!("{number:032x}");
    let content_type = match choice.format {
        Format::Frames => FRAMES_TYPE,
        Format::Mjpeg => MJPEG_TYPE,
    };
    let fields = [
        ("content-type", content_type.to_owned()),
        ("tamandua-stream", id.clone()),
        ("tamandua-control", "/tamandua/control".to_owned()),
    ];
    write_head(&socket, 200, &fields, "")?;
    let playing = Playing::new(choice.clone());
    let stream = Arc::new(Mutex::new(Stream { playing, codec: (choice, 0) }));
    streams.lock().unwrap().insert(id, Arc::clone(&stream));
    let (begin, mut out) = (Instant::now(), Vec::new());
    loop {
        let time = begin.elapsed();
        let pause = {
            let mut stream = stream.lock().unwrap();
            let (choice, change) = stream.codec.clone();
            let picture = picture(&choice, change, time, path.starts_with("/bars"));
            out.clear();
            stream.playing.show(&picture, &mut out);
            let rate: f64 = choice.rate.to_string().parse().unwrap();
            Duration::from_secs_f64(1.0 / rate)
        };
        socket.write_all(&out)?;
        std::thread::sleep(pause.saturating_sub(begin.elapsed() - time));
    }
}

/// Handles a control request like the module.
fn control(path: &str, streams: &Streams) -> Answer {
    let asked = asked(path);
    let streams = streams.lock().unwrap();
    let Some(stream) = asked.stream.as_ref().and_then(|id| streams.get(id)) else {
        return Answer::no_stream();
    };
    let mut stream = stream.lock().unwrap();
    let choice = match stream.playing.choice().with(asked.pairs()) {
        Ok(choice) => choice,
        Err(wrong) => return Answer::wrong(&wrong),
    };
    match stream.playing.plan(&choice) {
        Ok(argument) => {
            stream.codec = (choice.clone(), stream.codec.1 + u16::from(argument.is_some()));
            let number = stream.playing.change(choice.clone(), argument.is_some());
            Answer::changed(number, &choice)
        }
        Err(CannotChange::Format) => Answer::format_is_fixed(),
        Err(CannotChange::TooMany) => Answer::too_many_changes(),
    }
}

/// Returns a picture in the node's format (docs/reference/stream-functions.md).
fn picture(choice: &Choice, change: u16, time: Duration, is_bars: bool) -> Vec<u8> {
    let Size { width, height } = choice.size;
    let pixel = |x: u16, y: u16| {
        if is_bars { bar(x, y, width) } else { landscape(choice.size, x, y, time.as_secs_f64()) }
    };
    let colours = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let (kind, pixels): (u8, Vec<u8>) = match (choice.format, choice.palette.greys()) {
        (Format::Mjpeg, _) => (3, BARS.to_vec()),
        (Format::Frames, None) => (2, colours.flat_map(|(x, y)| pixel(x, y)).collect()),
        (Format::Frames, Some(_)) => (1, colours.map(|(x, y)| lightness(pixel(x, y))).collect()),
    };
    let mut bytes = Vec::new();
    bytes.extend(width.to_be_bytes());
    bytes.extend(height.to_be_bytes());
    bytes.extend([kind, 0]);
    bytes.extend(change.to_be_bytes());
    bytes.extend((time.as_millis() as u32).to_be_bytes());
    bytes.extend((pixels.len() as u32).to_be_bytes());
    bytes.extend(pixels);
    bytes
}

/// Returns a pixel of three bars; of eight rows the second is black, so that rows can be
/// distinguished.
fn bar(x: u16, y: u16, width: u16) -> [u8; 3] {
    if y % 8 == 1 {
        return [0, 0, 0];
    }
    let third = usize::from(x) * 3 / usize::from(width);
    [[255, 0, 0], [0, 255, 0], [0, 0, 255]][third]
}

fn lightness([red, green, blue]: [u8; 3]) -> u8 {
    let sum = 299 * u32::from(red) + 587 * u32::from(green) + 114 * u32::from(blue);
    (sum / 1_000) as u8
}

/// Returns a pixel of hills that pass under a sun.
fn landscape(size: Size, x: u16, y: u16, time: f64) -> [u8; 3] {
    let (across, down) =
        (f64::from(x) / f64::from(size.width), f64::from(y) / f64::from(size.height));
    let mix = |a: [f64; 3], b: [f64; 3], part: f64| {
        let part = part.clamp(0.0, 1.0);
        std::array::from_fn(|at| a[at] + (b[at] - a[at]) * part)
    };
    let mut colour = mix([38.0, 66.0, 128.0], [255.0, 178.0, 112.0], down * 1.5);
    let aspect = f64::from(size.width) / f64::from(size.height);
    let sun = (0.5 + 0.3 * (time / 5.0).cos(), 0.42 - 0.12 * (time / 5.0).sin());
    let far = (((across - sun.0) * aspect).powi(2) + (down - sun.1).powi(2)).sqrt();
    colour = mix([255.0, 244.0, 205.0], colour, (far - 0.09) * 14.0);
    for (at, speed, shade) in [
        (0.62, 0.05, [120.0, 82.0, 118.0]),
        (0.75, 0.1, [62.0, 54.0, 92.0]),
        (0.88, 0.2, [20.0, 26.0, 42.0]),
    ] {
        let along = (across + time * speed) * 9.0 * at;
        let ridge = at + 0.06 * along.sin() + 0.03 * (2.7 * along + at).sin();
        if down > ridge {
            colour = mix(shade, [12.0, 14.0, 26.0], (down - ridge) * 2.5);
        }
    }
    colour.map(|channel| channel as u8)
}
