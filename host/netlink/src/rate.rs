//! Bit rate of a device, by the kernel's token bucket (tbf, tc-tbf(8)).
//!
//! The bucket shapes outgoing traffic: a packet waits until its tokens are there, up to a queue of
//! [`QUEUE_TIME_MAX`], and is dropped and counted beyond.

use rtnetlink::packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_REPLACE};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use units::{BitsPerSecond, Nanos};

use super::NetlinkError;
use super::socket::Socket;

/// Longest time of a packet in a link's queue: that of a router with a queue of one round trip
/// across a continent.
pub const QUEUE_TIME_MAX: Nanos = Nanos::from_millis(50);

/// Burst of the bucket as time at its rate: long enough for a timer tick of a coarse clock.
const BURST_TIME: Nanos = Nanos::from_millis(1);

/// Least burst of the bucket: two of the largest frames, or they would never leave (`max_size` in
/// net/sched/sch_tbf.c).
const BURST_BYTES_MIN: u64 = 2 * 9_018;

/// Attributes and a constant of include/uapi/linux/pkt_sched.h.
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TC_LINKLAYER_ETHERNET: u8 = 1;

/// Limits the rate at which a device sends, replacing the queueing discipline at its root.
pub(super) fn set_rate(
    socket: &Socket,
    index: u32,
    rate: BitsPerSecond,
) -> Result<(), NetlinkError> {
    let request = format!("limit the network device number {index} to {rate}");
    set_root(socket, index, request, "tbf", tbf_options(rate))
}

/// Removes a device's queueing discipline: packets leave in the order in which they are given to
/// the device.
pub(super) fn set_no_queue(socket: &Socket, index: u32) -> Result<(), NetlinkError> {
    let request = format!("take the queue off the network device number {index}");
    set_root(socket, index, request, "noqueue", Vec::new())
}

fn set_root(
    socket: &Socket,
    index: u32,
    request: String,
    kind: &str,
    options: Vec<TcOption>,
) -> Result<(), NetlinkError> {
    let mut message = TcMessage::with_index(i32::try_from(index).unwrap_or(i32::MAX));
    message.header.parent = TcHandle::ROOT;
    message.header.handle = TcHandle { major: 1, minor: 0 };
    message.attributes.push(TcAttribute::Kind(kind.to_owned()));
    if !options.is_empty() {
        message.attributes.push(TcAttribute::Options(options));
    }
    let message = RouteNetlinkMessage::NewQueueDiscipline(message);
    socket.change(request, &message, NLM_F_CREATE | NLM_F_REPLACE)
}

fn tbf_options(rate: BitsPerSecond) -> Vec<TcOption> {
    let bytes_per_second = rate.0 / 8;
    let burst = saturated(bytes_in(bytes_per_second, BURST_TIME).max(BURST_BYTES_MIN));
    let queue = saturated(bytes_in(bytes_per_second, QUEUE_TIME_MAX));
    let option = |kind, value| TcOption::Other(DefaultNla::new(kind, value));
    vec![
        option(
            TCA_TBF_PARMS,
            tbf_parameters(saturated(bytes_per_second), queue.saturating_add(burst)),
        ),
        option(TCA_TBF_RATE64, bytes_per_second.to_ne_bytes().to_vec()),
        // In bytes; it takes precedence over the field in the kernel's ticks.
        option(TCA_TBF_BURST, burst.to_ne_bytes().to_vec()),
    ]
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

/// Returns the bytes sent within `time`, rounded down.
fn bytes_in(bytes_per_second: u64, time: Nanos) -> u64 {
    (u128::from(bytes_per_second) * u128::from(time.0) / 1_000_000_000)
        .try_into()
        .unwrap_or(u64::MAX)
}

fn saturated(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
