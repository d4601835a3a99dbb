//! Tests of each palette and dithering against a slow, simple implementation without tables.

use super::*;
use crate::palette::Grid;
use proptest::prelude::*;

/// Matrix as printed in books (8 x 8, from 0 to 63).
const PRINTED: [[u8; 8]; 8] = [
    [0, 32, 8, 40, 2, 34, 10, 42],
    [48, 16, 56, 24, 50, 18, 58, 26],
    [12, 44, 4, 36, 14, 46, 6, 38],
    [60, 28, 52, 20, 62, 30, 54, 22],
    [3, 35, 11, 43, 1, 33, 9, 41],
    [51, 19, 59, 27, 49, 17, 57, 25],
    [15, 47, 7, 39, 13, 45, 5, 37],
    [63, 31, 55, 23, 61, 29, 53, 21],
];

/// Returns the colours of a display's values.
pub(crate) fn shown(palette: &Palette) -> Vec<Vec<i32>> {
    if let Some(greys) = palette.greys() {
        let top = i32::from(greys) - 1;
        return (0..=top).map(|grey| vec![(grey * 255 + top / 2) / top]).collect();
    }
    if let Palette::Colours(colours) = palette {
        return colours.as_slice().iter().map(|it| it.map(i32::from).to_vec()).collect();
    }
    let levels = palette.grid().unwrap().levels.map(i32::from);
    let part = |level: i32, count: i32| (level * 255 + (count - 1) / 2) / (count - 1);
    let mut colours = Vec::new();
    for red in 0..levels[0] {
        for green in 0..levels[1] {
            for blue in 0..levels[2] {
                let [r, g, b] = levels;
                colours.push(vec![part(red, r), part(green, g), part(blue, b)]);
            }
        }
    }
    colours
}

/// Returns the value whose colour is nearest, the first of equal ones; for colours without order,
/// as a cube of 32 sees them.
fn nearest(palette: &Palette, display: &[Vec<i32>], pixel: &[i32]) -> usize {
    let is_cube = matches!(palette, Palette::Colours(_));
    let distance = |colour: &Vec<i32>| -> i32 {
        let channels = colour.iter().zip(pixel).map(|(colour, pixel)| match is_cube {
            true => (pixel / 8 * 8 / 2 + 2 - colour / 2).pow(2),
            false => (pixel - colour).pow(2),
        });
        channels.sum()
    };
    display.iter().enumerate().min_by_key(|(_, colour)| distance(colour)).unwrap().0
}

/// Returns the value by ordered dithering, channel by channel as on a display with a grid.
fn ordered(palette: &Palette, display: &[Vec<i32>], pixel: &[i32], x: usize, y: usize) -> usize {
    let place = f64::from(PRINTED[y % 8][x % 8]);
    if let Palette::Colours(colours) = palette {
        let spread = f64::from(spread(colours.as_slice()));
        let offset = ((2.0 * place - 63.0) * spread / 128.0).trunc() as i32;
        let moved: Vec<i32> = pixel.iter().map(|it| (it + offset).clamp(0, 255)).collect();
        return nearest(palette, display, &moved);
    }
    let level = |channel: i32, levels: i32| -> usize {
        // Lighter channels plus one, so that 255 is 256 of 256 parts.
        let part = f64::from(channel + i32::from(channel >= 128)) / 256.0;
        (part * f64::from(levels - 1) + (place + 0.5) / 64.0).floor() as usize
    };
    match palette.grid() {
        Some(grid) => (0..3).fold(0, |value, at| {
            let levels = usize::from(grid.levels[at]);
            value * levels + level(pixel[at], i32::from(grid.levels[at]))
        }),
        None => level(pixel[0], i32::from(palette.greys().unwrap())),
    }
}

/// Returns all values of a picture.
pub(crate) fn slow(palette: &Palette, dither: Dither, width: usize, pixels: &[u8]) -> Vec<usize> {
    let display = shown(palette);
    let channels = display[0].len();
    let dither = if *palette == Palette::Grey8 { Dither::None } else { dither };
    let picture: Vec<Vec<i32>> = pixels
        .chunks_exact(channels)
        .map(|pixel| pixel.iter().map(|&it| i32::from(it)).collect())
        .collect();
    let mut given = vec![vec![0i32; channels]; picture.len()];
    let mut values = Vec::new();
    for (at, pixel) in picture.iter().enumerate() {
        let (x, y) = (at % width, at / width);
        values.push(match dither {
            Dither::None => nearest(palette, &display, pixel),
            Dither::Ordered => ordered(palette, &display, pixel, x, y),
            Dither::Floyd => {
                let wanted: Vec<i32> = (0..channels)
                    .map(|it| (pixel[it] + ((given[at][it] + 8) >> 4)).clamp(0, 255))
                    .collect();
                let value = nearest(palette, &display, &wanted);
                for (dx, dy, part) in [(1, 0, 7), (-1, 1, 3), (0, 1, 5), (1, 1, 1)] {
                    let to = (x as i64 + dx, y + dy);
                    let is_inside = to.0 >= 0 && to.0 < width as i64;
                    let to = to.1 * width + to.0.max(0) as usize;
                    if is_inside && to < picture.len() {
                        for it in 0..channels {
                            given[to][it] += part * (wanted[it] - display[value][it]);
                        }
                    }
                }
                value
            }
        });
    }
    values
}

