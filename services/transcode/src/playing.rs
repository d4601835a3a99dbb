//! Stream that plays: the device's choices so far, and the conversion of its pictures.
//!
//! After a change that the node has to make, pictures of the old choice may still arrive. Each
//! picture has the number of changes it follows, so that changes wait here until their first
//! picture comes:
//!
//! ```text
//!  change ─▶ waiting: [after the node's 3rd: packer] [after the 4th: packer] …
//!                                   │ a picture has number 3
//!                                   ▼
//!  pictures ─────────────▶ packer ─▶ frames
//! ```

use crate::choice::{Choice, Format, Size};
use crate::frame::{HEAD_LENGTH, Head, PART_LENGTH_MAX, PARTS_END};
use crate::limits::{CHANGES_WAITING_MAX, OUTPUT_LENGTH_MAX, PIXELS_PER_CALL_MAX};
use crate::pack::Packer;
use crate::picture::{Malformed, Picture, Pictures, Pixels};
use crate::rate::ByteRate;
use std::collections::VecDeque;

/// Conversion of pictures.
#[derive(Clone, Debug)]
struct Way {
    /// Number of the change that began it; 0 is the first request.
    number: u16,
    kbits: Option<u32>,
    /// Packer; `None` for JPEGs.
    packer: Option<Packer>,
    /// Number of pixels that each one counts for.
    weight: u32,
}

impl Way {
    fn new(number: u16, choice: &Choice) -> Self {
        let packer = || Packer::new(&choice.palette, choice.dither, choice.layout);
        let packer = (choice.format == Format::Frames).then(packer);
        Self { number, kbits: choice.kbits, packer, weight: choice.weight() }
    }
}

/// Stream that plays.
#[derive(Clone, Debug)]
pub struct Playing {
    /// Last choice of the device.
    choice: Choice,
    /// Number of changes by the device.
    number: u16,
    /// Number of changes that the node has made for it.
    node_changes: u16,
    /// Number of the node's change that the last picture followed.
    seen: u16,
    way: Way,
    /// Pending conversions, each with the number of the node's change that it waits for.
    waiting: VecDeque<(u16, Way)>,
    rate: ByteRate,
    /// Pictures dropped here since the last one that was sent.
    left_out: u16,
    /// True if the node dropped pictures as well.
    node_left_out: bool,
}

/// A change cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotChange {
    /// The format is fixed by the response's head.
    Format,
    /// Too many changes are pending.
    TooMany,
}

/// Result of handling a part of the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Pictures that were sent.
    pub frames: u32,
    /// Pictures that were dropped: for the byte rate, or for the limits of a call.
    pub left_out: u32,
    /// First invalid picture, which ended the part.
    pub malformed: Option<Malformed>,
}

impl Playing {
    /// Creates a stream with its first choice.
    pub fn new(choice: Choice) -> Self {
        Self {
            way: Way::new(0, &choice),
            rate: ByteRate::new(choice.kbits),
            choice,
            number: 0,
            node_changes: 0,
            seen: 0,
            waiting: VecDeque::new(),
            left_out: 0,
            node_left_out: false,
        }
    }

    /// Returns the last choice of the device.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Plans a change; returns the argument for the node's function, if the node has to change.
    ///
    /// # Errors
    /// The change is not possible.
    pub fn plan(&self, choice: &Choice) -> Result<Option<String>, CannotChange> {
        if choice.format != self.choice.format {
            return Err(CannotChange::Format);
        }
        if self.waiting.len() >= CHANGES_WAITING_MAX {
            return Err(CannotChange::TooMany);
        }
        let argument = choice.argument();
        Ok((argument != self.choice.argument()).then_some(argument))
    }

    /// Makes a change, after the node has made its part, if there was one. Returns the number in
    /// the head of frames that follow it.
    pub fn change(&mut self, choice: Choice, node_changed: bool) -> u16 {
        self.number = self.number.wrapping_add(1);
        self.node_changes = self.node_changes.wrapping_add(u16::from(node_changed));
        let way = Way::new(self.number, &choice);
        self.choice = choice;
        if self.waiting.is_empty() && is_behind(self.seen, self.node_changes) {
            self.go(way);
        } else {
            self.waiting.push_back((self.node_changes, way));
        }
        self.number
    }

    fn go(&mut self, way: Way) {
        self.rate.set(way.kbits);
        self.way = way;
    }

