//! Packet that a service handles: its window, its metadata, and the rest of it.
//!
//! In a module the window and the metadata are at fixed addresses, so that an access at an offset
//! known at compile time has a constant address. In a native test they are in a
//! [`testing::Frame`](crate::testing::Frame).

use crate::host::HostError;
use crate::ip::{Ipv4, Ipv6};
use crate::layout::{
    BEGINS_WITH_DATA, MARK_LENGTH, META_FRAGMENT, META_LATER_FRAGMENT, OFFSET_NONE, offset,
};

/// Level at which a module runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Sandbox of the node.
    User,
    /// Driver of the network device.
    Nic,
    /// Kernel, after the driver.
    Kernel,
}

/// Packet: a frame as on the wire.
///
/// The packet's head is in [`window`](Self::window), up to the length in `module.toml`;
/// [`load`](Self::load) and [`store`](Self::store) access the rest.
pub struct Packet<'a> {
    pub(crate) place: Place<'a>,
}

impl Packet<'_> {
    /// Returns the length of the whole packet in bytes, as on the wire.
    #[inline]
    #[must_use]
    pub fn length(&self) -> usize {
        self.u32_at(offset::PACKET_LENGTH) as usize
    }

    /// Returns the head of the packet, at most as long as the declared window.
    #[inline]
    #[must_use]
    pub fn window(&self) -> &[u8] {
        self.place.window(self.u32_at(offset::WINDOW_LENGTH) as usize)
    }

    /// Returns the head of the packet for changes, which take effect when `on_packet` returns.
    #[inline]
    #[must_use]
    pub fn window_mut(&mut self) -> &mut [u8] {
        let length = self.u32_at(offset::WINDOW_LENGTH) as usize;
        self.place.window_mut(length)
    }

    /// Returns the IPv4 header, if the packet has one and the window holds its 20 bytes.
    #[inline]
    #[must_use]
    pub fn ipv4(&mut self) -> Option<Ipv4<'_>> {
        if self.ip_version() != 4 {
            return None;
        }
        let begin = self.l3_offset()?;
        Ipv4::new(self.window_mut().get_mut(begin..)?)
    }

    /// Returns the IPv6 header, if the packet has one and the window holds its 40 bytes.
    #[inline]
    #[must_use]
    pub fn ipv6(&mut self) -> Option<Ipv6<'_>> {
        if self.ip_version() != 6 {
            return None;
        }
        let begin = self.l3_offset()?;
        Ipv6::new(self.window_mut().get_mut(begin..)?)
    }

    /// Returns true if this is a data unit of an active packet, without headers; otherwise it
    /// begins with an Ethernet header.
    #[inline]
    #[must_use]
    pub fn is_data(&self) -> bool {
        self.place.meta()[offset::BEGINS_WITH] == BEGINS_WITH_DATA
    }

    /// Returns the offset of the IP header, which may be beyond the window.
    #[inline]
    #[must_use]
    pub fn l3_offset(&self) -> Option<usize> {
        Some(self.u16_at(offset::L3_OFFSET)).filter(|at| *at != OFFSET_NONE).map(usize::from)
    }

    /// Returns the offset of the L4 header, which may be beyond the window.
    #[inline]
    #[must_use]
    pub fn l4_offset(&self) -> Option<usize> {
        Some(self.u16_at(offset::L4_OFFSET)).filter(|at| *at != OFFSET_NONE).map(usize::from)
    }

    /// Returns the IP version: 4, 6, or 0 if the packet is neither.
    #[inline]
    #[must_use]
    pub fn ip_version(&self) -> u8 {
        self.place.meta()[offset::IP_VERSION]
    }

    /// Returns the protocol after IP and its extension headers, or 0.
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.place.meta()[offset::PROTOCOL]
    }

    /// Returns true for every fragment of a datagram, the first one included.
    #[inline]
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        self.place.meta()[offset::FLAGS] & META_FRAGMENT != 0
    }

    /// Returns true for a fragment that has no L4 header.
    #[inline]
    #[must_use]
    pub fn is_later_fragment(&self) -> bool {
        self.place.meta()[offset::FLAGS] & META_LATER_FRAGMENT != 0
    }

    /// Returns the port by which the packet arrived.
    #[inline]
    #[must_use]
    pub fn arrival_port(&self) -> u16 {
        self.u16_at(offset::PORT)
    }

    /// Returns the session that pays for the packet.
    #[inline]
    #[must_use]
    pub fn session(&self) -> u16 {
        self.u16_at(offset::SESSION)
    }

    /// Returns the rule that sent the packet to the module.
    #[inline]
    #[must_use]
    pub fn rule(&self) -> u32 {
        self.u32_at(offset::RULE)
    }

    /// Returns a hash of the flow, equal for both directions.
    #[inline]
    #[must_use]
    pub fn flow_hash(&self) -> u32 {
        self.u32_at(offset::FLOW_HASH)
    }

    /// Returns the lane of this instance.
    #[inline]
    #[must_use]
    pub fn lane(&self) -> u32 {
        self.u32_at(offset::LANE)
    }

    /// Returns the node's coarse time in milliseconds, without a host call.
    #[inline]
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        let low = u64::from(self.u32_at(offset::NOW_MS));
        let high = u64::from(self.u32_at(offset::NOW_MS + 4));
        high << 32 | low
    }

    /// Returns the level at which the module runs now.
    #[inline]
    #[must_use]
    pub fn level(&self) -> Level {
        match self.place.meta()[offset::LEVEL] {
            1 => Level::Nic,
            2 => Level::Kernel,
            _ => Level::User,
        }
    }

    /// Returns the mark that the previous module of the graph has set.
    #[inline]
    #[must_use]
    pub fn mark(&self) -> [u8; MARK_LENGTH] {
        let meta = self.place.meta();
        core::array::from_fn(|at| meta[offset::MARK + at])
    }

    /// Sets the mark for the next module of the graph.
    #[inline]
    pub fn set_mark(&mut self, mark: [u8; MARK_LENGTH]) {
        self.place.meta_mut()[offset::MARK..offset::MARK + MARK_LENGTH].copy_from_slice(&mark);
    }

    /// Copies `out.len()` bytes at `offset`, anywhere in the packet.
    ///
    /// # Errors
    /// [`HostError::OutOfRange`] if the packet is too short.
    #[inline]
    pub fn load(&self, offset: usize, out: &mut [u8]) -> Result<(), HostError> {
        self.place.load(offset, out)
    }

    /// Copies `out.len()` bytes at `offset`, like [`load`](Self::load), from a datagram or a
    /// quotation that ends at `end`, possibly before the end of the packet (Ethernet padding).
    ///
    /// `None` if the bytes are beyond `end`, or beyond the packet.
    #[must_use]
    pub fn load_within(&self, offset: usize, end: usize, out: &mut [u8]) -> Option<()> {
        if offset + out.len() > end {
            return None;
        }
        self.load(offset, out).ok()
    }

    /// Copies `LENGTH` bytes out of the packet into an array, so that each byte has a constant
    /// address wherever it was in the packet. `None` as in [`load_within`](Self::load_within).
    #[must_use]
    pub fn take_within<const LENGTH: usize>(
        &self,
        offset: usize,
        end: usize,
    ) -> Option<[u8; LENGTH]> {
        let mut bytes = [0; LENGTH];
        self.load_within(offset, end, &mut bytes)?;
        Some(bytes)
    }

    /// Writes `bytes` at `offset`, anywhere in the packet; its length is unchanged.
    ///
    /// # Errors
    /// [`HostError::OutOfRange`] if the packet is too short.
    #[inline]
    pub fn store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), HostError> {
        self.place.store(offset, bytes)
    }

    /// Adds (`delta` above 0) zeroed bytes at the packet's beginning, or removes bytes there.
    ///
    /// # Errors
    /// [`HostError::OverLimit`] beyond 128 bytes more, or if less than an Ethernet header would be
    /// left.
    #[inline]
    pub fn resize_head(&mut self, delta: i32) -> Result<(), HostError> {
        self.place.resize_head(delta)
    }

    /// Adds (`delta` above 0) zeroed bytes at the packet's end, or removes bytes there.
    ///
    /// # Errors
    /// [`HostError::OverLimit`] beyond 128 bytes more, or if less than an Ethernet header would be
    /// left.
    #[inline]
    pub fn resize_tail(&mut self, delta: i32) -> Result<(), HostError> {
        self.place.resize_tail(delta)
    }

    #[inline]
    fn u16_at(&self, at: usize) -> u16 {
        let meta = self.place.meta();
        u16::from_le_bytes([meta[at], meta[at + 1]])
    }

    #[inline]
    fn u32_at(&self, at: usize) -> u32 {
        let meta = self.place.meta();
        u32::from_le_bytes([meta[at], meta[at + 1], meta[at + 2], meta[at + 3]])
    }
}

