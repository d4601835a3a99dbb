//! Packet in a UMEM: one frame on the wire, in one or more frames of memory.

use crate::umem::{FRAME_LENGTH, Frame, FramePool, Umem};
use abi::packet::{PacketBytes, PacketError, resized};
use std::rc::Rc;

/// Most frames of memory that one packet may take: 5 of 3,840 bytes hold every MTU up to 9,000.
pub const SEGMENTS_MAX: usize = 5;

/// Bytes of a packet that one frame of memory holds.
const SEGMENT_LENGTH_MAX: usize = FRAME_LENGTH - crate::FRAME_HEADROOM;

/// Bytes that [`Packet::set_aside`] keeps.
pub const ASIDE_LENGTH: usize = 44;

/// Bytes behind the saved ones: the frame's number and, where a packet that grows comes first, a
/// pattern that differs from the zeros of new bytes.
const ASIDE_TAIL: usize = 8;
const ASIDE_PATTERN: u64 = 0xa5a5_a5a5 << 32;
/// Bytes in front of a packet that its metadata may take.
const METADATA_MAX: usize = 64;

/// Part of a packet: bytes `start..start + length` of a frame.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) frame: Frame,
    pub(crate) start: u16,
    pub(crate) length: u16,
}

// Packets are moved by value: with one word for each segment that is cheap.
const _: () = assert!(size_of::<Option<Segment>>() == 8);
const _: () = assert!(FRAME_LENGTH < u16::MAX as usize);

/// Packet owned by this process. Must go to a transmit ring or back to the pool: dropping it leaks
/// its frames.
#[derive(Debug)]
pub struct Packet {
    umem: Rc<Umem>,
    pub(crate) segments: [Option<Segment>; SEGMENTS_MAX],
    pub(crate) count: usize,
}

impl Packet {
    /// Returns a packet without bytes, for a ring to fill.
    pub(crate) const fn empty(umem: Rc<Umem>) -> Self {
        Self { umem, segments: [const { None }; SEGMENTS_MAX], count: 0 }
    }

    /// Allocates a packet of `length` zeroed bytes in fresh frames, or returns `None` when the pool
    /// is short of frames or the packet would need more than [`SEGMENTS_MAX`].
    #[must_use]
    pub fn allocate(umem: &Rc<Umem>, pool: &mut FramePool, length: usize) -> Option<Self> {
        let count = length.div_ceil(SEGMENT_LENGTH_MAX);
        if length == 0 || count > SEGMENTS_MAX || pool.free() < count {
            return None;
        }
        let mut packet = Self::empty(Rc::clone(umem));
        let mut left = length;
        while left > 0 {
            let length = left.min(SEGMENT_LENGTH_MAX);
            packet.push_zeroed(pool.take()?, length);
            left -= length;
        }
        Some(packet)
    }

    /// Adds a segment of zeroed bytes; the caller has checked that it fits.
    fn push_zeroed(&mut self, frame: Frame, length: usize) {
        let start = crate::FRAME_HEADROOM as u16;
        let mut segment = Segment { frame, start, length: length as u16 };
        bytes_mut(&self.umem, &mut segment).fill(0);
        self.segments[self.count] = Some(segment);
        self.count += 1;
    }

    /// Returns the packet's frames to the pool.
    pub fn recycle(mut self, pool: &mut FramePool) {
        self.segments.iter_mut().filter_map(Option::take).for_each(|s| pool.give(s.frame));
    }

