//! Requests to a service beside its packets: starts, messages, timers, and replacement by another
//! version.
//!
//! ```text
//!   request ─▶ queue ─▶ current: lane by lane ─▶ Notice
//!     timer,               │ the turn is over: a hook is suspended, and resumed in the next one
//!     message,             └─ a trap: that lane starts again first
//!     version
//! ```
//!
//! Each step is one turn of its session where sessions take turns; else all steps run at once.
//! Packets that have not begun wait meanwhile, since a hook uses its instance's memory, and may use
//! that of a lane below user level.

use super::instances::{Instances, Starts};
use super::lane::Called;
use super::message::PendingMessage;
use super::pools::Step;
use super::replace::ReplaceError;
use super::shared::Shared;
use super::turns::{Reply, TurnResult};
use super::{Ready, Service};
use crate::memory::Charge;
use crate::protocol::StateTransfer;
use crate::sched::pacer;
use abi::Event;
use engine::{Call, Ended, Engine, Kept, QueueEvent, StateError};
use session::memory::LowMemory;
use std::collections::VecDeque;
use units::{CoarseInstant, Nanos};

/// Requests that may wait for a service: a burst of messages, and no more than a slow module
/// answers within a second.
const CONTROLS_MAX: usize = 64;

/// Request to a service, beside its packets.
pub(crate) enum Control {
    /// Call of `on_timer` in every lane that handles timers.
    Timer,
    /// Call of `on_message` in every lane that handles messages.
    Message(PendingMessage),
    /// Call of `on_memory_low` in every lane.
    MemoryLow(LowMemory),
    /// Call of `on_queue` in every lane.
    Queue(QueueEvent),
    /// Replacement by another version.
    Replace(Box<Ready>, StateTransfer),
}

/// Request in progress.
pub(super) enum Current {
    /// Hook: the lane in which it is called next, the answers so far, and the message that it handles.
    Hook { call: Call, lane: usize, answers: Vec<Option<i32>>, message: Option<PendingMessage> },
    /// Collection of the state that each lane hands to the next version.
    Keep {
        ready: Box<Ready>,
        transfer: StateTransfer,
        kept: Vec<Option<Kept>>,
        held: Vec<Charge>,
        from: Place,
    },
    /// Start of the next version, while the state handed to it is charged.
    Next { next: Box<Service>, held: Vec<Charge>, from: Place },
}

/// Level of a service before its replacement, and when that began.
pub(super) struct Place {
    home: Option<u32>,
    since: Nanos,
}

/// Returns the call of the hook for low memory.
pub(super) fn low_memory_call(low: &LowMemory, now: CoarseInstant) -> Call {
    let kibibytes = |bytes: u64| u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
    let (used, most) = (kibibytes(low.used.0), kibibytes(low.most.0));
    Call::MemoryLow { used, most, now_ms: now.as_millis() }
}

impl Control {
    /// Begins a request. Hooks need the lane's memory, which is taken here.
    pub(super) fn take_up(
        self,
        service: &mut Service,
        now: CoarseInstant,
        turn: &mut TurnResult,
    ) -> Option<Current> {
        let now_ms = now.as_millis();
        let (call, message) = match self {
            Self::Timer => (Call::Timer { now_ms }, None),
            Self::MemoryLow(low) => (low_memory_call(&low, now), None),
            Self::Queue(event) => (Call::Queue { event, now_ms }, None),
            Self::Message(message) => {
                (Call::Message { message: message.bytes(), now_ms }, Some(message))
            }
            Self::Replace(ready, transfer) => {
                return begin_to_keep(service, ready, transfer, now, turn);
            }
        };
        // A hook in each lane that handles it, if there is one.
        let is_asked = message.as_ref().is_some_and(PendingMessage::is_of_daemon);
        let lanes = service.instances.lanes();
        let first = service.instances.lane_for(&call, 0).filter(|_| service.hold(now));
        let Some(lane) = first else {
            turn.reply = is_asked.then(|| Reply::Answered(vec![None; lanes]));
            return None;
        };
        let answers = Vec::with_capacity(if is_asked { lanes } else { 0 });
        Some(Current::Hook { call, lane, answers, message })
    }
}

