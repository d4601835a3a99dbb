//! Dithering: conversion of pixels to values of a palette with fewer colours.
//!
//! *None* takes the nearest value. *Ordered* adds an 8 x 8 threshold matrix (Bayer, 1973), so that
//! a still picture stays unchanged. *Floyd-Steinberg* (1976) distributes the error to later
//! neighbours: 7, 3, 5 and 1 sixteenths, from left to right.

use crate::choice::Wrong;
use crate::cube::Cube;
use crate::palette::{Palette, Rgb};
use std::cell::Cell;

/// Dithering algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dither {
    /// No dithering.
    None,
    /// Threshold matrix.
    Ordered,
    /// Error diffusion (Floyd-Steinberg).
    Floyd,
}

impl Dither {
    /// Parses a name. The error names the setting `dither`.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        match text {
            "none" => Ok(Self::None),
            "ordered" => Ok(Self::Ordered),
            "floyd" => Ok(Self::Floyd),
            _ => {
                let why = format!("{} is no dithering", Wrong::quoted(text));
                Err(Wrong::new("dither", why, "none, ordered or floyd"))
            }
        }
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Ordered => "ordered",
            Self::Floyd => "floyd",
        }
    }
}

/// Bayer matrix with values from 0 to 63: bits of `x ^ y` and `y`, interleaved, the lowest first.
const BAYER: [[u8; 8]; 8] = {
    let mut matrix = [[0; 8]; 8];
    let mut at = 0;
    while at < 64 {
        let (x, y) = (at % 8, at / 8);
        let (mixed, mut place, mut bit) = (x ^ y, 0, 0);
        while bit < 3 {
            place = place << 2 | (mixed >> bit & 1) << 1 | (y >> bit & 1);
            bit += 1;
        }
        matrix[y][x] = place as u8;
        at += 1;
    }
    matrix
};

/// Thresholds in 1/256 of a level, by position: 2 to 254, each in the middle of its 64th.
const THRESHOLDS: [[u16; 8]; 8] = {
    let mut matrix = [[0; 8]; 8];
    let mut at = 0;
    while at < 64 {
        matrix[at / 8][at % 8] = 4 * BAYER[at / 8][at % 8] as u16 + 2;
        at += 1;
    }
    matrix
};

/// Scales a pixel's channel to 256 parts, so that the lightest value is 256.
#[inline(always)]
fn whole(channel: u8) -> u16 {
    u16::from(channel) + u16::from(channel >> 7)
}

/// Scale of one channel of a grid, or of greys: the level of each channel value, and the channel
/// value of each level.
#[derive(Clone, Debug)]
struct Scale {
    /// Nearest level by channel value, in steps of the pixel's value.
    nearest: [u16; 256],
    /// Channel value of the nearest level.
    shown: [u8; 256],
    /// Highest level.
    top: u16,
    step: u16,
}

impl Scale {
    fn new(levels: u16, step: u16) -> Self {
        let top = levels.saturating_sub(1).max(1);
        let mut scale = Self { nearest: [0; 256], shown: [0; 256], top, step };
        // Half a level is added, as the division rounds down. At most 255.
        let shown = |level: u8| ((u16::from(level) * 255 + top / 2) / top) as u8;
        let mut level = 0;
        for channel in 0..=u8::MAX {
            let distance = |level: u8| shown(level).abs_diff(channel);
            // Levels increase with channel values.
            while u16::from(level) < top && distance(level + 1) < distance(level) {
                level += 1;
            }
            scale.nearest[usize::from(channel)] = u16::from(level) * step;
            scale.shown[usize::from(channel)] = shown(level);
        }
        scale
    }
}

/// Values to which pixels are converted.
#[derive(Clone, Debug)]
enum Target {
    Greys(Box<Scale>),
    Grid(Box<[Scale; 3]>),
    Colours {
        cube: Cube,
        /// Colours by value; there are no more values than colours.
        colours: Box<[Rgb; 256]>,
        /// Offsets of ordered dithering, by position.
        offsets: [[i16; 8]; 8],
    },
}

/// Converter of pixels to values, row by row.
#[derive(Clone, Debug)]
pub struct Quantiser {
    target: Target,
    dither: Dither,
    /// Error carried to the next row, in sixteenths, with a leading pixel.
    given: Vec<i16>,
}

