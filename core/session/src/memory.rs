//! Memory accounting by session. A session is charged for everything that exists because of it,
//! also for what the node allocates on its behalf.
//!
//! ```text
//!  take ─▶ within the limit? ─ yes ─▶ held, by use ─ release ─▶ …
//!            │ no                        │ less than an eighth is left
//!            ▼                           ▼
//!     OutOfMemory: refused, counted    LowMemory: one event until a quarter was left again
//!
//!  with a reservation ──── limit: its own reservation
//!  without one ─────────── common limit: the memory that nobody reserved
//!  system ──────────────── counted, not limited: the operator's services serve everybody
//! ```
//!
//! Only bytes are counted here, before the caller allocates them; this module allocates no memory
//! for sessions itself. Charges are for the address space that was set up (a whole stack, a linear
//! memory at its current size), since page faults in it are not observed.

use core::fmt;

use serde::{Deserialize, Serialize};
use units::{Bytes, SessionId};

use crate::text::Size;

/// Divisor of the low-memory threshold: memory is low when less than an eighth is left. A module
/// still has what it needs to react, and the event does not occur in ordinary use.
pub const LOW_DIVISOR: u64 = 8;
/// Divisor of the threshold that re-arms the low-memory event: a quarter left. A session whose use
/// hovers around the lower threshold causes one event, not one for each crossing.
pub const REARM_DIVISOR: u64 = 4;

const _: () = assert!(REARM_DIVISOR < LOW_DIVISOR, "the event is re-armed above its own threshold");

/// Queue of a session that reserved none, in bytes of packet memory: one burst.
pub const QUEUE_DEFAULT: Bytes = Bytes(1 << 20);
/// Divisor of the reserved memory that bounds the default queue: an eighth.
const QUEUE_DIVISOR: u64 = 8;

/// Returns the queue limit of a session that reserved none. With a memory reservation it is at most
/// an eighth of that, so that its modules' memory and its packets do not compete.
#[must_use]
pub fn queue_default(memory: Option<Bytes>) -> Bytes {
    memory.map_or(QUEUE_DEFAULT, |memory| QUEUE_DEFAULT.min(Bytes(memory.0 / QUEUE_DIVISOR)))
}

/// Purpose of charged memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Use {
    /// Linear memories, at their current size.
    Linear,
    /// WebAssembly tables.
    Tables,
    /// Compiled code, in the cell and in the daemon. Charged in full to every session that runs the
    /// module, so that a charge does not depend on other sessions, which may end at any time.
    Code,
    /// Stacks of calls into its modules.
    Stacks,
    /// Bookkeeping of the node: instances, parameters, module binaries.
    Host,
    /// Structures of in-kernel programs besides linear memory: the instance block, and the ring of
    /// packets and events that they emit.
    Below,
    /// Reserved packet queue, counted in full.
    Queue,
    /// State that is being transferred between two versions of a service.
    State,
}

impl Use {
    /// All uses, in the order of the enum.
    pub const ALL: [Self; 8] = [
        Self::Linear,
        Self::Tables,
        Self::Code,
        Self::Stacks,
        Self::Host,
        Self::Below,
        Self::Queue,
        Self::State,
    ];

    /// Returns the name that JSON documents and metrics use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Tables => "tables",
            Self::Code => "code",
            Self::Stacks => "stacks",
            Self::Host => "host",
            Self::Below => "below",
            Self::Queue => "queue",
            Self::State => "state",
        }
    }
}

/// Number of uses.
pub const USES: usize = Use::ALL.len();

/// Charged bytes by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held([Bytes; USES]);

impl Held {
    /// Returns the bytes charged for one use.
    #[must_use]
    pub const fn of(&self, what: Use) -> Bytes {
        self.0[what as usize]
    }

    /// Returns the bytes charged for all uses.
    #[must_use]
    pub fn sum(&self) -> Bytes {
        self.0.iter().copied().sum()
    }

    /// Returns a copy in which `what` is charged with `bytes`.
    #[must_use]
    pub const fn with(mut self, what: Use, bytes: Bytes) -> Self {
        self.0[what as usize] = bytes;
        self
    }
}

/// Refusal of a charge that exceeds a limit. Nobody's fault, or that of an operator who reserved
/// too little or requested too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Requested bytes.
    pub requested: Bytes,
    /// Bytes in use by the session, or by all sessions without a reservation.
    pub used: Bytes,
    /// Limit that `used` is compared with.
    pub most: Bytes,
    /// True if the limit is the session's own reservation, false if it is the common one.
    pub is_own: bool,
}

