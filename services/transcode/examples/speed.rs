//! Measurement of packing, in nanoseconds per pixel: `cargo run --release --example speed`. Each
//! number is the fastest of some rounds; docs/guides/transcode.md lists them. No test: it asserts nothing.

use std::time::Instant;
use transcode::choice::Size;
use transcode::dither::Dither;
use transcode::pack::{Layout, Packer};
use transcode::palette::Palette;

const SIZE: Size = Size { width: 320, height: 240 };
const ROUNDS: usize = 40;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count = usize::from(SIZE.width) * usize::from(SIZE.height);
    // A gradient with noise, so that neither is measured alone.
    let pixels: Vec<u8> = (0..3 * count)
        .map(|at| (at / 900).wrapping_add(at.wrapping_mul(0x9e37_79b9) >> 27) as u8)
        .collect();
    let own: Vec<String> =
        (0..256).map(|at| format!("{:06x}", (at * 0xfedd) & 0xff_ffff)).collect();
    println!("{SIZE}, ns a pixel: none, ordered, floyd; and ms to make the tables");
    for name in ["bw", "grey2", "grey4", "grey8", "web216", "rgb332", "rgb565", &own.join(",")] {
        let palette = Palette::parse(name).map_err(|wrong| wrong.to_string())?;
        let mut line = format!("{:8}", palette.name());
        let begin = Instant::now();
        std::hint::black_box(Packer::new(&palette, Dither::Ordered, Layout::Rows));
        let tables = begin.elapsed();
        for dither in [Dither::None, Dither::Ordered, Dither::Floyd] {
            let mut packer = Packer::new(&palette, dither, Layout::Rows);
            let pixels = pixels.get(..count * packer.channels()).unwrap_or_default();
            let mut out = Vec::new();
            let mut best = f64::MAX;
            for _ in 0..ROUNDS {
                out.clear();
                let begin = Instant::now();
                packer.pack(SIZE, std::hint::black_box(pixels), &mut out);
                best = best.min(begin.elapsed().as_secs_f64());
            }
            line += &format!(" {:6.2}", best * 1e9 / count as f64);
        }
        println!("{line} {:6.2}", tables.as_secs_f64() * 1e3);
    }
    Ok(())
}
