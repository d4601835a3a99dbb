//! `tam bench transcode`: video for small devices through a node, against ffmpeg alone.
//!
//! ```text
//! device ─▶ s0 ═ n0 [ node: transcode ─ codec ]  n1 ═ d0 ─▶ a film, at once or as it plays
//! ffmpeg ─▶ s0 ═ n0 [ plain forwarding ]         n1 ═ d0 ─▶ the same
//! ```
//!
//! ffmpeg does the same conversion, from the same server, into frames of the same size and of the
//! nearest format that it has. Details in docs/benchmarks/transcode.md.

mod cinema;
mod device;

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use namespaces::netns;

use crate::line::{self, Line, NODE_CPU};
use crate::measurement::{Better, GoalFor, Measured, Measurement};
use crate::rounds::{Pair, Rounds, median};
use crate::streams::process::{FFMPEG, TASKSET};
use crate::streams::{self, ORIGIN};
use crate::{Options, Service, Subject};
use cinema::{Cinema, FILM, LIVE, RATE};
use device::{Device, Seen};

/// Goal: the node's frames per second divided by ffmpeg's.
const GOAL_FRAMES: f64 = 0.9;
/// Goals in milliseconds: until the first frame, and between two frames when the size changes.
const GOAL_FIRST_MS: f64 = 200.0;
const GOAL_GAP_MS: f64 = 200.0;
const NODE: &str = "bench-transcode";
const FFMPEG_NAME: &str = "ffmpeg";
/// Length of the film in seconds: long enough that its start does not matter much.
const SECONDS: u32 = 60;
const SECONDS_QUICK: u32 = 20;
/// Time that a live stream is watched before a change, and after it.
const WATCHED: Duration = Duration::from_millis(1500);
/// Half-width of the interval around the request for another size in which frames are watched.
const AROUND: Duration = Duration::from_millis(500);

/// Format that a device requests, and ffmpeg's name for it.
struct Case {
    name: &'static str,
    width: usize,
    height: usize,
    palette: &'static str,
    format: &'static str,
    /// Bits per pixel; rows have whole bytes.
    bits: usize,
}

const CASES: [Case; 3] = [
    Case {
        name: "320x240.rgb565",
        width: 320,
        height: 240,
        palette: "rgb565",
        format: "rgb565be",
        bits: 16,
    },
    Case {
        name: "160x120.grey8",
        width: 160,
        height: 120,
        palette: "grey8",
        format: "gray",
        bits: 8,
    },
    Case { name: "160x120.bw", width: 160, height: 120, palette: "bw", format: "monob", bits: 1 },
];

impl Case {
    const fn frame_length(&self) -> usize {
        (self.width * self.bits).div_ceil(8) * self.height
    }

    fn path(&self, film: &str) -> String {
        let Self { width, height, palette, .. } = self;
        format!(
            "{film}?tamandua-size={width}x{height}&tamandua-rate={RATE}\
             &tamandua-palette={palette}&tamandua-dither=ordered"
        )
    }
}

/// Result of one pass over the film.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    frames: usize,
    per_second: f64,
    /// Milliseconds until the first frame had arrived.
    first: f64,
}

/// Result of a change of the size, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    /// Longest time between two frames around the change, and before it.
    gap: f64,
    usual: f64,
    /// Time until the first frame of the new size had arrived.
    shown: f64,
}

struct Site {
    line: Line,
    _cinema: Cinema,
}

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    line::needs_two_cpus()?;
    let version = FFMPEG.version("-version")?;
    let seconds = if options.quick { SECONDS_QUICK } else { SECONDS };
    progress("making a film");
    let film = cinema::film(seconds)?;
    progress("making two lines of namespaces, with a cinema each");
    let [ours, other] = ["transcode", "transcode-ffmpeg"].map(|name| -> Result<Site> {
        let line = Line::of_tcp(name)?;
        let cinema = Cinema::open(&line.destination, ORIGIN.parse()?, &film, seconds)?;
        Ok(Site { line, _cinema: cinema })
    });
    let (ours, other) = (ours?, other?);
    subject.start(&streams::plan(&ours.line, NODE, Service::Transcode), 0)?;
    let measured = measure(options, &ours.line, &other.line, progress);
    subject.stop(NODE)?;
    let mut measured = measured?;
    measured.notes.insert(0, version);
    measured.notes.push(format!(
        "{seconds} s of 352x288 at {RATE} frames a second, {} MB of MPEG-2 in a program stream; \
         the codec has a core that the cell does not have, the load another half of it",
        film.len() / 1_000_000
    ));
    Ok(measured)
}