impl OutOfMemory {
    /// Returns the bytes left below the limit.
    #[must_use]
    pub const fn left(&self) -> Bytes {
        self.most.saturating_sub(self.used)
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requested, used) = (Size(self.requested).rounded(), Size(self.used).rounded());
        let (most, left) = (Size(self.most), Size(self.left()).rounded());
        match self.is_own {
            true => write!(
                f,
                "{requested} of memory are needed, and {left} are left in its session: {used} of {most} \
                 are used; reserve more ('tam session set SESSION --memory'), or remove some of \
                 its services"
            ),
            false => write!(
                f,
                "{requested} of memory are needed, and {left} are left for all sessions without a \
                 reservation: they use {used} of {most}; reserve memory for its session ('tam \
                 session set SESSION --memory'), or remove some services"
            ),
        }
    }
}

impl core::error::Error for OutOfMemory {}

/// Low-memory event of a session with a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowMemory {
    /// Session that is low.
    pub session: SessionId,
    /// Bytes that it uses.
    pub used: Bytes,
    /// Bytes that it reserved.
    pub most: Bytes,
}

/// Memory account of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Reservation; `None` shares the limit of unreserved memory.
    pub reserved: Option<Bytes>,
    /// Charged bytes by use.
    pub held: Held,
    /// Sum of `held`.
    pub used: Bytes,
    /// Highest value of `used` so far.
    pub peak: Bytes,
    /// Number of refused charges.
    pub refused: u64,
    /// Number of low-memory events.
    pub lows: u64,
    is_low: bool,
}

impl Account {
    fn is_below(&self, divisor: u64) -> bool {
        let Some(reserved) = self.reserved else { return false };
        reserved.saturating_sub(self.used).0 < reserved.0 / divisor
    }

    /// Updates the low-memory state. Returns true if the session became low just now.
    fn becomes_low(&mut self) -> bool {
        if self.is_low {
            self.is_low = self.is_below(REARM_DIVISOR);
            return false;
        }
        self.is_low = self.is_below(LOW_DIVISOR);
        self.lows += u64::from(self.is_low);
        self.is_low
    }
}

/// Memory accounts of all sessions of a node.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    total: Bytes,
    /// Sum of all reservations.
    promised: Bytes,
    /// Bytes in use by sessions without a reservation, except `system`.
    unreserved_use: Bytes,
    /// Indexed by session number, since it is read for each packet.
    all: Vec<Option<Account>>,
    low: Vec<SessionId>,
}

impl Accounts {
    /// Makes the accounts of a node with `total` memory for sessions.
    #[must_use]
    pub fn new(total: Bytes) -> Self {
        Self { total, ..Self::default() }
    }

    /// Changes the memory for sessions. Existing charges stay.
    pub fn set_total(&mut self, total: Bytes) {
        self.total = total;
    }

    /// Adds a session, or changes its reservation or its queue (a part of the reservation).
    /// Existing charges stay, also above a lower reservation; then nothing more is granted until
    /// use falls below it.
    pub fn set(&mut self, id: SessionId, reserved: Option<Bytes>, queue: Bytes) {
        let account = self.entry(id);
        let before = account.reserved.unwrap_or_default();
        let unreserved_before = unreserved_bytes(id, account);
        // Without a memory reservation the queue is limited by packet memory alone.
        let queue = reserved.map_or(Bytes::ZERO, |_| queue);
        account.reserved = reserved;
        account.held = account.held.with(Use::Queue, queue);
        account.used = account.held.sum();
        account.peak = account.peak.max(account.used);
        let unreserved = unreserved_bytes(id, account);
        let is_low = account.becomes_low();
        self.promised = (self.promised + reserved.unwrap_or_default()).saturating_sub(before);
        self.unreserved_use = (self.unreserved_use + unreserved).saturating_sub(unreserved_before);
        self.note_low(id, is_low);
    }

    /// Removes a session with all its charges.
    pub fn forget(&mut self, id: SessionId) {
        let Some(account) = self.all.get_mut(usize::from(id.0)).and_then(Option::take) else {
            return;
        };
        self.promised = self.promised.saturating_sub(account.reserved.unwrap_or_default());
        self.unreserved_use = self.unreserved_use.saturating_sub(unreserved_bytes(id, &account));
    }

    /// Charges a session if it fits, all of it or nothing.
    ///
    /// # Errors
    /// The charge exceeds the limit; the refusal is counted in the account.
    pub fn take(&mut self, id: SessionId, what: Use, bytes: Bytes) -> Result<(), OutOfMemory> {
        let fits = self.may_take(id, bytes);
        match fits {
            Ok(()) => self.put(id, what, bytes),
            Err(_) => self.entry(id).refused += 1,
        }
        fits
    }

