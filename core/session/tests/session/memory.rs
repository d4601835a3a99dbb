//! Random histories of sessions that allocate, release, change their reservations and end, against
//! a list of all outstanding charges.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use session::memory::{Accounts, LOW_DIVISOR, REARM_DIVISOR, Use};
use units::{Bytes, SessionId};

use crate::seeds::for_many_sets;
use testbase::Chance;

const TOTAL: u64 = 1_000_000;
const SESSIONS: u64 = 6;

/// Outstanding charge.
struct Taken {
    session: SessionId,
    what: Use,
    bytes: Bytes,
}

/// Model of the accounts, recomputed from all charges.
#[derive(Default)]
struct Model {
    reserved: BTreeMap<SessionId, Option<Bytes>>,
    queues: BTreeMap<SessionId, Bytes>,
    taken: Vec<Taken>,
    low: BTreeMap<SessionId, bool>,
    lows: BTreeMap<SessionId, u64>,
}

impl Model {
    fn used(&self, id: SessionId) -> Bytes {
        let taken = self.taken.iter().filter(|taken| taken.session == id);
        let queue = self.queues.get(&id).copied().unwrap_or_default();
        taken.map(|taken| taken.bytes).sum::<Bytes>() + queue
    }

    fn number(&self, id: SessionId) -> Option<Bytes> {
        self.reserved.get(&id).copied().flatten()
    }

    fn promised(&self) -> Bytes {
        self.reserved.values().flatten().copied().sum()
    }

    fn rest(&self) -> Bytes {
        let all = (1..SESSIONS as u16).map(SessionId);
        all.filter(|id| self.number(*id).is_none()).map(|id| self.used(id)).sum()
    }

    fn fits(&self, id: SessionId, bytes: Bytes) -> bool {
        match self.number(id) {
            Some(number) => self.used(id) + bytes <= number,
            None if id == SessionId::SYSTEM => true,
            None => self.rest() + bytes <= Bytes(TOTAL).saturating_sub(self.promised()),
        }
    }

    /// Updates whether a session has crossed one of the two thresholds.
    fn update(&mut self, id: SessionId) {
        let left_below = |number: Bytes, divisor: u64| {
            number.saturating_sub(self.used(id)).0 < number.0 / divisor
        };
        let was = self.low.get(&id).copied().unwrap_or_default();
        let is = self.number(id).is_some_and(|number| match was {
            true => left_below(number, REARM_DIVISOR),
            false => left_below(number, LOW_DIVISOR),
        });
        self.low.insert(id, is);
        *self.lows.entry(id).or_default() += u64::from(is && !was);
    }

    fn check(&self, accounts: &Accounts) -> TestCaseResult {
        for id in (0..SESSIONS as u16).map(SessionId) {
            let Some(account) = accounts.account(id) else {
                prop_assert_eq!(self.used(id), Bytes::ZERO);
                continue;
            };
            prop_assert_eq!(account.used, self.used(id), "of session {}", id);
            prop_assert_eq!(account.held.sum(), account.used);
            prop_assert!(account.peak >= account.used);
            for what in Use::ALL.into_iter().filter(|what| *what != Use::Queue) {
                let of = self.taken.iter().filter(|it| it.session == id && it.what == what);
                prop_assert_eq!(account.held.of(what), of.map(|taken| taken.bytes).sum::<Bytes>());
            }
        }
        prop_assert_eq!(accounts.unreserved_use(), self.rest());
        Ok(())
    }
}

