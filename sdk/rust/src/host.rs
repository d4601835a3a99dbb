//! Host functions: services of the node besides the packet itself.
//!
//! In a module these are imports; in a native test [`testing::Node`](crate::testing::Node)
//! implements them.

use crate::layout::PARAMETER_TEXT_MAX;
#[cfg(any(target_arch = "wasm32", test))]
use crate::layout::host_error;

/// A host function failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostError {
    /// An offset or length is outside the packet or the memory.
    OutOfRange,
    /// The parameter, port or name does not exist.
    NotFound,
    /// The result would exceed a limit.
    OverLimit,
    /// The function cannot be used in this hook.
    WrongHook,
    /// A code that this SDK does not know.
    Unknown(i32),
}

/// Port number that sends an IP packet by the node's routes. Only the IP version in its Ethernet
/// header matters.
pub const BY_ROUTE: u16 = crate::layout::SEND_BY_ROUTE;

/// Sends a frame of your own making, or a copy, out of a port, or [`BY_ROUTE`]; at most 4 per
/// packet. `module.toml` must have `needs = ["send"]`.
///
/// # Errors
/// [`HostError::NotFound`] without such a port, [`HostError::OverLimit`] after four or when the
/// frame does not fit, [`HostError::WrongHook`] outside `on_packet`.
#[inline]
pub fn send(port: u16, frame: &[u8]) -> Result<(), HostError> {
    node::send(port, frame)
}

/// Adds an event to the node's event stream: a code of your own and at most 256 bytes.
/// `module.toml` must have `needs = ["events"]`.
///
/// # Errors
/// [`HostError::OverLimit`] if it is too long or there were too many.
#[inline]
pub fn event(code: u32, data: &[u8]) -> Result<(), HostError> {
    node::event(code, data)
}

/// Sends a control message of at most 256 bytes to the modules before this one in the graph:
/// each gets it in `on_message`, once this call is over. `module.toml` must have
/// `needs = ["messages"]`.
///
/// # Errors
/// [`HostError::OverLimit`] when it is too long, or after four messages and events of one call.
#[inline]
pub fn message(message: &[u8]) -> Result<(), HostError> {
    node::message(message)
}

/// Returns the value of a parameter, in `on_start` and `on_message` only.
///
/// `None` if `module.toml` declares no such parameter, or one of another type.
#[must_use]
pub fn parameter<T: Parameter>(name: &str) -> Option<T> {
    let mut value = [0; PARAMETER_TEXT_MAX];
    let length = node::parameter(name, &mut value).ok()?;
    T::from_bytes(value.get(..length)?)
}

/// Returns the number of a port by its name, in `on_start` and `on_message` only.
#[must_use]
pub fn port(name: &str) -> Option<u16> {
    u16::try_from(node::port(name).ok()?).ok()
}

/// Enables `on_queue`: it is called when more than `above` percent of the session's queue are in
/// use, when no more than `below` percent are in use again, and with the head of a packet that was
/// dropped because the queue was full; in `on_start` and `on_message` only. `module.toml` must have
/// `needs = ["queues"]`.
///
/// # Errors
/// [`HostError::OutOfRange`] if `above` is more than 100, or `below` more than `above`;
/// [`HostError::WrongHook`] in another hook.
pub fn queue_watch(above: u32, below: u32) -> Result<(), HostError> {
    node::queue_watch(above, below)
}

/// Event of a watched queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue<'a> {
    /// The queue has shrunk to the lower threshold; its length in KiB.
    Short(u32),
    /// The queue has grown beyond the higher threshold; its length in KiB.
    Long(u32),
    /// The queue was full, and a packet with this head was dropped.
    Dropped(&'a [u8]),
}

/// Returns the node's coarse time in milliseconds; in `on_packet`
/// [`Packet::now_ms`](crate::Packet::now_ms) is cheaper.
#[inline]
#[must_use]
pub fn now_ms() -> u64 {
    node::now_ms()
}

/// Type of a parameter.
pub trait Parameter: Sized {
    /// Decodes the bytes that the node returns for a value of this type.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

macro_rules! little_endian_parameters {
    ($($kind:ty),*) => {$(
        impl Parameter for $kind {
            fn from_bytes(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_le_bytes(bytes.try_into().ok()?))
            }
        }
    )*};
}
little_endian_parameters!(u8, u16, u32, u64);

impl Parameter for bool {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
}

/// Address, `ipv4` or `ipv6`, in network byte order.
impl<const LENGTH: usize> Parameter for [u8; LENGTH] {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok()
    }
}

/// Value of a parameter of type `text`.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    bytes: [u8; PARAMETER_TEXT_MAX],
    length: usize,
}