    /// Returns the first segment's bytes: the whole packet, unless it is a jumbo frame.
    #[must_use]
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.segments[0].as_ref().map_or(&[], |s| bytes(&self.umem, s))
    }

    /// Returns the first segment's bytes, mutable.
    #[must_use]
    #[inline]
    pub fn head_mut(&mut self) -> &mut [u8] {
        let umem = &self.umem;
        self.segments[0].as_mut().map_or(&mut [], |s| bytes_mut(umem, s))
    }

    /// Returns the `N` bytes of metadata that the front door wrote in front of the packet.
    #[must_use]
    pub fn metadata<const N: usize>(&self) -> Option<[u8; N]> {
        let segment = self.segments[0].as_ref()?;
        let end = segment.start as usize;
        let start = end.checked_sub(N)?;
        self.umem.bytes(&segment.frame).get(start..end)?.try_into().ok()
    }

    /// Saves bytes at the beginning of the packet's first frame of memory, in front of its
    /// metadata. Returns the key for [`Packet::aside`], or `None` where there is no space.
    pub fn set_aside(&mut self, bytes: &[u8; ASIDE_LENGTH]) -> Option<u32> {
        let segment = self.segments[0].as_mut()?;
        let number = segment.frame.number();
        if usize::from(segment.start) < ASIDE_LENGTH + ASIDE_TAIL + METADATA_MAX {
            return None;
        }
        let memory = self.umem.bytes_mut(&mut segment.frame);
        memory[..ASIDE_LENGTH].copy_from_slice(bytes);
        let tail = ASIDE_PATTERN | u64::from(number);
        memory[ASIDE_LENGTH..][..ASIDE_TAIL].copy_from_slice(&tail.to_le_bytes());
        Some(number)
    }

    /// Returns the bytes that [`Packet::set_aside`] saved, or `None` when the packet has grown over
    /// them or lost its first frame of memory since.
    #[must_use]
    pub fn aside(&self, number: u32) -> Option<[u8; ASIDE_LENGTH]> {
        let segment = self.segments[0].as_ref()?;
        let kept = self.umem.bytes(&segment.frame).get(..usize::from(segment.start))?;
        let (bytes, rest) = kept.split_first_chunk()?;
        let tail = u64::from_le_bytes(*rest.first_chunk()?);
        let is_there = segment.frame.number() == number;
        (is_there && tail == ASIDE_PATTERN | u64::from(number)).then_some(*bytes)
    }

    /// Prefetches metadata and headers, which another CPU has just written.
    #[inline]
    pub fn load_ahead(&self) {
        if let Some(first) = &self.segments[0] {
            self.umem.load_ahead(first.frame.address() + u64::from(first.start));
        }
    }

    /// Returns the packet memory in use, bytes: whole frames.
    #[must_use]
    pub const fn memory_length(&self) -> usize {
        self.count * FRAME_LENGTH
    }

    /// Returns true if one frame of memory holds the whole packet.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.count == 1
    }

    /// Removes bytes at both ends, unlike a module down to the last byte. Returns false when that
    /// would be the whole packet, or more than its first or last frame of memory holds.
    #[must_use]
    #[inline]
    pub fn trim(&mut self, front: usize, back: usize) -> bool {
        let whole = self.is_whole();
        let Some(last) = self.count.checked_sub(1) else { return false };
        let length_of =
            |segment: &Option<Segment>| segment.as_ref().map_or(0, |s| s.length as usize);
        let (first_length, last_length) =
            (length_of(&self.segments[0]), length_of(&self.segments[last]));
        let fits = match whole {
            true => front + back < first_length,
            false => front < first_length && back < last_length,
        };
        if !fits {
            return false;
        }
        // Both are below the length of a frame of memory.
        if let Some(first) = &mut self.segments[0] {
            first.start += front as u16;
            first.length -= front as u16;
        }
        if let Some(last) = &mut self.segments[last] {
            last.length -= back as u16;
        }
        true
    }

    /// Returns the packet's segments, in order.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.segments[..self.count].iter().flatten().map(|s| bytes(&self.umem, s))
    }
}

fn bytes<'a>(umem: &'a Umem, segment: &'a Segment) -> &'a [u8] {
    &umem.bytes(&segment.frame)[segment.start as usize..][..segment.length as usize]
}

fn bytes_mut<'a>(umem: &'a Umem, segment: &'a mut Segment) -> &'a mut [u8] {
    let (start, length) = (segment.start as usize, segment.length as usize);
    &mut umem.bytes_mut(&mut segment.frame)[start..][..length]
}

impl PacketBytes for Packet {
    #[inline]
    fn length(&self) -> usize {
        self.segments[..self.count].iter().flatten().map(|s| s.length as usize).sum()
    }

