//! Independent programs at both ends of a live stream: ffmpeg and Icecast send one, mpg123 plays
//! it.

use crate::common::{Line, SOON};
use crate::nginx::listens;
use crate::radio::{Framing, Programme, REAL_TIME, Station};
use crate::streams::{PORT, deploys, deploys_reflector, stats};
use std::path::Path;
use std::time::Duration;
use testkit::{Running, root_or_skip, service_module, wait_for};

const PATH: &str = "/live/one.mp3";
/// Source of a rising tone, so that no two frames are alike; the next constant is its length in a
/// file.
const TONE: &str = "aevalsrc=0.5*sin(2*PI*(200+20*t)*t):s=44100";
const SECONDS: &str = "40";
/// Encoder options for MP3 of 128 kbit/s, each frame of which can be decoded by itself.
const MP3: [&str; 10] =
    ["-c:a", "libmp3lame", "-b:a", "128k", "-ac", "2", "-reservoir", "0", "-write_xing", "0"];
/// Bytes that a decoder makes of a frame: 1,152 samples of 16 bits, twice.
const PCM_FRAME: usize = 1152 * 2 * 2;
/// First frames of a decoder that still depend on frames before them.
const UNSETTLED: usize = 3;
/// Frames that a player plays: 4 s.
const PLAYED: usize = 153;
const PLAY_TIME_MAX: Duration = Duration::from_secs(30);

/// Returns ffmpeg's encoding of the tone, and mpg123's decoding of that file.
fn tone(line: &Line, folder: &Path) -> (Vec<u8>, Vec<u8>) {
    let [mp3, wav] = ["tone.mp3", "tone.wav"].map(|name| folder.join(name));
    let [mp3_path, wav_path] = [&mp3, &wav].map(|path| path.display().to_string());
    let source = ["ffmpeg", "-v", "error", "-nostdin", "-f", "lavfi", "-i", TONE];
    let output = ["-t", SECONDS, "-id3v2_version", "0", "-f", "mp3", &mp3_path];
    line.run("server", &[&source[..], &MP3, &output].concat());
    line.run("client", &["mpg123", "-q", "--no-gapless", "-w", &wav_path, &mp3_path]);
    (std::fs::read(mp3).unwrap(), samples(&wav))
}

/// Splits a file into frames of layer III by their headers and padding.
fn split(file: &[u8]) -> Vec<Vec<u8>> {
    let (mut frames, mut rest) = (Vec::new(), file);
    while let [0xff, 0xfb, third, ..] = rest {
        assert_eq!(third & 0xfc, 0x90, "128 kbit/s at 44.1 kHz");
        let length = 417 + usize::from(third >> 1 & 1);
        let (frame, behind) = rest.split_at(length);
        frames.push(frame.to_vec());
        rest = behind;
    }
    assert!(rest.is_empty() && frames.len() > 1_000, "{} bytes are no frame", rest.len());
    frames
}

/// Returns the samples of a WAV file.
fn samples(file: &Path) -> Vec<u8> {
    let mut wav = std::fs::read(file).unwrap();
    let at = wav.windows(4).position(|four| four == b"data").unwrap();
    wav.split_off(at + 8)
}

/// Starts mpg123, which plays some frames of a stream to a file.
fn player(line: &Line, url: &str, wav: &Path) -> Running {
    let (wav, count) = (wav.display().to_string(), PLAYED.to_string());
    let argv = ["mpg123", "--no-gapless", "-n", &count, "-w", &wav, url];
    Running::start(&line.net.namespace("client").unwrap(), &argv).unwrap()
}

/// Returns a player's output after a check that it decoded all frames without a complaint about the
/// stream.
fn played(player: Running) -> String {
    let output = player.wait(PLAY_TIME_MAX).unwrap();
    let said = output.stderr;
    assert!(output.status.success(), "{said}");
    for complaint in ["resync", "rror", "llegal", "eservoir", "ragged", "skipped"] {
        assert!(!said.contains(complaint), "{said}");
    }
    said
}

/// Checks that the played samples are the file's at some position; returns the number of their
/// first frame.
fn place_of(played: &[u8], reference: &[u8]) -> usize {
    assert_eq!(played.len() / PCM_FRAME, PLAYED);
    let mut there = reference.chunks_exact(PCM_FRAME);
    let heard: Vec<&[u8]> = played.chunks_exact(PCM_FRAME).skip(UNSETTLED).collect();
    let at = there.position(|frame| frame == heard[0]).expect("it is nowhere in the file");
    for (number, (heard, there)) in heard[1..].iter().zip(there).enumerate() {
        assert!(*heard == there, "frame {} of it is another one", number + 1 + UNSETTLED);
    }
    at - UNSETTLED
}

#[test]
fn mpg123_plays_a_shared_stream_sample_by_sample_and_shows_its_titles() {
    if !root_or_skip("mpg123") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (mp3, reference) = tone(&line, folder.path());
    let mp3 = split(&mp3);
    let programme = Programme {
        frame: Box::new(move |number| mp3[number as usize % mp3.len()].clone()),
        // Another one each 2 s.
        title: Some(|number| format!("Part {}", number / 77)),
    };
    deploys_reflector(&line);
    let station = Station::opens(&line, PORT, programme, REAL_TIME, Framing::UntilClose);
    let url = format!("http://{}{PATH}", line.server(PORT));
    let first = player(&line, &url, &path("first.wav"));
    std::thread::sleep(Duration::from_secs(1));
    let second = player(&line, &url, &path("second.wav"));
    let said = [played(first), played(second)];
    let [first, second] =
        ["first.wav", "second.wav"].map(|wav| place_of(&samples(&path(wav)), &reference));
    // It begins with what was kept, and both play the same at the same places.
    assert!(first.abs_diff(second) < 100, "{first}, {second}");
    for said in said {
        assert!(said.contains("ICY-NAME: The station"), "{said}");
        let titles = said.matches("ICY-META: StreamTitle='Part ").count();
        assert!(titles >= 2 && said.contains("'Part 1'"), "{said}");
    }
    assert_eq!(station.connections(), 1, "one for both");
}

