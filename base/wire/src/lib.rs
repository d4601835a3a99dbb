//! Packets as bytes: views, values, checksums and the one parser in Rust.
