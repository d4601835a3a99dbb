//! How much memory each session has, and whether it may have more: one number for all that is
//! there because of it, also what the node holds on its behalf.
//!
//! ```text
//!  take ─▶ fits its number? ─ yes ─▶ held, by kind ─ give ─▶ …
//!            │ no                      │ less than an eighth is left
//!            ▼                         ▼
//!          Short: refused, counted   Low, once, until a quarter was left again
//!
//!  who reserved ── a number of its own
//!  the others ──── together what is left of all that the node has for sessions
//!  system ──────── counted, not held to anything: the operator's services are in everybody's way
//! ```
//!
//! It counts bytes that whoever asks is about to have, and says no; it allocates no memory of
//! sessions itself. Charged is the most that can be in use of what was set up (all of a stack, all
//! of a linear memory as large as it is now), since nobody sees which of its pages were touched.

use core::fmt;

use serde::{Deserialize, Serialize};
use units::{Bytes, SessionId};

use crate::text::Size;

/// Less than this part of its memory left is low: what a module needs to react is there still,
/// and it is not told in ordinary use.
pub const LOW_DIVISOR: u64 = 8;
/// It is told again only when this part had been left in between: one that stays about the border
/// is not told each time that it crosses it.
pub const ENOUGH_DIVISOR: u64 = 4;

const _: () = assert!(ENOUGH_DIVISOR < LOW_DIVISOR, "or it would be told at each step");

/// What may wait for a session that reserved no queue, in bytes of packet memory: a burst.
pub const QUEUE_DEFAULT: Bytes = Bytes(1 << 20);
/// Of its memory, what a session that reserved no queue has for one.
const QUEUE_DIVISOR: u64 = 8;

/// The queue of a session that reserved none: of one that reserved memory a part of that, so that
/// its modules cannot use up the room of its packets.
#[must_use]
pub fn queue_default(memory: Option<Bytes>) -> Bytes {
    memory.map_or(QUEUE_DEFAULT, |memory| QUEUE_DEFAULT.min(Bytes(memory.0 / QUEUE_DIVISOR)))
}

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Use {
    /// Linear memories, as large as they are.
    Linear,
    /// Tables.
    Tables,
    /// Code, in the cell and in the daemon. Each session that runs a module pays for all of it:
    /// what it pays does not depend on others, who may go at any time.
    Code,
    /// The stacks of its modules' calls.
    Stacks,
    /// What the node keeps for it besides: instances, parameters, modules' bytes.
    Host,
    /// What programs below user level have besides their memory: the instance block, the ring of
    /// what they send and tell.
    Below,
    /// Room for packets that wait, all of it.
    Queue,
    /// State on its way from one version of a service to the next.
    State,
}

impl Use {
    /// All of them, in the order of the enum.
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

    /// Its name.
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

/// Kinds of use.
pub const USES: usize = Use::ALL.len();

/// Bytes for each use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held([Bytes; USES]);

impl Held {
    /// For one of them.
    #[must_use]
    pub const fn of(&self, what: Use) -> Bytes {
        self.0[what as usize]
    }

    /// For all.
    #[must_use]
    pub fn sum(&self) -> Bytes {
        self.0.iter().copied().sum()
    }

    /// With so much of one.
    #[must_use]
    pub const fn with(mut self, what: Use, bytes: Bytes) -> Self {
        self.0[what as usize] = bytes;
        self
    }
}

/// There is not that much. Nobody's fault but that of who promised too little, or asked too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// What was asked for.
    pub asked: Bytes,
    /// What the session, or all that reserved nothing, have now.
    pub used: Bytes,
    /// What they may have.
    pub most: Bytes,
    /// Whether it is the session's own number.
    pub is_own: bool,
}

