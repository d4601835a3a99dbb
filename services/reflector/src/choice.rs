//! Selection of requests for live streams, and the key by which they are shared.

use crate::config::Config;
use stream::places::has_host;

/// Longest key that the node accepts.
const KEY_LENGTH_MAX: usize = 1024;

impl Config {
    /// Returns the key of the stream that a request is for; an empty key means the request's own.
    /// `None` if it is for no stream.
    pub fn choose(&self, method: &str, authority: &str, path: &str) -> Option<Vec<u8>> {
        let is_one = matches!(method, "GET" | "HEAD") && has_host(&self.hosts, authority);
        if !is_one || !self.paths.iter().any(|prefix| path.starts_with(prefix)) {
            return None;
        }
        let host = authority.to_ascii_lowercase();
        let key = match path.split('?').next() {
            Some(path) if self.ignores_query => format!("{host}{path}").into_bytes(),
            _ => Vec::new(),
        };
        (key.len() <= KEY_LENGTH_MAX).then_some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn requests_for_streams_are_those_of_the_paths_and_hosts() {
        let config = config("paths /live/\nhosts radio.example [2001:db8::1]");
        let choose = |method, host, path| config.choose(method, host, path);
        assert_eq!(choose("GET", "radio.example", "/live/one"), Some(Vec::new()));
        assert_eq!(choose("HEAD", "Radio.Example:8000", "/live/one"), Some(Vec::new()));
        assert_eq!(choose("GET", "[2001:db8::1]", "/live/one"), Some(Vec::new()));
        assert_eq!(choose("POST", "radio.example", "/live/one"), None);
        assert_eq!(choose("GET", "radio.example", "/about"), None);
        assert_eq!(choose("GET", "other.example", "/live/one"), None);
    }

    #[test]
    fn a_query_that_is_ignored_makes_no_other_stream() {
        let ignores = config("query ignore");
        let key = |path| ignores.choose("GET", "a:8000", path);
        assert_eq!(key("/one?user=1"), key("/one?user=2"));
        assert_eq!(key("/one?user=1"), Some(b"a:8000/one".to_vec()));
        assert_eq!(key("/one"), key("/one?user=1"));
        let long = format!("/{}?x", "a".repeat(KEY_LENGTH_MAX));
        assert_eq!(key(&long), None, "the node would not take it");
        assert_eq!(config("").choose("GET", "a", "/one?user=1"), Some(Vec::new()));
    }
}
