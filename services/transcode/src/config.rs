//! Configuration: lines with a key and values.

use crate::choice::Choice;
use crate::limits::{STREAMS_DEFAULT, STREAMS_MAX};
use stream::places;
use stream::settings::{self, SettingsError};

const KEYS: &str = "paths, hosts, serve, default, prefix and streams";

/// Selection of requests, and their default settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Path prefixes of videos.
    pub paths: Vec<String>,
    /// Hosts; empty means all.
    pub hosts: Vec<String>,
    /// True if requests without settings are served too.
    pub serves_all: bool,
    /// Choice for settings that a request does not make.
    pub default: Choice,
    /// Path prefix of the module's own pages: the viewer and the control.
    pub prefix: String,
    /// Limit of simultaneous streams.
    pub streams: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            paths: vec!["/".to_owned()],
            hosts: Vec::new(),
            serves_all: false,
            default: Choice::default(),
            prefix: "/tamandua/".to_owned(),
            streams: STREAMS_DEFAULT,
        }
    }
}

impl Config {
    /// Parses a text; keys that are missing have their default. An empty text is the default.
    ///
    /// # Errors
    /// A line is invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, SettingsError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| SettingsError::new(0, "it is not UTF-8 text"))?;
        let mut config = Self::default();
        settings::read(text, KEYS, |key, values| config.set(key, values))?;
        Ok(config)
    }

    fn set(&mut self, key: &str, values: &[&str]) -> Result<(), String> {
        match (key, values) {
            ("paths", paths) => self.paths = places::paths(paths, "/films/")?,
            ("hosts", hosts) => self.hosts = places::hosts(hosts),
            ("serve", ["asked"]) => self.serves_all = false,
            ("serve", ["all"]) => self.serves_all = true,
            ("serve", _) => return Err("serve is asked or all".to_owned()),
            ("default", settings) => self.default = default(settings)?,
            ("prefix", [prefix]) if is_prefix(prefix) => self.prefix = (*prefix).to_owned(),
            ("prefix", _) => {
                return Err("prefix is one path between slashes, as in /tamandua/".to_owned());
            }
            ("streams", [count]) => {
                let count = count.parse().ok().filter(|count| (1..=STREAMS_MAX).contains(count));
                self.streams = count.ok_or(format!("streams is 1 to {STREAMS_MAX}"))?;
            }
            ("streams", _) => return Err(format!("streams is 1 to {STREAMS_MAX}")),
            _ => return Err(format!("{key} is no key; the keys are {KEYS}")),
        }
        Ok(())
    }

    /// Returns true if requests of this host are handled; case and port are ignored unless the
    /// configuration has a port.
    pub fn has_host(&self, authority: &str) -> bool {
        places::has_host(&self.hosts, authority)
    }

    /// Returns true if a path may be that of a video.
    pub fn has_path(&self, path: &str) -> bool {
        self.paths.iter().any(|prefix| path.starts_with(prefix))
    }
}

/// Parses the default settings, such as `size=160x120`.
fn default(settings: &[&str]) -> Result<Choice, String> {
    let mut pairs = Vec::new();
    for setting in settings {
        let pair = setting.split_once('=');
        pairs.push(pair.ok_or(format!("{setting} is no setting; one is as size=160x120"))?);
    }
    Choice::default().with(pairs).map_err(|wrong| wrong.to_string())
}

/// Returns true if the prefix has only one spelling for all clients.
fn is_prefix(prefix: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte);
    prefix.len() > 1
        && prefix.starts_with('/')
        && prefix.ends_with('/')
        && !prefix.contains("//")
        && prefix.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::palette::Palette;
    use proptest::prelude::*;

    #[test]
    fn lines_are_read_and_what_they_do_not_say_is_as_by_default() {
        assert_eq!(Config::parse(b"").unwrap(), Config::default());
        let text = b"# films\npaths /films/ /tv\nhosts TV.example # one\nserve all\n\
                     default size=128x64 palette=bw layout=pages\nprefix /screen/\nstreams 3\n";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.paths, ["/films/", "/tv"]);
        assert_eq!(config.hosts, ["tv.example"]);
        assert!(config.serves_all);
        assert_eq!((config.default.palette, config.streams), (Palette::Bw, 3));
        assert_eq!(config.prefix, "/screen/");
    }

    #[test]
    fn a_line_that_means_nothing_is_refused_with_its_number() {
        for (text, line, says) in [
            ("paths", 1, "no value"),
            ("\npaths films", 2, "begins with /"),
            ("serve perhaps", 1, "asked or all"),
            ("serve asked all", 1, "asked or all"),
            ("default size", 1, "as size=160x120"),
            ("default size=1x1", 1, "size: 1x1 is out of its range"),
            ("default palette=pink", 1, "palette: "),
            ("prefix tamandua", 1, "between slashes"),
            ("prefix /", 1, "between slashes"),
            ("prefix /a//", 1, "between slashes"),
            ("prefix /a%20/", 1, "between slashes"),
            ("prefix /a/ /b/", 1, "between slashes"),
            ("streams 0", 1, "1 to 256"),
            ("streams 257", 1, "1 to 256"),
            ("streams 1 2", 1, "1 to 256"),
            ("speed 3", 1, "paths, hosts, serve"),
            ("serve all\nserve all", 2, "twice"),
        ] {
            let error = Config::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error.line(), line, "{text}");
            assert!(error.to_string().contains(says), "{error}");
        }
        assert_eq!(Config::parse(b"paths /\xff").unwrap_err().line(), 0);
    }

    #[test]
    fn hosts_are_compared_without_case_and_port() {
        let config = Config::parse(b"hosts tv.example a.example:81 [2001:db8::1]").unwrap();
        for (host, expected) in [
            ("tv.example", true),
            ("TV.example:8000", true),
            ("a.example:81", true),
            ("a.example", false),
            ("a.example:80", false),
            ("[2001:db8::1]", true),
            ("[2001:db8::1]:80", true),
            ("other.example", false),
        ] {
            assert_eq!(config.has_host(host), expected, "{host}");
        }
        assert!(Config::default().has_host("anything"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_configuration_or_refused(
            text in "((paths|hosts|serve|default|prefix|streams|#)?[ a-z0-9/=.x\\PC]{0,20}\n){0,6}",
        ) {
            if let Ok(config) = Config::parse(text.as_bytes()) {
                prop_assert!(config.prefix.starts_with('/') && config.prefix.ends_with('/'));
                prop_assert!(config.paths.iter().all(|path| path.starts_with('/')));
                prop_assert!((1..=STREAMS_MAX).contains(&config.streams));
            }
        }
    }
}