impl Quantiser {
    /// Creates a quantiser for a palette.
    pub fn new(palette: &Palette, dither: Dither) -> Self {
        let target = match palette {
            Palette::Colours(colours) => {
                let colours = colours.as_slice();
                let spread = spread(colours);
                let mut by_value = Box::new([[0; 3]; 256]);
                for (value, colour) in by_value.iter_mut().zip(colours) {
                    *value = *colour;
                }
                let offset = |place: u8| (2 * i16::from(place) - 63) * spread / 128;
                Target::Colours {
                    cube: Cube::new(colours),
                    colours: by_value,
                    offsets: BAYER.map(|row| row.map(offset)),
                }
            }
            _ => match palette.grid() {
                Some(grid) => {
                    let scale = |at: usize| Scale::new(u16::from(grid.levels[at]), grid.steps[at]);
                    Target::Grid(Box::new([scale(0), scale(1), scale(2)]))
                }
                None => Target::Greys(Box::new(Scale::new(palette.greys().unwrap_or(2), 1))),
            },
        };
        // 256 greys lose no information.
        let dither = if *palette == Palette::Grey8 { Dither::None } else { dither };
        Self { target, dither, given: Vec::new() }
    }

    /// Returns the bytes of an input pixel: one for grey, three for red, green and blue.
    pub fn channels(&self) -> usize {
        match self.target {
            Target::Greys(_) => 1,
            _ => 3,
        }
    }

    /// Begins a picture of this width.
    pub fn begin(&mut self, width: usize) {
        if self.dither == Dither::Floyd {
            self.given.clear();
            self.given.resize((width + 1) * self.channels(), 0);
        }
    }

    /// Converts a row of pixels, the `y`th.
    #[cfg_attr(target_arch = "wasm32", target_feature(enable = "simd128"))]
    pub fn row(&mut self, y: usize, pixels: &[u8], values: &mut [u16]) {
        let Self { target, dither, given } = self;
        match (&*target, *dither) {
            (Target::Greys(scale), Dither::None) => {
                for (value, pixel) in values.iter_mut().zip(pixels) {
                    *value = scale.nearest[usize::from(*pixel)];
                }
            }
            (Target::Greys(scale), Dither::Ordered) => {
                let thresholds = &THRESHOLDS[y % 8];
                for (values, pixels) in values.chunks_mut(8).zip(pixels.chunks(8)) {
                    for ((value, pixel), threshold) in values.iter_mut().zip(pixels).zip(thresholds)
                    {
                        *value = level(*pixel, scale, *threshold);
                    }
                }
            }
            (Target::Greys(scale), Dither::Floyd) => {
                spill(given, pixels.as_chunks().0, values, |[pixel]| {
                    let channel = usize::from(pixel);
                    (scale.nearest[channel], [scale.shown[channel]])
                });
            }
            (Target::Grid(scales), Dither::None) => {
                for (value, pixel) in values.iter_mut().zip(pixels.as_chunks::<3>().0) {
                    let part = |at: usize| scales[at].nearest[usize::from(pixel[at])];
                    *value = part(0) + part(1) + part(2);
                }
            }
            (Target::Grid(scales), Dither::Ordered) => {
                let thresholds = &THRESHOLDS[y % 8];
                by_eight(pixels, values, |pixels, values| {
                    *values = grid_levels(pixels, scales, thresholds);
                });
            }
            (Target::Grid(scales), Dither::Floyd) => {
                spill(given, pixels.as_chunks().0, values, |pixel: Rgb| {
                    let (mut value, mut shown) = (0, [0; 3]);
                    for at in 0..3 {
                        let channel = usize::from(pixel[at]);
                        value += scales[at].nearest[channel];
                        shown[at] = scales[at].shown[channel];
                    }
                    (value, shown)
                });
            }
            (Target::Colours { cube, .. }, Dither::None) => {
                for (value, pixel) in values.iter_mut().zip(pixels.as_chunks::<3>().0) {
                    *value = u16::from(cube.nearest(*pixel));
                }
            }
            (Target::Colours { cube, offsets, .. }, Dither::Ordered) => {
                let offsets = &offsets[y % 8];
                by_eight(pixels, values, |pixels, values| {
                    let mut cells = [0; 8];
                    for channel in [0, 1, 2] {
                        for at in 0..8 {
                            let moved = i16::from(pixels[at][channel]) + offsets[at];
                            cells[at] = cells[at] << 5 | u16::from(clamped(moved) >> 3);
                        }
                    }
                    *values = cells.map(|cell| cube.of_cell(cell));
                });
            }
            (Target::Colours { cube, colours, .. }, Dither::Floyd) => {
                spill(given, pixels.as_chunks().0, values, |pixel: Rgb| {
                    let value = cube.nearest(pixel);
                    (u16::from(value), colours[usize::from(value)])
                });
            }
        }
    }
}

