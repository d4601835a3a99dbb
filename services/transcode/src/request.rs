//! Requests: their purpose, and the settings for this module in them, which the server does not
//! see.

use crate::choice::Wrong;
use crate::config::Config;
use crate::limits::QUERY_LENGTH_MAX;

/// Prefix of settings' names, in queries and fields.
pub const PREFIX: &str = "tamandua-";
/// Name, after the prefix, for the stream of a control request.
const STREAM: &str = "stream";

/// Purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The page.
    Viewer,
    /// A change of a stream that plays.
    Control,
    /// An unknown path below the module's prefix.
    Nowhere,
    /// A server, whose response may be a video.
    Video,
    /// A server; not for this module.
    Elsewhere,
}

impl Config {
    /// Returns the purpose of a request.
    pub fn place(&self, method: &str, authority: &str, path: &str) -> Place {
        if !self.has_host(authority) {
            return Place::Elsewhere;
        }
        let name = path.split('?').next().unwrap_or_default();
        match name.strip_prefix(&self.prefix) {
            Some("viewer") => Place::Viewer,
            Some("control") => Place::Control,
            Some(_) => Place::Nowhere,
            None if matches!(method, "GET" | "HEAD") && self.has_path(path) => Place::Video,
            None => Place::Elsewhere,
        }
    }
}

/// Settings of a request for this module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Path and query without the settings.
    pub path: String,
    /// Names of the fields with settings, which are removed.
    pub fields: Vec<String>,
    /// Settings: names without their prefix, and values.
    pub settings: Vec<(String, String)>,
    /// Stream that a control request is for.
    pub stream: Option<String>,
}

impl Asked {
    /// Parses a path with its query, and fields.
    ///
    /// # Errors
    /// The query has settings and exceeds its limit.
    pub fn read<'a>(
        path: &str,
        fields: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<Self, Wrong> {
        let mut asked = Self { path: path.to_owned(), ..Self::default() };
        if let Some((name, query)) = path.split_once('?')
            && query.contains(PREFIX)
        {
            if query.len() > QUERY_LENGTH_MAX {
                let why = format!("the query has {} bytes", query.len());
                let can_be = format!("{QUERY_LENGTH_MAX} bytes long at most");
                return Err(Wrong::new("size", why, can_be));
            }
            let rest: Vec<&str> = query.split('&').filter(|part| !asked.take(part)).collect();
            asked.path = match &rest[..] {
                [] => name.to_owned(),
                _ => format!("{name}?{}", rest.join("&")),
            };
        }
        for (name, value) in fields {
            let lower = name.to_ascii_lowercase();
            if let Some(setting) = lower.strip_prefix(PREFIX) {
                let value = String::from_utf8_lossy(value);
                asked.put(setting, value.trim());
                asked.fields.push(name.to_owned());
            }
        }
        Ok(asked)
    }

    /// Returns true if there are settings.
    pub fn chooses(&self) -> bool {
        !self.settings.is_empty()
    }

    /// Returns the settings in the form that a choice takes.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Removes a part of a query if it is for this module; returns true then.
    fn take(&mut self, part: &str) -> bool {
        let is_ours = part.starts_with(PREFIX);
        if is_ours
            && let Some((name, value)) = form_urlencoded::parse(part.as_bytes()).next()
            && let Some(setting) = name.strip_prefix(PREFIX)
        {
            self.put(setting, &value);
        }
        is_ours
    }

    fn put(&mut self, setting: &str, value: &str) {
        match setting {
            STREAM => self.stream = Some(value.to_owned()),
            _ => self.settings.push((setting.to_owned(), value.to_owned())),
        }
    }
}

