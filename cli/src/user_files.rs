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
        return Err(Failure::new(ErrorCode::Limit, message).help("check that it is the right file"));
    }
    Ok(bytes)
}

/// Returns what is wrong with a text in TOML, with its line and without the names of Rust's types.
pub fn toml_problem(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    format!("line {line}: {}", daemon::config::plain(error.message()))
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
    HeldToken::parse(&String::from_utf8_lossy(&bytes)).map_err(|error| {
        let failure = token_failure(&error);
        Failure {
            message: format!("the token in {}: {}", file.display(), failure.message),
            ..failure
        }
    })
}

/// Returns what a token's fault means for a command.
pub fn token_failure(error: &TokenError) -> Failure {
    let code = api::code_of_token(error);
    Failure::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_in_a_file_has_its_line_and_no_word_of_rust() {
        #[derive(Debug, serde::Deserialize)]
        struct Known {
            #[serde(rename = "a")]
            _a: u16,
        }
        let problem = |text: &str| toml_problem(text, &toml::from_str::<Known>(text).unwrap_err());
        let text = problem("\n\na = \"x\"");
        assert_eq!(text, "line 3: expected a whole number from 0 to 65535, found the text \"x\"");
        assert_eq!(problem(""), "line 1: missing field 'a'");
    }

    #[test]
    fn a_token_that_cannot_be_read_is_named_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("alice.token");
        std::fs::write(&file, "nonsense").unwrap();
        let failure = held_token(&file).unwrap_err();
        let begin = format!("the token in {}: ", file.display());
        assert!(failure.message.starts_with(&begin), "{}", failure.message);
    }
}