    /// Appends the frames for a part of the body to `out`. If a part exceeds the limits of a call,
    /// the oldest pictures are dropped.
    pub fn show(&mut self, part: &[u8], out: &mut Vec<u8>) -> Shown {
        let mut shown = Shown::default();
        let weights = self.waiting.iter().map(|(_, way)| way.weight);
        let weight = weights.fold(self.way.weight, u32::max);
        let mut ahead = Ahead::of(part, weight);
        for picture in Pictures::of(part) {
            match picture {
                Ok(picture) => {
                    let is_too_much = ahead.is_too_much();
                    ahead.pass(&picture);
                    self.follow(picture.change);
                    self.node_left_out |= picture.left_out;
                    if !is_too_much && self.add(&picture, out) {
                        shown.frames += 1;
                    } else {
                        self.left_out = self.left_out.saturating_add(1);
                        shown.left_out += 1;
                    }
                }
                Err(malformed) => shown.malformed = Some(malformed),
            }
        }
        shown
    }

    /// Appends the end of the response.
    pub fn finish(&self, out: &mut Vec<u8>) {
        if self.choice.format == Format::Mjpeg {
            out.extend_from_slice(PARTS_END);
        }
    }

    /// Handles that a picture follows this change of the node.
    fn follow(&mut self, change: u16) {
        self.seen = change;
        while let Some((after, _)) = self.waiting.front()
            && is_behind(change, *after)
            && let Some((_, way)) = self.waiting.pop_front()
        {
            self.go(way);
        }
    }

    /// Appends a picture, if the byte rate allows it and it has the chosen format. Returns true if
    /// it was appended.
    fn add(&mut self, picture: &Picture<'_>, out: &mut Vec<u8>) -> bool {
        let Picture { size, time_ms, bytes, .. } = *picture;
        let (length, in_front) = match (&self.way.packer, picture.pixels) {
            (Some(packer), Pixels::Grey) if packer.channels() == 1 => {
                (packer.length(size), HEAD_LENGTH)
            }
            (Some(packer), Pixels::Rgb) if packer.channels() == 3 => {
                (packer.length(size), HEAD_LENGTH)
            }
            (None, Pixels::Jpeg) => (bytes.len(), PART_LENGTH_MAX),
            _ => return false,
        };
        if !self.rate.take(time_ms, in_front + length) {
            return false;
        }
        let head = self.head(size, time_ms, length);
        match &mut self.way.packer {
            Some(packer) => {
                out.extend_from_slice(&head.to_bytes());
                packer.pack(size, bytes, out);
            }
            None => {
                head.write_part(out);
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
        }
        (self.left_out, self.node_left_out) = (0, false);
        true
    }

    fn head(&self, size: Size, time_ms: u32, length: usize) -> Head {
        let packer = self.way.packer.as_ref();
        Head {
            size,
            palette: packer.map_or(0, Packer::number),
            layout: packer.map_or(0, |packer| packer.layout().number()),
            node_left_out: self.node_left_out,
            time_ms,
            // The length was 32 bits, and has at most doubled within the limits of a picture.
            length: u32::try_from(length).unwrap_or(u32::MAX),
            change: self.way.number,
            left_out: self.left_out,
        }
    }
}

/// Returns true if `change` is `after` or a later one; the numbers wrap around.
fn is_behind(change: u16, after: u16) -> bool {
    change.wrapping_sub(after) < 1 << 15
}

/// Remaining part of the body: pixels to pack, and upper limit of the output in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Ahead {
    pixels: u64,
    bytes: u64,
    /// Weight of each colour pixel.
    weight: u32,
}

impl Ahead {
    fn of(part: &[u8], weight: u32) -> Self {
        let mut sum = Self { weight, ..Self::default() };
        for picture in Pictures::of(part).flatten() {
            let (pixels, bytes) = sum.cost(&picture);
            sum.pixels += pixels;
            sum.bytes += bytes;
        }
        sum
    }

    fn cost(&self, picture: &Picture<'_>) -> (u64, u64) {
        let count = u64::from(picture.count());
        match picture.pixels {
            Pixels::Grey => (count, count + HEAD_LENGTH as u64),
            Pixels::Rgb => (count * u64::from(self.weight), 2 * count + HEAD_LENGTH as u64),
            Pixels::Jpeg => (0, (picture.bytes.len() + PART_LENGTH_MAX) as u64),
        }
    }

    /// Returns true if the next picture and all later ones exceed the limits of a call.
    fn is_too_much(self) -> bool {
        let most = (OUTPUT_LENGTH_MAX - PARTS_END.len()) as u64;
        self.pixels > u64::from(PIXELS_PER_CALL_MAX) || self.bytes > most
    }

    fn pass(&mut self, picture: &Picture<'_>) {
        let (pixels, bytes) = self.cost(picture);
        self.pixels = self.pixels.saturating_sub(pixels);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests;
