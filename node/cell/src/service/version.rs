//! Version of a service: code, start parameters of its instances, and the account of their memory.

use crate::below;
use crate::memory::{Allowance, Charge, Memory};
use crate::protocol::ServiceSpec;
use crate::service::shared::Shared;
use engine::{Engine, InstanceSpec, Kept, Pace, Program, StartError, Starting, Trap, TrapKind};
use session::memory::OutOfMemory;
use std::collections::BTreeMap;
use std::rc::Rc;
use units::{CoarseInstant, SessionId};
use xsk::Packet;

/// Reason for which a service does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartFailure {
    /// The session has too little memory left.
    #[error("{0}")]
    Memory(#[source] OutOfMemory),
    #[error(transparent)]
    Start(#[from] StartError),
}

impl From<OutOfMemory> for StartFailure {
    fn from(short: OutOfMemory) -> Self {
        Self::Memory(short)
    }
}

/// Code of a version, and the parameters with which its instances start.
pub(super) struct Version {
    program: Program<Packet>,
    spec: Box<InstanceSpec>,
    memory: Memory,
    /// Allowance of its instances on the session's account.
    allowance: Rc<Allowance>,
    /// Charge for what is kept for it, and for its stacks.
    _charge: Charge,
}

impl Version {
    /// Creates a version of prepared code, whose instances ask `pace` how long they may run.
    pub(super) fn new(
        program: Program<Packet>,
        facts: &ServiceSpec,
        ports: BTreeMap<String, u16>,
        shared: Option<&Shared>,
        (memory, charge): (Memory, Charge),
        pace: Rc<dyn Pace>,
    ) -> Self {
        let allowance = memory.room(facts.session);
        let spec = InstanceSpec {
            window: facts.window,
            memory_pages_max: facts.memory_pages_max,
            parameters: facts.parameters.clone(),
            refusals: facts.refusals.clone(),
            ports,
            lane: 0,
            call_slices: 1,
            pace: Some(pace),
            memory: shared.map(Shared::memory),
            room: Some(Rc::clone(&allowance) as _),
        };
        Self { program, spec: Box::new(spec), memory, allowance, _charge: charge }
    }

    /// Begins to start a lane's instance, with the state that an earlier one left.
    ///
    /// # Errors
    /// The instance cannot be created.
    pub(super) fn begin(
        &self,
        engine: &Engine,
        lane: usize,
        kept: Option<Kept>,
        now: CoarseInstant,
    ) -> Result<Starting<Packet>, StartError> {
        // A refusal of memory to an earlier instance is not this one's.
        self.allowance.take_short();
        let spec = InstanceSpec { lane: lane as u32, ..(*self.spec).clone() };
        self.program.begin(engine, &spec, kept, now.as_millis())
    }

    /// Returns the cause of a failed start: a refusal of memory takes precedence over the module's
    /// error.
    pub(super) fn why(&self, error: StartError) -> StartFailure {
        self.allowance.take_short().map_or(error.into(), StartFailure::Memory)
    }

    /// Charges a session for state under transfer to the next version.
    ///
    /// # Errors
    /// The session has too little memory left.
    pub(super) fn charge_state(
        &self,
        session: SessionId,
        bytes: u64,
    ) -> Result<Charge, OutOfMemory> {
        self.memory.charge_state(session, bytes)
    }

    /// Returns a trap below user level, from its code and its offset in the module.
    pub(super) fn trap_of(&self, cause: u32, place: u32) -> Trap {
        let unknown = Trap { kind: TrapKind::Other, place: None };
        below::trap_of(&self.program, cause, place).unwrap_or(unknown)
    }
}
