//! Packer of pictures for a display: values of a palette in rows of bytes.
//!
//! ```text
//!  rows      each row begins with a byte; the first pixel has the highest bits, and of two bytes
//!            the high one comes first. The rest of a row's last byte is 0
//!  rows-lsb  the first pixel has the lowest bits, and of two bytes the low one comes first
//!  pages     eight rows are a page: a byte for each column, the uppermost pixel has the lowest
//!            bit (SSD1306, SH1106). One bit per pixel only
//! ```

use crate::choice::{Size, Wrong};
use crate::dither::{Dither, Quantiser};
use crate::palette::Palette;

/// Order of pixels in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The first pixel has the highest bits.
    Rows,
    /// The first pixel has the lowest bits.
    RowsLsb,
    /// A byte has eight pixels of a column.
    Pages,
}

impl Layout {
    /// Parses a name. The error names the setting `layout`.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        match text {
            "rows" => Ok(Self::Rows),
            "rows-lsb" => Ok(Self::RowsLsb),
            "pages" => Ok(Self::Pages),
            _ => {
                let why = format!("{} is no layout", Wrong::quoted(text));
                Err(Wrong::new("layout", why, "rows, rows-lsb or pages"))
            }
        }
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::RowsLsb => "rows-lsb",
            Self::Pages => "pages",
        }
    }

    /// Returns the number in a frame's head.
    pub fn number(self) -> u8 {
        match self {
            Self::Rows => 0,
            Self::RowsLsb => 1,
            Self::Pages => 2,
        }
    }
}

/// Returns the bytes of a packed picture.
pub fn packed_length(size: Size, bits: usize, layout: Layout) -> usize {
    let (width, height) = (usize::from(size.width), usize::from(size.height));
    match layout {
        Layout::Rows | Layout::RowsLsb => (width * bits).div_ceil(8) * height,
        Layout::Pages => width * height.div_ceil(8),
    }
}

/// Packer of pictures for one display.
#[derive(Clone, Debug)]
pub struct Packer {
    quantiser: Quantiser,
    bits: usize,
    layout: Layout,
    number: u8,
    /// Values of the current row.
    values: Vec<u16>,
}

impl Packer {
    /// Creates a packer for a palette, with its tables, which takes up to 2 ms.
    pub fn new(palette: &Palette, dither: Dither, layout: Layout) -> Self {
        let quantiser = Quantiser::new(palette, dither);
        let (bits, number) = (palette.bits(), palette.number());
        Self { quantiser, bits, layout, number, values: Vec::new() }
    }

    /// Returns the bytes of an input pixel: 1 for grey, 3 for red, green and blue.
    pub fn channels(&self) -> usize {
        self.quantiser.channels()
    }

    /// Returns the palette's number in a frame's head.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Returns the layout of the output.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the bytes of a packed picture.
    pub fn length(&self, size: Size) -> usize {
        packed_length(size, self.bits, self.layout)
    }

    /// Appends a picture to `out`. `pixels` are rows from the top, without gaps; missing rows have
    /// the first value.
    pub fn pack(&mut self, size: Size, pixels: &[u8], out: &mut Vec<u8>) {
        let width = usize::from(size.width);
        let begin = out.len();
        out.resize(begin + self.length(size), 0);
        let packed = out.get_mut(begin..).unwrap_or_default();
        self.quantiser.begin(width);
        self.values.resize(width, 0);
        let rows = pixels.chunks_exact(width.max(1) * self.channels());
        match self.layout {
            Layout::Rows | Layout::RowsLsb => {
                let length = (width * self.bits).div_ceil(8).max(1);
                for (y, (row, packed)) in rows.zip(packed.chunks_exact_mut(length)).enumerate() {
                    self.quantiser.row(y, row, &mut self.values);
                    match self.layout {
                        Layout::RowsLsb => low_first(self.bits, &self.values, packed),
                        _ => high_first(self.bits, &self.values, packed),
                    }
                }
            }
            Layout::Pages => {
                for (y, row) in rows.take(usize::from(size.height)).enumerate() {
                    self.quantiser.row(y, row, &mut self.values);
                    let page = packed.chunks_exact_mut(width).nth(y / 8).unwrap_or_default();
                    for (byte, value) in page.iter_mut().zip(&self.values) {
                        *byte |= low_byte(value << (y % 8));
                    }
                }
            }
        }
    }
}

/// Returns the low byte; a value of at most 8 bits has no other.
#[inline]
fn low_byte(value: u16) -> u8 {
    value.to_le_bytes()[0]
}

/// Writes a row's values, the first one into the highest bits.
#[cfg_attr(target_arch = "wasm32", target_feature(enable = "simd128"))]
fn high_first(bits: usize, values: &[u16], packed: &mut [u8]) {
    match bits {
        1 => gather::<8>(values, packed, |at| 7 - at),
        2 => gather::<4>(values, packed, |at| 6 - 2 * at),
        4 => gather::<2>(values, packed, |at| 4 - 4 * at),
        8 => bytes(values, packed),
        _ => {
            for (packed, value) in packed.as_chunks_mut().0.iter_mut().zip(values) {
                *packed = value.to_be_bytes();
            }
        }
    }
}

/// Writes a row's values, the first one into the lowest bits.
#[cfg_attr(target_arch = "wasm32", target_feature(enable = "simd128"))]
fn low_first(bits: usize, values: &[u16], packed: &mut [u8]) {
    match bits {
        1 => gather::<8>(values, packed, |at| at),
        2 => gather::<4>(values, packed, |at| 2 * at),
        4 => gather::<2>(values, packed, |at| 4 * at),
        8 => bytes(values, packed),
        _ => {
            for (packed, value) in packed.as_chunks_mut().0.iter_mut().zip(values) {
                *packed = value.to_le_bytes();
            }
        }
    }
}

/// Packs `COUNT` values into each byte.
#[inline(always)]
fn gather<const COUNT: usize>(values: &[u16], packed: &mut [u8], shift: impl Fn(usize) -> usize) {
    let (whole, rest) = values.as_chunks::<COUNT>();
    let mut packed = packed.iter_mut();
    for (values, byte) in whole.iter().zip(&mut packed) {
        let mut gathered = 0;
        for (at, value) in values.iter().enumerate() {
            gathered |= value << shift(at);
        }
        *byte = low_byte(gathered);
    }
    if let Some(byte) = packed.next() {
        let values = rest.iter().enumerate();
        *byte = low_byte(values.fold(0, |gathered, (at, value)| gathered | value << shift(at)));
    }
}

fn bytes(values: &[u16], packed: &mut [u8]) {
    for (byte, value) in packed.iter_mut().zip(values) {
        *byte = low_byte(*value);
    }
}

#[cfg(test)]
mod tests;
