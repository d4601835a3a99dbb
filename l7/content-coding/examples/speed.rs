//! Speed and size of each coding and level over files, one body each, in parts of 16 KiB.
//!
//! ```text
//! cargo run --release -p coding --example speed -- FILE…
//! ```
//!
//! Each file is coded several times, in turn with the others, so that branch predictors do not learn
//! a single one; the fastest time of each counts.

#![forbid(unsafe_code)]

use content_coding::{Coding, Level, Pool, memory_bytes};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const PART: usize = 16 * 1024;
const ROUNDS: usize = 15;

fn main() -> ExitCode {
    let mut bodies = Vec::new();
    for path in std::env::args().skip(1) {
        match std::fs::read(&path) {
            Ok(body) => bodies.push(body),
            Err(error) => {
                eprintln!("cannot read {path}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    let total: usize = bodies.iter().map(Vec::len).sum();
    if total == 0 {
        eprintln!("name files with text in them: cargo run … --example speed -- FILE…");
        return ExitCode::FAILURE;
    }
    println!("{} bodies, {} bytes on average", bodies.len(), total / bodies.len());
    println!("coding  level     MB/s  us/body   ratio  memory KiB");
    for coding in Coding::ALL {
        for level in Level::all() {
            show(coding, level, &bodies, total);
        }
    }
    ExitCode::SUCCESS
}

fn show(coding: Coding, level: Level, bodies: &[Vec<u8>], total: usize) {
    let pool = Pool::new();
    let mut fastest = vec![Duration::MAX; bodies.len()];
    let mut coded = 0;
    let mut out = Vec::new();
    for _ in 0..ROUNDS {
        coded = 0;
        for (body, fastest) in bodies.iter().zip(&mut fastest) {
            out.clear();
            let began = Instant::now();
            let mut encoder = pool.encoder(coding, level);
            for part in body.chunks(PART) {
                encoder.write(part, &mut out).expect("there is memory");
            }
            encoder.finish(&mut out).expect("there is memory");
            *fastest = (*fastest).min(began.elapsed());
            coded += out.len();
        }
    }
    let seconds: f64 = fastest.iter().map(Duration::as_secs_f64).sum();
    println!(
        "{:8} {level:4} {:8.1} {:8.1} {:7.3} {:11}",
        coding.token(),
        total as f64 / seconds / 1e6,
        seconds * 1e6 / bodies.len() as f64,
        total as f64 / coded as f64,
        memory_bytes(coding, level).0 >> 10,
    );
}
