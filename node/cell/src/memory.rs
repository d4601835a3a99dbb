//! Memory of sessions in a cell: one account for all of it, including what the daemon keeps for a
//! service and reports.
//!
//! ```text
//!  a service, a version of one ─ Charge ────┐
//!  memory.grow, tables, state ── Allowance ─┼─▶ session::memory::Accounts ─▶ granted, or OutOfMemory
//!                                                            │
//!                                                            ▼ LowMemory
//!                                          on_memory_low of the session's services
//! ```
//!
//! Memory is returned whichever way its holder ends: by dropping a [`Charge`], or with the store of
//! an instance.

use crate::protocol::{ServiceSpec, StreamSpec};
use engine::{FIBER_LENGTH, Part};
use session::memory::{Account, Accounts, LowMemory, OutOfMemory, Use};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use units::{Bytes, SessionId};
use wasm_to_bpf::layout;

/// Bytes of an instance beside memory, tables and stack: its store, its part of the lane, and the
/// page tables of the addresses reserved for its memory and stack. Measured: 16 KiB with the first
/// pages of memory and stack, but without page tables (`system::memory`).
const INSTANCE_LENGTH: u64 = 56 << 10;
/// Bytes of a service beside its lanes, in the cell and in the daemon.
const SERVICE_LENGTH: u64 = 16 << 10;
/// Copies of machine code: one in the daemon's file, one loaded in the cell.
const CODE_COPIES: u64 = 2;
/// Bytes of a page of linear memory.
const PAGE_LENGTH: u64 = 65_536;
/// Bytes of a page of an arena.
const ARENA_PAGE_LENGTH: u64 = 4_096;

/// Memory accounts of all sessions; clones share them.
#[derive(Clone)]
pub(crate) struct Memory(Rc<RefCell<Accounts>>);

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

/// Memory charged to a session until this value is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    memory: Memory,
    session: SessionId,
    held: Vec<(Use, Bytes)>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        for (what, bytes) in &self.held {
            self.memory.give(self.session, *what, *bytes);
        }
    }
}

impl Memory {
    /// Creates accounts without a limit, until the daemon states the total.
    pub(crate) fn new() -> Self {
        Self(Rc::new(RefCell::new(Accounts::new(Bytes(u64::MAX)))))
    }

    /// Sets the total memory of all sessions.
    pub(crate) fn set_total(&self, total: Bytes) {
        self.0.borrow_mut().set_total(total);
    }

    /// Adds a session, or changes its reservation.
    pub(crate) fn set(&self, id: SessionId, reserved: Option<Bytes>, queue: Bytes) {
        self.0.borrow_mut().set(id, reserved, queue);
    }

    pub(crate) fn forget(&self, id: SessionId) {
        self.0.borrow_mut().forget(id);
    }

    /// Charges all of `held`, if `behind` more bytes would be available after that, or nothing.
    fn charge(
        &self,
        session: SessionId,
        held: Vec<(Use, Bytes)>,
        behind: Bytes,
    ) -> Result<Charge, OutOfMemory> {
        let mut accounts = self.0.borrow_mut();
        let sum: Bytes = held.iter().map(|(_, bytes)| *bytes).sum();
        accounts.may_take(session, sum + behind)?;
        held.iter().for_each(|(what, bytes)| accounts.put(session, *what, *bytes));
        Ok(Charge { memory: self.clone(), session, held })
    }

    /// Charges what a service needs to start. Memory that its instances will ask for must be
    /// available, but is not charged.
    pub(crate) fn charge_service(&self, facts: &ServiceSpec) -> Result<Charge, OutOfMemory> {
        let lanes = u64::from(facts.lanes.max(1));
        let parameters: usize = facts.parameters.iter().map(|(k, v)| k.len() + v.len()).sum();
        let refusals: usize = facts.refusals.values().map(String::len).sum();
        let host = SERVICE_LENGTH
            + u64::from(facts.kept.module)
            + refusals as u64
            + lanes * (INSTANCE_LENGTH + parameters as u64);
        let (linear, below, own) = match &facts.shared {
            // All that the manifest allows, from the start.
            Some(shared) => {
                let below = shared.ring_length + layout::block_length(shared.globals) as u32;
                (shared.arena_pages * ARENA_PAGE_LENGTH, below, 0)
            }
            None => (0, 0, lanes * u64::from(facts.memory_pages_min) * PAGE_LENGTH),
        };
        let held = vec![
            (Use::Code, Bytes(u64::from(facts.kept.code) * CODE_COPIES)),
            (Use::Stacks, Bytes(lanes * FIBER_LENGTH as u64)),
            (Use::Host, Bytes(host)),
            (Use::Below, Bytes(u64::from(below))),
            (Use::Linear, Bytes(linear)),
        ];
        self.charge(facts.session, held, Bytes(own))
    }

    /// Charges what a service of streams needs to start, except what its module asks for.
    pub(crate) fn charge_streams(&self, facts: &StreamSpec) -> Result<Charge, OutOfMemory> {
        let parameters: usize = facts.parameters.iter().map(|(k, v)| k.len() + v.len()).sum();
        let host = SERVICE_LENGTH + u64::from(facts.kept.module) + parameters as u64;
        let held = vec![
            (Use::Code, Bytes(u64::from(facts.kept.code) * CODE_COPIES)),
            (Use::Host, Bytes(host)),
        ];
        self.charge(facts.session, held, Bytes::ZERO)
    }

    /// Charges state under transfer from one version to the next.
    pub(crate) fn charge_state(
        &self,
        session: SessionId,
        bytes: u64,
    ) -> Result<Charge, OutOfMemory> {
        self.charge(session, vec![(Use::State, Bytes(bytes))], Bytes::ZERO)
    }