impl Text {
    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Checked at construction.
        core::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl Parameter for Text {
    fn from_bytes(value: &[u8]) -> Option<Self> {
        core::str::from_utf8(value).ok()?;
        let mut bytes = [0; PARAMETER_TEXT_MAX];
        bytes.get_mut(..value.len())?.copy_from_slice(value);
        Some(Self { bytes, length: value.len() })
    }
}

/// Converts the result of a host function: a number from 0 up, or an error.
#[cfg(any(target_arch = "wasm32", test))]
#[inline]
pub(crate) fn answer(code: i32) -> Result<usize, HostError> {
    match code {
        host_error::OUT_OF_RANGE => Err(HostError::OutOfRange),
        host_error::NOT_FOUND => Err(HostError::NotFound),
        host_error::OVER_LIMIT => Err(HostError::OverLimit),
        host_error::WRONG_HOOK => Err(HostError::WrongHook),
        other => usize::try_from(other).map_err(|_| HostError::Unknown(other)),
    }
}

/// Converts the result of a function that returns no number.
#[cfg(target_arch = "wasm32")]
#[inline]
pub(crate) fn done(code: i32) -> Result<(), HostError> {
    answer(code).map(|_| ())
}

#[cfg(target_arch = "wasm32")]
pub(crate) mod import {
    //! Imports of the packet ABI, version 1; lengths and offsets are 32 bits here.

    #[link(wasm_import_module = "tam")]
    unsafe extern "C" {
        pub(crate) fn packet_load(offset: usize, address: *mut u8, length: usize) -> i32;
        pub(crate) fn packet_store(offset: usize, address: *const u8, length: usize) -> i32;
        pub(crate) fn packet_resize_head(delta: i32) -> i32;
        pub(crate) fn packet_resize_tail(delta: i32) -> i32;
        pub(crate) fn packet_send(address: *const u8, length: usize, port: u32) -> i32;
        pub(crate) fn event(code: u32, address: *const u8, length: usize) -> i32;
        pub(crate) fn param_load(
            name: *const u8,
            name_length: usize,
            address: *mut u8,
            capacity: usize,
        ) -> i32;
        pub(crate) fn port_find(name: *const u8, name_length: usize) -> i32;
        pub(crate) safe fn now_ms() -> u64;
        pub(crate) fn message_send(address: *const u8, length: usize) -> i32;
        pub(crate) fn state_write(address: *const u8, length: usize) -> i32;
        pub(crate) fn state_read(address: *mut u8, length: usize) -> i32;
        pub(crate) safe fn queue_watch(above: u32, below: u32) -> i32;
    }
}

#[cfg(target_arch = "wasm32")]
mod node {
    //! Host functions of the node that runs the module.

    use super::{HostError, answer, done, import};

    #[inline]
    pub(super) fn send(port: u16, frame: &[u8]) -> Result<(), HostError> {
        // SAFETY: the node reads `frame.len()` bytes at `frame` and writes none.
        done(unsafe { import::packet_send(frame.as_ptr(), frame.len(), u32::from(port)) })
    }

    #[inline]
    pub(super) fn event(code: u32, data: &[u8]) -> Result<(), HostError> {
        // SAFETY: the node reads `data.len()` bytes at `data` and writes none.
        done(unsafe { import::event(code, data.as_ptr(), data.len()) })
    }

    #[inline]
    pub(super) fn message(message: &[u8]) -> Result<(), HostError> {
        // SAFETY: the node reads `message.len()` bytes at `message` and writes none.
        done(unsafe { import::message_send(message.as_ptr(), message.len()) })
    }

    pub(super) fn parameter(name: &str, value: &mut [u8]) -> Result<usize, HostError> {
        let (to, capacity) = (value.as_mut_ptr(), value.len());
        // SAFETY: the node reads `name.len()` bytes at `name` and writes at
        // most `capacity` bytes at `to`.
        answer(unsafe { import::param_load(name.as_ptr(), name.len(), to, capacity) })
    }

    pub(super) fn port(name: &str) -> Result<usize, HostError> {
        // SAFETY: the node reads `name.len()` bytes at `name` and writes none.
        answer(unsafe { import::port_find(name.as_ptr(), name.len()) })
    }

    pub(super) fn queue_watch(above: u32, below: u32) -> Result<(), HostError> {
        done(import::queue_watch(above, below))
    }

    #[inline]
    pub(super) fn now_ms() -> u64 {
        import::now_ms()
    }
}

#[cfg(not(target_arch = "wasm32"))]
use crate::testing::answers as node;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_another_length_is_of_another_type() {
        assert_eq!(u16::from_bytes(&[1, 2]), Some(0x201));
        assert_eq!(u16::from_bytes(&[1]), None);
        assert_eq!(bool::from_bytes(&[2]), None);
        assert_eq!(<[u8; 4]>::from_bytes(&[10, 0, 0, 1]), Some([10, 0, 0, 1]));
        assert_eq!(Text::from_bytes(b"left").unwrap().as_str(), "left");
        assert!(Text::from_bytes(&[0xff]).is_none());
    }

    #[test]
    fn every_code_has_its_meaning() {
        assert_eq!(answer(0), Ok(0));
        assert_eq!(answer(46), Ok(46));
        assert_eq!(answer(host_error::WRONG_HOOK), Err(HostError::WrongHook));
        assert_eq!(answer(-99), Err(HostError::Unknown(-99)));
    }
}
