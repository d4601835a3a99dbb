//! How long, how often, how many.

use units::Nanos;

/// How long an association lives. Its keys are in memory no longer, and a principal whose
/// capability ended is asked again.
pub const LIFETIME_MAX: Nanos = Nanos::from_millis(180_000);
/// When who asked for it asks for the next one: a third of the lifetime is left for that.
pub const RENEW_AFTER: Nanos = Nanos::from_millis(120_000);
/// By how much less than that, at random: a thousand associations that began together are not
/// renewed together.
pub const RENEW_SPREAD: Nanos = Nanos::from_millis(10_000);
/// When a renewal that failed is tried again.
pub const RENEW_AGAIN: Nanos = Nanos::from_millis(5_000);
/// How long who answered waits for message 3: the longest way round the world and some
/// retries.
pub const HALF_OPEN_TIME: Nanos = Nanos::from_millis(10_000);
/// When a message is first sent again; each time twice as long.
pub const RETRY_FIRST: Nanos = Nanos::from_millis(500);
/// The longest time between two attempts.
pub const RETRY_MAX: Nanos = Nanos::from_millis(4_000);
/// How long one attempt to get an association takes in all.
pub const ASK_TIME_MAX: Nanos = Nanos::from_millis(20_000);
/// How often message 3 is sent before a new message 1 is.
pub const FINISHES_MAX: u32 = 3;
/// How many cookies one message 1 takes: one, and another if secrets changed meanwhile.
pub const COOKIES_MAX: u32 = 2;
/// Messages 2 or 3 that turn out forged, each after some computation, before a handshake is
/// given up.
pub const FORGED_MAX: u32 = 8;

/// Associations of one node: some 8 KB each where packets are handled, 32 MB in all.
pub const ASSOCIATIONS_MAX: usize = 4096;
/// Associations of one principal: one, its successor, and those of processes that have
/// restarted since. The oldest one ends.
pub const ASSOCIATIONS_PER_PRINCIPAL_MAX: usize = 8;
/// Handshakes that others have begun: some 4 KB each, 4 MB in all.
pub const HALF_OPEN_MAX: usize = 1024;
/// Of these, those whose sender has not shown that he receives at his address. Beyond, cookies
/// are asked for: a flood from forged addresses leaves no more than this behind.
pub const UNPROVEN_MAX: usize = 64;
/// Handshakes that this node has begun.
pub const ASKING_MAX: usize = 1024;

const _: () = assert!(LIFETIME_MAX.0 > RENEW_AFTER.0 + ASK_TIME_MAX.0 + RENEW_AGAIN.0);
const _: () = assert!(UNPROVEN_MAX < HALF_OPEN_MAX && HALF_OPEN_MAX < ASSOCIATIONS_MAX);
