//! Node for unit tests: runs a service's functions over bytes.
//!
//! The host follows docs/reference/module-abi.md where a service can observe it: window, metadata,
//! host functions and their errors. It does not route, and is no sandbox: a panic fails the test.
//!
//! ```
//! use tam::{Packet, Verdict, testing::Node};
//!
//! fn on_packet(packet: &mut Packet<'_>) -> Verdict {
//!     packet.window_mut()[0] = 7;
//!     Verdict::Bounce
//! }
//!
//! let mut node = Node::new();
//! let outcome = node.packet(on_packet, &[0; 60]);
//! assert_eq!(outcome.verdict, Verdict::Bounce);
//! assert_eq!(outcome.bytes[0], 7);
//! ```

mod headers;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::host::HostError;
use crate::layout::{MARK_LENGTH, META_LENGTH, PARAMETER_TEXT_MAX, WINDOW_LENGTH_MAX, offset};
use crate::packet::Packet;
use crate::verdict::Verdict;

/// Bytes by which a packet may grow at each end.
const RESIZE_ROOM: i32 = 128;
/// Frames that may be sent per packet.
const SENDS_PER_PACKET_MAX: usize = 4;
/// Allowed lengths of a frame: an Ethernet header to the largest MTU with a VLAN tag.
const FRAME_LENGTHS: std::ops::RangeInclusive<usize> = 14..=9018;
/// Events and messages per call.
const EVENTS_PER_CALL_MAX: usize = 4;
/// Longest data of an event or a message, in bytes.
const EVENT_LENGTH_MAX: usize = 256;
/// Longest packet, in bytes.
const PACKET_LENGTH_MAX: usize = 65_535;

/// Node for one test. While it exists no other test of the same program has one, so that counters
/// and state are changed by this test only.
pub struct Node {
    window: usize,
    port: u16,
    lane: u32,
    mark: [u8; MARK_LENGTH],
    _alone: MutexGuard<'static, ()>,
}

/// Result of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Verdict of the service.
    pub verdict: Verdict,
    /// Packet after the call.
    pub bytes: Vec<u8>,
    /// Frames that the service sent, with their ports.
    pub sent: Vec<(u16, Vec<u8>)>,
    /// Events, with their codes.
    pub events: Vec<(u32, Vec<u8>)>,
    /// Messages to the modules before it.
    pub messages: Vec<Vec<u8>>,
    /// Mark for the next module.
    pub mark: [u8; MARK_LENGTH],
}

/// Packet of a test, in place of linear memory.
#[derive(Debug)]
pub struct Frame {
    bytes: Vec<u8>,
    meta: [u8; META_LENGTH],
    window: usize,
    /// Bytes by which it has grown, at the beginning and at the end.
    grown: [i32; 2],
}

impl Default for Node {
    fn default() -> Self {
        Self::new()
    }
}

