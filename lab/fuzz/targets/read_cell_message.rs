//! Fuzz target of the messages between daemon and cell; `lab/targets` has the input and the
//! properties that must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (targets::target("read_cell_message").run)(bytes));