/// Returns a palette of each kind.
pub(crate) fn palettes() -> Vec<Palette> {
    let own = |count: usize| -> String {
        let colour = |at: usize| format!("{:06x}", (at * 0x9e3779 + 0x1234) & 0xff_ffff);
        (0..count).map(colour).collect::<Vec<_>>().join(",")
    };
    let names = ["bw", "grey2", "grey4", "grey8", "web216", "rgb332", "rgb565"].map(str::to_owned);
    names
        .into_iter()
        .chain([2, 3, 16, 17, 256].map(own))
        .map(|text| Palette::parse(&text).unwrap())
        .collect()
}

/// Returns pseudo-random bytes.
pub(crate) fn noise(seed: u32, length: usize) -> Vec<u8> {
    let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    let states = std::iter::successors(Some(seed), next).skip(1);
    states.take(length).map(|state| state.to_be_bytes()[0]).collect()
}

pub(crate) const DITHERS: [Dither; 3] = [Dither::None, Dither::Ordered, Dither::Floyd];

/// Converts a pixel's value to the display's index: those of a grid are composed of its steps.
fn counted(palette: &Palette, value: usize) -> usize {
    match palette.grid() {
        Some(Grid { levels, steps }) => {
            let [_, green, blue] = levels.map(usize::from);
            let parts = [value / (green * blue), value / blue % green, value % blue];
            parts.iter().zip(steps).map(|(part, step)| part * usize::from(step)).sum()
        }
        None => value,
    }
}

#[test]
fn the_matrix_is_the_one_of_the_books() {
    assert_eq!(BAYER, PRINTED);
}

#[test]
fn the_ends_of_a_scale_stay_black_and_white_however_they_are_dithered() {
    for palette in palettes().iter().filter(|palette| !matches!(palette, Palette::Colours(_))) {
        for dither in DITHERS {
            let mut quantiser = Quantiser::new(palette, dither);
            for (pixel, colour) in [(0u8, 0), (255, 255)] {
                let pixels = vec![pixel; 9 * quantiser.channels()];
                quantiser.begin(9);
                for y in 0..9 {
                    let mut values = [0; 9];
                    quantiser.row(y, &pixels, &mut values);
                    let display = shown(palette);
                    for value in values {
                        let expected =
                            display.iter().position(|it| it.iter().all(|c| *c == colour));
                        assert_eq!(usize::from(value), counted(palette, expected.unwrap()));
                    }
                }
            }
        }
    }
}

#[test]
fn a_grey_is_as_light_as_before_on_average() {
    for dither in [Dither::Ordered, Dither::Floyd] {
        for grey in [1, 40, 100, 128, 200, 254] {
            let mut quantiser = Quantiser::new(&Palette::Bw, dither);
            let (mut values, mut white) = ([0; 64], 0);
            quantiser.begin(64);
            for y in 0..64 {
                quantiser.row(y, &[grey; 64], &mut values);
                white += values.iter().map(|value| i32::from(*value)).sum::<i32>();
            }
            let lightness = white * 255 / 4_096;
            assert!((lightness - i32::from(grey)).abs() <= 5, "{dither:?} {grey}: {lightness}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn every_palette_and_dithering_agrees_with_the_reference_implementation(
        width in 1usize..24,
        height in 1usize..12,
        kind in 0usize..4,
        seed in any::<u32>(),
    ) {
        for palette in palettes() {
            let channels = shown(&palette)[0].len();
            let mut pixels = noise(seed, width * height * channels);
            // Noise, dark, light, and a gradient.
            for (at, pixel) in pixels.iter_mut().enumerate() {
                *pixel = [*pixel, *pixel / 16, 255 - *pixel / 16, (at * 3) as u8][kind];
            }
            for dither in DITHERS {
                let mut quantiser = Quantiser::new(&palette, dither);
                // The second picture begins like the first one.
                for _ in 0..2 {
                    quantiser.begin(width);
                    let mut all = Vec::new();
                    for (y, row) in pixels.chunks_exact(width * channels).enumerate() {
                        let mut values = vec![0; width];
                        quantiser.row(y, row, &mut values);
                        all.extend(values.into_iter().map(usize::from));
                    }
                    let expected = slow(&palette, dither, width, &pixels).into_iter();
                    let expected: Vec<_> = expected.map(|it| counted(&palette, it)).collect();
                    prop_assert_eq!(all, expected, "{} {:?}", palette.name(), dither);
                }
            }
        }
    }
}
