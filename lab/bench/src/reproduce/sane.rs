//! SANE, table 1 and figure 5 ("A secure active network environment architecture: realization in
//! SwitchWare", section V): the cost of hashing, in machine code and in loaded code; and the time
//! of its key exchange.
//!
//! SANE could load Caml bytecode only, which hashed a hundred times slower than C, so it left
//! hashing to C. Here the same C is compiled to machine code (`c/sha1.c`, a process of its own) and
//! to a module (`functions/sha1.c`), which runs at user level and in the driver. SANE hashed each
//! packet for authentication; here AES-256-GCM authenticates it: `core/association`, sealing and
//! opening.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use abi::check::Unverified;
use abi::packet::OwnedPacket;
use anyhow::{Context as _, Result, bail, ensure};
use cell::below::metadata_of;
use engine::{Engine, Instance, InstanceSpec, MemoryKind};

use super::{Compared, Course, Drawn, Lab, Panel, Point, Quantity, Reference};
use crate::levels::{self, Measured as _, Ours, Runner as _, cpu};
use crate::native::unpacked;
use crate::rounds::median;

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sha1"));

/// Lengths of figure 5 in bytes. The paper does not state its axis.
const LENGTHS: [usize; 10] = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];
const LENGTHS_QUICK: [usize; 4] = [64, 1024, 8192, 32_768];
/// Length of table 1, in bytes.
const TABLE_LENGTH: usize = 4 << 20;
/// Approximate bytes of one sample: some milliseconds.
const SAMPLE_BYTES: usize = 1 << 20;
const ROUNDS: usize = 9;
const ROUNDS_QUICK: usize = 3;
/// Key exchanges of which the mean counts.
const EXCHANGES: u32 = 500;
const EXCHANGES_QUICK: u32 = 100;
/// Times of table 1 in seconds; Caml with its own integers.
const PAPER_C: f64 = 0.333_212;
const PAPER_BYTECODE: f64 = 36.027_246;
const PAPER_NATIVE: f64 = 2.477_051;
/// Time of section V-B in seconds: a key exchange with an exponent of 256 bits.
const PAPER_EXCHANGE: f64 = 2.4;
const DIGEST_LENGTH: usize = 20;

const C: &str = "C, this machine's";
const USER: &str = "module, user";
const NIC: &str = "module, nic";
const SEALED: &str = "active packet, sealed";
const OPENED: &str = "active packet, opened";

/// Measures table 1, and the key exchange.
pub(super) fn hash_table(lab: &mut Lab<'_>) -> Result<Drawn> {
    let mut hashers = Hashers::new()?;
    // In the driver a call has not enough fuel for so much at once.
    let whole = |curve: &'static str| (curve, TABLE_LENGTH, 1);
    let length = LENGTHS[LENGTHS.len() - 1];
    let cases = [whole(C), whole(USER), (NIC, length, TABLE_LENGTH / length)];
    let mut taken = cases.map(|_| Vec::new());
    let rounds = hash_rounds(lab);
    for round in 1..=rounds {
        (lab.progress)(&format!("hashing 4 MiB, round {round} of {rounds}"));
        for ((curve, length, times), taken) in cases.iter().zip(&mut taken) {
            taken.push(hashers.hash(curve, *length, *times)? * *times as f64);
        }
    }
    let [c, user, nic] = taken.map(|taken| median(&taken));
    let count = if lab.options.quick { EXCHANGES_QUICK } else { EXCHANGES };
    (lab.progress)(&format!("{count} key exchanges"));
    let both: Duration = lab.subject.handshakes(count)?.iter().sum();
    let exchange = both.as_secs_f64() / f64::from(count);
    let row = |what: &str, unit, paper, ours| Compared {
        what: what.to_owned(),
        unit,
        paper,
        ours: Some(ours),
    };
    let compared = vec![
        row("4 MiB in C", "ms", PAPER_C * 1e3, c / 1e3),
        row("loaded code (Caml bytecode; a module, user)", "ms", PAPER_BYTECODE * 1e3, user / 1e3),
        row("loaded code, times C", "ratio", PAPER_BYTECODE / PAPER_C, user / c),
        row(
            "compiled, not loadable (native Caml; a module, nic)",
            "ms",
            PAPER_NATIVE * 1e3,
            nic / 1e3,
        ),
        row("compiled, times C", "ratio", PAPER_NATIVE / PAPER_C, nic / c),
        row("key exchange, both sides' work", "ms", PAPER_EXCHANGE * 1e3, exchange * 1e3),
    ];
    let point = |(curve, time_us)| Point {
        curve,
        length: TABLE_LENGTH,
        time_us: Some(time_us),
        ..Point::default()
    };
    let points = [(C, c), (USER, user), (NIC, nic)];
    let points = points.map(|(curve, time)| point((curve.to_owned(), time))).to_vec();
    let notes = vec![format!("at nic {} times {length} bytes", TABLE_LENGTH / length)];
    let columns = &[Quantity::Length, Quantity::Time];
    Ok(Drawn { points, compared, columns, panels: Vec::new(), notes, references: Vec::new() })
}