#[cfg(not(target_arch = "wasm32"))]
pub(crate) type Place<'a> = &'a mut crate::testing::Frame;

#[cfg(target_arch = "wasm32")]
pub(crate) use in_module::Place;
#[cfg(target_arch = "wasm32")]
pub use in_module::{run_on_message, run_on_packet, run_on_queue};

#[cfg(target_arch = "wasm32")]
mod in_module {
    //! Packet in a module: fixed addresses in linear memory.

    use core::marker::PhantomData;
    use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

    use super::Packet;
    use crate::host::{HostError, done, import};
    use crate::layout::{
        DATA_ADDRESS, META_ADDRESS, META_LENGTH, WINDOW_ADDRESS, WINDOW_LENGTH_MAX, queue,
    };
    use crate::verdict::Verdict;

    // The node checks that no data segment lies here, rustc's --stack-first and
    // `link::configure` that no stack and no heap does.
    const _: () = assert!(META_ADDRESS + META_LENGTH <= WINDOW_ADDRESS);
    const _: () = assert!(WINDOW_ADDRESS + WINDOW_LENGTH_MAX <= DATA_ADDRESS);

    /// Token for the packet at its fixed addresses. There is one at a time.
    pub(crate) struct Place<'a>(PhantomData<&'a mut [u8]>);

    /// Calls `on_packet` of a service with the packet of this call.
    #[inline]
    pub fn run_on_packet(on_packet: fn(&mut Packet<'_>) -> Verdict) -> i32 {
        on_packet(&mut Packet { place: Place(PhantomData) }).to_value().cast_signed()
    }

    /// Calls `on_message` of a service with the message of this call.
    #[inline]
    pub fn run_on_message(length: i32, on_message: fn(&[u8]) -> Result<(), u16>) -> i32 {
        let place = Place(PhantomData);
        let length = usize::try_from(length).unwrap_or(0);
        crate::expansion::message_result(on_message(place.window(length)))
    }

    /// Calls `on_queue` of a service with the event of this call.
    pub fn run_on_queue(what: u32, value: u32, on_queue: fn(crate::Queue<'_>)) {
        let place = Place(PhantomData);
        on_queue(match what {
            queue::SHORT => crate::Queue::Short(value),
            queue::LONG => crate::Queue::Long(value),
            queue::DROPPED => crate::Queue::Dropped(place.window(value as usize)),
            // Event of a later version of the ABI.
            _ => return,
        });
    }

    impl Place<'_> {
        #[inline]
        pub(super) fn meta(&self) -> &[u8; META_LENGTH] {
            // SAFETY: the node writes these bytes before the call and nothing
            // else lies there; `meta_mut` needs the place exclusively.
            unsafe { &*with_exposed_provenance::<[u8; META_LENGTH]>(META_ADDRESS) }
        }

        #[inline]
        pub(super) fn meta_mut(&mut self) -> &mut [u8; META_LENGTH] {
            // SAFETY: as for `meta`, and the place is borrowed exclusively.
            unsafe { &mut *with_exposed_provenance_mut::<[u8; META_LENGTH]>(META_ADDRESS) }
        }

        #[inline]
        pub(crate) fn window(&self, length: usize) -> &[u8] {
            let length = length.min(WINDOW_LENGTH_MAX);
            let begin = with_exposed_provenance::<u8>(WINDOW_ADDRESS);
            // SAFETY: the node writes the window before the call, nothing else
            // lies in the reserved bytes, and `length` is not more than they are.
            unsafe { core::slice::from_raw_parts(begin, length) }
        }

        #[inline]
        pub(super) fn window_mut(&mut self, length: usize) -> &mut [u8] {
            let length = length.min(WINDOW_LENGTH_MAX);
            let begin = with_exposed_provenance_mut::<u8>(WINDOW_ADDRESS);
            // SAFETY: as for `window`, and the place is borrowed exclusively.
            unsafe { core::slice::from_raw_parts_mut(begin, length) }
        }

        pub(super) fn load(&self, offset: usize, out: &mut [u8]) -> Result<(), HostError> {
            // SAFETY: the node writes `out.len()` bytes at `out` and no others.
            done(unsafe { import::packet_load(offset, out.as_mut_ptr(), out.len()) })
        }

        pub(super) fn store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), HostError> {
            // SAFETY: the node reads `bytes.len()` bytes at `bytes`, and writes
            // the window, which nobody else has while the place is borrowed exclusively.
            done(unsafe { import::packet_store(offset, bytes.as_ptr(), bytes.len()) })
        }

        pub(super) fn resize_head(&mut self, delta: i32) -> Result<(), HostError> {
            // SAFETY: the node writes window and metadata, which nobody else has
            // while the place is borrowed exclusively.
            done(unsafe { import::packet_resize_head(delta) })
        }

        pub(super) fn resize_tail(&mut self, delta: i32) -> Result<(), HostError> {
            // SAFETY: as for `resize_head`.
            done(unsafe { import::packet_resize_tail(delta) })
        }
    }
}
