//! Any text as the match of a rule: what is accepted reads back as it is shown.
//!
//! `cargo +nightly fuzz run parse_match --fuzz-dir lab/fuzz`

#![no_main]

use libfuzzer_sys::fuzz_target;
use node::Match;
use node::prefix::Prefix;
use node::protocol::Protocol;

fuzz_target!(|text: &str| {
    match text.parse::<Match>() {
        Ok(found) => {
            assert!(found.check().is_ok());
            assert_eq!(found.to_string().parse::<Match>().as_ref(), Ok(&found));
        }
        Err(error) => {
            assert!(error.position >= 1 && error.position <= text.chars().count() + 1);
            assert!(!error.to_string().is_empty());
        }
    }
    if let Ok(prefix) = text.parse::<Prefix>() {
        assert!(prefix.contains(prefix.address()));
        assert_eq!(prefix.to_string().parse(), Ok(prefix));
    }
    if let Ok(protocol) = text.parse::<Protocol>() {
        assert_eq!(protocol.to_string().parse(), Ok(protocol));
    }
});
