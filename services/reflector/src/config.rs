//! Configuration: lines with a key and values.

use stream::places;
use stream::settings::{self, SettingsError};

const KEYS: &str = "paths, hosts and query";

/// Selection of requests for live streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Path prefixes.
    pub paths: Vec<String>,
    /// Hosts; empty means all.
    pub hosts: Vec<String>,
    /// True if paths that differ only after `?` are one stream.
    pub ignores_query: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { paths: vec!["/".to_owned()], hosts: Vec::new(), ignores_query: false }
    }
}

impl Config {
    /// Parses a text; keys that are missing have their default. An empty text is the default.
    pub fn parse(bytes: &[u8]) -> Result<Self, SettingsError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| SettingsError::new(0, "it is not UTF-8 text"))?;
        let mut config = Self::default();
        settings::read(text, KEYS, |key, values| config.set(key, values))?;
        Ok(config)
    }

    fn set(&mut self, key: &str, values: &[&str]) -> Result<(), String> {
        match key {
            "paths" => {
                self.paths = places::paths(values, "/live/")?;
            }
            "hosts" => self.hosts = places::hosts(values),
            "query" => match *values {
                ["keep"] => self.ignores_query = false,
                ["ignore"] => self.ignores_query = true,
                _ => return Err("query is keep or ignore".to_owned()),
            },
            _ => return Err(format!("{key} is no key; the keys are {KEYS}")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_what_they_do_not_say_is_as_by_default() {
        assert_eq!(Config::parse(b"").unwrap(), Config::default());
        let text = b"# stations\npaths /live/ /radio\nhosts Radio.example # one\nquery ignore\n";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.paths, ["/live/", "/radio"]);
        assert_eq!((config.hosts, config.ignores_query), (vec!["radio.example".into()], true));
    }

    #[test]
    fn a_line_that_means_nothing_is_refused_with_its_number() {
        for (text, line, says) in [
            ("paths", 1, "no value"),
            ("\npaths live", 2, "begins with /"),
            ("query perhaps", 1, "keep or ignore"),
            ("speed 3", 1, "paths, hosts and query"),
            ("query keep\nquery keep", 2, "twice"),
        ] {
            let error = Config::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error.line(), line, "{text}");
            assert!(error.to_string().contains(says), "{error}");
        }
        assert_eq!(Config::parse(b"paths /\xff").unwrap_err().line(), 0);
    }
}