/// Begins to collect each lane's state for the next version.
fn begin_to_keep(
    service: &mut Service,
    ready: Box<Ready>,
    transfer: StateTransfer,
    now: CoarseInstant,
    turn: &mut TurnResult,
) -> Option<Current> {
    let (old, new) = (service.instances.lanes(), ready.facts.lanes.max(1));
    if transfer != StateTransfer::Empty && old != usize::from(new) {
        turn.reply = Some(Reply::Replaced(Err(ReplaceError::Lanes { old, new })));
        return None;
    }
    let home = service.shared_mut().map(Shared::stay_above);
    let from = Place { home, since: pacer::now() };
    if !service.hold(now) {
        return from.stay(service, ReplaceError::Busy, turn);
    }
    let (kept, held) = (Vec::new(), Vec::new());
    Some(Current::Keep { ready, transfer, kept, held, from })
}

impl Place {
    /// Keeps the old version, which goes back to its level if it can.
    fn stay(
        &self,
        service: &mut Service,
        error: ReplaceError,
        turn: &mut TurnResult,
    ) -> Option<Current> {
        if let (Some(shared), Some(home)) = (service.shared_mut(), self.home) {
            shared.set_home(home);
        }
        turn.reply = Some(Reply::Replaced(Err(error)));
        None
    }
}

impl Current {
    /// Continues a request until `until` at most; returns what is left of it.
    pub(super) fn go_on(
        self,
        service: &mut Service,
        engine: &Engine,
        (until, now): (Nanos, CoarseInstant),
        turn: &mut TurnResult,
    ) -> Option<Self> {
        match self {
            Self::Hook { call, lane, mut answers, mut message } => {
                let called = service.instances.call(lane, until, &call);
                if let Some(message) = message.as_mut().filter(|_| !matches!(called, Called::Empty))
                {
                    message.delivered();
                }
                let answer = match called {
                    Called::Suspended => return Some(Self::Hook { call, lane, answers, message }),
                    Called::Ended(Ended::Message(Ok(answer))) => answer,
                    Called::Ended(Ended::Message(Err(trap)) | Ended::Timer(Err(trap))) => {
                        service.replace(lane, trap, now);
                        None
                    }
                    Called::Empty | Called::Ended(_) => None,
                };
                answers.push(answer);
                if let Some(lane) = service.instances.lane_for(&call, lane + 1) {
                    return Some(Self::Hook { call, lane, answers, message });
                }
                let is_asked = message.as_ref().is_some_and(PendingMessage::is_of_daemon);
                turn.reply = is_asked.then_some(Reply::Answered(answers));
                None
            }
            Self::Keep { ready, transfer, mut kept, mut held, from } => {
                if kept.len() < service.instances.lanes() {
                    match keep(service, transfer, kept.len(), &mut held, (until, now)) {
                        Ok(Some(one)) => kept.push(one),
                        Ok(None) => {}
                        Err(error) => return from.stay(service, error, turn),
                    }
                    return Some(Self::Keep { ready, transfer, kept, held, from });
                }
                let pacer = service.instances.pacer();
                let next = Box::new(Service::begin(*ready, pacer, kept, now));
                Some(Self::Next { next, held, from })
            }
            Self::Next { mut next, held, from } => match next.start_on(engine, until, now) {
                Starts::More => Some(Self::Next { next, held, from }),
                Starts::Failed(error) => from.stay(service, error.into(), turn),
                Starts::All => {
                    service.instances.let_go();
                    service.give_way(*next, now);
                    let took = pacer::now().saturating_sub(from.since);
                    turn.reply = Some(Reply::Replaced(Ok(took)));
                    None
                }
            },
        }
    }
}

