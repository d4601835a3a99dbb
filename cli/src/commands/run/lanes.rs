//! Instances of a module without a node: a cell's lanes, without ports and queues.

use super::instance::{Handled, Module, NotHandled, NotStarted, Running};
use super::reader::Frame;
use crate::failure::Failure;
use abi::layout::{
    BEGINS_WITH_ETHERNET, MARK_LENGTH, META_FRAGMENT, META_LATER_FRAGMENT, OFFSET_NONE,
    PACKET_LENGTH_MAX,
};
use abi::packet::OwnedPacket;
use abi::{Checked, LaneSelector, Lanes as LanesWish, Level, Meta, Verdict, lanes_of};
use api::ErrorCode;
use engine::{Engine, Event, InstanceSpec, Sent, Trap};
use executor::SLICE;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use units::SessionId;
use wire::{Fragment, Parsed};

/// Most slices that may begin during one call: 100 ms. A cell allows fewer, but has a core; here a
/// busy machine must not look like a module that loops.
const CALL_SLICES: u64 = 50;

/// Outcome of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameOutcome {
    /// The module returned a verdict.
    Verdict(Verdict),
    /// The module trapped: the packet is dropped, the instance replaced.
    Trapped(Trap),
    /// No rule can match the frame: the front door decides alone.
    FrontDoor(&'static str),
    /// The frame is no packet: empty, or longer than a packet can be.
    NoPacket,
    /// The lane's instance could not be restarted.
    Down,
    /// The kernel does not run a program over such a packet without a device; the reason.
    NotRun(String),
}

/// Result of a frame.
#[derive(Clone, Debug)]
pub struct FrameResult {
    /// Outcome.
    pub outcome: FrameOutcome,
    /// Bytes of the frame after the call.
    pub bytes: Vec<u8>,
    /// Frames that the module sent.
    pub sent: Vec<Sent>,
    /// Events that it reported.
    pub events: Vec<Event>,
}

