//! `guard-limit`: follows `guard`, and sleeps until a prefix exceeds its threshold. It limits each
//! such prefix by a token bucket, or blocks it.
//!
//! ```text
//!  mark of guard ─▶ bucket of its slot ─▶ a token left? ──yes──▶ pass
//!                                                         └─no──▶ drop
//! ```
//!
//! The decision about prefix and duration is guard's, and is in the mark; events report the
//! prefixes.

#![forbid(unsafe_code)]
#![cfg_attr(target_arch = "wasm32", no_std)]

mod buckets;

use buckets::{Buckets, Mark};
use tam::{Packet, Verdict};

tam::module! {
    on_packet: on_packet,
    on_start: on_start,
    on_timer: on_timer,
}

tam::keep!(BUCKETS);

tam::counters! {
    /// Packets that came.
    static PACKETS = "packets";
    /// Packets that were let through.
    static PASSED = "passed";
    /// Packets without a mark of guard, let through as well.
    static STRANGERS = "strangers";
    /// Prefixes that became limited.
    static WOKEN = "woken";
    /// Prefixes whose limit ended; when both are equal it sleeps.
    static ASLEEP = "asleep";
}

/// Drop reasons, named by `[reasons]` in module.toml.
mod reason {
    pub const LIMITED: u16 = 1;
    pub const BLOCKED: u16 = 2;
}

/// Event codes; each event has a prefix (docs/guides/guard.md).
mod event {
    /// First prefix: it wakes up.
    pub const WOKEN: u32 = 1;
    /// Another prefix.
    pub const MORE: u32 = 2;
    /// Prefix removed.
    pub const LESS: u32 = 3;
    /// Last prefix removed: it sleeps.
    pub const ASLEEP: u32 = 4;
}

/// Code with which `on_start` refuses a limit above [`LIMIT_MAX`].
const REFUSE_LIMIT: u16 = 1;
/// Largest limit in packets per second: more than any port carries.
const LIMIT_MAX: u32 = 10_000_000;

static LIMIT: tam::State<u32> = tam::State::new(1000);
static BUCKETS: tam::State<Buckets> = tam::State::new(Buckets::ZERO);

fn on_start() -> Result<(), u16> {
    let limit = tam::parameter("limit").unwrap_or(1000_u32);
    if limit > LIMIT_MAX {
        return Err(REFUSE_LIMIT);
    }
    LIMIT.with(|kept| *kept = limit);
    Ok(())
}

fn on_packet(packet: &mut Packet<'_>) -> Verdict {
    PACKETS.add(1);
    let Some(mark) = Mark::read(&packet.mark()) else {
        STRANGERS.add(1);
        return Verdict::PASS;
    };
    let (limit, now_ms) = (LIMIT.with(|limit| *limit), packet.now_ms());
    let passes = BUCKETS.with(|buckets| {
        if let Some(woken) = buckets.wake(&mark, now_ms, limit) {
            WOKEN.add(1);
            ASLEEP.add(u64::from(woken.in_place));
            tell(if woken.slept { event::WOKEN } else { event::MORE }, &mark);
        }
        buckets.take(&mark, now_ms, limit)
    });
    match (passes, limit) {
        (true, _) => {
            PASSED.add(1);
            Verdict::PASS
        }
        (false, 0) => Verdict::Drop { reason: reason::BLOCKED },
        (false, _) => Verdict::Drop { reason: reason::LIMITED },
    }
}

/// Ends the limits of prefixes that guard no longer marks.
fn on_timer() {
    let now_ms = tam::now_ms();
    BUCKETS.with(|buckets| {
        buckets.let_go(now_ms, |mark, awake| {
            ASLEEP.add(1);
            tell(if awake == 0 { event::ASLEEP } else { event::LESS }, mark);
        });
    });
}

/// Sends an event. Beyond four events per call none is sent; the counters include every prefix.
fn tell(code: u32, mark: &Mark) {
    let mut data = [0; 10];
    (data[0], data[1]) = (mark.version, mark.length);
    data[2..].copy_from_slice(&mark.bits.to_be_bytes());
    let _is_told = tam::event(code, &data);
}

#[cfg(test)]
mod tests;