impl Node {
    /// Creates a node with the largest window, one port "left" with number 0, and no parameters.
    #[must_use]
    pub fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        // A failed test has released its node all the same.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        SURROUNDINGS.set(Surroundings::default());
        let node = Self {
            window: WINDOW_LENGTH_MAX,
            port: 0,
            lane: 0,
            mark: [0; MARK_LENGTH],
            _alone: alone,
        };
        node.with_port("left", 0)
    }

    /// Sets the window that `module.toml` declares, in bytes.
    #[must_use]
    pub fn with_window(mut self, length: usize) -> Self {
        self.window = length.min(WINDOW_LENGTH_MAX);
        self
    }

    /// Sets a parameter, as the bytes that the node would give: numbers
    /// little-endian, a bool as one byte, text as UTF-8, addresses as on the wire.
    #[must_use]
    pub fn with_parameter(self, name: &str, bytes: &[u8]) -> Self {
        SURROUNDINGS.with_borrow_mut(|here| {
            here.parameters.insert(name.into(), bytes.into());
        });
        self
    }

    /// Adds a port.
    #[must_use]
    pub fn with_port(self, name: &str, number: u16) -> Self {
        SURROUNDINGS.with_borrow_mut(|here| here.ports.insert(name.into(), number));
        self
    }

    /// Sets the arrival port of packets.
    #[must_use]
    pub fn arriving_at(mut self, number: u16) -> Self {
        self.port = number;
        self
    }

    /// Sets the mark of the previous module of the service.
    #[must_use]
    pub fn with_mark(mut self, mark: [u8; MARK_LENGTH]) -> Self {
        self.mark = mark;
        self
    }

    /// Sets the node's time, in milliseconds.
    pub fn set_now_ms(&mut self, now_ms: u64) {
        SURROUNDINGS.with_borrow_mut(|here| here.now_ms = now_ms);
    }

    /// Runs `on_start`.
    ///
    /// # Errors
    /// The service refuses, with this code.
    pub fn start(&mut self, on_start: fn() -> Result<(), u16>) -> Result<(), u16> {
        within(Hook::Preparing, on_start)
    }

    /// Runs `on_timer`.
    pub fn timer(&mut self, on_timer: fn()) {
        within(Hook::Timer, on_timer);
    }

    /// Runs `on_memory_low`: used memory of the session and its limit, in KiB.
    pub fn memory_low(&mut self, on_memory_low: fn(u32, u32), used: u32, most: u32) {
        within(Hook::Timer, || on_memory_low(used, most));
    }

    /// Runs `on_queue`.
    pub fn queue(&mut self, on_queue: fn(crate::Queue<'_>), event: crate::Queue<'_>) {
        within(Hook::Timer, || on_queue(event));
    }

    /// Runs `on_message`.
    ///
    /// # Errors
    /// The service refuses, with this code.
    pub fn message(
        &mut self,
        on_message: fn(&[u8]) -> Result<(), u16>,
        message: &[u8],
    ) -> Result<(), u16> {
        within(Hook::Preparing, || on_message(message))
    }

    /// Runs `on_packet` over a frame that begins with its Ethernet header.
    ///
    /// # Panics
    /// `frame` is empty or longer than 65,535 bytes: no node delivers such a packet.
    pub fn packet(&mut self, on_packet: fn(&mut Packet<'_>) -> Verdict, frame: &[u8]) -> Outcome {
        assert!((1..=PACKET_LENGTH_MAX).contains(&frame.len()), "a packet has 1 to 65535 bytes");
        let mut frame = Frame {
            bytes: frame.into(),
            meta: headers::meta(frame, self.port, self.lane, now_ms(), self.mark),
            window: self.window,
            grown: [0; 2],
        };
        frame.measure();
        let verdict = within(Hook::Packet, || on_packet(&mut Packet { place: &mut frame }));
        let (sent, events, messages) = SURROUNDINGS.with_borrow_mut(|here| {
            let (sent, events) = (&mut here.sent, &mut here.events);
            let messages = &mut here.messages;
            (std::mem::take(sent), std::mem::take(events), std::mem::take(messages))
        });
        let mark = std::array::from_fn(|at| frame.meta[offset::MARK + at]);
        Outcome { verdict, bytes: frame.bytes, sent, events, messages, mark }
    }
}

impl Frame {
    pub(crate) fn meta(&self) -> &[u8; META_LENGTH] {
        &self.meta
    }

    pub(crate) fn meta_mut(&mut self) -> &mut [u8; META_LENGTH] {
        &mut self.meta
    }

    pub(crate) fn window(&self, length: usize) -> &[u8] {
        &self.bytes[..length]
    }

    pub(crate) fn window_mut(&mut self, length: usize) -> &mut [u8] {
        &mut self.bytes[..length]
    }

    pub(crate) fn load(&self, offset: usize, out: &mut [u8]) -> Result<(), HostError> {
        let end = offset.checked_add(out.len()).ok_or(HostError::OutOfRange)?;
        out.copy_from_slice(self.bytes.get(offset..end).ok_or(HostError::OutOfRange)?);
        Ok(())
    }

    pub(crate) fn store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), HostError> {
        let end = offset.checked_add(bytes.len()).ok_or(HostError::OutOfRange)?;
        let place = self.bytes.get_mut(offset..end).ok_or(HostError::OutOfRange)?;
        place.copy_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn resize_head(&mut self, delta: i32) -> Result<(), HostError> {
        let count = self.resized(0, delta)?;
        if delta >= 0 {
            self.bytes.splice(0..0, std::iter::repeat_n(0, count));
        } else {
            self.bytes.drain(..count);
        }
        self.measure();
        Ok(())
    }

    pub(crate) fn resize_tail(&mut self, delta: i32) -> Result<(), HostError> {
        let count = self.resized(1, delta)?;
        let length = self.bytes.len();
        self.bytes.resize(if delta >= 0 { length + count } else { length - count }, 0);
        self.measure();
        Ok(())
    }

    /// Returns the bytes to add or remove at one end, if that is allowed.
    fn resized(&mut self, end: usize, delta: i32) -> Result<usize, HostError> {
        let count = delta.unsigned_abs() as usize;
        let grown = self.grown[end].saturating_add(delta);
        let fits = match delta {
            0.. => grown <= RESIZE_ROOM && self.bytes.len() + count <= PACKET_LENGTH_MAX,
            _ => self.bytes.len() >= count + FRAME_LENGTHS.start(),
        };
        if !fits {
            return Err(HostError::OverLimit);
        }
        self.grown[end] = grown;
        Ok(count)
    }

    /// Writes the lengths into the metadata.
    fn measure(&mut self) {
        let window = self.bytes.len().min(self.window);
        let put = |meta: &mut [u8], at: usize, length: usize| {
            meta[at..at + 4].copy_from_slice(&(length as u32).to_le_bytes());
        };
        put(&mut self.meta, offset::PACKET_LENGTH, self.bytes.len());
        put(&mut self.meta, offset::WINDOW_LENGTH, window);
    }
}

/// Current hook, which determines the allowed host functions.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Hook {
    #[default]
    None,
    Preparing,
    Packet,
    Timer,
}

