//! Fuzz target of a filter that passes HTTP; `lab/targets` has the input and the properties that
//! must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (targets::target("pass_filter").run)(bytes));