fn measure(
    options: &Options,
    ours: &Line,
    other: &Line,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    let count = streams::rounds(options);
    let mut runs: Vec<Vec<[Run; 2]>> = CASES.iter().map(|_| Vec::new()).collect();
    let mut changes = Vec::new();
    for round in 1..=count {
        for (case, runs) in CASES.iter().zip(&mut runs) {
            progress(&format!("{}, round {round} of {count}", case.name));
            let pair = [through(ours, case)?, alone(other, case)?];
            ensure!(
                pair[0].frames == pair[1].frames,
                "{}: {} frames came through the node, and {} from ffmpeg",
                case.name,
                pair[0].frames,
                pair[1].frames
            );
            runs.push(pair);
        }
        progress(&format!("a change of the size, round {round} of {count}"));
        changes.push(change(ours)?);
    }
    let mut measured = Measured::default();
    for (case, runs) in CASES.iter().zip(&runs) {
        measured.measurements.extend(of_case(case.name, runs));
    }
    measured.measurements.push(of_changes(&changes));
    let shown = median(&changes.iter().map(|change| change.shown).collect::<Vec<_>>());
    measured.notes.push(format!("the new size was shown after {shown:.0} ms"));
    Ok(measured)
}

/// Loads the film through the node, as fast as it comes.
fn through(line: &Line, case: &Case) -> Result<Run> {
    let begun = Instant::now();
    let mut device = Device::play(&line.source, ORIGIN.parse()?, &case.path(FILM))?;
    let (mut frames, mut first) = (0, None);
    while let Some(Seen { width, height, length, .. }) = device.frame()? {
        first.get_or_insert_with(|| begun.elapsed());
        ensure!(
            (width, height, length) == (case.width, case.height, case.frame_length()),
            "{}: a frame of {width}x{height} with {length} bytes",
            case.name
        );
        frames += 1;
    }
    run_of(frames, begun.elapsed(), first)
}