/// Running instances, one for each lane.
pub struct Lanes {
    engine: Engine,
    module: Module,
    spec: InstanceSpec,
    instances: Vec<Option<Running>>,
    division: LaneSelector,
    /// Indexes of lanes with timers.
    timed: Vec<usize>,
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
        level: Level,
    ) -> Result<Self, Failure> {
        let engine = Engine::new()
            .map_err(|error| Failure::new(ErrorCode::Unsupported, error.to_string()))?;
        let module = Module::compile(&engine, bytes, checked, level)?;
        let ticker = Ticker::start(&engine)?;
        let spec = InstanceSpec {
            window: checked.manifest.window,
            memory_pages_max: checked.memory.pages_max,
            parameters,
            refusals: checked.manifest.refusals.clone(),
            ports,
            lane: 0,
            call_slices: CALL_SLICES,
            pace: None,
            memory: None,
            room: None,
        };
        let count = match checked.manifest.lanes {
            LanesWish::Count(count) => u32::from(count.max(1)),
            LanesWish::PerCore => 1,
        };
        let instances = (0..count)
            .map(|lane| {
                let started = module.start(&engine, &InstanceSpec { lane, ..spec.clone() });
                started.map(Some).map_err(|error| not_started(error, checked))
            })
            .collect::<Result<_, _>>()?;
        let manifest = &checked.manifest;
        let division = LaneSelector::new(count as usize, &manifest.pools, &manifest.flows_by);
        let timed = match manifest.pools.is_empty() {
            true => (0..count as usize).collect(),
            false => lanes_of(&manifest.pools)
                .filter(|(_, pool)| pool.has(abi::Event::Timer))
                .flat_map(|(lanes, _)| lanes)
                .collect(),
        };
        let (timer_ms, timer_at_ms) = (manifest.timer_ms, 0);
        Ok(Self {
            engine,
            module,
            spec,
            instances,
            division,
            timed,
            timer_ms,
            timer_at_ms,
            _ticker: ticker,
        })
    }

    /// Runs the module on one frame.
    ///
    /// # Errors
    /// The module cannot run any more.
    pub fn handle(&mut self, frame: &Frame) -> Result<FrameResult, Failure> {
        let left = |outcome| FrameResult {
            outcome,
            bytes: frame.bytes.clone(),
            sent: vec![],
            events: vec![],
        };
        if frame.bytes.is_empty() || frame.bytes.len() > PACKET_LENGTH_MAX as usize {
            return Ok(left(FrameOutcome::NoPacket));
        }
        let parsed = match wire::parse_frame(&frame.bytes) {
            Ok(parsed) => parsed,
            Err(outcome) => return Ok(left(FrameOutcome::FrontDoor(outcome.name()))),
        };
        if parsed.is_link_local(&frame.bytes) {
            return Ok(left(FrameOutcome::FrontDoor("kernel_link_local")));
        }
        let meta = meta(&parsed, frame.time.as_millis() as u64);
        self.tick(meta.now_ms)?;
        let packet = OwnedPacket::new(frame.bytes.clone());
        let lane = self.division.lane_of(&packet, meta.flow_hash, || meta);
        let Some(instance) = self.instances[lane].as_mut() else {
            return Ok(left(FrameOutcome::Down));
        };
        let Handled { bytes, verdict, emitted } = match instance.on_packet(&frame.bytes, &meta) {
            Ok(handled) => handled,
            Err(NotHandled::Packet(why)) => return Ok(left(FrameOutcome::NotRun(why.to_string()))),
            Err(NotHandled::Failed(failure)) => return Err(failure),
        };
        let outcome = match verdict {
            Ok(verdict) => FrameOutcome::Verdict(verdict),
            Err(trap) => {
                self.replace(lane)?;
                FrameOutcome::Trapped(trap)
            }
        };
        Ok(FrameResult { outcome, bytes, sent: emitted.sent, events: emitted.events })
    }

    /// Runs `on_timer` when due by the capture's time stamps, as a cell does by the clock.
    fn tick(&mut self, now_ms: u64) -> Result<(), Failure> {
        let due = self.timer_ms.filter(|_| self.timer_at_ms <= now_ms);
        let Some(period) = due else { return Ok(()) };
        let is_first = self.timer_at_ms == 0;
        self.timer_at_ms = now_ms + u64::from(period);
        for at in (0..self.timed.len()).filter(|_| !is_first) {
            let lane = self.timed[at];
            let Some(instance) = self.instances[lane].as_mut() else { continue };
            if !instance.on_timer(now_ms)? {
                self.replace(lane)?;
            }
        }
        Ok(())
    }

    /// Restarts the lane's instance; the lane is down if that fails.
    fn replace(&mut self, lane: usize) -> Result<(), Failure> {
        let spec = InstanceSpec { lane: lane as u32, ..self.spec.clone() };
        // The old one goes first: the two would need their memory together.
        self.instances[lane] = None;
        self.instances[lane] = match self.module.start(&self.engine, &spec) {
            Ok(instance) => Some(instance),
            Err(NotStarted::Module(_)) => None,
            Err(NotStarted::Failed(failure)) => return Err(failure),
        };
        Ok(())
    }

    /// Returns the module's counters, summed over all lanes.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let mut counters = BTreeMap::new();
        for (name, value) in self.instances.iter().flatten().flat_map(Running::counters) {
            let sum: &mut u64 = counters.entry(name).or_default();
            *sum = sum.wrapping_add(value);
        }
        counters
    }

    /// Runs the first lane, which is at user level, on the same packet repeatedly; returns how many
    /// times it passed.
    pub fn repeat(&mut self, bytes: &[u8], times: u32) -> u32 {
        let Ok(parsed) = wire::parse_frame(bytes) else { return 0 };
        let meta = meta(&parsed, 0);
        let Some(Running::User(instance)) = self.instances[0].as_mut() else { return 0 };
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

fn not_started(error: NotStarted, checked: &Checked) -> Failure {
    match error {
        NotStarted::Failed(failure) => failure,
        NotStarted::Module(error) => {
            let name = &checked.manifest.name;
            Failure::failed(format!("module '{name}' does not start: {error}"))
                .help("`tam check` shows its parameters; set them with --param NAME=VALUE")
        }
    }
}

/// Returns the packet metadata that the front door would hand to a module.
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

/// Thread that raises the epoch every [`SLICE`], so that endless loops are preempted.
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