/// Returns the state that a lane hands to the next version (nothing if it has no instance); `None`
/// if the call is suspended.
fn keep(
    service: &mut Service,
    transfer: StateTransfer,
    lane: usize,
    held: &mut Vec<Charge>,
    (until, now): (Nanos, CoarseInstant),
) -> Result<Option<Option<Kept>>, ReplaceError> {
    let session = service.session();
    match transfer {
        StateTransfer::Empty => Ok(Some(None)),
        StateTransfer::Memory => {
            let Some(instance) = service.instances.lane_mut(lane).instance() else {
                return Ok(Some(None));
            };
            let bytes = instance.memory_bytes();
            held.push(service.version.charge_state(session, bytes)?);
            Ok(Some(Some(instance.save_memory())))
        }
        StateTransfer::Hooks => {
            let call = Call::StateOut { now_ms: now.as_millis() };
            match service.instances.call(lane, until, &call) {
                Called::Suspended => Ok(None),
                // The state was charged to its instance until now.
                Called::Ended(Ended::State(Ok(state))) => {
                    held.push(service.version.charge_state(session, state.length())?);
                    Ok(Some(Some(state)))
                }
                Called::Ended(Ended::State(Err(error))) => {
                    if let StateError::Trapped(_, trap) = &error {
                        // The trap ended the instance.
                        service.replace(lane, trap.clone(), now);
                    }
                    Err(error.into())
                }
                Called::Empty | Called::Ended(_) => Ok(Some(None)),
            }
        }
    }
}

/// Requests of a service: the queue, and the one in progress.
#[repr(C)]
pub(super) struct Agenda {
    queue: VecDeque<Control>,
    current: Option<Box<Current>>,
    /// Set until the service has started for the first time, which is reported to the daemon.
    is_new: bool,
}

impl Agenda {
    /// Creates the agenda of a service that is to start.
    pub(super) const fn new() -> Self {
        Self { queue: VecDeque::new(), current: None, is_new: true }
    }

    /// Returns true until the service has started for the first time.
    #[inline]
    pub(super) const fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns true while a request is in progress.
    #[inline]
    pub(super) const fn is_at_work(&self) -> bool {
        self.current.is_some()
    }

