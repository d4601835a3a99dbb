//! Fuzz target of the decoders of HTTP/1; `lab/targets` has the input and the properties that must
//! hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (targets::target("read_http1").run)(bytes));
