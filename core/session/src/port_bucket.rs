//! Token buckets that hold sessions to their shares of a port's rate when packets are sent by
//! in-kernel services. Unit: bytes.
//!
//! At user level packets queue until their session is scheduled ([`crate::egress`]). In the kernel
//! nothing queues: a packet leaves, or is dropped when its session's bucket is empty. The kernel
//! keeps the buckets (`levels/bpf/c/share.h`) in the same form as those of fuel
//! ([`crate::in_kernel`]), with a capacity of two slices and a tick for the same reason.

use units::{BitsPerSecond, Nanos};

use crate::in_kernel::{BucketParams, UNRESERVED_PERIOD};
use crate::share::{Parts, Share, WHOLE};

/// Smallest part of a port's rate that sessions without a share have together, also when everything
/// is reserved: 1 %, so that they always make progress.
pub const UNRESERVED_MIN: Parts = Parts(10_000);

/// Returns the bucket of a session with `share` of a port of this `rate`, refilled once per kernel
/// `tick`. Unit: bytes shifted left by [`crate::in_kernel::FUEL_SHIFT`].
#[must_use]
pub fn of_share(share: Share, rate: BitsPerSecond, tick: Nanos) -> BucketParams {
    BucketParams::of_slice(bytes_in(share.slice(), rate), share.period(), tick)
}

/// Returns the bucket that all sessions without a share have in common: `left`, the unreserved part
/// of the port, but at least [`UNRESERVED_MIN`].
#[must_use]
pub fn of_unreserved(left: Parts, rate: BitsPerSecond, tick: Nanos) -> BucketParams {
    let parts = left.max(UNRESERVED_MIN).0.min(WHOLE);
    let slice = u128::from(UNRESERVED_PERIOD.0) * u128::from(parts) / u128::from(WHOLE);
    let slice = Nanos(u64::try_from(slice).unwrap_or(u64::MAX));
    BucketParams::of_slice(bytes_in(slice, rate), UNRESERVED_PERIOD, tick)
}

/// Returns how many bytes a port sends in `time`, shifted left by `FUEL_SHIFT`.
fn bytes_in(time: Nanos, rate: BitsPerSecond) -> u128 {
    let bits = u128::from(time.0) * u128::from(rate.0);
    (bits << crate::in_kernel::FUEL_SHIFT) / (8 * 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_kernel::FUEL_SHIFT;

    const MBIT_100: BitsPerSecond = BitsPerSecond(100_000_000);
    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    #[test]
    fn a_share_is_converted_to_bytes() {
        let params = of_share(Share::new(MS(2), MS(6)).unwrap(), MBIT_100, MS(3));
        assert_eq!(params.per_tick >> FUEL_SHIFT, 12_500);
        assert_eq!(params.capacity >> FUEL_SHIFT, 2 * 25_000 + 12_500);
    }

    #[test]
    fn the_unreserved_bucket_is_never_empty() {
        let of = |parts| of_unreserved(Parts(parts), MBIT_100, MS(4)).per_tick >> FUEL_SHIFT;
        assert_eq!((of(500_000), of(0), of(u64::MAX)), (25_000, 500, 50_000));
    }

    #[test]
    fn the_fastest_port_and_the_slowest_have_accounts() {
        for rate in [1, 800_000_000_000] {
            let params =
                of_share(Share::new(MS(1000), MS(1000)).unwrap(), BitsPerSecond(rate), MS(10));
            let all_ticks = u128::from(params.per_tick) << 14;
            assert!(
                params.per_tick > 0 && all_ticks + u128::from(params.capacity) < 1 << 62,
                "{params:?}"
            );
        }
    }
}