/// State of the node behind the host functions.
#[derive(Default)]
struct Surroundings {
    hook: Hook,
    now_ms: u64,
    parameters: BTreeMap<String, Vec<u8>>,
    ports: BTreeMap<String, u16>,
    sent: Vec<(u16, Vec<u8>)>,
    events: Vec<(u32, Vec<u8>)>,
    messages: Vec<Vec<u8>>,
}

impl Surroundings {
    /// Checks that a call may add an event or message of this length.
    fn takes_notice(&self, length: usize) -> Result<(), HostError> {
        if self.hook == Hook::None {
            return Err(HostError::WrongHook);
        }
        let left = self.events.len() + self.messages.len();
        match length <= EVENT_LENGTH_MAX && left < EVENTS_PER_CALL_MAX {
            true => Ok(()),
            false => Err(HostError::OverLimit),
        }
    }
}

thread_local! {
    static SURROUNDINGS: RefCell<Surroundings> = RefCell::default();
}

fn within<R>(hook: Hook, body: impl FnOnce() -> R) -> R {
    SURROUNDINGS.with_borrow_mut(|here| here.hook = hook);
    let result = body();
    SURROUNDINGS.with_borrow_mut(|here| here.hook = Hook::None);
    result
}

fn now_ms() -> u64 {
    SURROUNDINGS.with_borrow(|here| here.now_ms)
}

/// Implementations of the functions of [`host`](crate::host).
pub(crate) mod answers {
    use super::{
        FRAME_LENGTHS, Hook, HostError, PARAMETER_TEXT_MAX, SENDS_PER_PACKET_MAX, SURROUNDINGS,
    };
    use crate::layout::SEND_BY_ROUTE;

    pub(crate) fn send(port: u16, frame: &[u8]) -> Result<(), HostError> {
        SURROUNDINGS.with_borrow_mut(|here| {
            if here.hook != Hook::Packet {
                return Err(HostError::WrongHook);
            }
            if port != SEND_BY_ROUTE && !here.ports.values().any(|known| *known == port) {
                return Err(HostError::NotFound);
            }
            if here.sent.len() >= SENDS_PER_PACKET_MAX || !FRAME_LENGTHS.contains(&frame.len()) {
                return Err(HostError::OverLimit);
            }
            here.sent.push((port, frame.into()));
            Ok(())
        })
    }

    pub(crate) fn event(code: u32, data: &[u8]) -> Result<(), HostError> {
        SURROUNDINGS.with_borrow_mut(|here| {
            here.takes_notice(data.len())?;
            here.events.push((code, data.into()));
            Ok(())
        })
    }

    pub(crate) fn message(message: &[u8]) -> Result<(), HostError> {
        SURROUNDINGS.with_borrow_mut(|here| {
            here.takes_notice(message.len())?;
            here.messages.push(message.into());
            Ok(())
        })
    }

    pub(crate) fn parameter(name: &str, value: &mut [u8]) -> Result<usize, HostError> {
        SURROUNDINGS.with_borrow(|here| {
            if here.hook != Hook::Preparing {
                return Err(HostError::WrongHook);
            }
            let bytes = here.parameters.get(name).ok_or(HostError::NotFound)?;
            if bytes.len() > PARAMETER_TEXT_MAX {
                return Err(HostError::OverLimit);
            }
            value.get_mut(..bytes.len()).ok_or(HostError::OverLimit)?.copy_from_slice(bytes);
            Ok(bytes.len())
        })
    }

    pub(crate) fn port(name: &str) -> Result<usize, HostError> {
        SURROUNDINGS.with_borrow(|here| match here.hook {
            Hook::Preparing => {
                here.ports.get(name).map(|port| usize::from(*port)).ok_or(HostError::NotFound)
            }
            _ => Err(HostError::WrongHook),
        })
    }

    pub(crate) fn queue_watch(above: u32, below: u32) -> Result<(), HostError> {
        SURROUNDINGS.with_borrow(|here| match here.hook {
            Hook::Preparing if above <= 100 && below <= above => Ok(()),
            Hook::Preparing => Err(HostError::OutOfRange),
            _ => Err(HostError::WrongHook),
        })
    }

    pub(crate) fn now_ms() -> u64 {
        super::now_ms()
    }
}
