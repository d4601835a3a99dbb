//! Shares of a port's rate as bytes, for packets that leave from below user level: the account
//! that holds somebody to his share there.
//!
//! At user level packets wait for their turn ([`crate::egress`]). Below nothing waits: a packet
//! leaves, or finds nothing left of its session's share and is dropped. The kernel keeps accounts
//! (`levels/bpf/c/share.h`) as those of time ([`crate::below`]); they hold two slices and a tick,
//! for the same reason.

use units::{BitsPerSecond, Nanos};

use crate::below::{REST_PERIOD, Terms};
use crate::share::{Parts, Share, WHOLE};

/// What those without a share have together of a port, also when all is promised: they get
/// through.
pub const REST_MIN: Parts = Parts(10_000);

/// The account of somebody with a share of a port of this rate, on a machine whose kernel ticks
/// so often: in parts of a byte ([`crate::below::FUEL_SHIFT`]).
#[must_use]
pub fn share_of(share: Share, rate: BitsPerSecond, tick: Nanos) -> Terms {
    Terms::of_slice(bytes_in(share.slice(), rate), share.period(), tick)
}

/// That of all who have none, together: what can still be promised.
#[must_use]
pub fn rest_of(left: Parts, rate: BitsPerSecond, tick: Nanos) -> Terms {
    let parts = left.max(REST_MIN).0.min(WHOLE);
    let slice = u128::from(REST_PERIOD.0) * u128::from(parts) / u128::from(WHOLE);
    let slice = Nanos(u64::try_from(slice).unwrap_or(u64::MAX));
    Terms::of_slice(bytes_in(slice, rate), REST_PERIOD, tick)
}

/// Parts of a byte that a port sends in so much time.
fn bytes_in(time: Nanos, rate: BitsPerSecond) -> u128 {
    let bits = u128::from(time.0) * u128::from(rate.0);
    (bits << crate::below::FUEL_SHIFT) / (8 * 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::below::FUEL_SHIFT;

    const MBIT_100: BitsPerSecond = BitsPerSecond(100_000_000);
    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    #[test]
    fn a_share_is_so_many_bytes() {
        let terms = share_of(Share::new(MS(2), MS(6)).unwrap(), MBIT_100, MS(3));
        assert_eq!(terms.per_tick >> FUEL_SHIFT, 12_500);
        assert_eq!(terms.full >> FUEL_SHIFT, 2 * 25_000 + 12_500);
    }

    #[test]
    fn the_rest_is_what_can_be_promised_and_never_nothing() {
        let of = |parts| rest_of(Parts(parts), MBIT_100, MS(4)).per_tick >> FUEL_SHIFT;
        assert_eq!((of(500_000), of(0), of(u64::MAX)), (25_000, 500, 50_000));
    }

    #[test]
    fn the_fastest_port_and_the_slowest_have_accounts() {
        for rate in [1, 800_000_000_000] {
            let terms =
                share_of(Share::new(MS(1000), MS(1000)).unwrap(), BitsPerSecond(rate), MS(10));
            let all_ticks = u128::from(terms.per_tick) << 14;
            assert!(
                terms.per_tick > 0 && all_ticks + u128::from(terms.full) < 1 << 62,
                "{terms:?}"
            );
        }
    }
}
