//! Files of the user who runs a command: the configuration folder, tokens, and reading with a
//! limit.

use crate::failure::Failure;
use api::ErrorCode;
use std::io::Read;
use std::path::{Path, PathBuf};
use trust::{HeldToken, TokenError};

/// Returns the folder of this user's files for `tam`.
pub fn configuration() -> Result<PathBuf, Failure> {
    let base = std::env::var_os("XDG_CONFIG_HOME").filter(|path| !path.is_empty());
    let base = base.map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
    let base = base.or_else(home).ok_or_else(|| {
        Failure::new(ErrorCode::Usage, "neither XDG_CONFIG_HOME nor HOME says where keys are")
    })?;
    Ok(base.join("tamandua"))
}

/// Reads a file of at most `limit` bytes.
pub fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>, Failure> {
    let refused = |error| Failure::io(format!("reading {}", path.display()), &error);
    let file = std::fs::File::open(path).map_err(refused)?;
    let mut bytes = Vec::new();
    // One byte more than allowed, so that an excess is noticed.
    file.take(limit + 1).read_to_end(&mut bytes).map_err(refused)?;
    if bytes.len() as u64 > limit {
        let message = format!("{} has more than {limit} bytes, which is the limit", path.display());
        return Err(Failure::new(ErrorCode::Limit, message));
    }
    Ok(bytes)
}

/// Reads a token and the key of whoever holds it; `-` stands for standard input.
pub fn held_token(file: &Path) -> Result<HeldToken, Failure> {
    const LIMIT: u64 = 2 * trust::token::LENGTH_MAX as u64;
    let bytes = if file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        let read = std::io::stdin().take(LIMIT).read_to_end(&mut bytes);
        read.map_err(|error| Failure::io("reading standard input", &error))?;
        bytes
    } else {
        read_file(file, LIMIT)?
    };
    HeldToken::parse(&String::from_utf8_lossy(&bytes)).map_err(|error| token_failure(&error))
}

/// Returns what a token's fault means for a command.
pub fn token_failure(error: &TokenError) -> Failure {
    let code = api::code_of_token(error);
    Failure::new(code, error.to_string())
}
