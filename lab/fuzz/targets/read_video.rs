//! What it reads, and what must hold: `lab/targets`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (targets::target("read_video").run)(bytes));