/// Returns the level of a channel value with a threshold of the matrix.
#[inline(always)]
fn level(channel: u8, scale: &Scale, threshold: u16) -> u16 {
    (whole(channel) * scale.top + threshold) >> 8
}

/// Converts pixels eight at a time, the width of the matrix; the rest is padded. `choose` writes
/// the values in place: LLVM does not vectorise a returned array.
#[inline(always)]
fn by_eight(pixels: &[u8], values: &mut [u16], choose: impl Fn(&[Rgb; 8], &mut [u16; 8])) {
    let (groups, values_left) = values.as_chunks_mut();
    let (pixels, pixels_left) = pixels.as_chunks::<3>().0.as_chunks();
    for (values, pixels) in groups.iter_mut().zip(pixels) {
        choose(pixels, values);
    }
    let mut filled = [[0; 3]; 8];
    filled.iter_mut().zip(pixels_left).for_each(|(filled, pixel)| *filled = *pixel);
    let mut chosen = [0; 8];
    choose(&filled, &mut chosen);
    values_left.iter_mut().zip(chosen).for_each(|(value, chosen)| *value = chosen);
}

/// Converts eight pixels of a grid, at a row of the matrix: vectorised, channel by channel.
#[inline(always)]
fn grid_levels(pixels: &[Rgb; 8], scales: &[Scale; 3], thresholds: &[u16; 8]) -> [u16; 8] {
    let mut values = [0; 8];
    for (channel, scale) in scales.iter().enumerate() {
        for at in 0..8 {
            let part = whole(pixels[at][channel]);
            values[at] += ((part * scale.top + thresholds[at]) >> 8) * scale.step;
        }
    }
    values
}

#[inline(always)]
fn clamped(channel: i16) -> u8 {
    // Between 0 and 255, so it fits a byte.
    channel.clamp(0, 255) as u8
}

/// Applies Floyd-Steinberg to a row: `choose` returns the value of a pixel, and the colour shown
/// for it.
///
/// `given` has the error from the row before, with an entry before the first pixel; this row's
/// errors replace it, one pixel behind the position that is read.
#[inline(always)]
fn spill<const CHANNELS: usize>(
    given: &mut [i16],
    pixels: &[[u8; CHANNELS]],
    values: &mut [u16],
    choose: impl Fn([u8; CHANNELS]) -> (u16, [u8; CHANNELS]),
) {
    let cells = Cell::from_mut(given.as_chunks_mut::<CHANNELS>().0).as_slice_of_cells();
    let mut right = [0; CHANNELS];
    // Errors so far for the pixels below the last one and below the current one.
    let (mut behind, mut below) = ([0; CHANNELS], [0; CHANNELS]);
    for ((value, pixel), place) in values.iter_mut().zip(pixels).zip(cells.windows(2)) {
        let [before, this] = place else { return };
        let (given, mut gift) = (this.get(), [0; CHANNELS]);
        let wanted: [u8; CHANNELS] = std::array::from_fn(|it| {
            clamped(i16::from(pixel[it]) + ((given[it] + right[it] + 8) >> 4))
        });
        let (chosen, shown) = choose(wanted);
        *value = chosen;
        for it in 0..CHANNELS {
            let lost = i16::from(wanted[it]) - i16::from(shown[it]);
            right[it] = 7 * lost;
            gift[it] = behind[it] + 3 * lost;
            behind[it] = below[it] + 5 * lost;
            below[it] = lost;
        }
        before.set(gift);
    }
    if let Some(last) = cells.get(pixels.len()) {
        last.set(behind);
    }
}

/// Returns the amplitude of ordered dithering for colours without order: the mean distance of a
/// colour to its nearest other one, in the channel that differs most, within 8 to 128.
fn spread(colours: &[Rgb]) -> i16 {
    let apart = |a: &Rgb, b: &Rgb| (0..3).map(|at| a[at].abs_diff(b[at])).max().unwrap_or(0);
    let nearest = |colour: &Rgb| {
        let others = colours.iter().filter(|other| *other != colour);
        others.map(|other| i64::from(apart(colour, other))).min().unwrap_or(0)
    };
    let sum: i64 = colours.iter().map(nearest).sum();
    let count = i64::try_from(colours.len()).unwrap_or(1).max(1);
    // Within 8 to 128.
    (sum / count).clamp(8, 128) as i16
}

#[cfg(test)]
pub(crate) mod tests;