/// Returns the address in `address:port`, the node's form of a client's address.
pub fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_are_for_the_page_the_control_or_a_server() {
        let config = Config::parse(b"paths /films/\nhosts tv.example").unwrap();
        for (method, host, path, expected) in [
            ("GET", "tv.example", "/tamandua/viewer", Place::Viewer),
            ("PUT", "tv.example", "/tamandua/viewer?src=/films/a", Place::Viewer),
            ("POST", "tv.example:80", "/tamandua/control?x", Place::Control),
            ("GET", "tv.example", "/tamandua/", Place::Nowhere),
            ("GET", "tv.example", "/tamandua/viewer/", Place::Nowhere),
            ("GET", "tv.example", "/films/a.m2v", Place::Video),
            ("HEAD", "tv.example", "/films/a.m2v?x", Place::Video),
            ("POST", "tv.example", "/films/a.m2v", Place::Elsewhere),
            ("GET", "tv.example", "/tamandua", Place::Elsewhere),
            ("GET", "tv.example", "/about", Place::Elsewhere),
            ("GET", "other.example", "/tamandua/viewer", Place::Elsewhere),
        ] {
            assert_eq!(config.place(method, host, path), expected, "{method} {host}{path}");
        }
    }

    #[test]
    fn settings_are_removed_from_the_servers_request() {
        let none: [(&str, &[u8]); 0] = [];
        for (path, left, settings) in [
            ("/a", "/a", &[][..]),
            ("/a?", "/a?", &[]),
            ("/a?x=1&y", "/a?x=1&y", &[]),
            ("/a?tamandua-size=1x2", "/a", &[("size", "1x2")]),
            ("/a?x=1&tamandua-rate=5&y=%2C", "/a?x=1&y=%2C", &[("rate", "5")]),
            (
                "/a?tamandua-palette=000000%2Cffffff&tamandua-",
                "/a",
                &[("palette", "000000,ffffff"), ("", "")],
            ),
            ("/a?x=tamandua-size=1", "/a?x=tamandua-size=1", &[]),
        ] {
            let asked = Asked::read(path, none).unwrap();
            let pairs: Vec<_> = asked.pairs().collect();
            assert_eq!((asked.path.as_str(), &pairs[..]), (left, settings), "{path}");
            assert_eq!(asked.chooses(), !settings.is_empty());
        }
    }

    #[test]
    fn fields_say_the_same_and_name_the_stream() {
        let fields = [
            ("Host", &b"a"[..]),
            ("Tamandua-Size", b" 32x32 "),
            ("tamandua-stream", b"0f"),
            ("Tamandua-Dither", b"\xff"),
        ];
        let asked = Asked::read("/a", fields).unwrap();
        let pairs: Vec<_> = asked.pairs().collect();
        assert_eq!(pairs, [("size", "32x32"), ("dither", "\u{fffd}")]);
        assert_eq!(asked.fields, ["Tamandua-Size", "tamandua-stream", "Tamandua-Dither"]);
        assert_eq!(asked.stream.as_deref(), Some("0f"));
    }

    #[test]
    fn a_query_that_is_too_long_is_refused_when_it_has_settings() {
        let none: [(&str, &[u8]); 0] = [];
        let long = "x".repeat(QUERY_LENGTH_MAX);
        assert!(Asked::read(&format!("/a?{long}{long}"), none).is_ok());
        let wrong = Asked::read(&format!("/a?tamandua-size=1x1&{long}"), none).unwrap_err();
        assert!(wrong.to_string().contains("8210 bytes"), "{wrong}");
    }

    #[test]
    fn an_address_is_what_is_in_front_of_the_port() {
        for (address, host) in
            [("192.0.2.1:80", "192.0.2.1"), ("[2001:db8::1]:80", "[2001:db8::1]"), ("", "")]
        {
            assert_eq!(host_of(address), host);
        }
    }

    proptest! {
        #[test]
        fn only_tamandua_settings_are_removed_from_a_query(
            parts in proptest::collection::vec("(tamandua-[a-z]{0,5}=?)?[a-z0-9%=+.]{0,8}", 0..8),
        ) {
            let path = format!("/a?{}", parts.join("&"));
            let none: [(&str, &[u8]); 0] = [];
            let asked = Asked::read(&path, none).unwrap();
            let query = asked.path.split_once('?').map_or("", |(_, query)| query);
            let left: Vec<&str> = query.split('&').filter(|part| !part.is_empty()).collect();
            let others: Vec<&str> = parts.iter().map(String::as_str)
                .filter(|part| !part.starts_with(PREFIX) && !part.is_empty()).collect();
            prop_assert_eq!(left, others);
        }
    }
}
