//! Fuzz target of the reader of signatures; `lab/targets` has the input and the properties that
//! must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (targets::target("read_signature").run)(bytes));
