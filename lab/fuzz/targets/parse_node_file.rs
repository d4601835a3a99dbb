//! Any text as a node file; the ports of what is accepted are given to a node.
//!
//! The parser is included as a file: the daemon's crate would bring libbpf and wasmtime into
//! the build, which this says nothing of.
//! `cargo +nightly fuzz run parse_node_file --fuzz-dir lab/fuzz`

#![no_main]

use libfuzzer_sys::fuzz_target;
use node::Node;

#[path = "../../../surface/noded/src/config.rs"]
mod config;

fuzz_target!(|text: &str| {
    let file = match config::NodeFile::parse(text, "node.toml") {
        Ok(file) => file,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(!file.fast_path.name().is_empty());
    assert!(config::NodeFile::parse(config::SAMPLE_CONFIG, "sample").is_ok());
    if let Err(error) = Node::new(file.name, file.ports) {
        assert!(!error.to_string().is_empty());
    }
});
