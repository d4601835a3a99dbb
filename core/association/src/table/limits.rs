//! Timeouts, retries and limits of the association table.

use units::Nanos;

/// Lifetime of an association. Limits how long its keys are in memory, and how long a principal is
/// served after its capability has ended.
pub const LIFETIME_MAX: Nanos = Nanos::from_millis(180_000);
/// Age at which the initiator starts the handshake for the successor; a third of the lifetime is
/// left for it.
pub const RENEW_AFTER: Nanos = Nanos::from_millis(120_000);
/// Largest random reduction of [`RENEW_AFTER`]: a thousand associations that began together are not
/// renewed at once.
pub const RENEW_SPREAD: Nanos = Nanos::from_millis(10_000);
/// Delay before a failed renewal is retried.
pub const RENEW_AGAIN: Nanos = Nanos::from_millis(5_000);
/// Time for which the responder waits for message 3: the longest round trip on Earth and some
/// retries.
pub const HALF_OPEN_TIME: Nanos = Nanos::from_millis(10_000);
/// Delay before a message is first repeated; doubled each time.
pub const RETRY_FIRST: Nanos = Nanos::from_millis(500);
/// Longest delay between two repetitions.
pub const RETRY_MAX: Nanos = Nanos::from_millis(4_000);
/// Longest duration of one attempt to get an association.
pub const ATTEMPT_TIME_MAX: Nanos = Nanos::from_millis(20_000);
/// Number of times that message 3 is sent before the handshake starts over with a new message 1.
pub const FINISHES_MAX: u32 = 3;
/// Largest number of cookies accepted for one message 1: one, and another if secrets changed
/// meanwhile.
pub const COOKIES_MAX: u32 = 2;
/// Number of forged messages 2 or 3, each of which costs a computation, after which a handshake is
/// given up.
pub const FORGED_MAX: u32 = 8;

/// Largest number of associations of a node: some 8 KB each where packets are handled, 32 MB in
/// all.
pub const ASSOCIATIONS_MAX: usize = 4096;
/// Largest number of associations of one principal: one, its successor, and those of earlier
/// processes of a restarted peer. The oldest one ends.
pub const ASSOCIATIONS_PER_PRINCIPAL_MAX: usize = 8;
/// Largest number of handshakes begun by other nodes: some 4 KB each, 4 MB in all.
pub const HALF_OPEN_MAX: usize = 1024;
/// Largest number of those whose source address is unproven. Beyond it cookies are required: a
/// flood from forged addresses leaves no more state than this.
pub const UNPROVEN_MAX: usize = 64;
/// Largest number of handshakes begun by this node.
pub const INITIATED_MAX: usize = 1024;

const _: () = assert!(LIFETIME_MAX.0 > RENEW_AFTER.0 + ATTEMPT_TIME_MAX.0 + RENEW_AGAIN.0);
const _: () = assert!(UNPROVEN_MAX < HALF_OPEN_MAX && HALF_OPEN_MAX < ASSOCIATIONS_MAX);