/// Executes one step of a history.
fn step(chance: &mut Chance, accounts: &mut Accounts, model: &mut Model) -> TestCaseResult {
    let id = SessionId(chance.between(0, SESSIONS - 1) as u16);
    match chance.between(0, 9) {
        0..=4 => {
            let what = Use::ALL[chance.between(0, Use::ALL.len() as u64 - 1) as usize];
            let bytes = Bytes(chance.between(1, 80_000));
            if what == Use::Queue {
                return Ok(());
            }
            let fits = model.fits(id, bytes);
            let refused = accounts.account(id).map_or(0, |account| account.refused);
            let taken = accounts.take(id, what, bytes);
            prop_assert_eq!(taken.is_ok(), fits, "{} of {} for {}", bytes.0, what.name(), id);
            let after = accounts.account(id).map_or(0, |account| account.refused);
            prop_assert_eq!(after - refused, u64::from(!fits));
            if let Err(short) = taken {
                prop_assert!(short.left() < bytes);
                return Ok(());
            }
            model.taken.push(Taken { session: id, what, bytes });
            model.update(id);
        }
        5..=7 => {
            let count = model.taken.len() as u64;
            if count == 0 {
                return Ok(());
            }
            let at = chance.between(0, count - 1) as usize;
            let Taken { session, what, bytes } = model.taken.swap_remove(at);
            accounts.give(session, what, bytes);
            model.update(session);
        }
        8 if id.0 > 1 => {
            let number = (!chance.one_in(3)).then(|| Bytes(chance.between(1, 200_000)));
            let others = model.promised().saturating_sub(model.number(id).unwrap_or_default());
            // Admission control would accept this one.
            let number = number.filter(|number| *number + others <= Bytes(TOTAL));
            let queue = Bytes(chance.between(0, 1_000));
            accounts.set(id, number, queue);
            model.reserved.insert(id, number);
            model.queues.insert(id, number.map_or(Bytes::ZERO, |_| queue));
            model.update(id);
        }
        9 if id.0 > 1 => {
            // A session is removed after everything that ran in it.
            for Taken { session, what, bytes } in model.taken.extract_if(.., |it| it.session == id)
            {
                accounts.give(session, what, bytes);
            }
            while accounts.poll_low().is_some() {}
            accounts.forget(id);
            model.reserved.remove(&id);
            model.queues.remove(&id);
            model.low.remove(&id);
            model.lows.remove(&id);
        }
        _ => {}
    }
    model.check(accounts)
}

#[test]
fn no_session_exceeds_its_reservation_and_no_charge_is_lost() {
    for_many_sets(&(any::<u64>(), 1usize..400), |(seed, steps)| {
        let (mut chance, mut accounts) = (Chance(seed), Accounts::new(Bytes(TOTAL)));
        let mut model = Model::default();
        for _ in 0..steps {
            step(&mut chance, &mut accounts, &mut model)?;
            for (id, lows) in &model.lows {
                let account = accounts.account(*id);
                prop_assert_eq!(account.map_or(0, |account| account.lows), *lows, "of {}", id);
            }
        }
        for Taken { session, what, bytes } in model.taken.drain(..) {
            accounts.give(session, what, bytes);
        }
        for id in (0..SESSIONS as u16).map(SessionId) {
            let queue = model.queues.get(&id).copied().unwrap_or_default();
            let left = accounts.account(id).map_or(Bytes::ZERO, |account| account.held.sum());
            prop_assert_eq!(left, queue, "of {}", id);
        }
        prop_assert_eq!(accounts.unreserved_use(), Bytes::ZERO);
        Ok(())
    });
}

#[test]
fn reserved_memory_is_available_whatever_others_use() {
    for_many_sets(&(any::<u64>(), 1usize..200), |(seed, steps)| {
        let (mut chance, mut accounts) = (Chance(seed), Accounts::new(Bytes(TOTAL)));
        let (victim, number) = (SessionId(5), Bytes(chance.between(1, TOTAL)));
        accounts.set(victim, Some(number), Bytes::ZERO);
        for _ in 0..steps {
            let id = SessionId(chance.between(0, 4) as u16);
            let _ = accounts.take(id, Use::Linear, Bytes(chance.between(1, TOTAL)));
        }
        prop_assert!(accounts.unreserved_use() + number <= Bytes(TOTAL));
        prop_assert!(accounts.take(victim, Use::Linear, number).is_ok());
        Ok(())
    });
}