impl Short {
    /// What is left.
    #[must_use]
    pub const fn left(&self) -> Bytes {
        self.most.saturating_sub(self.used)
    }
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (asked, used) = (Size(self.asked).rounded(), Size(self.used).rounded());
        let (most, left) = (Size(self.most), Size(self.left()).rounded());
        match self.is_own {
            true => write!(
                f,
                "{asked} of memory are needed, and {left} are left to its session: {used} of {most} \
                 are used; promise it more ('tam session set SESSION --memory'), or remove \
                 something of it"
            ),
            false => write!(
                f,
                "{asked} of memory are needed, and {left} are left to all sessions that reserved \
                 none: they use {used} of {most}; reserve memory for its session ('tam session set \
                 SESSION --memory'), or remove something"
            ),
        }
    }
}

impl core::error::Error for Short {}

/// A session has little left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Low {
    /// Which.
    pub session: SessionId,
    /// What it uses.
    pub used: Bytes,
    /// Its number.
    pub most: Bytes,
}

/// What one session has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Its number; none: it has a part of what nobody reserved.
    pub reserved: Option<Bytes>,
    /// What it has, by use.
    pub held: Held,
    /// All of that.
    pub used: Bytes,
    /// The most that it had at a time.
    pub peak: Bytes,
    /// How often it was refused more.
    pub refused: u64,
    /// How often it was told that little is left.
    pub lows: u64,
    is_low: bool,
}

impl Account {
    fn is_below(&self, divisor: u64) -> bool {
        let Some(reserved) = self.reserved else { return false };
        reserved.saturating_sub(self.used).0 < reserved.0 / divisor
    }

    /// Whether little has become of what was enough.
    fn becomes_low(&mut self) -> bool {
        if self.is_low {
            self.is_low = self.is_below(ENOUGH_DIVISOR);
            return false;
        }
        self.is_low = self.is_below(LOW_DIVISOR);
        self.lows += u64::from(self.is_low);
        self.is_low
    }
}

/// The memory of all sessions.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    total: Bytes,
    /// Of it, to sessions that reserved some.
    promised: Bytes,
    /// What sessions use that reserved none, but for `system`.
    rest: Bytes,
    /// By number; packets that wait are looked up here.
    all: Vec<Option<Account>>,
    low: Vec<SessionId>,
}

impl Accounts {
    /// Of a node that has so much for all of them.
    #[must_use]
    pub fn new(total: Bytes) -> Self {
        Self { total, ..Self::default() }
    }

    /// It has more or less. What is in use stays.
    pub fn set_total(&mut self, total: Bytes) {
        self.total = total;
    }

    /// A session is there, or has another number, or another queue, which is a part of that. What
    /// it has stays, also where that is more now: then it gets no more until it has less.
    pub fn set(&mut self, id: SessionId, reserved: Option<Bytes>, queue: Bytes) {
        let account = self.entry(id);
        let before = account.reserved.unwrap_or_default();
        let of_the_rest_before = of_the_rest(id, account);
        // Where nobody is held to a number, the queue is a part of packet memory and of nothing else.
        let queue = reserved.map_or(Bytes::ZERO, |_| queue);
        account.reserved = reserved;
        account.held = account.held.with(Use::Queue, queue);
        account.used = account.held.sum();
        account.peak = account.peak.max(account.used);
        let of_the_rest = of_the_rest(id, account);
        let is_low = account.becomes_low();
        self.promised = (self.promised + reserved.unwrap_or_default()).saturating_sub(before);
        self.rest = (self.rest + of_the_rest).saturating_sub(of_the_rest_before);
        self.note_low(id, is_low);
    }

    /// A session is gone.
    pub fn forget(&mut self, id: SessionId) {
        let Some(account) = self.all.get_mut(usize::from(id.0)).and_then(Option::take) else {
            return;
        };
        self.promised = self.promised.saturating_sub(account.reserved.unwrap_or_default());
        self.rest = self.rest.saturating_sub(of_the_rest(id, &account));
    }

