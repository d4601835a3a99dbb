//! Tests of the packed bytes, pixel by pixel.

use super::*;
use crate::dither::tests::{DITHERS, noise, palettes, slow};
use proptest::prelude::*;

const LAYOUTS: [Layout; 3] = [Layout::Rows, Layout::RowsLsb, Layout::Pages];

/// Returns the value of a pixel of a packed picture, bit by bit.
fn value(packed: &[u8], size: Size, bits: usize, layout: Layout, x: usize, y: usize) -> usize {
    let width = usize::from(size.width);
    let row = (width * bits).div_ceil(8);
    let bit = |at: usize| match layout {
        Layout::Pages => packed[y / 8 * width + x] >> (y % 8) & 1,
        // Bit `at` of the row, from its beginning.
        Layout::Rows => packed[y * row + at / 8] >> (7 - at % 8) & 1,
        Layout::RowsLsb => packed[y * row + at / 8] >> (at % 8) & 1,
    };
    let of_pixel = (0..bits).map(|at| usize::from(bit(x * bits + at)));
    match layout {
        // The first bit is the highest one.
        Layout::Rows => of_pixel.fold(0, |value, bit| value << 1 | bit),
        _ => of_pixel.rev().fold(0, |value, bit| value << 1 | bit),
    }
}

#[test]
fn pixels_are_packed_in_the_layouts_of_displays() {
    // Ten pixels of two rows: white, black, black …; black, white, white.
    let size = Size { width: 10, height: 2 };
    let mut pixels = vec![0u8; 20];
    (pixels[0], pixels[9], pixels[11], pixels[12]) = (255, 255, 255, 255);
    for (palette, layout, expected) in [
        ("bw", Layout::Rows, &[0b1000_0000, 0b0100_0000, 0b0110_0000, 0][..]),
        ("bw", Layout::RowsLsb, &[0b0000_0001, 0b0000_0010, 0b0000_0110, 0]),
        ("bw", Layout::Pages, &[1, 2, 2, 0, 0, 0, 0, 0, 0, 1]),
        ("grey2", Layout::Rows, &[0xc0, 0, 0x30, 0x3c, 0, 0]),
        ("grey2", Layout::RowsLsb, &[0x03, 0, 0x0c, 0x3c, 0, 0]),
        ("grey4", Layout::Rows, &[0xf0, 0, 0, 0, 0x0f, 0x0f, 0xf0, 0, 0, 0]),
        ("grey4", Layout::RowsLsb, &[0x0f, 0, 0, 0, 0xf0, 0xf0, 0x0f, 0, 0, 0]),
    ] {
        let palette = Palette::parse(palette).unwrap();
        let mut packer = Packer::new(&palette, Dither::None, layout);
        let mut out = vec![9];
        packer.pack(size, &pixels, &mut out);
        assert_eq!(out[1..], *expected, "{palette:?} {layout:?}");
        assert_eq!(out.len() - 1, packer.length(size));
    }
}

#[test]
fn sixteen_bits_are_two_bytes_in_either_order() {
    let size = Size { width: 2, height: 1 };
    let pixels = [255, 0, 0, 0, 255, 8];
    for (layout, expected) in
        [(Layout::Rows, [0xf8, 0x00, 0x07, 0xe1]), (Layout::RowsLsb, [0x00, 0xf8, 0xe1, 0x07])]
    {
        let mut out = Vec::new();
        Packer::new(&Palette::Rgb565, Dither::None, layout).pack(size, &pixels, &mut out);
        assert_eq!(out, expected);
    }
}

#[test]
fn rows_that_are_missing_are_the_first_value() {
    let size = Size { width: 16, height: 16 };
    for layout in LAYOUTS {
        let mut packer = Packer::new(&Palette::Bw, Dither::Ordered, layout);
        let mut out = Vec::new();
        packer.pack(size, &[255; 17], &mut out);
        let white: u32 = out.iter().map(|byte| byte.count_ones()).sum();
        assert_eq!((out.len(), white), (32, 16), "{layout:?}");
        packer.pack(size, &[255; 1_000], &mut out);
        assert_eq!(out.len(), 64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]
    #[test]
    fn every_pixel_is_where_its_layout_says(
        width in 16u16..40,
        height in 16u16..28,
        seed in any::<u32>(),
    ) {
        let size = Size { width, height };
        for palette in palettes() {
            for dither in DITHERS {
                for layout in LAYOUTS {
                    if layout == Layout::Pages && palette.bits() != 1 {
                        continue;
                    }
                    let mut packer = Packer::new(&palette, dither, layout);
                    let count = usize::from(width) * usize::from(height);
                    let pixels = &noise(seed, count * packer.channels());
                    let mut out = Vec::new();
                    packer.pack(size, pixels, &mut out);
                    prop_assert_eq!(out.len(), packed_length(size, palette.bits(), layout));
                    let expected = slow(&palette, dither, usize::from(width), pixels);
                    // For the grids 332 and 565 a colour's index equals its value.
                    for (at, expected) in expected.iter().enumerate() {
                        let (x, y) = (at % usize::from(width), at / usize::from(width));
                        let found = value(&out, size, palette.bits(), layout, x, y);
                        prop_assert_eq!(found, *expected, "{} {}", x, y);
                    }
                }
            }
        }
    }
}
