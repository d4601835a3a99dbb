//! Compressible media types. RFC 9110, section 8.3.

use crate::fields::parameters;

/// Default media types: text in all forms, and formats without a compression of their own. Images,
/// video, audio, WOFF and archives are compressed already.
pub const DEFAULT: &[&str] = &[
    "text/*",
    "*/*+json",
    "*/*+xml",
    "*/*+text",
    "application/json",
    "application/javascript",
    "application/x-javascript",
    "application/ecmascript",
    "application/xml",
    "application/x-ndjson",
    "application/yaml",
    "application/toml",
    "application/graphql",
    "application/rtf",
    "application/wasm",
    "application/x-font-ttf",
    "application/vnd.ms-fontobject",
    "font/ttf",
    "font/otf",
    "font/collection",
    "image/bmp",
    "image/x-icon",
    "image/vnd.microsoft.icon",
];

/// Excluded: each event has to arrive when it is sent, and an encoder would wait for more.
const EVENT_STREAM: &[u8] = b"text/event-stream";

/// Media types that are coded, from one line of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaTypes(Vec<String>);

impl Default for MediaTypes {
    fn default() -> Self {
        Self(DEFAULT.iter().map(|&pattern| pattern.to_owned()).collect())
    }
}

impl MediaTypes {
    /// Parses patterns: `type/subtype`, in which a subtype may be `*`, or `*+suffix`, and a type
    /// may be `*`. The error is the first invalid word.
    pub fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, &'a str> {
        let pattern = |word: &'a str| match word.split_once('/') {
            Some((kind, subtype))
                if is_token(kind)
                    && is_token(subtype)
                    && !kind.get(1..).unwrap_or_default().contains('*')
                    && !subtype.get(1..).unwrap_or_default().contains('*') =>
            {
                Ok(word.to_ascii_lowercase())
            }
            _ => Err(word),
        };
        words.map(pattern).collect::<Result<_, _>>().map(Self)
    }

    /// Returns true if a response with this Content-Type is coded.
    pub fn has(&self, content_type: &[u8]) -> bool {
        let (found, _) = parameters(content_type);
        if found.eq_ignore_ascii_case(EVENT_STREAM) {
            return false;
        }
        let Some(at) = found.iter().position(|&byte| byte == b'/') else { return false };
        let (kind, subtype) = (&found[..at], &found[at + 1..]);
        self.0
            .iter()
            .filter_map(|pattern| pattern.split_once('/'))
            .any(|(of_kind, of_subtype)| matches(of_kind, kind) && matches(of_subtype, subtype))
    }
}

/// Returns true if a part matches a pattern, in which a leading star matches anything.
fn matches(pattern: &str, part: &[u8]) -> bool {
    match pattern.strip_prefix('*') {
        Some(end) => part
            .len()
            .checked_sub(end.len())
            .and_then(|at| part.get(at..))
            .is_some_and(|behind| behind.eq_ignore_ascii_case(end.as_bytes())),
        None => part.eq_ignore_ascii_case(pattern.as_bytes()),
    }
}

/// Returns true if the text is a token: RFC 9110, section 5.6.2.
fn is_token(text: &str) -> bool {
    let is_one = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressible_media_types_are_coded_and_compressed_ones_are_not() {
        let types = MediaTypes::default();
        for coded in [
            "text/html",
            "Text/HTML; charset=utf-8",
            "text/css",
            "application/json;charset=\"utf-8\"",
            "application/problem+json",
            "application/ld+JSON",
            "image/svg+xml",
            "application/rss+xml",
            "application/javascript",
            "application/wasm",
            "font/ttf",
            "text/x-unknown",
        ] {
            assert!(types.has(coded.as_bytes()), "{coded}");
        }
        for not in [
            "text/event-stream",
            "Text/Event-Stream; charset=utf-8",
            "image/png",
            "image/avif",
            "video/mp4",
            "audio/mpeg",
            "font/woff2",
            "application/zip",
            "application/gzip",
            "application/pdf",
            "application/octet-stream",
            "application/grpc",
            "multipart/x-mixed-replace; boundary=a",
            "",
            "text",
            "/",
            "json",
            "+json",
        ] {
            assert!(!types.has(not.as_bytes()), "{not}");
        }
    }

    #[test]
    fn patterns_are_types_with_a_star_in_front() {
        let types = MediaTypes::parse("text/* A/B */*+xml".split(' ')).unwrap();
        for (content_type, expected) in
            [("text/a", true), ("a/b", true), ("x/y+xml", true), ("a/c", false), ("x/xml", false)]
        {
            assert_eq!(types.has(content_type.as_bytes()), expected, "{content_type}");
        }
        for word in ["text", "/", "text/", "/html", "te*t/html", "text/ht*", "text/html;q", "a/b/c"]
        {
            assert_eq!(MediaTypes::parse([word].into_iter()), Err(word));
        }
        let events = MediaTypes::parse(["text/event-stream"].into_iter()).unwrap();
        assert!(!events.has(b"text/event-stream"), "never, whatever is configured");
    }
}
