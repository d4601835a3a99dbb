//! Configuration: lines with a key and values.

use crate::coding::Coding;
use crate::media::MediaTypes;
use stream::settings::{self, SettingsError};

/// Level number that leaves the choice to the node.
pub const LEVEL_AUTO: u8 = 255;
const LEVEL_MIN: u8 = 1;
const LEVEL_MAX: u8 = 9;
/// Default minimum length of a body in bytes: with its head a shorter one fits a packet anyway, and
/// the fields that coding adds offset a part of the gain.
const MINIMUM_DEFAULT: u64 = 256;
const KEYS: &str = "minimum, types, codings and level";

/// Selection of responses, codings and level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Minimum length of a coded body in bytes, if the length is known.
    pub minimum: u64,
    /// Media types that are coded.
    pub types: MediaTypes,
    /// Codings that are used, by preference.
    pub codings: Vec<Coding>,
    /// Level from 1 to 9, or [`LEVEL_AUTO`].
    pub level: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            minimum: MINIMUM_DEFAULT,
            types: MediaTypes::default(),
            codings: Coding::PREFERRED.to_vec(),
            level: LEVEL_AUTO,
        }
    }
}

impl Config {
    /// Parses a text; keys that are missing have their default. An empty text is the default.
    pub fn parse(bytes: &[u8]) -> Result<Self, SettingsError> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let before = bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
            SettingsError::new(1 + before, "it is not UTF-8 text")
        })?;
        let mut config = Self::default();
        settings::read(text, KEYS, |key, values| config.set(key, values))?;
        Ok(config)
    }

    fn set(&mut self, key: &str, values: &[&str]) -> Result<(), String> {
        match key {
            "minimum" => self.minimum = number(key, values, 0, u64::from(u32::MAX))?,
            "level" if *values == ["auto"] => self.level = LEVEL_AUTO,
            "level" => {
                let level = number(key, values, LEVEL_MIN.into(), LEVEL_MAX.into())
                    .map_err(|message| format!("{message}, or auto"))?;
                self.level = u8::try_from(level).unwrap_or(LEVEL_AUTO);
            }
            "types" => {
                self.types = MediaTypes::parse(values.iter().copied()).map_err(|word| {
                    format!("{word} is no media type; write text/html, text/* or */*+json")
                })?;
            }
            "codings" => {
                self.codings = Vec::new();
                for name in values {
                    let coding = Coding::named(name.as_bytes()).ok_or_else(|| {
                        format!("{name} is no coding; there are zstd, br, gzip and deflate")
                    })?;
                    if self.codings.contains(&coding) {
                        return Err(format!("{name} stands there twice; keep one of them"));
                    }
                    self.codings.push(coding);
                }
            }
            _ => return Err(format!("there is no {key}; the keys are {KEYS}")),
        }
        Ok(())
    }
}

fn number(key: &str, values: &[&str], min: u64, max: u64) -> Result<u64, String> {
    match values {
        [value] => value.parse().ok().filter(|number| (min..=max).contains(number)),
        _ => None,
    }
    .ok_or_else(|| format!("{key} is one number from {min} to {max}, not {}", values.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_says_what_differs() {
        assert_eq!(Config::parse(b""), Ok(Config::default()));
        let text = "# Small and simple.\n\nminimum 1000   # bytes\r\n types text/html\tfont/*\n\
                    codings gzip BR\nlevel 5";
        let expected = Config {
            minimum: 1000,
            types: MediaTypes::parse(["text/html", "font/*"].into_iter()).unwrap(),
            codings: vec![Coding::Gzip, Coding::Brotli],
            level: 5,
        };
        assert_eq!(Config::parse(text.as_bytes()), Ok(expected));
        assert_eq!(Config::parse(b"level auto").unwrap().level, LEVEL_AUTO);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, expected) in [
            (
                &b"minimum"[..],
                "line 1: minimum has no value; the keys are minimum, types, codings and level",
            ),
            (b"\nminimum -1", "line 2: minimum is one number from 0 to 4294967295, not -1"),
            (b"minimum 1 2", "line 1: minimum is one number from 0 to 4294967295, not 1 2"),
            (b"level 0", "line 1: level is one number from 1 to 9, not 0, or auto"),
            (b"level 255", "line 1: level is one number from 1 to 9, not 255, or auto"),
            (b"types html", "line 1: html is no media type; write text/html, text/* or */*+json"),
            (b"codings lzma", "line 1: lzma is no coding; there are zstd, br, gzip and deflate"),
            (b"codings br br", "line 1: br stands there twice; keep one of them"),
            (b"level 1\nlevel 2", "line 2: level stands there twice; keep one of them"),
            (b"size 1", "line 1: there is no size; the keys are minimum, types, codings and level"),
            (b"level 1\n\xff", "line 2: it is not UTF-8 text"),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert_eq!(error, format!("configuration, {expected}"));
        }
    }
}
