//! Configuration text: lines with a key and values, and comments after `#`.
//!
//! ```
//! let text = "paths /live/ /radio # stations\nquery ignore\n";
//! let mut paths = Vec::new();
//! let read = stream::settings::read(text, "paths", |key, values| match key {
//!     "paths" => Ok(paths.extend(values.iter().map(|path| path.to_string()))),
//!     _ => Err(format!("{key} is no key")),
//! });
//! assert_eq!(paths, ["/live/", "/radio"]);
//! assert_eq!(read.unwrap_err().to_string(), "configuration, line 2: query is no key");
//! ```

use std::fmt;

/// A text is no valid configuration: a fault of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    line: usize,
    message: String,
}

impl SettingsError {
    /// Creates an error for a line, from 1, or 0 for the text as a whole.
    #[inline]
    #[must_use]
    pub fn new(line: usize, message: &str) -> Self {
        Self { line, message: message.to_owned() }
    }

    /// Returns the number of the line, from 1; 0 for the text as a whole.
    #[must_use]
    pub const fn line(&self) -> usize {
        self.line
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "configuration, line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for SettingsError {}

/// Parses a text, and calls `set` for each key with its values. `keys` lists all keys for error
/// messages.
///
/// # Errors
/// A key has no value or occurs twice, or `set` refuses it: the error of the first such line.
pub fn read<'a>(
    text: &'a str,
    keys: &str,
    mut set: impl FnMut(&'a str, &[&'a str]) -> Result<(), String>,
) -> Result<(), SettingsError> {
    let mut seen: Vec<&str> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let refused = |message| SettingsError { line: number + 1, message };
        let line = line.split_once('#').map_or(line, |(line, _)| line);
        let mut words = line.split_whitespace();
        let Some(key) = words.next() else { continue };
        if seen.contains(&key) {
            return Err(refused(format!("{key} stands there twice; keep one of them")));
        }
        seen.push(key);
        let values: Vec<&str> = words.collect();
        if values.is_empty() {
            return Err(refused(format!("{key} has no value; the keys are {keys}")));
        }
        set(key, &values).map_err(refused)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Result<Vec<String>, SettingsError> {
        let mut found = Vec::new();
        read(text, "a and b", |key, values| {
            found.push(format!("{key}={}", values.join(",")));
            if values == ["no"] { Err(format!("{key} is never no")) } else { Ok(()) }
        })?;
        Ok(found)
    }

    #[test]
    fn each_line_is_a_key_and_its_values() {
        assert_eq!(lines(""), Ok(Vec::new()));
        let found = lines("# a comment\n\n a 1\t2 \r\nb 3# and this\n   # nothing\n");
        assert_eq!(found, Ok(vec!["a=1,2".to_owned(), "b=3".to_owned()]));
    }

    #[test]
    fn a_line_that_means_nothing_is_refused_with_its_number() {
        for (text, line, says) in [
            ("a", 1, "a has no value; the keys are a and b"),
            ("\na # 1", 2, "a has no value; the keys are a and b"),
            ("a 1\n\na 1", 3, "a stands there twice; keep one of them"),
            ("a 1\nb no", 2, "b is never no"),
        ] {
            let error = lines(text).unwrap_err();
            assert_eq!(error.line(), line, "{text}");
            assert_eq!(error.to_string(), format!("configuration, line {line}: {says}"));
        }
        assert_eq!(SettingsError::new(0, "no text").to_string(), "configuration, line 0: no text");
    }
}
