//! Extraction of `plugin.wasm` from a tar archive in memory; nothing is written to disk.

use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use module_store::MODULE_LENGTH_MAX;
use tar::Archive;

use crate::image::{ImageError, Packing};
use crate::limits::{FILES_MAX, UNPACKED_LENGTH_MAX};

/// Path of the module in an archive (Istio, spec-compat.md).
const FILE: &str = "plugin.wasm";
/// Magic numbers of modules (WebAssembly core specification, 5.5.16), of gzip members (RFC 1952,
/// 2.3.1) and of Zstandard frames (RFC 8878, 3.1.1).
const WASM: &[u8] = b"\0asm";
const GZIP: &[u8] = b"\x1f\x8b";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// Returns the module in a layer. Compression is detected by the first bytes, since media types are
/// sometimes wrong.
///
/// # Errors
/// The layer contains no module, or a limit of unpacking is exceeded.
pub fn module(layer: Vec<u8>, packing: Packing) -> Result<Vec<u8>, ImageError> {
    let bytes = layer.as_slice();
    match packing {
        Packing::Plain => Ok(layer),
        Packing::Tar if bytes.starts_with(WASM) => Err(ImageError::Untyped),
        Packing::Tar if bytes.starts_with(ZSTD) => Err(ImageError::Compression("zstd".to_owned())),
        // Several gzip members decompress to their concatenation (RFC 1952, 2.2).
        Packing::Tar if bytes.starts_with(GZIP) => of_tar(MultiGzDecoder::new(bytes)),
        Packing::Tar => of_tar(bytes),
    }
}

fn of_tar(bytes: impl Read) -> Result<Vec<u8>, ImageError> {
    let wrong = |why: String| ImageError::Packed(why);
    let mut archive = Archive::new(bytes.take(UNPACKED_LENGTH_MAX));
    let entries = archive.entries().map_err(|error| wrong(error.to_string()))?;
    for (number, entry) in entries.enumerate() {
        if number >= FILES_MAX {
            return Err(wrong(format!("{FILE} is not among its first {FILES_MAX} files")));
        }
        let entry = entry.map_err(|error| {
            wrong(format!("{error}, within {UNPACKED_LENGTH_MAX} bytes of what it unpacks to"))
        })?;
        let is_it = entry.path().is_ok_and(|path| root_of(&path) == Path::new(FILE));
        if !is_it || !entry.header().entry_type().is_file() {
            continue;
        }
        let length = entry.size();
        if length > MODULE_LENGTH_MAX {
            return Err(wrong(format!(
                "{FILE} has {length} bytes, at most {MODULE_LENGTH_MAX} are allowed"
            )));
        }
        let mut module = Vec::new();
        let read = entry.take(MODULE_LENGTH_MAX).read_to_end(&mut module);
        read.map_err(|error| wrong(error.to_string()))?;
        return Ok(module);
    }
    Err(wrong(format!("there is no file {FILE} in it")))
}

/// Normalizes the forms in which archivers write paths relative to the root.
fn root_of(path: &Path) -> &Path {
    path.strip_prefix(".").or_else(|_| path.strip_prefix("/")).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;
    use tar::{Builder, EntryType, Header};

    fn archive(files: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (path, kind, bytes) in files {
            let mut header = Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_entry_type(*kind);
            header.set_cksum();
            builder.append_data(&mut header, path, *bytes).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn plugin_wasm_is_found_among_other_files() {
        let tar = archive(&[
            ("etc/plugin.wasm", EntryType::Regular, b"not this"),
            ("plugin.wasm", EntryType::Symlink, b""),
            ("./plugin.wasm", EntryType::Regular, b"this"),
        ]);
        assert_eq!(module(packed(&tar), Packing::Tar).unwrap(), b"this");
        assert_eq!(module(tar, Packing::Tar).unwrap(), b"this");
        assert_eq!(module(b"this".to_vec(), Packing::Plain).unwrap(), b"this");
        let absolute = archive(&[("plugin.wasm", EntryType::Regular, b"this")]);
        assert_eq!(module(absolute, Packing::Tar).unwrap(), b"this");
    }

    #[test]
    fn an_archive_in_several_members_of_gzip_is_one() {
        let tar = archive(&[("plugin.wasm", EntryType::Regular, &[7; 2000])]);
        for cut in [1, 511, 512, 700, tar.len() - 1] {
            let members = [packed(&tar[..cut]), packed(&tar[cut..])].concat();
            assert_eq!(module(members, Packing::Tar).unwrap(), [7; 2000], "cut at {cut}");
        }
    }

    #[test]
    fn a_layer_with_other_magic_bytes_is_named() {
        let says = |layer: &[u8]| module(layer.to_vec(), Packing::Tar).unwrap_err().to_string();
        assert!(says(b"\0asm\x01\0\0\0").contains("oras push FILE:application/wasm"));
        assert!(says(b"\x28\xb5\x2f\xfd\0").contains("zstd"));
    }

    #[test]
    fn a_bomb_ends_at_the_limit() {
        let zeros = vec![0; 1 << 20];
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let mut header = Header::new_gnu();
        header.set_path("big").unwrap();
        header.set_size(1 << 40);
        header.set_cksum();
        encoder.write_all(header.as_bytes()).unwrap();
        for _ in 0..64 {
            encoder.write_all(&zeros).unwrap();
        }
        let bomb = encoder.finish().unwrap();
        assert!(bomb.len() < 1 << 17);
        assert!(matches!(module(bomb, Packing::Tar), Err(ImageError::Packed(_))));
        let many = vec![("a", EntryType::Regular, &b""[..]); FILES_MAX + 1];
        let error = module(archive(&many), Packing::Tar).unwrap_err();
        assert!(error.to_string().contains("first 1024 files"), "{error}");
        let big = vec![0; usize::try_from(MODULE_LENGTH_MAX).unwrap() + 1];
        let error = module(archive(&[(FILE, EntryType::Regular, &big)]), Packing::Tar).unwrap_err();
        assert!(error.to_string().contains("at most"), "{error}");
    }

    #[test]
    fn an_invalid_archive_is_refused() {
        let whole = packed(&archive(&[(FILE, EntryType::Regular, &[7; 4096])]));
        for bad in
            [&b""[..], b"\x1f\x8b", b"plain", &whole[..20], &packed(b"no tar"), &packed(&[0; 1024])]
        {
            assert!(module(bad.to_vec(), Packing::Tar).is_err());
        }
    }
}
