//! The SDK's sources, carried in the binary: a project that `tam new` writes
//! holds a copy, so that it builds without a network and without this source tree.

macro_rules! sources {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../sdk/rust/", $path)))),*]
    };
}

/// Path within the SDK and text of each of its files.
pub const FILES: &[(&str, &str)] = sources![
    "Cargo.toml",
    "README.md",
    "src/bytes.rs",
    "src/checksum.rs",
    "src/counter.rs",
    "src/hash.rs",
    "src/host.rs",
    "src/icmp.rs",
    "src/ip.rs",
    "src/layout.rs",
    "src/lib.rs",
    "src/link.rs",
    "src/macros.rs",
    "src/packet.rs",
    "src/plain.rs",
    "src/prefix.rs",
    "src/protocol.rs",
    "src/state.rs",
    "src/table.rs",
    "src/testing.rs",
    "src/testing/headers.rs",
    "src/track.rs",
    "src/verdict.rs",
];

/// The SDK for C: its one header.
pub const C_HEADER: (&str, &str) = ("tam.h", include_str!("../../../sdk/c/tam.h"));

/// Source of the memory functions that clang calls by itself, which `tam build` links.
pub const C_MEMORY: (&str, &str) = ("memory.c", include_str!("../../../sdk/c/memory.c"));

#[cfg(test)]
mod tests {
    use super::FILES;
    use std::path::Path;

    fn sources(directory: &Path, found: &mut Vec<String>, root: &Path) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found, root);
            } else {
                found.push(path.strip_prefix(root).unwrap().to_str().unwrap().into());
            }
        }
    }

    #[test]
    fn every_source_file_of_the_sdk_is_carried() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/rust");
        let mut found = Vec::new();
        sources(&root.join("src"), &mut found, &root);
        let carried: Vec<_> =
            FILES.iter().map(|(path, _)| *path).filter(|path| path.starts_with("src/")).collect();
        found.sort_unstable();
        assert_eq!(found, carried);
    }
}
