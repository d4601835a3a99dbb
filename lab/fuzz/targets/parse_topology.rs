//! Fuzz target of the parser of topology files; `lab/targets` has the input and the properties that
//! must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (targets::target("parse_topology").run)(bytes));
