//! The instances of a module without a node: what a cell does with them, less
//! the ways that lead in and out.

use super::capture::Frame;
use crate::failure::Failure;
use abi::layout::{
    BEGINS_WITH_ETHERNET, MARK_LENGTH, META_FRAGMENT, META_LATER_FRAGMENT, OFFSET_NONE,
    PACKET_LENGTH_MAX,
};
use abi::packet::OwnedPacket;
use abi::{Checked, Lanes as LanesWish, Meta, Verdict};
use api::ErrorCode;
use engine::{Engine, Event, Instance, InstanceSpec, MemoryKind, Program, Sent, Trap};
use executor::SLICE;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use units::SessionId;
use wire::{Fragment, Parsed};

/// Slices that one call may see begin: 100 ms. A cell allows fewer, but has a
/// core; here a busy machine must not look like a module that loops.
const CALL_SLICES: u64 = 50;

/// What became of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The module decided.
    Verdict(Verdict),
    /// The module trapped: the packet is dropped, the instance replaced.
    Trapped(Trap),
    /// No rule can see it: the front door decides alone.
    FrontDoor(&'static str),
    /// It is no packet: longer than any, or without a byte.
    NoPacket,
    /// The instance that it belongs to could not be started again.
    Down,
}

/// What came of a frame.
#[derive(Clone, Debug)]
pub struct Done {
    /// What became of it.
    pub fate: Fate,
    /// Its bytes afterwards.
    pub bytes: Vec<u8>,
    /// Frames that the module made.
    pub sent: Vec<Sent>,
    /// Events that it reported.
    pub events: Vec<Event>,
}

/// The running instances, one for each lane.
pub struct Lanes {
    engine: Engine,
    program: Program<OwnedPacket>,
    spec: InstanceSpec,
    instances: Vec<Option<Instance<OwnedPacket>>>,
    timer_ms: Option<u32>,
    timer_at_ms: u64,
    _ticker: Ticker,
}

impl Lanes {
    /// Compiles the module and starts every lane.
    pub fn start(
        bytes: &[u8],
        checked: &Checked,
        parameters: BTreeMap<String, Vec<u8>>,
        ports: BTreeMap<String, u16>,
    ) -> Result<Self, Failure> {
        let engine = Engine::new()
            .map_err(|error| Failure::new(ErrorCode::Unsupported, error.to_string()))?;
        let program = engine
            .program(bytes, MemoryKind::Own)
            .map_err(|error| Failure::failed(error.to_string()))?;
        let ticker = Ticker::start(&engine)?;
        let spec = InstanceSpec {
            window: checked.manifest.window,
            memory_pages_max: checked.memory.pages_max,
            parameters,
            ports,
            lane: 0,
            call_slices: CALL_SLICES,
            memory: None,
        };
        let count = match checked.manifest.lanes {
            LanesWish::Count(count) => u32::from(count.max(1)),
            LanesWish::PerCore => 1,
        };
        let instances = (0..count)
            .map(|lane| {
                let started = program.start(&engine, &InstanceSpec { lane, ..spec.clone() });
                started.map(Some).map_err(|error| {
                    let name = &checked.manifest.name;
                    Failure::failed(format!("module '{name}' does not start: {error}"))
                        .help("`tam check` shows its parameters; set them with --param NAME=VALUE")
                })
            })
            .collect::<Result<_, _>>()?;
        let (timer_ms, timer_at_ms) = (checked.manifest.timer_ms, 0);
        Ok(Self { engine, program, spec, instances, timer_ms, timer_at_ms, _ticker: ticker })
    }

