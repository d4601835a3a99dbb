//! The level `user` without a device: the engine over packets in ordinary
//! memory, as `tam run` does it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use abi::check::Unverified;
use abi::layout::{
    BEGINS_WITH_ETHERNET, MARK_LENGTH, META_FRAGMENT, META_LATER_FRAGMENT, OFFSET_NONE,
};
use abi::packet::OwnedPacket;
use abi::{Meta, Verdict};
use engine::{CompileError, Engine, Instance, InstanceSpec, MemoryKind, StartError};
use wire::{Fragment, flow_hash, parse_frame};

use crate::{ARRIVAL_PORT, Case, Ending, Event, Level, LevelError, OTHER_PORT, Outcome, Sent};

/// The ports of this level and their numbers.
const PORTS: [(&str, u16); 2] = [(ARRIVAL_PORT, 3), (OTHER_PORT, 7)];
/// How often the engine's clock ticks.
const SLICE: Duration = Duration::from_millis(1);
/// Ticks that a call may take. A node gives 10 ms of processor time; here the
/// clock is the wall's, and other tests may hold the processor for long.
const CALL_SLICES: u64 = 300;

/// Runs the table in wasmtime.
pub struct User {
    engine: Engine,
    /// Held for its thread.
    _clock: Clock,
}

impl User {
    /// Starts an engine and its clock.
    ///
    /// # Errors
    /// When this machine cannot run the engine.
    pub fn new() -> Result<Self, CompileError> {
        let engine = Engine::new()?;
        let _clock = Clock::start(engine.clone());
        Ok(Self { engine, _clock })
    }
}

impl Level for User {
    fn name(&self) -> &'static str {
        "user"
    }

    fn run(&mut self, case: &Case) -> Result<Outcome, LevelError> {
        let wasm = case.wasm()?;
        let checked = Unverified(&wasm).check()?;
        let values = checked.manifest.values(&case.parameters)?;
        let parameter = |(name, value): (units::Name, abi::manifest::ParameterValue)| {
            (name.as_str().to_owned(), value.to_bytes())
        };
        let spec = InstanceSpec {
            window: checked.manifest.window,
            memory_pages_max: checked.memory.pages_max,
            parameters: values.into_iter().map(parameter).collect(),
            ports: PORTS.map(|(name, number)| (name.to_owned(), number)).into(),
            lane: 0,
            call_slices: CALL_SLICES,
            memory: None,
        };
        let program = self.engine.program(&wasm, MemoryKind::Own)?;
        let start = || program.start(&self.engine, &spec);
        let mut instance = match start() {
            Ok(instance) => instance,
            Err(error) => return not_started(error),
        };
        for frame in &case.before {
            let (_, verdict) = instance.on_packet(OwnedPacket::new(frame.clone()), &meta_of(frame));
            instance.take_emitted();
            if verdict.is_err() {
                instance = start().map_err(LevelError::Start)?;
            }
        }
        last(&mut instance, &case.frame)
    }
}

/// The frame whose outcome counts.
fn last(instance: &mut Instance<OwnedPacket>, frame: &[u8]) -> Result<Outcome, LevelError> {
    let (packet, verdict) = instance.on_packet(OwnedPacket::new(frame.to_vec()), &meta_of(frame));
    let ending = match verdict {
        Ok(verdict) => ending_of(verdict)?,
        Err(trap) => Ending::Trap(trap.kind.name().to_owned()),
    };
    let emitted = instance.take_emitted();
    let sent =
        |sent: engine::Sent| Ok(Sent { port: port_name(sent.port)?.to_owned(), frame: sent.frame });
    Ok(Outcome {
        frame: ending.keeps_packet().then(|| packet.into_bytes()),
        counters: instance.counters().into_iter().collect(),
        sent: emitted.sent.into_iter().map(sent).collect::<Result<_, LevelError>>()?,
        events: emitted.events.into_iter().map(|e| Event { code: e.code, data: e.data }).collect(),
        ending,
    })
}

/// A module that refuses to start is an outcome; an instance that cannot be made is not.
fn not_started(error: StartError) -> Result<Outcome, LevelError> {
    let ending = match error {
        StartError::Refused(code) => Ending::StartRefused(code),
        StartError::Trapped(trap) => Ending::StartTrapped(trap.kind.name().to_owned()),
        other => return Err(LevelError::Start(other)),
    };
    Ok(Outcome::of(ending, None))
}

fn ending_of(verdict: Verdict) -> Result<Ending, LevelError> {
    Ok(match verdict {
        Verdict::Pass { reroute: false } => Ending::Pass,
        Verdict::Pass { reroute: true } => Ending::Reroute,
        Verdict::Drop { reason } => Ending::Drop(reason),
        Verdict::Bounce => Ending::Bounce,
        Verdict::Redirect { port } => Ending::Redirect(port_name(port)?.to_owned()),
        Verdict::Raise => Ending::Raise,
    })
}

fn port_name(number: u16) -> Result<&'static str, LevelError> {
    let found = PORTS.iter().find(|(_, known)| *known == number);
    found.map(|(name, _)| *name).ok_or(LevelError::Port { number })
}

/// What the front door would say of a frame; one that is not IP has no offsets.
fn meta_of(frame: &[u8]) -> Meta {
    let parsed = parse_frame(frame).ok();
    let fragment = parsed.map_or(Fragment::None, |parsed| parsed.fragment);
    Meta {
        packet_length: 0,
        window_length: 0,
        l3_offset: parsed.map_or(OFFSET_NONE, |parsed| parsed.l3_offset),
        l4_offset: parsed.and_then(|parsed| parsed.l4_offset).unwrap_or(OFFSET_NONE),
        begins_with: BEGINS_WITH_ETHERNET,
        ip_version: parsed.map_or(0, |parsed| parsed.ip_version),
        protocol: parsed.map_or(0, |parsed| parsed.protocol),
        flags: match fragment {
            Fragment::None => 0,
            Fragment::First => META_FRAGMENT,
            Fragment::Later => META_FRAGMENT | META_LATER_FRAGMENT,
        },
        port: PORTS[0].1,
        session: units::SessionId::BEST_EFFORT.0,
        rule: 1,
        flow_hash: parsed.map_or(0, |parsed| flow_hash(&parsed)),
        lane: 0,
        now_ms: 1,
        mark: [0; MARK_LENGTH],
    }
}

/// A thread that raises the engine's epoch until it is dropped.
struct Clock {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Clock {
    fn start(engine: Engine) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let seen = stopped.clone();
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                std::thread::sleep(SLICE);
                engine.raise_epoch();
            }
        });
        Self { stopped, thread: Some(thread) }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends after its next sleep; it cannot panic.
            let _ = thread.join();
        }
    }
}
