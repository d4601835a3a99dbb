//! Fuzz target of the reader of ICY streams; `lab/targets` has the input and the properties that
//! must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (targets::target("read_icy").run)(bytes));