    /// Runs the module on one frame.
    pub fn handle(&mut self, frame: &Frame) -> Done {
        let left = |fate| Done { fate, bytes: frame.bytes.clone(), sent: vec![], events: vec![] };
        if frame.bytes.is_empty() || frame.bytes.len() > PACKET_LENGTH_MAX as usize {
            return left(Fate::NoPacket);
        }
        let parsed = match wire::parse_frame(&frame.bytes) {
            Ok(parsed) => parsed,
            Err(outcome) => return left(Fate::FrontDoor(outcome.name())),
        };
        if parsed.is_link_local(&frame.bytes) {
            return left(Fate::FrontDoor("kernel_link_local"));
        }
        let meta = meta(&parsed, frame.time.as_millis() as u64);
        self.tick(meta.now_ms);
        let lane = meta.flow_hash as usize % self.instances.len();
        let Some(instance) = self.instances[lane].as_mut() else { return left(Fate::Down) };
        let (packet, verdict) = instance.on_packet(OwnedPacket::new(frame.bytes.clone()), &meta);
        let emitted = instance.take_emitted();
        let fate = match verdict {
            Ok(verdict) => Fate::Verdict(verdict),
            Err(trap) => {
                self.replace(lane);
                Fate::Trapped(trap)
            }
        };
        Done { fate, bytes: packet.into_bytes(), sent: emitted.sent, events: emitted.events }
    }

    /// Runs `on_timer` when the capture's time says so, as a cell does by the clock.
    fn tick(&mut self, now_ms: u64) {
        let Some(period) = self.timer_ms.filter(|_| self.timer_at_ms <= now_ms) else { return };
        let is_first = self.timer_at_ms == 0;
        self.timer_at_ms = now_ms + u64::from(period);
        for lane in (0..self.instances.len()).filter(|_| !is_first) {
            let Some(instance) = self.instances[lane].as_mut() else { continue };
            if instance.on_timer(now_ms).is_err() {
                self.replace(lane);
            }
        }
    }

    fn replace(&mut self, lane: usize) {
        let spec = InstanceSpec { lane: lane as u32, ..self.spec.clone() };
        self.instances[lane] = self.program.start(&self.engine, &spec).ok();
    }

    /// The module's counters, the sum of all lanes.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let mut counters = BTreeMap::new();
        for (name, value) in self.instances.iter().flatten().flat_map(Instance::counters) {
            let sum: &mut u64 = counters.entry(name).or_default();
            *sum = sum.wrapping_add(value);
        }
        counters
    }

    /// Runs the first lane on the same packet again and again; gives the packets that it passed.
    pub fn repeat(&mut self, bytes: &[u8], times: u32) -> u32 {
        let Ok(parsed) = wire::parse_frame(bytes) else { return 0 };
        let meta = meta(&parsed, 0);
        let Some(instance) = self.instances[0].as_mut() else { return 0 };
        let mut packet = OwnedPacket::new(bytes.to_vec());
        for done in 0..times {
            let verdict;
            (packet, verdict) = instance.on_packet(packet, &meta);
            if verdict != Ok(Verdict::PASS) {
                return done;
            }
        }
        times
    }
}

/// What the front door would say of the frame.
fn meta(parsed: &Parsed, now_ms: u64) -> Meta {
    let flags = match parsed.fragment {
        Fragment::None => 0,
        Fragment::First => META_FRAGMENT,
        Fragment::Later => META_FRAGMENT | META_LATER_FRAGMENT,
    };
    Meta {
        packet_length: 0,
        window_length: 0,
        l3_offset: parsed.l3_offset,
        l4_offset: parsed.l4_offset.unwrap_or(OFFSET_NONE),
        begins_with: BEGINS_WITH_ETHERNET,
        ip_version: parsed.ip_version,
        protocol: parsed.protocol,
        flags,
        port: 0,
        session: SessionId::BEST_EFFORT.0,
        rule: 0,
        flow_hash: wire::flow_hash(parsed),
        lane: 0,
        now_ms,
        mark: [0; MARK_LENGTH],
    }
}

/// Raises the epoch every [`SLICE`], so that loops end.
struct Ticker {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    fn start(engine: &Engine) -> Result<Self, Failure> {
        let end = Arc::new(AtomicBool::new(false));
        let (ended, engine) = (Arc::clone(&end), engine.clone());
        let tick = move || {
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_nanos(SLICE.0));
                engine.raise_epoch();
            }
        };
        let thread = std::thread::Builder::new().name("ticker".to_owned()).spawn(tick);
        let thread = thread.map_err(|error| Failure::io("starting a thread", &error))?;
        Ok(Self { end, thread: Some(thread) })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It only sleeps and adds: it does not panic.
            let _ = thread.join();
        }
    }
}