/// Measures figure 5.
pub(super) fn hash_by_length(lab: &mut Lab<'_>) -> Result<Drawn> {
    let mut hashers = Hashers::new()?;
    let lengths = if lab.options.quick { &LENGTHS_QUICK[..] } else { &LENGTHS[..] };
    let rounds = hash_rounds(lab);
    let mut points = Vec::new();
    for &length in lengths {
        let times = (SAMPLE_BYTES / length).max(8);
        let mut taken = [C, USER, NIC, SEALED, OPENED].map(|curve| (curve, Vec::new()));
        for round in 1..=rounds {
            (lab.progress)(&format!("{length} bytes, round {round} of {rounds}"));
            for (curve, taken) in &mut taken[..3] {
                taken.push(hashers.hash(curve, length, times)?);
            }
            let count = u32::try_from(times)?;
            let both = lab.subject.sealing(length, count)?;
            for ((_, taken), time) in taken[3..].iter_mut().zip(both) {
                taken.push(time.as_secs_f64() * 1e6 / f64::from(count));
            }
        }
        points.extend(taken.map(|(curve, taken)| Point {
            curve: curve.to_owned(),
            length,
            time_us: Some(median(&taken)),
            ..Point::default()
        }));
    }
    let compared = slopes(&points);
    let panel = Panel::logarithmic(Quantity::Length, Quantity::Time);
    let columns = &[Quantity::Length, Quantity::Time];
    let notes = Vec::new();
    let references = lines_of_paper();
    Ok(Drawn { points, compared, columns, panels: vec![panel], notes, references })
}

const fn hash_rounds(lab: &Lab<'_>) -> usize {
    if lab.options.quick { ROUNDS_QUICK } else { ROUNDS }
}

/// Returns the paper's times for 4 MB as lines through the origin, in µs for each byte.
fn lines_of_paper() -> Vec<Reference> {
    let line = |curve: &str, name: &str, seconds: f64| Reference {
        y: Quantity::Time,
        curve: curve.to_owned(),
        name: name.to_owned(),
        course: Course::Slope(seconds * 1e6 / TABLE_LENGTH as f64),
    };
    vec![line(C, "the paper, C", PAPER_C), line(USER, "the paper, compiled Caml", PAPER_NATIVE)]
}

/// Compares the cost of each further byte: the paper says that the time grows with the length, and
/// gives the time of 4 MB.
fn slopes(points: &[Point]) -> Vec<Compared> {
    let slope = |curve: &str| {
        let mut of_curve = points.iter().filter(|point| point.curve == curve);
        let (first, last) = (of_curve.next()?, of_curve.next_back()?);
        Some((last.time_us? - first.time_us?) * 1e3 / (last.length - first.length) as f64)
    };
    let paper = |seconds: f64| seconds * 1e9 / TABLE_LENGTH as f64;
    let row = |what: &str, paper, curve| Compared {
        what: format!("a byte more, {what}"),
        unit: "ns",
        paper,
        ours: slope(curve),
    };
    vec![
        row("C", paper(PAPER_C), C),
        row("native Caml; a module, user", paper(PAPER_NATIVE), USER),
        row("native Caml; a module, nic", paper(PAPER_NATIVE), NIC),
        row("a packet's authentication: SHA-1 in C; AES-256-GCM, sealed", paper(PAPER_C), SEALED),
        row("the same, opened", paper(PAPER_C), OPENED),
    ]
}

/// Hashing programs: machine code, user level and driver. All gave the same digest when this was
/// made.
struct Hashers {
    native: Native,
    user: Instance<OwnedPacket>,
    nic: Ours,
}

impl Hashers {
    fn new() -> Result<Self> {
        let module = levels::sha1()?;
        let checked = Unverified(module).check()?;
        let engine = Engine::new()?;
        let spec = InstanceSpec {
            window: checked.manifest.window,
            memory_pages_max: checked.memory.pages_max,
            call_slices: 5,
            ..InstanceSpec::default()
        };
        let program = engine.program::<OwnedPacket>(module, MemoryKind::Own)?;
        let user = program.start(&engine, &spec)?;
        let mut hashers = Self { native: Native::start()?, user, nic: Ours::load(module)? };
        for length in LENGTHS {
            // Memory is filled here, so that hashing alone is measured.
            let (digest, _) = hashers.native.hash(length, 1)?;
            let user = hashers.at_user(Memory::New, length)?;
            let nic = hashers.nic.handle(&wanted(Memory::New, length)?, 0)?.packet;
            for (level, packet) in [(USER, user), (NIC, nic)] {
                let found = packet.get(4..4 + DIGEST_LENGTH).map(hex::encode);
                ensure!(
                    found.as_ref() == Some(&digest),
                    "of {length} bytes {level} has the hash {found:?} and the machine {digest}"
                );
            }
        }
        Ok(hashers)
    }

