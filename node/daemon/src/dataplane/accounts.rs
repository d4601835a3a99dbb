//! Fuel of sessions below user level: the speed of this machine, and accounts in the kernel.
//!
//! ```text
//!  start ─▶ measured, on a thread ─▶ fuel in a millisecond ─┐
//!  sessions, services, what is left to promise ─────────────┴▶ terms ─▶ tam_accounts, lanes
//! ```
//!
//! The kernel fills accounts and charges packets (`levels/bpf/c/service.h`), also without a daemon.
//! `core/node` assigns payers to accounts.

use super::budgets::word_of;
use bpf::FrontDoor;
use bpf_maps::OVER_NOT;
use node::Node;
use session::in_kernel::Speed;
use units::Nanos;

/// Accounts of sessions below user level.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Fuel that this machine uses in a time; `None` while it has not been measured.
    measured: Option<Speed>,
    /// True when reservations or services changed since accounts were settled.
    is_dirty: bool,
}

impl Accounts {
    /// Takes over the speed that a previous daemon measured.
    pub(super) const fn adopt(&mut self, measured: Option<Speed>) {
        self.measured = measured;
    }

    /// Returns the speed that was measured.
    pub(super) const fn measured(&self) -> Option<Speed> {
        self.measured
    }

    /// Returns the speed that counts: that of a slow machine until it was measured.
    pub(super) fn speed(&self) -> Speed {
        self.measured.unwrap_or(Speed::UNMEASURED)
    }

    /// Stores a result of measuring. Returns true when there is a speed.
    pub(super) fn handle_measured(&mut self, speed: Result<Speed, String>) -> bool {
        match speed {
            Ok(speed) => {
                tracing::info!(fuel_per_us = %speed, "measured how fast modules run below user level");
                self.measured = Some(speed);
            }
            Err(reason) => {
                tracing::warn!(
                    reason,
                    fuel_per_us = %Speed::UNMEASURED,
                    "the speed of modules below user level could not be measured: a usual one is assumed"
                );
                return false;
            }
        }
        true
    }

    /// Records that reservations or services have changed.
    pub(super) const fn mark(&mut self) {
        self.is_dirty = true;
    }

    /// Returns true when something changed since the last call.
    pub(super) const fn take_dirty(&mut self) -> bool {
        std::mem::replace(&mut self.is_dirty, false)
    }

    /// Writes accounts and their payers to the front door. Balances of existing accounts are kept.
    pub(super) fn settle(&self, front: &FrontDoor, node: &Node) {
        let tick = Nanos(u64::from(bpf::front_door::tick_ns()));
        let accounts = node.accounts(self.speed(), tick);
        for (number, terms) in &accounts.terms {
            if !front.accounts().set_account(number.0, terms.per_tick, terms.capacity) {
                tracing::error!(%number, "the front door has no account of this number: a session's time below user level is not set");
            }
        }
        for service in node.services() {
            let (number, beyond) = match accounts.payers.get(&service.entry) {
                Some((number, over)) => (number.0, word_of(*over)),
                None => (0, OVER_NOT),
            };
            front.services().pay_from(service.entry, number, beyond);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_speed_is_assumed_until_it_is_measured() {
        let mut accounts = Accounts::default();
        assert_eq!((accounts.measured(), accounts.speed()), (None, Speed::UNMEASURED));
        assert!(!accounts.handle_measured(Err("no thread".to_owned())));
        assert_eq!(accounts.measured(), None);
        let speed = Speed::UNMEASURED;
        assert!(accounts.handle_measured(Ok(speed)));
        assert_eq!(accounts.measured(), Some(speed));
        let mut next = Accounts::default();
        next.adopt(accounts.measured());
        assert_eq!(next.measured(), Some(speed));
    }

    #[test]
    fn a_marked_change_is_taken_once() {
        let mut accounts = Accounts::default();
        assert!(!accounts.take_dirty());
        accounts.mark();
        accounts.mark();
        assert!(accounts.take_dirty() && !accounts.take_dirty());
    }
}