    /// Creates the allowance for instances of a session.
    pub(crate) fn room(&self, session: SessionId) -> Rc<Allowance> {
        Rc::new(Allowance { memory: self.clone(), session, short: Cell::new(None) })
    }

    fn give(&self, session: SessionId, what: Use, bytes: Bytes) {
        self.0.borrow_mut().give(session, what, bytes);
    }

    /// Returns the next session that is low on memory.
    pub(crate) fn poll_low(&self) -> Option<LowMemory> {
        self.0.borrow_mut().poll_low()
    }

    /// Returns the memory used by sessions without a reservation.
    pub(crate) fn rest(&self) -> Bytes {
        self.0.borrow().unreserved_use()
    }

    /// Returns the account of a session.
    pub(crate) fn account(&self, session: SessionId) -> Account {
        self.0.borrow().account(session).copied().unwrap_or_default()
    }
}

/// Allowance of an instance, on its session's account.
#[derive(Debug)]
pub(crate) struct Allowance {
    memory: Memory,
    session: SessionId,
    /// Latest refusal.
    short: Cell<Option<OutOfMemory>>,
}

impl Allowance {
    /// Takes the latest refusal since the last call.
    pub(crate) fn take_short(&self) -> Option<OutOfMemory> {
        self.short.take()
    }
}

const fn use_of(part: Part) -> Use {
    match part {
        Part::Memory => Use::Linear,
        Part::Tables => Use::Tables,
        Part::State => Use::State,
    }
}

impl engine::MemoryAccount for Allowance {
    fn take(&self, part: Part, bytes: u64) -> bool {
        let taken = self.memory.0.borrow_mut().take(self.session, use_of(part), Bytes(bytes));
        taken.map_err(|short| self.short.set(Some(short))).is_ok()
    }

    fn give(&self, part: Part, bytes: u64) {
        self.memory.give(self.session, use_of(part), Bytes(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{ArenaSpec, RetainedSizes};
    use engine::MemoryAccount as _;
    use std::collections::BTreeMap;
    use units::EntryId;

    const GOLD: SessionId = SessionId(2);

    fn facts(lanes: u16, shared: Option<ArenaSpec>) -> ServiceSpec {
        ServiceSpec {
            entry: EntryId(7),
            name: "monitor".into(),
            session: GOLD,
            window: 96,
            memory_pages_min: 2,
            memory_pages_max: 16,
            lanes,
            pools: Vec::new(),
            flows_by: Vec::new(),
            timer_ms: None,
            brief: false,
            parameters: BTreeMap::from([("dscp".into(), vec![46])]),
            refusals: BTreeMap::new(),
            functions: abi::HostFunctions::ALL,
            closed: false,
            shared,
            kept: RetainedSizes { code: 4_000, module: 700 },
        }
    }

    fn held(memory: &Memory, what: Use) -> u64 {
        memory.account(GOLD).held.of(what).0
    }

    #[test]
    fn a_service_is_charged_for_code_stacks_and_memory_and_releases_them() {
        let memory = Memory::new();
        memory.set(GOLD, Some(Bytes(64 << 20)), Bytes::ZERO);
        let charge = memory.charge_service(&facts(4, None)).unwrap();
        assert_eq!(held(&memory, Use::Code), 8_000);
        assert_eq!(held(&memory, Use::Stacks), 4 * FIBER_LENGTH as u64);
        assert_eq!(held(&memory, Use::Linear), 0, "its instances ask for themselves");
        let room = memory.room(GOLD);
        assert!(room.take(Part::Memory, 2 * PAGE_LENGTH) && room.take_short().is_none());
        assert_eq!(held(&memory, Use::Linear), 2 * PAGE_LENGTH);
        assert!(!room.take(Part::Memory, 64 << 20) && room.take_short().is_some());
        room.give(Part::Memory, 2 * PAGE_LENGTH);
        drop(charge);
        assert_eq!(memory.account(GOLD).used, Bytes::ZERO);
    }

    #[test]
    fn a_service_that_can_leave_user_level_is_charged_for_its_whole_arena() {
        let memory = Memory::new();
        memory.set(GOLD, Some(Bytes(64 << 20)), Bytes::ZERO);
        let (arena_pages, ring_length) = (80, 1 << 18);
        let shared = ArenaSpec {
            address: 1 << 44,
            number: 9,
            used: false,
            arena_pages,
            grows: true,
            globals: 1,
            ring_length,
        };
        let _charge = memory.charge_service(&facts(1, Some(shared))).unwrap();
        assert_eq!(held(&memory, Use::Linear), arena_pages * ARENA_PAGE_LENGTH);
        assert!(held(&memory, Use::Below) > u64::from(ring_length));
    }

    #[test]
    fn a_service_whose_first_pages_do_not_fit_is_charged_nothing() {
        let memory = Memory::new();
        memory.set(GOLD, Some(Bytes(64 << 20)), Bytes::ZERO);
        let least = {
            let _charge = memory.charge_service(&facts(1, None)).unwrap();
            memory.account(GOLD).used.0 + 2 * PAGE_LENGTH
        };
        memory.set(GOLD, Some(Bytes(least - 1)), Bytes::ZERO);
        let short = memory.charge_service(&facts(1, None)).unwrap_err();
        assert_eq!((short.requested, short.left()), (Bytes(least), Bytes(least - 1)));
        assert_eq!(memory.account(GOLD).used, Bytes::ZERO);
        memory.set(GOLD, Some(Bytes(least)), Bytes::ZERO);
        assert!(memory.charge_service(&facts(1, None)).is_ok());
    }
}
