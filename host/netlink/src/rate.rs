//! A device's bit rate, by the kernel's token bucket (tbf, tc-tbf(8)).
//!
//! The bucket shapes what leaves: a packet waits until its bytes are there, up to a queue of
//! [`QUEUE_TIME_MAX`], and is dropped and counted beyond.

use units::{BitsPerSecond, Nanos};

use super::attribute::{attribute, ne32, text};
use super::socket::{NLM_F_CREATE, NLM_F_REPLACE};
use super::{Netlink, NetlinkError};

/// A packet waits at most this long in a link's queue: what a router with a queue of one
/// round trip across a continent would do.
pub const QUEUE_TIME_MAX: Nanos = Nanos::from_millis(50);

/// The bucket holds this much of the rate: long enough for a timer tick of a coarse clock.
const BURST_TIME: Nanos = Nanos::from_millis(1);

/// The bucket holds at least two of the largest frames, or they would never leave
/// (`max_size` in net/sched/sch_tbf.c).
const BURST_BYTES_MIN: u64 = 2 * 9_018;

/// include/uapi/linux/rtnetlink.h.
pub(super) const RTM_NEWQDISC: u16 = 36;
pub(super) const TCA_KIND: u16 = 1;
pub(super) const TCA_OPTIONS: u16 = 2;

/// Attributes and constants of include/uapi/linux/pkt_sched.h.
const TC_H_ROOT: u32 = u32::MAX;
/// The queueing discipline `1:`.
const HANDLE: u32 = 1 << 16;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TC_LINKLAYER_ETHERNET: u8 = 1;

impl Netlink {
    /// Limits what a device sends, in place of the queueing discipline at its root.
    ///
    /// # Errors
    /// When the rate is zero, or the kernel lacks `sch_tbf`.
    pub fn set_rate(&self, index: u32, rate: BitsPerSecond) -> Result<(), NetlinkError> {
        let request = format!("limit the network device number {index} to {rate}");
        self.set_root(&request, &root(index, "tbf", &tbf_options(rate)))
    }

    /// Has a device send in the order in which it is given packets, without a queue of the
    /// kernel's in front of its own.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn set_no_queue(&self, index: u32) -> Result<(), NetlinkError> {
        let request = format!("take the queue off the network device number {index}");
        self.set_root(&request, &root(index, "noqueue", &[]))
    }

    fn set_root(&self, request: &str, message: &[u8]) -> Result<(), NetlinkError> {
        self.channel.ask(request, RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, message).map(drop)
    }
}

/// `struct tcmsg`.
pub(super) fn header(index: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    let family = 0_u32;
    let index = index.min(i32::MAX as u32);
    [family, index, handle, parent, info].map(u32::to_ne_bytes).concat()
}

/// The queueing discipline at a device's root.
fn root(index: u32, kind: &str, options: &[u8]) -> Vec<u8> {
    let mut message = header(index, HANDLE, TC_H_ROOT, 0);
    message.extend(text(TCA_KIND, kind));
    if !options.is_empty() {
        message.extend(attribute(TCA_OPTIONS, options));
    }
    message
}

fn tbf_options(rate: BitsPerSecond) -> Vec<u8> {
    let bytes_per_second = rate.0 / 8;
    let burst = saturated(bytes_in(bytes_per_second, BURST_TIME).max(BURST_BYTES_MIN));
    let queue = saturated(bytes_in(bytes_per_second, QUEUE_TIME_MAX));
    let parameters = tbf_parameters(saturated(bytes_per_second), queue.saturating_add(burst));
    [
        attribute(TCA_TBF_PARMS, &parameters),
        attribute(TCA_TBF_RATE64, &bytes_per_second.to_ne_bytes()),
        // In bytes; it takes precedence over the field in the kernel's ticks.
        ne32(TCA_TBF_BURST, burst),
    ]
    .concat()
}

/// `struct tc_tbf_qopt`: two `struct tc_ratespec` (rate, peak rate), limit, buffer, mtu.
fn tbf_parameters(rate: u32, limit: u32) -> Vec<u8> {
    const RATESPEC_LENGTH: usize = 12;
    let mut bytes = vec![0; 2 * RATESPEC_LENGTH + 12];
    // A known link layer: the kernel then needs no table of transmission times.
    bytes[1] = TC_LINKLAYER_ETHERNET;
    bytes[8..12].copy_from_slice(&rate.to_ne_bytes());
    bytes[24..28].copy_from_slice(&limit.to_ne_bytes());
    bytes
}

/// Rounded down.
fn bytes_in(bytes_per_second: u64, time: Nanos) -> u64 {
    (u128::from(bytes_per_second) * u128::from(time.0) / 1_000_000_000)
        .try_into()
        .unwrap_or(u64::MAX)
}

fn saturated(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::hex;

    #[test]
    fn a_queueing_discipline_is_in_the_kernels_bytes() {
        let tbf = root(7, "tbf", &tbf_options(BitsPerSecond(8_000_000)));
        assert_eq!(
            hex(&tbf),
            "000000000700000000000100ffffffff0000000008000100746266004000020028000100\
             000100000000000040420f00000000000000000000000000c40901000000000000000000\
             0c00040040420f00000000000800060074460000"
        );
        assert_eq!(
            hex(&root(7, "noqueue", &[])),
            "000000000700000000000100ffffffff000000000c0001006e6f717565756500"
        );
    }
}
