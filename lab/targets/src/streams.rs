//! Any bytes as a stream module, and as a header map that a module has written.

use proxy_wasm::{HEADER_BYTES_MAX, HEADERS_MAX, HeaderMap};

/// Runs the check; an accepted module states its ABI.
pub fn check(bytes: &[u8]) {
    match proxy_wasm::check(bytes) {
        Ok(checked) => assert!(checked.callbacks.names().count() <= 32),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Reads a map or refuses it; an accepted map is within its limits, and is written as it was.
pub fn header_map(bytes: &[u8]) {
    let map = match HeaderMap::parse(bytes) {
        Ok(map) => map,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(map.len() <= HEADERS_MAX && map.bytes() <= HEADER_BYTES_MAX);
    assert!(map.is_empty() || map.serialise() == bytes);
    let mut edited = map.clone();
    for (name, _) in map.iter() {
        edited.remove(name);
    }
    assert!(edited.is_empty() && edited.bytes() == 0);
}

/// Returns maps with and without fields.
pub fn map_seeds() -> Vec<Vec<u8>> {
    let maps = [
        HeaderMap::from_iter([(":method", "GET"), (":path", "/"), ("via", "a"), ("via", "")]),
        HeaderMap::from_iter((0..40).map(|number| (format!("name-{number}"), "value"))),
    ];
    maps.iter().map(HeaderMap::serialise).chain([vec![], vec![0]]).collect()
}
