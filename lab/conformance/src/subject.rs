//! Common part of all levels: the same instance specification, the same metadata, the same reading
//! of results.

use abi::check::Unverified;
use abi::{Checked, Meta, Verdict};
use cell::below::metadata_of;
use engine::{Emitted, InstanceSpec, StartError, Trap};

use crate::clock::CALL_SLICES;
use crate::{ARRIVAL_PORT, Case, Ending, Event, LevelError, OTHER_PORT, Outcome, Sent};

/// Ports of a level without devices, with their numbers.
const PORTS: [(&str, u16); 2] = [(ARRIVAL_PORT, 3), (OTHER_PORT, 7)];

/// Module of a case with the start values of its instances.
pub(crate) struct Subject {
    pub(crate) wasm: Vec<u8>,
    pub(crate) checked: Checked,
    pub(crate) spec: InstanceSpec,
}

impl Subject {
    pub(crate) fn of(case: &Case) -> Result<Self, LevelError> {
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
            refusals: checked.manifest.refusals.clone(),
            ports: PORTS.map(|(name, number)| (name.to_owned(), number)).into(),
            lane: 0,
            call_slices: CALL_SLICES,
            pace: None,
            memory: None,
            room: None,
        };
        Ok(Self { wasm, checked, spec })
    }
}

/// Instance at a level.
pub(crate) trait Running {
    /// Handles one packet; returns its bytes after the call, the verdict or trap, and what was
    /// emitted.
    fn handle(&mut self, frame: &[u8]) -> Result<Handled, LevelError>;

    /// Returns the module's counters.
    fn counters(&self) -> Vec<(String, u64)>;
}

pub(crate) struct Handled {
    pub(crate) packet: Vec<u8>,
    pub(crate) verdict: Result<Verdict, Trap>,
    pub(crate) emitted: Emitted,
}

/// Runs a case with instances that `start` makes: one that traps on a frame of `before` is
/// replaced.
pub(crate) fn run<R: Running>(
    case: &Case,
    start: impl Fn() -> Result<R, LevelError>,
) -> Result<Outcome, LevelError> {
    let mut instance = match start() {
        Ok(instance) => instance,
        Err(LevelError::Start(error)) => return not_started(error),
        Err(error) => return Err(error),
    };
    for frame in &case.before {
        if instance.handle(frame)?.verdict.is_err() {
            instance = start()?;
        }
    }
    let Handled { packet, verdict, emitted } = instance.handle(&case.frame)?;
    let ending = match verdict {
        Ok(verdict) => ending_of(verdict)?,
        Err(trap) => Ending::Trap(trap.kind.name().to_owned()),
    };
    let sent =
        |sent: engine::Sent| Ok(Sent { port: port_name(sent.port)?.to_owned(), frame: sent.frame });
    Ok(Outcome {
        frame: ending.keeps_packet().then_some(packet),
        counters: instance.counters().into_iter().collect(),
        sent: emitted.sent.into_iter().map(sent).collect::<Result<_, LevelError>>()?,
        events: emitted.events.into_iter().map(|e| Event { code: e.code, data: e.data }).collect(),
        ending,
    })
}

/// Converts a start error: a refusal by the module is an outcome; an instance that cannot be made
/// is an error.
fn not_started(error: StartError) -> Result<Outcome, LevelError> {
    let ending = match error {
        StartError::Refused(refusal) => Ending::StartRefused(refusal.number),
        StartError::Trapped(trap) => Ending::StartTrapped(trap.kind.name().to_owned()),
        other => return Err(LevelError::Start(other)),
    };
    Ok(Outcome::of(ending, None))
}

fn ending_of(verdict: Verdict) -> Result<Ending, LevelError> {
    Ok(match verdict {
        Verdict::Pass { edge, reroute: false } => Ending::Pass(edge),
        Verdict::Pass { edge, reroute: true } => Ending::Reroute(edge),
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

/// Returns the metadata that the front door would write for a frame from the arrival port.
pub(crate) fn meta_of(frame: &[u8]) -> Meta {
    Meta { port: PORTS[0].1, ..metadata_of(frame) }
}
