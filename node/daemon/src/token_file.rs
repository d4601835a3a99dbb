//! A file with a token in it, as the node file names them.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Reads the token in a file, without surrounding space. Reads at most one byte more than `most`,
/// whatever the file is.
pub(crate) fn read(path: &Path, most: u64) -> Result<String> {
    let mut text = String::new();
    File::open(path)?.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        let why = format!("it has more than {most} bytes");
        return Err(Error::new(ErrorKind::InvalidData, why));
    }
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_file_that_is_too_long_or_endless_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, " token\n").unwrap();
        assert_eq!(read(&file, 7).unwrap(), "token");
        assert_eq!(read(&file, 6).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(read(Path::new("/dev/zero"), 100).unwrap_err().kind(), ErrorKind::InvalidData);
        assert!(read(&folder.path().join("none"), 100).is_err());
    }
}