    fn load(&self, offset: usize, out: &mut [u8]) -> Result<(), PacketError> {
        if let Some(from) = self.head().get(offset..).and_then(|rest| rest.get(..out.len())) {
            out.copy_from_slice(from);
            return Ok(());
        }
        let end = offset.checked_add(out.len()).ok_or(PacketError::OutOfRange)?;
        if end > self.length() {
            return Err(PacketError::OutOfRange);
        }
        let (mut skip, mut done) = (offset, 0);
        for chunk in self.chunks() {
            let from = chunk.get(skip..).unwrap_or(&[]);
            skip = skip.saturating_sub(chunk.len());
            let count = from.len().min(out.len() - done);
            out[done..done + count].copy_from_slice(&from[..count]);
            done += count;
        }
        Ok(())
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), PacketError> {
        let head = self.head_mut();
        if let Some(to) = head.get_mut(offset..).and_then(|rest| rest.get_mut(..bytes.len())) {
            to.copy_from_slice(bytes);
            return Ok(());
        }
        let end = offset.checked_add(bytes.len()).ok_or(PacketError::OutOfRange)?;
        if end > self.length() {
            return Err(PacketError::OutOfRange);
        }
        let (mut skip, mut done) = (offset, 0);
        let umem = &self.umem;
        for segment in self.segments[..self.count].iter_mut().flatten() {
            let chunk = bytes_mut(umem, segment);
            let length = chunk.len();
            let to = chunk.get_mut(skip..).unwrap_or(&mut []);
            skip = skip.saturating_sub(length);
            let count = to.len().min(bytes.len() - done);
            to[..count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
        Ok(())
    }

    fn resize_head(&mut self, delta: i32) -> Result<(), PacketError> {
        let mut count = resized(self.length(), delta)?;
        if delta < 0 {
            // `resized` leaves at least a byte, so a segment stays.
            while let Some(first) = self.segments[0].take_if(|s| usize::from(s.length) <= count) {
                count -= usize::from(first.length);
                self.umem.reserve(first.frame);
                self.segments[..self.count].rotate_left(1);
                self.count -= 1;
            }
        }
        let umem = &self.umem;
        let first = self.segments[0].as_mut().ok_or(PacketError::OverLimit)?;
        if delta >= 0 {
            let by = u16::try_from(count).map_err(|_| PacketError::OverLimit)?;
            first.start = first.start.checked_sub(by).ok_or(PacketError::OverLimit)?;
            first.length += by;
            bytes_mut(umem, first)[..count].fill(0);
        } else {
            first.start += count as u16;
            first.length -= count as u16;
        }
        Ok(())
    }

    fn resize_tail(&mut self, delta: i32) -> Result<(), PacketError> {
        let mut count = resized(self.length(), delta)?;
        let mut last = self.count.checked_sub(1).ok_or(PacketError::OverLimit)?;
        if delta >= 0 {
            return self.grow_tail(last, count);
        }
        // `resized` leaves at least a byte, so a segment stays.
        while let Some(gone) = self.segments[last].take_if(|s| s.length as usize <= count) {
            count -= gone.length as usize;
            self.umem.reserve(gone.frame);
            self.count -= 1;
            last -= 1;
        }
        let last = self.segments[last].as_mut().ok_or(PacketError::OverLimit)?;
        last.length -= count as u16;
        Ok(())
    }
}

impl Packet {
    /// Adds zeroed bytes behind segment `last`, into a frame of the reserve
    /// where it is full.
    fn grow_tail(&mut self, last: usize, count: usize) -> Result<(), PacketError> {
        let umem = Rc::clone(&self.umem);
        let segment = self.segments[last].as_mut().ok_or(PacketError::OverLimit)?;
        let free = FRAME_LENGTH - (segment.start + segment.length) as usize;
        let here = count.min(free);
        let next = match count - here {
            0 => None,
            _ if self.count == SEGMENTS_MAX => return Err(PacketError::OverLimit),
            _ => Some(umem.take_reserved().ok_or(PacketError::OverLimit)?),
        };
        segment.length += here as u16;
        let length = segment.length as usize;
        bytes_mut(&umem, segment)[length - here..].fill(0);
        if let Some(frame) = next {
            self.push_zeroed(frame, count - here);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet_of(lengths: &[usize]) -> (Packet, FramePool) {
        let (umem, mut pool) = Umem::new(8).unwrap();
        let umem = Rc::new(umem);
        let mut packet = Packet::empty(Rc::clone(&umem));
        for (at, &length) in lengths.iter().enumerate() {
            let mut one = Packet::allocate(&umem, &mut pool, length).unwrap();
            packet.segments[at] = one.segments[0].take();
            packet.count += 1;
        }
        let bytes: Vec<u8> = (0..packet.length()).map(|i| i as u8).collect();
        packet.store(0, &bytes).unwrap();
        (packet, pool)
    }

    #[test]
    fn a_load_crosses_segments() {
        let (packet, _) = packet_of(&[10, 10, 5]);
        let mut out = [0; 14];
        packet.load(8, &mut out).unwrap();
        assert_eq!(out.to_vec(), (8..22).collect::<Vec<u8>>());
        assert_eq!(packet.load(12, &mut out), Err(PacketError::OutOfRange));
    }

    #[test]
    fn a_store_crosses_segments() {
        let (mut packet, _) = packet_of(&[4, 4, 4]);
        packet.store(3, &[100, 101, 102, 103, 104, 105]).unwrap();
        let mut out = [0; 12];
        packet.load(0, &mut out).unwrap();
        assert_eq!(out, [0, 1, 2, 100, 101, 102, 103, 104, 105, 9, 10, 11]);
    }

    #[test]
    fn both_ends_come_off_down_to_a_byte() {
        let (mut packet, _) = packet_of(&[10]);
        assert!(!packet.trim(6, 4) && !packet.trim(0, 10));
        assert!(packet.trim(6, 3));
        assert_eq!(packet.head(), [6]);
        let (mut packet, _) = packet_of(&[5, 5]);
        assert!(!packet.trim(5, 0) && !packet.trim(0, 5));
        assert!(packet.trim(4, 4));
        let mut out = [0; 2];
        packet.load(0, &mut out).unwrap();
        assert_eq!((packet.length(), out), (2, [4, 5]));
    }

    #[test]
    fn bytes_set_aside_in_headroom_are_found_until_the_packet_overwrites_them() {
        let bytes = std::array::from_fn(|at| at as u8);
        let (mut packet, _) = packet_of(&[15, 20]);
        let number = packet.set_aside(&bytes).unwrap();
        let grow = |packet: &mut Packet| (0..2).for_each(|_| packet.resize_head(100).unwrap());
        grow(&mut packet);
        assert_eq!(packet.aside(number), Some(bytes));
        packet.resize_head(20).unwrap();
        (0..2).for_each(|_| packet.resize_head(-110).unwrap());
        assert_eq!(packet.aside(number), None, "it was overwritten");
        let number = packet.set_aside(&bytes).unwrap();
        packet.resize_head(-16).unwrap();
        assert_eq!(packet.aside(number), None, "its first frame of memory is gone");
        grow(&mut packet);
        assert_eq!(packet.set_aside(&bytes), None, "no room");
    }

    #[test]
    fn growing_in_front_keeps_the_bytes_and_zeroes_the_new_ones() {
        let (mut packet, _) = packet_of(&[15]);
        packet.resize_head(2).unwrap();
        assert_eq!(packet.head(), [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        packet.resize_head(-3).unwrap();
        assert_eq!(packet.head(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        assert_eq!(packet.resize_head(-1), Err(PacketError::OverLimit));
    }

    #[test]
    fn growing_behind_goes_on_in_another_frame() {
        let full = SEGMENT_LENGTH_MAX;
        let (mut packet, mut pool) = packet_of(&[full - 1]);
        assert_eq!(packet.resize_tail(2), Err(PacketError::OverLimit), "no frame is reserved");
        packet.umem.replenish(&mut pool);
        packet.resize_tail(5).unwrap();
        let mut out = [9; 6];
        packet.load(full - 2, &mut out).unwrap();
        assert_eq!((packet.length(), packet.count), (full + 4, 2));
        assert_eq!(out, [(full - 2) as u8, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn shrinking_goes_through_segments() {
        let (mut packet, mut pool) = packet_of(&[10, 20, 5]);
        packet.resize_head(-12).unwrap();
        assert_eq!((packet.length(), packet.count), (23, 2));
        packet.resize_tail(-9).unwrap();
        assert_eq!((packet.head(), packet.count), (&(12..26).collect::<Vec<u8>>()[..], 1));
        assert_eq!(packet.resize_tail(-1), Err(PacketError::OverLimit));
        packet.umem.clone().replenish(&mut pool);
        packet.recycle(&mut pool);
        assert_eq!(pool.free() + crate::umem::RESERVE.min(8 - 1), pool.total());
    }

    #[test]
    fn a_frame_of_a_modules_own_may_be_jumbo() {
        let (umem, mut pool) = Umem::new(8).unwrap();
        let packet = Packet::allocate(&Rc::new(umem), &mut pool, 9018).unwrap();
        assert_eq!((packet.length(), packet.count), (9018, 3));
        let lengths: Vec<usize> = packet.chunks().map(<[u8]>::len).collect();
        assert_eq!(lengths, [3840, 3840, 1338]);
    }

    #[test]
    fn a_recycled_packet_gives_all_its_frames_back() {
        let (packet, mut pool) = packet_of(&[10, 10, 5]);
        assert_eq!(pool.free(), 5);
        packet.recycle(&mut pool);
        assert_eq!(pool.free(), pool.total());
    }
}
