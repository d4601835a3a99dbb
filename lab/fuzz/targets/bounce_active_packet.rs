//! Fuzz target of an active packet that is bounced; `lab/targets` has the input and the properties
//! that must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (targets::target("bounce_active_packet").run)(bytes));