    /// Returns true if there is a request, beside lanes that are starting.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.is_new || self.current.is_some() || !self.queue.is_empty()
    }

    /// Returns the next step of a request, with its lane.
    pub(super) fn step(&self, instances: &Instances) -> Option<Step> {
        if let Some(lane) = instances.starting() {
            return Some(Step { lane, is_alone: self.is_new });
        }
        let first_with =
            |event| Step { lane: instances.first_with(event, 0).unwrap_or(0), is_alone: false };
        let alone = Step { lane: 0, is_alone: true };
        match (self.current.as_deref(), self.queue.front()) {
            _ if self.is_new => Some(alone),
            (Some(Current::Hook { lane, .. }), _) => Some(Step { lane: *lane, is_alone: false }),
            (Some(Current::Keep { kept, .. }), _) => {
                Some(Step { lane: kept.len().min(instances.lanes() - 1), is_alone: true })
            }
            (Some(Current::Next { .. }), _) | (None, Some(Control::Replace(..))) => Some(alone),
            (None, Some(Control::Timer)) => Some(first_with(Event::Timer)),
            (None, Some(Control::Message(_))) => Some(first_with(Event::Message)),
            (None, Some(Control::MemoryLow(_) | Control::Queue(_))) => {
                Some(Step { lane: 0, is_alone: false })
            }
            (None, None) => None,
        }
    }

    /// Queues a request. Returns false if the queue is full.
    pub(super) fn request(&mut self, control: Control) -> bool {
        match &control {
            Control::Timer if self.queue.iter().any(|it| matches!(it, Control::Timer)) => {
                return true;
            }
            // The last one replaces others, so the queue exceeds its limit by one at most.
            Control::MemoryLow(_) => {
                self.queue.retain(|waits| !matches!(waits, Control::MemoryLow(_)));
            }
            Control::Queue(event) => return self.request_queue_event(event.clone()),
            _ if self.queue.len() >= CONTROLS_MAX => return false,
            _ => {}
        }
        self.queue.push_back(control);
        true
    }

    /// Queues an event of the session's queue. The last length replaces others; of drops the first
    /// is kept, and false is returned for another. So the queue exceeds its limit by two at most.
    fn request_queue_event(&mut self, event: QueueEvent) -> bool {
        let is_drop = |event: &QueueEvent| matches!(event, QueueEvent::Dropped(_));
        let is_other = |waits: &Control| match waits {
            Control::Queue(waits) => is_drop(waits) != is_drop(&event),
            _ => true,
        };
        if is_drop(&event) && !self.queue.iter().all(is_other) {
            return false;
        }
        self.queue.retain(is_other);
        self.queue.push_back(Control::Queue(event));
        true
    }

    /// Records that the service has started or failed to; returns whether the daemon waits for
    /// that.
    pub(super) const fn take_new(&mut self) -> bool {
        std::mem::replace(&mut self.is_new, false)
    }

    /// Sets the request to continue in the next step.
    pub(super) fn set_current(&mut self, current: Option<Current>) {
        self.current = current.map(Box::new);
    }

    /// Takes the request in progress, to continue it.
    pub(super) fn take_current(&mut self) -> Option<Current> {
        self.current.take().map(|current| *current)
    }

    /// Takes the next request from the queue.
    pub(super) fn take_control(&mut self) -> Option<Control> {
        self.queue.pop_front()
    }

    /// Takes over the queued requests of another version.
    pub(super) fn inherit(&mut self, before: &mut Self) {
        self.queue.append(&mut before.queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::{Bytes, SessionId};

    fn message() -> Control {
        Control::Message(PendingMessage::of_daemon([1].into()))
    }

    fn low(used: u64) -> LowMemory {
        LowMemory { session: SessionId(2), used: Bytes(used << 10), most: Bytes(8 << 10) }
    }

    /// Takes all queued requests; returns a letter for each.
    fn waiting(agenda: &mut Agenda) -> String {
        let message = |control| match control {
            Control::Timer => 'T',
            Control::Message(_) => 'M',
            Control::MemoryLow(low) => {
                if low.used == Bytes(3 << 10) {
                    'l'
                } else {
                    'L'
                }
            }
            Control::Queue(QueueEvent::Long(_)) => 'Q',
            Control::Queue(QueueEvent::Short(_)) => 'q',
            Control::Queue(QueueEvent::Dropped(_)) => 'D',
            Control::Replace(..) => 'R',
        };
        std::iter::from_fn(|| agenda.take_control()).map(message).collect()
    }

    #[test]
    fn messages_are_limited_and_a_timer_that_waits_stands_for_later_ticks() {
        let mut agenda = Agenda::new();
        assert!(agenda.request(Control::Timer));
        assert!((1..CONTROLS_MAX).all(|_| agenda.request(message())));
        assert!(!agenda.request(message()));
        assert!(agenda.request(Control::Timer), "it waits already");
        assert_eq!(waiting(&mut agenda), format!("T{}", "M".repeat(CONTROLS_MAX - 1)));
    }

    #[test]
    fn only_the_latest_low_memory_notice_is_queued_and_it_always_fits() {
        let mut agenda = Agenda::new();
        (0..CONTROLS_MAX).for_each(|_| assert!(agenda.request(message())));
        assert!(
            agenda.request(Control::MemoryLow(low(2)))
                && agenda.request(Control::MemoryLow(low(3)))
        );
        assert_eq!(waiting(&mut agenda), format!("{}l", "M".repeat(CONTROLS_MAX)));
    }

    #[test]
    fn the_last_queue_length_and_the_first_drop_are_queued_as_notices() {
        let mut agenda = Agenda::new();
        let dropped = || Control::Queue(QueueEvent::Dropped([7].into()));
        assert!(agenda.request(Control::Queue(QueueEvent::Long(1))) && agenda.request(dropped()));
        assert!(!agenda.request(dropped()), "one waits");
        assert!(agenda.request(Control::Queue(QueueEvent::Short(1))));
        assert_eq!(waiting(&mut agenda), "Dq");
    }

    #[test]
    fn a_service_is_new_once_and_at_work_during_a_hook() {
        let mut agenda = Agenda::new();
        assert!(agenda.is_new() && agenda.has_work());
        assert!(agenda.take_new() && !agenda.take_new());
        assert!(!agenda.has_work());
        agenda.set_current(Some(Current::Hook {
            call: low_memory_call(&low(3), CoarseInstant::ZERO),
            lane: 0,
            answers: Vec::new(),
            message: None,
        }));
        assert!(agenda.has_work() && agenda.is_at_work());
        let current = agenda.take_current();
        let Some(Current::Hook { call: Call::MemoryLow { used, most, .. }, .. }) = current else {
            panic!("another call");
        };
        assert_eq!((used, most), (3, 8), "in KiB");
    }
}