    fn at_user(&mut self, memory: Memory, length: usize) -> Result<Vec<u8>> {
        let packet = wanted(memory, length)?;
        let meta = metadata_of(&packet);
        let (packet, verdict) = self.user.on_packet(OwnedPacket::new(packet), &meta);
        if let Err(trap) = verdict {
            bail!("hashing at user level: {trap:?}");
        }
        Ok(packet.into_bytes())
    }

    /// Returns the time of one hash, in microseconds.
    fn hash(&mut self, curve: &str, length: usize, times: usize) -> Result<f64> {
        let _pinned = cpu::Pinned::new()?;
        let took = match curve {
            C => self.native.hash(length, times)?.1,
            USER => {
                let begun = cpu::time();
                for _ in 0..times {
                    self.at_user(Memory::Kept, length)?;
                }
                cpu::time().saturating_sub(begun)
            }
            NIC => {
                let packet = wanted(Memory::Kept, length)?;
                self.nic.prepare(&packet, 0)?;
                // The system call waits before and behind it.
                let begun = cpu::time();
                self.nic.program().test_run(&packet, None, u32::try_from(times)?)?;
                let took = cpu::time().saturating_sub(begun);
                self.nic.check()?;
                took
            }
            _ => bail!("nobody hashes as '{curve}'"),
        };
        Ok(took.as_secs_f64() * 1e6 / times as f64)
    }
}

/// Contents of the module's memory to hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// Contents from before.
    Kept,
    /// Contents written by this call.
    New,
}

/// Returns a packet that requests a hash over `length` bytes.
fn wanted(memory: Memory, length: usize) -> Result<Vec<u8>> {
    let mut packet = vec![0; 64];
    packet[..4].copy_from_slice(&u32::try_from(length)?.to_le_bytes());
    packet[4 + DIGEST_LENGTH] = u8::from(memory == Memory::New);
    Ok(packet)
}

/// Process of `c/sha1.c`; it ends on drop.
struct Native {
    child: Child,
    ask: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Native {
    fn start() -> Result<Self> {
        let path = unpacked(PROGRAM, "tam-sha1")?;
        let mut command = Command::new(&path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting SHA-1 for this machine")?;
        let (ask, answers) = (child.stdin.take(), child.stdout.take());
        let answers = BufReader::new(answers.context("it has no output")?);
        let mut native = Self { child, ask, answers };
        native.hash(LENGTHS[0], 1)?;
        Ok(native)
    }

    /// Returns the digest, and the time of `times` repetitions.
    fn hash(&mut self, length: usize, times: usize) -> Result<(String, Duration)> {
        let mut line = String::new();
        writeln!(line, "{length} {times}")?;
        self.ask.as_ref().context("it has ended")?.write_all(line.as_bytes())?;
        line.clear();
        self.answers.read_line(&mut line)?;
        let said = line.trim().split_once(' ');
        let (nanos, digest) = said.with_context(|| format!("SHA-1 in C says '{line}'"))?;
        Ok((digest.to_owned(), Duration::from_nanos(nanos.parse()?)))
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // The process ends with its input; its status does not matter.
        self.ask = None;
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_hash_implementations_agree() {
        if !testbase::root_or_skip("BPF programs") {
            return;
        }
        let mut hashers = Hashers::new().unwrap();
        // RFC 3174 by another implementation: of the bytes 1, 4, 7, …
        let (digest, _) = hashers.native.hash(64, 1).unwrap();
        assert_eq!(digest, "58e0c7f7b02c9ac225ff2bf7bc6b28df3994aa18");
        assert!(hashers.hash(NIC, 1024, 10).unwrap() > 0.0);
    }

    #[test]
    fn the_cost_of_a_byte_is_the_slope_between_the_shortest_and_the_longest() {
        let point = |length, time_us| Point {
            curve: C.to_owned(),
            length,
            time_us: Some(time_us),
            ..Point::default()
        };
        let compared = slopes(&[point(64, 1.0), point(128, 9.0), point(1064, 3.0)]);
        assert_eq!((compared[0].ours, compared[1].ours), (Some(2.0), None));
        assert!((compared[0].paper - 79.44).abs() < 0.01, "{:?}", compared[0]);
    }
}