    /// Checks whether a charge would fit now.
    ///
    /// # Errors
    /// The charge would exceed the limit.
    #[inline]
    pub fn may_take(&self, id: SessionId, bytes: Bytes) -> Result<(), OutOfMemory> {
        let account = self.account(id);
        let reserved = account.and_then(|account| account.reserved);
        let (used, most) = match (account, reserved) {
            (Some(account), Some(reserved)) => (account.used, reserved),
            _ if id == SessionId::SYSTEM => return Ok(()),
            _ => (self.unreserved_use, self.unreserved_max()),
        };
        // A charge of 0 bytes fits also above the limit.
        if bytes == Bytes::ZERO || used + bytes <= most {
            return Ok(());
        }
        Err(OutOfMemory { requested: bytes, used, most, is_own: reserved.is_some() })
    }

    /// Charges a session without a check of its limit, for memory that another account held until
    /// now.
    #[inline]
    pub fn put(&mut self, id: SessionId, what: Use, bytes: Bytes) {
        let account = self.entry(id);
        account.held = account.held.with(what, account.held.of(what) + bytes);
        account.used += bytes;
        account.peak = account.peak.max(account.used);
        let is_unreserved = is_unreserved(id, account);
        let is_low = account.becomes_low();
        if is_unreserved {
            self.unreserved_use += bytes;
        }
        self.note_low(id, is_low);
    }

    /// Releases a charge.
    #[inline]
    pub fn give(&mut self, id: SessionId, what: Use, bytes: Bytes) {
        // The accounts of removed sessions have no charges left.
        let Some(account) = self.all.get_mut(usize::from(id.0)).and_then(Option::as_mut) else {
            return;
        };
        debug_assert!(account.held.of(what) >= bytes, "{id} gives back what it never took");
        account.held = account.held.with(what, account.held.of(what).saturating_sub(bytes));
        account.used = account.used.saturating_sub(bytes);
        let is_low = account.becomes_low();
        if is_unreserved(id, account) {
            self.unreserved_use = self.unreserved_use.saturating_sub(bytes);
        }
        self.note_low(id, is_low);
    }

    fn entry(&mut self, id: SessionId) -> &mut Account {
        let index = usize::from(id.0);
        if self.all.len() <= index {
            self.all.resize(index + 1, None);
        }
        self.all[index].get_or_insert_default()
    }

    fn note_low(&mut self, id: SessionId, is_low: bool) {
        if is_low && !self.low.contains(&id) {
            self.low.push(id);
        }
    }

    /// Returns the next session that became low since the last call. Each is returned once, and
    /// omitted if it has recovered meanwhile.
    pub fn poll_low(&mut self) -> Option<LowMemory> {
        while let Some(session) = self.low.pop() {
            let Some(account) = self.account(session).filter(|it| it.is_low) else { continue };
            let Some(most) = account.reserved else { continue };
            return Some(LowMemory { session, used: account.used, most });
        }
        None
    }

    /// Returns the account of a session.
    #[must_use]
    pub fn account(&self, id: SessionId) -> Option<&Account> {
        self.all.get(usize::from(id.0))?.as_ref()
    }

    /// Returns the bytes in use by sessions without a reservation.
    #[must_use]
    pub const fn unreserved_use(&self) -> Bytes {
        self.unreserved_use
    }

    /// Returns the common limit of sessions without a reservation.
    #[must_use]
    pub const fn unreserved_max(&self) -> Bytes {
        self.total.saturating_sub(self.promised)
    }
}

/// Returns true if the account is charged against the common limit.
fn is_unreserved(id: SessionId, account: &Account) -> bool {
    account.reserved.is_none() && id != SessionId::SYSTEM
}

