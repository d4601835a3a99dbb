//! Any text as the match of a rule: an accepted match is parsed again from its displayed form.

use node::Match;
use node::prefix::Prefix;
use node::protocol::Protocol;

pub fn parse(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
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
}