    /// Lets a session have more, all of it or nothing.
    ///
    /// # Errors
    /// When it does not fit, which is counted.
    pub fn take(&mut self, id: SessionId, what: Use, bytes: Bytes) -> Result<(), Short> {
        let fits = self.may_take(id, bytes);
        match fits {
            Ok(()) => self.put(id, what, bytes),
            Err(_) => self.entry(id).refused += 1,
        }
        fits
    }

    /// Whether it could have so much more now.
    ///
    /// # Errors
    /// When it does not fit.
    #[inline]
    pub fn may_take(&self, id: SessionId, bytes: Bytes) -> Result<(), Short> {
        let account = self.account(id);
        let reserved = account.and_then(|account| account.reserved);
        let (used, most) = match (account, reserved) {
            (Some(account), Some(reserved)) => (account.used, reserved),
            _ if id == SessionId::SYSTEM => return Ok(()),
            _ => (self.rest, self.rest_max()),
        };
        // Nothing is always to be had, also beyond the number.
        if bytes == Bytes::ZERO || used + bytes <= most {
            return Ok(());
        }
        Err(Short { asked: bytes, used, most, is_own: reserved.is_some() })
    }

    /// A session has more, whether it fits or not: what was somebody else's until now.
    #[inline]
    pub fn put(&mut self, id: SessionId, what: Use, bytes: Bytes) {
        let account = self.entry(id);
        account.held = account.held.with(what, account.held.of(what) + bytes);
        account.used += bytes;
        account.peak = account.peak.max(account.used);
        let is_of_the_rest = is_of_the_rest(id, account);
        let is_low = account.becomes_low();
        if is_of_the_rest {
            self.rest += bytes;
        }
        self.note_low(id, is_low);
    }