/// Converts the film by ffmpeg, which has the other CPU alone.
fn alone(line: &Line, case: &Case) -> Result<Run> {
    let scale = format!(
        "setpts=PTS-STARTPTS,fps={RATE},scale={}:{}:flags=fast_bilinear",
        case.width, case.height
    );
    let url = format!("http://{ORIGIN}{FILM}");
    let mut command = Command::new(TASKSET.find()?);
    command.arg("-c").arg(NODE_CPU.to_string()).arg(FFMPEG.find()?);
    command.args(["-hide_banner", "-nostdin", "-v", "error", "-threads", "1"]);
    command.args(["-f", "mpeg", "-i", &url, "-an", "-vf", &scale, "-fps_mode", "passthrough"]);
    command.args(["-pix_fmt", case.format, "-f", "rawvideo", "pipe:1"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    netns::command_in(&line.source, &mut command)?;
    let begun = Instant::now();
    let mut child = command.spawn().context("starting ffmpeg")?;
    let mut stdout = child.stdout.take().context("ffmpeg says nothing")?;
    let (mut frames, mut first) = (0, None);
    let mut frame = vec![0; case.frame_length()];
    while stdout.read_exact(&mut frame).is_ok() {
        first.get_or_insert_with(|| begun.elapsed());
        frames += 1;
    }
    let took = begun.elapsed();
    let status = child.wait().context("waiting for ffmpeg")?;
    ensure!(status.success(), "ffmpeg ended with {status}");
    run_of(frames, took, first)
}

fn run_of(frames: usize, took: Duration, first: Option<Duration>) -> Result<Run> {
    let first = first.context("no frame came")?.as_secs_f64() * 1e3;
    Ok(Run { frames, per_second: frames as f64 / took.as_secs_f64(), first })
}

/// Plays a live stream on a device that requests another size.
fn change(line: &Line) -> Result<Change> {
    let case = &CASES[1];
    let mut device = Device::play(&line.source, ORIGIN.parse()?, &case.path(LIVE))?;
    let begun = Instant::now();
    let (mut seen, mut asked, mut shown) = (Vec::new(), None, None);
    loop {
        let frame = device.frame()?.context("the stream ended")?;
        let now = Instant::now();
        seen.push(now);
        match (asked, shown) {
            (None, _) if now - begun >= WATCHED => {
                device.choose("tamandua-size=200x150")?;
                asked = Some(now);
            }
            (Some(_), None) if frame.width == 200 => shown = Some(now),
            (Some(_), Some(shown)) if now - shown >= AROUND => break,
            _ => {}
        }
    }
    let (asked, shown) = asked.zip(shown).context("the size did not change")?;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let longest = |from: Instant, to: Instant| {
        let gaps = seen.windows(2).filter(|two| two[1] > from && two[0] < to);
        gaps.map(|two| ms(two[1] - two[0])).fold(0.0, f64::max)
    };
    // The first half second belongs to the start.
    let usual = longest(begun + AROUND, asked);
    Ok(Change { gap: longest(asked, shown + AROUND), usual, shown: ms(shown - asked) })
}

fn of_case(case: &str, runs: &[[Run; 2]]) -> [Measurement; 2] {
    let compare = |what: &str, unit, better, goal, of: fn(&Run) -> f64| {
        let mut rounds = Rounds::default();
        runs.iter().for_each(|round| rounds.add(round.iter().map(of).collect()));
        let metric = format!("transcode.{case}.{what}");
        rounds.compare(Pair { metric, unit, baseline_name: FFMPEG_NAME, baseline: 1, better, goal })
    };
    let frames = |run: &Run| run.per_second;
    let first = compare("first", "ms", Better::Lower, Some(GOAL_FIRST_MS), |run| run.first);
    [
        compare("frames", "frames/s", Better::Higher, Some(GOAL_FRAMES), frames),
        Measurement { goal_for: GoalFor::Ours, ..first },
    ]
}

fn of_changes(changes: &[Change]) -> Measurement {
    let mut rounds = Rounds::default();
    changes.iter().for_each(|change| rounds.add(vec![change.gap, change.usual]));
    let measured = rounds.compare(Pair {
        metric: "transcode.change.gap".to_owned(),
        unit: "ms",
        baseline_name: "no_change",
        baseline: 1,
        better: Better::Lower,
        goal: Some(GOAL_GAP_MS),
    });
    Measurement { goal_for: GoalFor::Ours, ..measured }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_rows_of_whole_bytes() {
        assert_eq!(CASES.map(|case| case.frame_length()), [153_600, 19_200, 2_400]);
        let odd = Case { width: 98, height: 3, bits: 1, ..CASES[2] };
        assert_eq!(odd.frame_length(), 39);
    }

    #[test]
    fn each_value_is_compared_with_ffmpeg_in_the_same_round() {
        let run = |per_second| Run { frames: 500, per_second, first: 90.0 };
        let [frames, first] = of_case("a", &[[run(95.0), run(100.0)], [run(40.0), run(50.0)]]);
        assert!((frames.ratio - 0.875).abs() < 1e-9 && frames.reached() == Some(false));
        assert_eq!((first.ours, first.reached()), (90.0, Some(true)));
        let gap = of_changes(&[Change { gap: 250.0, usual: 45.0, shown: 100.0 }]);
        assert_eq!((gap.reached(), gap.baseline), (Some(false), 45.0));
    }
}