/// Returns the bytes that the account has charged against the common limit.
fn unreserved_bytes(id: SessionId, account: &Account) -> Bytes {
    if is_unreserved(id, account) { account.used } else { Bytes::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLD: SessionId = SessionId(2);
    const SILVER: SessionId = SessionId(3);

    fn accounts() -> Accounts {
        let mut accounts = Accounts::new(Bytes(1_000));
        accounts.set(GOLD, Some(Bytes(400)), Bytes(100));
        accounts
    }

    #[test]
    fn the_uses_are_in_the_order_of_their_enum() {
        for (index, what) in Use::ALL.into_iter().enumerate() {
            assert_eq!(what as usize, index, "{}", what.name());
        }
    }

    #[test]
    fn a_session_is_limited_by_its_reservation() {
        let mut accounts = accounts();
        accounts.take(GOLD, Use::Linear, Bytes(300)).unwrap();
        let short = accounts.take(GOLD, Use::Code, Bytes(1)).unwrap_err();
        let expected =
            OutOfMemory { requested: Bytes(1), used: Bytes(400), most: Bytes(400), is_own: true };
        assert_eq!(short, expected);
        let account = accounts.account(GOLD).unwrap();
        assert_eq!((account.refused, account.peak), (1, Bytes(400)));
        accounts.give(GOLD, Use::Linear, Bytes(50));
        accounts.take(GOLD, Use::Code, Bytes(50)).unwrap();
    }

    #[test]
    fn sessions_without_a_reservation_share_the_unreserved_memory_and_system_is_unlimited() {
        let mut accounts = accounts();
        accounts.take(SILVER, Use::Linear, Bytes(400)).unwrap();
        accounts.take(SessionId::BEST_EFFORT, Use::Linear, Bytes(200)).unwrap();
        let short = accounts.take(SILVER, Use::Linear, Bytes(1)).unwrap_err();
        assert_eq!((short.used, short.most, short.is_own), (Bytes(600), Bytes(600), false));
        accounts.take(SessionId::SYSTEM, Use::Linear, Bytes(5_000)).unwrap();
        assert_eq!(accounts.unreserved_use(), Bytes(600));
        accounts.take(GOLD, Use::Linear, Bytes(300)).unwrap();
        // A session that makes a reservation takes its charges along.
        accounts.set(SILVER, Some(Bytes(400)), Bytes::ZERO);
        assert_eq!(
            (accounts.unreserved_use(), accounts.unreserved_max()),
            (Bytes(200), Bytes(200))
        );
        accounts.forget(GOLD);
        assert_eq!(accounts.unreserved_max(), Bytes(600));
    }

    #[test]
    fn a_reservation_below_its_use_revokes_and_grants_nothing() {
        let mut accounts = accounts();
        accounts.take(GOLD, Use::Linear, Bytes(200)).unwrap();
        accounts.set(GOLD, Some(Bytes(250)), Bytes(100));
        assert!(accounts.take(GOLD, Use::Linear, Bytes(1)).is_err());
        accounts.take(GOLD, Use::Linear, Bytes::ZERO).unwrap();
        accounts.give(GOLD, Use::Linear, Bytes(100));
        accounts.take(GOLD, Use::Linear, Bytes(50)).unwrap();
    }

    #[test]
    fn low_memory_is_reported_once_until_it_recovered() {
        let mut accounts = Accounts::new(Bytes(1_000));
        accounts.set(GOLD, Some(Bytes(800)), Bytes::ZERO);
        accounts.take(GOLD, Use::Linear, Bytes(700)).unwrap();
        assert_eq!(accounts.poll_low(), None, "an eighth is left");
        accounts.take(GOLD, Use::Linear, Bytes(1)).unwrap();
        let low = LowMemory { session: GOLD, used: Bytes(701), most: Bytes(800) };
        assert_eq!(accounts.poll_low(), Some(low));
        assert_eq!(accounts.poll_low(), None);
        accounts.give(GOLD, Use::Linear, Bytes(100));
        accounts.take(GOLD, Use::Linear, Bytes(150)).unwrap();
        assert_eq!(accounts.poll_low(), None, "less than a quarter had been left");
        accounts.give(GOLD, Use::Linear, Bytes(151));
        accounts.take(GOLD, Use::Linear, Bytes(151)).unwrap();
        assert!(accounts.poll_low().is_some());
        // A change of the reservation can cross a threshold too, in both directions.
        accounts.set(GOLD, Some(Bytes(1_010)), Bytes::ZERO);
        assert_eq!(accounts.poll_low(), None);
        accounts.set(GOLD, Some(Bytes(760)), Bytes::ZERO);
        assert!(accounts.poll_low().is_some());
        assert_eq!(accounts.account(GOLD).unwrap().lows, 3);
    }

    #[test]
    fn a_memory_refusal_has_all_amounts_and_advice() {
        let short = OutOfMemory {
            requested: Bytes(3 << 20),
            used: Bytes(7 << 20),
            most: Bytes(8 << 20),
            is_own: true,
        };
        let text = short.to_string();
        for part in ["3MiB", "1MiB are left", "7MiB of 8MiB", "--memory"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(
            OutOfMemory { is_own: false, ..short }.to_string().contains("without a reservation")
        );
    }
}
