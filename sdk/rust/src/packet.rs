//! The packet that a service is asked about: its window, its metadata, the rest of it.
//!
//! In a module the window and the metadata lie at fixed addresses, so that an
//! access whose place is known at compile time has a constant address. In a
//! native test they lie in a [`testing::Frame`](crate::testing::Frame).

use crate::host::HostError;
use crate::ip::{Ipv4, Ipv6};
use crate::layout::{
    BEGINS_WITH_DATA, MARK_LENGTH, META_FRAGMENT, META_LATER_FRAGMENT, OFFSET_NONE, offset,
};

/// Where a module runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// In the node's sandbox.
    User,
    /// In the driver of the network device.
    Nic,
    /// In the kernel, behind the driver.
    Kernel,
}

/// One packet: a frame as on the wire.
///
/// Its head lies in [`window`](Self::window), as much as `module.toml` asks
/// for; [`load`](Self::load) and [`store`](Self::store) reach the rest.
pub struct Packet<'a> {
    pub(crate) place: Place<'a>,
}

impl Packet<'_> {
    /// Bytes of the whole packet, as on the wire.
    #[inline]
    #[must_use]
    pub fn length(&self) -> usize {
        self.u32_at(offset::PACKET_LENGTH) as usize
    }

    /// The head of the packet, at most as long as the declared window.
    #[inline]
    #[must_use]
    pub fn window(&self) -> &[u8] {
        self.place.window(self.u32_at(offset::WINDOW_LENGTH) as usize)
    }

    /// The head of the packet, to be changed: what is written here is in the
    /// packet when `on_packet` returns.
    #[inline]
    #[must_use]
    pub fn window_mut(&mut self) -> &mut [u8] {
        let length = self.u32_at(offset::WINDOW_LENGTH) as usize;
        self.place.window_mut(length)
    }

    /// The IPv4 header, if the packet has one and the window holds its 20 bytes.
    #[inline]
    #[must_use]
    pub fn ipv4(&mut self) -> Option<Ipv4<'_>> {
        if self.ip_version() != 4 {
            return None;
        }
        let begin = self.l3_offset()?;
        Ipv4::new(self.window_mut().get_mut(begin..)?)
    }

    /// The IPv6 header, if the packet has one and the window holds its 40 bytes.
    #[inline]
    #[must_use]
    pub fn ipv6(&mut self) -> Option<Ipv6<'_>> {
        if self.ip_version() != 6 {
            return None;
        }
        let begin = self.l3_offset()?;
        Ipv6::new(self.window_mut().get_mut(begin..)?)
    }

    /// Whether this is a data unit that came in an active packet, without headers; else it
    /// begins with an Ethernet header.
    #[inline]
    #[must_use]
    pub fn is_data(&self) -> bool {
        self.place.meta()[offset::BEGINS_WITH] == BEGINS_WITH_DATA
    }

    /// Where the IP header begins. It may lie beyond the window.
    #[inline]
    #[must_use]
    pub fn l3_offset(&self) -> Option<usize> {
        Some(self.u16_at(offset::L3_OFFSET)).filter(|at| *at != OFFSET_NONE).map(usize::from)
    }

    /// Where the L4 header begins. It may lie beyond the window.
    #[inline]
    #[must_use]
    pub fn l4_offset(&self) -> Option<usize> {
        Some(self.u16_at(offset::L4_OFFSET)).filter(|at| *at != OFFSET_NONE).map(usize::from)
    }

    /// 4, 6, or 0 when the packet is neither.
    #[inline]
    #[must_use]
    pub fn ip_version(&self) -> u8 {
        self.place.meta()[offset::IP_VERSION]
    }

    /// The protocol after IP and its extension headers, or 0.
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.place.meta()[offset::PROTOCOL]
    }

    /// True for every fragment of a datagram, the first one too.
    #[inline]
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        self.place.meta()[offset::FLAGS] & META_FRAGMENT != 0
    }

    /// True for a fragment that has no L4 header.
    #[inline]
    #[must_use]
    pub fn is_later_fragment(&self) -> bool {
        self.place.meta()[offset::FLAGS] & META_LATER_FRAGMENT != 0
    }

    /// The port that the packet came in by.
    #[inline]
    #[must_use]
    pub fn arrival_port(&self) -> u16 {
        self.u16_at(offset::PORT)
    }

    /// The session that pays.
    #[inline]
    #[must_use]
    pub fn session(&self) -> u16 {
        self.u16_at(offset::SESSION)
    }

    /// The rule that sent the packet here.
    #[inline]
    #[must_use]
    pub fn rule(&self) -> u32 {
        self.u32_at(offset::RULE)
    }

    /// A hash of the flow, equal for both directions.
    #[inline]
    #[must_use]
    pub fn flow_hash(&self) -> u32 {
        self.u32_at(offset::FLOW_HASH)
    }

    /// The lane of this instance.
    #[inline]
    #[must_use]
    pub fn lane(&self) -> u32 {
        self.u32_at(offset::LANE)
    }

    /// The node's coarse time in milliseconds, without a call.
    #[inline]
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        let low = u64::from(self.u32_at(offset::NOW_MS));
        let high = u64::from(self.u32_at(offset::NOW_MS + 4));
        high << 32 | low
    }

    /// Where the module runs now.
    #[inline]
    #[must_use]
    pub fn level(&self) -> Level {
        match self.place.meta()[offset::LEVEL] {
            1 => Level::Nic,
            2 => Level::Kernel,
            _ => Level::User,
        }
    }

    /// What the previous module of the graph left for this one.
    #[inline]
    #[must_use]
    pub fn mark(&self) -> [u8; MARK_LENGTH] {
        let meta = self.place.meta();
        core::array::from_fn(|at| meta[offset::MARK + at])
    }

    /// Leaves something for the next module of the graph.
    #[inline]
    pub fn set_mark(&mut self, mark: [u8; MARK_LENGTH]) {
        self.place.meta_mut()[offset::MARK..offset::MARK + MARK_LENGTH].copy_from_slice(&mark);
    }

    /// Copies `out.len()` bytes from `offset`, anywhere in the packet.
    ///
    /// # Errors
    /// [`HostError::OutOfRange`] when the packet ends before that.
    #[inline]
    pub fn load(&self, offset: usize, out: &mut [u8]) -> Result<(), HostError> {
        self.place.load(offset, out)
    }

    /// Copies `out.len()` bytes from `offset`, as [`load`](Self::load) does, of something that ends
    /// at `end`: a datagram, behind which Ethernet's padding lies, or what an error quotes.
    ///
    /// `None` when the bytes lie beyond `end`, or beyond the packet.
    #[must_use]
    pub fn load_within(&self, offset: usize, end: usize, out: &mut [u8]) -> Option<()> {
        if offset + out.len() > end {
            return None;
        }
        self.load(offset, out).ok()
    }

    /// Takes `LENGTH` bytes out of the packet before they are looked at: wherever they lie in it,
    /// each of them then has a known place. `None` as for [`load_within`](Self::load_within).
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

    /// Writes `bytes` at `offset`, anywhere in the packet; its length stays.
    ///
    /// # Errors
    /// [`HostError::OutOfRange`] when the packet ends before that.
    #[inline]
    pub fn store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), HostError> {
        self.place.store(offset, bytes)
    }

    /// Adds (`delta` above 0) zeroed bytes in front of the packet, or removes some there.
    ///
    /// # Errors
    /// [`HostError::OverLimit`] beyond 128 bytes more, or when less than an Ethernet header
    /// would be left.
    #[inline]
    pub fn resize_head(&mut self, delta: i32) -> Result<(), HostError> {
        self.place.resize_head(delta)
    }

    /// Adds (`delta` above 0) zeroed bytes at the packet's end, or removes some there.
    ///
    /// # Errors
    /// [`HostError::OverLimit`] beyond 128 bytes more, or when less than an Ethernet header
    /// would be left.
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
    //! The packet in a module: fixed addresses in linear memory.

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

    /// Where the packet is: at addresses that every module knows. There is one at a time.
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

    /// Runs `on_queue` over what the node says.
    pub fn run_on_queue(what: u32, value: u32, on_queue: fn(crate::Queue<'_>)) {
        let place = Place(PhantomData);
        on_queue(match what {
            queue::SHORT => crate::Queue::Short(value),
            queue::LONG => crate::Queue::Long(value),
            queue::DROPPED => crate::Queue::Dropped(place.window(value as usize)),
            // Of a later version of the ABI.
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
