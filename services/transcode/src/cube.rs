//! Nearest colour of a device's own palette, for all colours: a cube of 32 x 32 x 32 cells, indexed
//! by the upper five bits of red, green and blue.
//!
//! A cell has the colour that is nearest to the cell's centre, the first of equally near ones. The
//! cube is computed once per palette, in less than 2 ms, so that a pixel is one lookup in 32 KiB.

use crate::palette::Rgb;

/// Cells per side.
const SIDE: usize = 32;
/// Cells in total.
const CELLS: usize = SIDE * SIDE * SIDE;
/// Cells that are compared at once: a vector of 128 bits.
const LANES: usize = 8;
/// Initial distance: larger than any between two colours.
const FAR: u16 = u16::MAX;

const _: () = assert!(3 * 127 * 127 < FAR as u32, "a distance of halved colours fits");

/// Nearest colour of each cell.
#[derive(Clone, Debug)]
pub struct Cube(Box<[u8]>);

impl Cube {
    /// Computes the cube, for at most 256 colours.
    pub fn new(colours: &[Rgb]) -> Self {
        let squares: Vec<[[u16; SIDE]; 3]> = colours.iter().map(|it| it.map(squares)).collect();
        let mut cells = vec![0; CELLS];
        for (at, cells) in cells.as_chunks_mut().0.iter_mut().enumerate() {
            let cell = at * LANES;
            let place = [cell / SIDE / SIDE, cell / SIDE % SIDE, cell % SIDE];
            nearest_of(place, &squares, cells);
        }
        Self(cells.into_boxed_slice())
    }

    /// Returns the value whose colour is nearest.
    #[inline]
    pub fn nearest(&self, [red, green, blue]: Rgb) -> u8 {
        let cell = |channel: u8| usize::from(channel >> 3);
        self.0[(cell(red) * SIDE + cell(green)) * SIDE + cell(blue)]
    }

    /// Returns the value of a cell, given by the upper five bits of red, green and blue.
    #[inline]
    pub fn of_cell(&self, cell: u16) -> u16 {
        u16::from(self.0[usize::from(cell) % CELLS])
    }
}

/// Returns the squared distances of a channel to each cell's. Channels are halved, so that the
/// square of a distance has 16 bits, and eight cells are compared at once.
fn squares(channel: u8) -> [u16; SIDE] {
    std::array::from_fn(|cell| {
        let middle = 4 * cell as u16 + 2;
        middle.abs_diff(u16::from(channel >> 1)).pow(2)
    })
}

/// Computes the nearest colours of some cells of a row, from `blue` on.
#[cfg_attr(target_arch = "wasm32", target_feature(enable = "simd128"))]
fn nearest_of(
    [red, green, blue]: [usize; 3],
    squares: &[[[u16; SIDE]; 3]],
    cells: &mut [u8; LANES],
) {
    let (mut distances, mut nearest) = ([FAR; LANES], [0; LANES]);
    for (value, [reds, greens, blues]) in (0u16..).zip(squares) {
        let base = reds[red % SIDE] + greens[green % SIDE];
        let Some(blues) = blues.get(blue..).and_then(|blues| blues.first_chunk::<LANES>()) else {
            return;
        };
        for lane in 0..LANES {
            let distance = base + blues[lane];
            let is_nearer = distance < distances[lane];
            distances[lane] = if is_nearer { distance } else { distances[lane] };
            nearest[lane] = if is_nearer { value } else { nearest[lane] };
        }
    }
    // A value is an index below 256.
    *cells = nearest.map(|value| value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Finds the nearest colour by comparing all of them with the cell's centre.
    fn slow(colours: &[Rgb], colour: Rgb) -> u8 {
        let distance = |of: &Rgb| -> i32 {
            (0..3)
                .map(|at| {
                    let middle = i32::from(colour[at] & 0xf8) / 2 + 2;
                    (middle - i32::from(of[at]) / 2).pow(2)
                })
                .sum()
        };
        let (value, _) =
            colours.iter().enumerate().min_by_key(|(_, colour)| distance(colour)).unwrap();
        u8::try_from(value).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn each_cell_has_the_nearest_colour(
            colours in proptest::collection::vec(any::<Rgb>(), 2..=256),
            asked in proptest::collection::vec(any::<Rgb>(), 200),
        ) {
            let cube = Cube::new(&colours);
            for colour in asked {
                prop_assert_eq!(cube.nearest(colour), slow(&colours, colour));
            }
        }
    }

    #[test]
    fn a_colour_of_the_palette_is_its_own_nearest_where_they_are_apart() {
        let colours = [[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 128, 255]];
        let cube = Cube::new(&colours);
        for (value, colour) in (0u8..).zip(colours) {
            assert_eq!(cube.nearest(colour), value);
        }
    }
}