/// Icecast at the server, to which a source may send.
struct Icecast<'line> {
    line: &'line Line,
    _server: Running,
    _source: Running,
}

const PASSWORD: &str = "station";

impl<'line> Icecast<'line> {
    /// Starts Icecast with ffmpeg, which sends it a tone.
    fn start(line: &'line Line, folder: &Path) -> Self {
        let at = line.server(PORT);
        let folder_path = folder.display();
        let configuration = format!(
            "<icecast>
              <limits><clients>100</clients><sources>2</sources>
                <burst-on-connect>0</burst-on-connect></limits>
              <authentication><source-password>{PASSWORD}</source-password>
                <admin-user>admin</admin-user><admin-password>{PASSWORD}</admin-password>
              </authentication>
              <hostname>localhost</hostname>
              <listen-socket><port>{PORT}</port><bind-address>{}</bind-address></listen-socket>
              <paths><basedir>{folder_path}</basedir><logdir>{folder_path}</logdir>
                <webroot>{folder_path}</webroot><adminroot>{folder_path}</adminroot></paths>
              <logging><accesslog>access.log</accesslog><errorlog>error.log</errorlog></logging>
            </icecast>\n",
            at.ip()
        );
        let file = folder.join("icecast.xml");
        std::fs::write(&file, configuration).unwrap();
        // Icecast does not run as root; its user has to own the logs.
        std::os::unix::fs::chown(folder, Some(65_534), Some(65_534)).unwrap();
        let file = file.display().to_string();
        let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let argv = [&nobody[..], &["icecast2", "-c", &file]].concat();
        let host = line.net.namespace("server").unwrap();
        let server = Running::start(&host, &argv).unwrap();
        listens(line, PORT);
        let to = format!("icecast://source:{PASSWORD}@{at}{PATH}");
        let sends = ["ffmpeg", "-v", "error", "-nostdin", "-re", "-f", "lavfi", "-i", TONE];
        let how = ["-content_type", "audio/mpeg", "-ice_name", "The station", "-f", "mp3", &to];
        let source = Running::start(&host, &[&sends[..], &MP3, &how].concat()).unwrap();
        Self { line, _server: server, _source: source }
    }

    /// Sends an administrator's request; returns the answer.
    fn says(&self, request: &str) -> Option<String> {
        let url = format!("http://{}/admin/{request}", self.line.server(PORT));
        let user = format!("admin:{PASSWORD}");
        let argv = ["curl", "-sSg", "-f", "-m", "5", "-u", &user, &url];
        let output = self.line.net.run("server", &argv, SOON * 2).unwrap();
        output.status.success().then_some(output.stdout)
    }

    /// Returns the number of its listeners; `None` while there is no stream.
    fn listeners(&self) -> Option<u32> {
        let said = self.says("stats.xml")?;
        let (_, mount) = said.split_once(&format!("<source mount=\"{PATH}\">"))?;
        let (_, listeners) = mount.split_once("<listeners>")?;
        listeners.split_once('<')?.0.parse().ok()
    }

    /// Sets the title that it plays.
    fn has_title(&self, title: &str) {
        let request = format!("metadata?mount={PATH}&mode=updinfo&song={title}");
        self.says(&request).expect("Icecast takes a title");
    }
}

#[test]
fn mpg123_plays_icecast_and_ffmpeg_shared_only_where_the_operator_allows_it() {
    if !root_or_skip("Icecast") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (_, reference) = tone(&line, folder.path());
    let places = tempfile::tempdir().unwrap();
    let icecast = Icecast::start(&line, places.path());
    assert_eq!(wait_for(SOON * 2, || icecast.listeners()), Some(0), "ffmpeg does not send");
    let url = format!("http://{}{PATH}", line.server(PORT));
    // It says no-store with everything.
    for (capabilities, connections) in [("reflect", 2), ("reflect-no-store", 1)] {
        let parameters = [("capabilities", capabilities), ("configuration", "paths /live/")];
        deploys(&line, "streams", PORT, &service_module("reflector").unwrap(), &parameters);
        let players = ["first.wav", "second.wav"].map(|wav| player(&line, &url, &path(wav)));
        let both = wait_for(SOON, || {
            let both_are_there = stats(&line).open == 2;
            let listeners = icecast.listeners()?;
            (both_are_there && listeners == connections).then_some(())
        });
        assert!(both.is_some(), "{:?}: {:?}", stats(&line), icecast.listeners());
        let title = format!("As-{capabilities}");
        icecast.has_title(&title);
        for said in players.map(played) {
            assert!(said.contains("ICY-NAME: The station"), "{said}");
            assert!(said.contains(&format!("StreamTitle='{title}'")), "{said}");
        }
        // ffmpeg makes the same of the same tone.
        for wav in ["first.wav", "second.wav"] {
            place_of(&samples(&path(wav)), &reference);
        }
        line.node.remove("streams").unwrap();
    }
}