    /// A session has less.
    #[inline]
    pub fn give(&mut self, id: SessionId, what: Use, bytes: Bytes) {
        // One that is gone has given back everything.
        let Some(account) = self.all.get_mut(usize::from(id.0)).and_then(Option::as_mut) else {
            return;
        };
        debug_assert!(account.held.of(what) >= bytes, "{id} gives back what it never took");
        account.held = account.held.with(what, account.held.of(what).saturating_sub(bytes));
        account.used = account.used.saturating_sub(bytes);
        let is_low = account.becomes_low();
        if is_of_the_rest(id, account) {
            self.rest = self.rest.saturating_sub(bytes);
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

    /// A session that has little left since the last time that it was said; each once, and not
    /// if it has enough again.
    pub fn poll_low(&mut self) -> Option<Low> {
        while let Some(session) = self.low.pop() {
            let Some(account) = self.account(session).filter(|it| it.is_low) else { continue };
            let Some(most) = account.reserved else { continue };
            return Some(Low { session, used: account.used, most });
        }
        None
    }

    /// What a session has.
    #[must_use]
    pub fn account(&self, id: SessionId) -> Option<&Account> {
        self.all.get(usize::from(id.0))?.as_ref()
    }

    /// What sessions use that reserved none.
    #[must_use]
    pub const fn rest(&self) -> Bytes {
        self.rest
    }

    /// What they may use, all together.
    #[must_use]
    pub const fn rest_max(&self) -> Bytes {
        self.total.saturating_sub(self.promised)
    }
}

/// Whether what it has is of that which nobody reserved.
fn is_of_the_rest(id: SessionId, account: &Account) -> bool {
    account.reserved.is_none() && id != SessionId::SYSTEM
}

/// What it has of that.
fn of_the_rest(id: SessionId, account: &Account) -> Bytes {
    if is_of_the_rest(id, account) { account.used } else { Bytes::ZERO }
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
    fn who_reserved_gets_its_number_and_no_more() {
        let mut accounts = accounts();
        accounts.take(GOLD, Use::Linear, Bytes(300)).unwrap();
        let short = accounts.take(GOLD, Use::Code, Bytes(1)).unwrap_err();
        let expected = Short { asked: Bytes(1), used: Bytes(400), most: Bytes(400), is_own: true };
        assert_eq!(short, expected);
        let account = accounts.account(GOLD).unwrap();
        assert_eq!((account.refused, account.peak), (1, Bytes(400)));
        accounts.give(GOLD, Use::Linear, Bytes(50));
        accounts.take(GOLD, Use::Code, Bytes(50)).unwrap();
    }

    #[test]
    fn who_did_not_shares_what_is_left_and_the_system_is_held_to_nothing() {
        let mut accounts = accounts();
        accounts.take(SILVER, Use::Linear, Bytes(400)).unwrap();
        accounts.take(SessionId::BEST_EFFORT, Use::Linear, Bytes(200)).unwrap();
        let short = accounts.take(SILVER, Use::Linear, Bytes(1)).unwrap_err();
        assert_eq!((short.used, short.most, short.is_own), (Bytes(600), Bytes(600), false));
        accounts.take(SessionId::SYSTEM, Use::Linear, Bytes(5_000)).unwrap();
        assert_eq!(accounts.rest(), Bytes(600));
        accounts.take(GOLD, Use::Linear, Bytes(300)).unwrap();
        // Whoever reserves takes along what it has.
        accounts.set(SILVER, Some(Bytes(400)), Bytes::ZERO);
        assert_eq!((accounts.rest(), accounts.rest_max()), (Bytes(200), Bytes(200)));
        accounts.forget(GOLD);
        assert_eq!(accounts.rest_max(), Bytes(600));
    }

    #[test]
    fn a_number_that_became_too_small_takes_nothing_away_and_lets_nothing_in() {
        let mut accounts = accounts();
        accounts.take(GOLD, Use::Linear, Bytes(200)).unwrap();
        accounts.set(GOLD, Some(Bytes(250)), Bytes(100));
        assert!(accounts.take(GOLD, Use::Linear, Bytes(1)).is_err());
        accounts.take(GOLD, Use::Linear, Bytes::ZERO).unwrap();
        accounts.give(GOLD, Use::Linear, Bytes(100));
        accounts.take(GOLD, Use::Linear, Bytes(50)).unwrap();
    }

    #[test]
    fn little_left_is_said_once_until_enough_was_left_again() {
        let mut accounts = Accounts::new(Bytes(1_000));
        accounts.set(GOLD, Some(Bytes(800)), Bytes::ZERO);
        accounts.take(GOLD, Use::Linear, Bytes(700)).unwrap();
        assert_eq!(accounts.poll_low(), None, "an eighth is left");
        accounts.take(GOLD, Use::Linear, Bytes(1)).unwrap();
        let low = Low { session: GOLD, used: Bytes(701), most: Bytes(800) };
        assert_eq!(accounts.poll_low(), Some(low));
        assert_eq!(accounts.poll_low(), None);
        accounts.give(GOLD, Use::Linear, Bytes(100));
        accounts.take(GOLD, Use::Linear, Bytes(150)).unwrap();
        assert_eq!(accounts.poll_low(), None, "less than a quarter had been left");
        accounts.give(GOLD, Use::Linear, Bytes(151));
        accounts.take(GOLD, Use::Linear, Bytes(151)).unwrap();
        assert!(accounts.poll_low().is_some());
        // Another number is a crossing, too, in both directions.
        accounts.set(GOLD, Some(Bytes(1_010)), Bytes::ZERO);
        assert_eq!(accounts.poll_low(), None);
        accounts.set(GOLD, Some(Bytes(760)), Bytes::ZERO);
        assert!(accounts.poll_low().is_some());
        assert_eq!(accounts.account(GOLD).unwrap().lows, 3);
    }

    #[test]
    fn a_refusal_says_what_is_needed_used_left_and_what_to_do() {
        let short = Short {
            asked: Bytes(3 << 20),
            used: Bytes(7 << 20),
            most: Bytes(8 << 20),
            is_own: true,
        };
        let text = short.to_string();
        for part in ["3MiB", "1MiB are left", "7MiB of 8MiB", "--memory"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(Short { is_own: false, ..short }.to_string().contains("reserved none"));
    }
}
