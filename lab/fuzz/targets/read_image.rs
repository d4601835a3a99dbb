//! Fuzz target of the reader of images; `lab/targets` has the input and the properties that must
//! hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (targets::target("read_image").run)(bytes));
