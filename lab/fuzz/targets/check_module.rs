//! Fuzz target of the check of a module; `lab/targets` has the input and the properties that must
//! hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (targets::target("check_module").run)(bytes));
