//! Fuzz target of the encoders of bodies; `lab/targets` has the input and the properties that must
//! hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (targets::target("encode_body").run)(bytes));
