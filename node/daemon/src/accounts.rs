//! What sessions may use below user level: the speed of this machine, and accounts in the kernel.
//!
//! ```text
//!  start ─▶ measured, on a thread ─▶ fuel in a millisecond ─┐
//!  sessions, services, what is left to promise ─────────────┴▶ terms ─▶ tam_accounts, lanes
//! ```
//!
//! The kernel fills accounts and has packets pay (`levels/bpf/c/service.h`), also while nobody
//! is here. `core/node` says who pays from which.

use crate::budgets::word_of;
use crate::daemon::Daemon;
use crate::done::Done;
use bpf_maps::OVER_NOT;
use session::below::Speed;
use units::Nanos;

impl Daemon {
    /// Has the speed measured, if a daemon before did not. Accounts are those of a slow machine
    /// until it is known.
    pub(crate) fn measure_speed(&self) {
        if self.speed.is_some() || self.plane.no_bpf.is_some() || self.plane.front.front().is_err()
        {
            return;
        }
        let done = self.done.clone();
        tokio::task::spawn_blocking(move || {
            let speed = cell::below::measure_speed().map_err(|error| error.to_string());
            // The daemon is gone when nobody receives: nothing is left to do.
            let _ = done.send(Done::SpeedMeasured(speed));
        });
    }

    pub(crate) fn speed_measured(&mut self, speed: Result<Speed, String>) {
        match speed {
            Ok(speed) => {
                tracing::info!(fuel_per_us = %speed, "measured how fast modules run below user level");
                self.speed = Some(speed);
                self.recorder.mark();
            }
            Err(reason) => tracing::warn!(
                reason,
                fuel_per_us = %Speed::UNMEASURED,
                "how fast modules run below user level was not measured; taken is"
            ),
        }
        self.settle_accounts();
    }

    /// The speed that counts; none where nothing runs below user level.
    pub(crate) fn speed(&self) -> Option<Speed> {
        let runs = self.plane.no_bpf.is_none() && self.plane.front.front().is_ok();
        runs.then(|| self.speed.unwrap_or(Speed::UNMEASURED))
    }

    /// Says to the front door what is in each account, and who pays from it. What somebody has
    /// or owes he keeps.
    pub(crate) fn settle_accounts(&self) {
        let (Some(speed), Ok(front)) = (self.speed(), self.plane.front.front()) else { return };
        let tick = Nanos(u64::from(bpf::front_door::tick_ns()));
        let accounts = self.control.node().accounts(speed, tick);
        for (number, terms) in &accounts.terms {
            if !front.set_account(number.0, terms.per_tick, terms.full) {
                tracing::error!(%number, "there is no such account below user level");
            }
        }
        for service in self.control.node().services() {
            let (number, beyond) = match accounts.payers.get(&service.entry) {
                Some((number, over)) => (number.0, word_of(*over)),
                None => (0, OVER_NOT),
            };
            front.pay_from(service.entry, number, beyond);
        }
    }
}
