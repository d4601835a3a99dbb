//! `guard-limit`: what comes after `guard` and sleeps until a prefix is over its threshold.
//! It limits each such prefix by a token bucket, or blocks it.
//!
//! ```text
//! mark of guard ─▶ bucket of its place ─▶ a token left? ──yes──▶ pass
//!                                                        └─no──▶ drop
//! ```
//!
//! What is limited and how long is guard's decision and stands in the mark; which prefixes
//! that are is told by events.

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
    /// Of them, those that were let through.
    static PASSED = "passed";
    /// Packets without a mark of guard's, let through, too.
    static STRANGERS = "strangers";
    /// How often it took up a prefix.
    static WOKEN = "woken";
    /// How often it let one go; when both are equal it sleeps.
    static ASLEEP = "asleep";
}

/// `[reasons]` in module.toml names them.
mod reason {
    pub const LIMITED: u16 = 1;
    pub const BLOCKED: u16 = 2;
}

/// What events say, each with a prefix (docs/guides/guard.md).
mod event {
    /// It slept and does no more.
    pub const WOKEN: u32 = 1;
    /// One prefix more.
    pub const MORE: u32 = 2;
    /// One prefix less.
    pub const LESS: u32 = 3;
    /// That was the last one: it sleeps.
    pub const ASLEEP: u32 = 4;
}

/// `on_start` refuses with this when the limit is beyond [`LIMIT_MAX`].
const REFUSE_LIMIT: u16 = 1;
/// More packets in a second than any port carries.
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

/// Lets go of prefixes that guard lets through again.
fn on_timer() {
    let now_ms = tam::now_ms();
    BUCKETS.with(|buckets| {
        buckets.let_go(now_ms, |mark, awake| {
            ASLEEP.add(1);
            tell(if awake == 0 { event::ASLEEP } else { event::LESS }, mark);
        });
    });
}

/// Beyond four events of one call nothing is told; the counters have every prefix.
fn tell(code: u32, mark: &Mark) {
    let mut data = [0; 10];
    (data[0], data[1]) = (mark.version, mark.length);
    data[2..].copy_from_slice(&mark.bits.to_be_bytes());
    let _is_told = tam::event(code, &data);
}

#[cfg(test)]
mod tests;
