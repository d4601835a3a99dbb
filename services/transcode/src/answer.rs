//! Responses of the module itself: the page, the result of a control request, and errors as JSON
//! with position, error, and advice.

use crate::VIEWER;
use crate::choice::{Choice, Wrong};
use crate::limits::{RETRY_AFTER, SENTENCE_LENGTH_MAX};
use crate::request::PREFIX;

/// HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Header fields.
    pub fields: Vec<(&'static str, String)>,
    /// Body of the response.
    pub body: String,
}

/// Field that forbids caching of momentary states.
const NO_STORE: (&str, &str) = ("cache-control", "no-store");
/// Content security policy of the page: it may run its own script, and send requests to its own
/// server.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src \
                           'unsafe-inline'; connect-src 'self'; img-src 'self' blob:; base-uri \
                           'none'; form-action 'none'; frame-ancestors 'self'";

impl Answer {
    fn new(status: u16, content_type: &str, body: String) -> Self {
        let fields =
            vec![("content-type", content_type.to_owned()), (NO_STORE.0, NO_STORE.1.to_owned())];
        Self { status, fields, body }
    }

    fn and(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    fn error(status: u16, place: &str, error: &str, advice: &str) -> Self {
        let body = format!(
            "{{\"status\":{status},\"where\":{},\"error\":{},\"do\":{}}}\n",
            json(place),
            json(error),
            json(advice)
        );
        Self::new(status, "application/json", body)
    }

    /// Returns the page.
    pub fn viewer() -> Self {
        Self::new(200, "text/html; charset=utf-8", VIEWER.to_owned())
            .and("content-security-policy", PAGE_POLICY)
            .and("x-content-type-options", "nosniff")
    }

    /// Returns the response to a change; frames with its number follow it.
    pub fn changed(number: u16, choice: &Choice) -> Self {
        let kbits = choice.kbits.map_or("\"any\"".to_owned(), |kbits| kbits.to_string());
        let body = format!(
            "{{\"change\":{number},\"size\":\"{}\",\"rate\":{},\"kbits\":{kbits},\"format\":\"{}\",\
             \"palette\":\"{}\",\"dither\":\"{}\",\"layout\":\"{}\",\"quality\":{}}}\n",
            choice.size,
            choice.rate,
            choice.format.name(),
            choice.palette.name(),
            choice.dither.name(),
            choice.layout.name(),
            choice.quality,
        );
        Self::new(200, "application/json", body)
    }

    /// Returns the error for an invalid setting.
    pub fn wrong(wrong: &Wrong) -> Self {
        let place = format!("{PREFIX}{}", wrong.setting);
        Self::error(400, &place, &wrong.why, &format!("it can be {}", wrong.can_be))
    }

    /// Returns the error for a control request that names no stream.
    pub fn no_stream_named() -> Self {
        let advice = "say tamandua-stream, as the response that plays says it";
        Self::error(400, "tamandua-stream", "it does not say which stream", advice)
    }

    /// Returns the error for the stream of another device.
    pub fn of_another() -> Self {
        let error = "the stream plays on another address";
        let advice = "change it from the device that plays it";
        Self::error(403, "tamandua-stream", error, advice)
    }

    /// Returns the error for a stream that does not exist.
    pub fn no_stream() -> Self {
        let error = "no stream of this id plays; it has ended, or the id is wrong";
        let advice = "ask for the video again, and take tamandua-stream from its response";
        Self::error(404, "tamandua-stream", error, advice)
    }

    /// Returns the error for an unknown path below the module's prefix.
    pub fn nowhere(prefix: &str) -> Self {
        let advice = format!("GET {prefix}viewer is a page, POST {prefix}control changes a stream");
        Self::error(404, "path", "there is nothing here", &advice)
    }

    /// Returns the error for a method that the path does not support.
    pub fn method(allowed: &'static str) -> Self {
        let error = "this path does not know the method";
        Self::error(405, "method", error, &format!("it can be {allowed}")).and("allow", allowed)
    }

    /// Returns the error for a change of the format, which is fixed while a stream plays.
    pub fn format_is_fixed() -> Self {
        let error = "the format of a stream that plays stays";
        let advice = "ask for the video again with the other format";
        Self::error(409, "tamandua-format", error, advice)
    }

    /// Returns the error for more pending changes than allowed.
    pub fn too_many_changes() -> Self {
        let error = "too many changes wait for their first picture";
        Self::error(429, "control", error, "wait a second").and("retry-after", "1")
    }

    /// Returns the error for one stream too many.
    pub fn too_many_streams(most: usize) -> Self {
        let error = format!("{most} streams play already, which is the most of this service");
        let advice = format!("try again in {RETRY_AFTER} s");
        Self::error(503, "node", &error, &advice).and("retry-after", RETRY_AFTER.to_string())
    }

    /// Returns the error for a refusal of the node.
    pub fn refused(refusal: &Refusal) -> Self {
        let Refusal { reason, sentence } = refusal;
        match reason {
            // The node or the session may have capacity again when another stream has ended.
            Reason::Busy | Reason::Limit => {
                let advice = format!("try again in {RETRY_AFTER} s");
                Self::error(503, "node", sentence, &advice)
                    .and("retry-after", RETRY_AFTER.to_string())
            }
            Reason::Unavailable => {
                let advice =
                    "tell the operator of the node; docs/guides/transcode.md says what it needs";
                Self::error(503, "node", sentence, advice)
            }
            Reason::NotVideo => {
                let advice = "ask without settings for what the server has, or for MPEG-2 video";
                Self::error(502, "server", sentence, advice)
            }
            Reason::Other => Self::error(503, "node", sentence, "try again later"),
        }
    }
}

/// Reason for a refusal of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The processors have no capacity for another stream.
    Busy,
    /// No decoder is available, or it is not granted.
    Unavailable,
    /// The server's response is no video.
    NotVideo,
    /// The service's session has not enough resources for a stream.
    Limit,
    /// Unknown reason, from a later version of the node.
    Other,
}

/// Refusal of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason, as a class.
    pub reason: Reason,
    /// Message of the node.
    pub sentence: String,
}

impl Refusal {
    /// Returns a refusal without a message of the node.
    pub fn unavailable() -> Self {
        let sentence = "this node does not transcode for this service".to_owned();
        Self { reason: Reason::Unavailable, sentence }
    }

    /// Parses the result of the node's function; returns `None` on success.
    pub fn read(answer: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(answer);
        if matches!(text.as_ref(), "started" | "changed") {
            return None;
        }
        let (reason, sentence) = match text.strip_prefix("refused ") {
            Some(text) => text.split_once(' ').unwrap_or((text, "")),
            None => ("", text.as_ref()),
        };
        let reason = match reason {
            "busy" => Reason::Busy,
            "unavailable" => Reason::Unavailable,
            "not-video" => Reason::NotVideo,
            "limit" => Reason::Limit,
            _ => Reason::Other,
        };
        let printable = sentence.chars().filter(|it| !it.is_control());
        let sentence: String = printable.take(SENTENCE_LENGTH_MAX).collect();
        let sentence =
            if sentence.is_empty() { "the node refuses it".to_owned() } else { sentence };
        Some(Self { reason, sentence })
    }
}

/// Encodes a string in JSON: RFC 8259, section 7.
fn json(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\0'..' ' => quoted.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_say_where_what_and_what_to_do() {
        let wrong = Choice::default().with([("size", "big\"\\\n")]).unwrap_err();
        let answer = Answer::wrong(&wrong);
        assert_eq!(answer.status, 400);
        assert_eq!(
            answer.body,
            "{\"status\":400,\"where\":\"tamandua-size\",\"error\":\"\\\"big\\\"\\\\?\\\" is no \
             size\",\"do\":\"it can be WIDTHxHEIGHT from 16x16 to 1920x1080, as in 160x120\"}\n"
        );
        assert_eq!(json("a\u{1}\"\\ä"), "\"a\\u0001\\\"\\\\ä\"");
    }

    #[test]
    fn each_refusal_of_the_node_has_its_status() {
        for (text, status, says, retries) in [
            ("refused busy both cores are taken", 503, "both cores are taken", true),
            ("refused unavailable there is no ffmpeg", 503, "there is no ffmpeg", false),
            ("refused not-video it is text", 502, "it is text", false),
            ("refused limit no memory", 503, "no memory", true),
            ("refused tired a later reason", 503, "a later reason", false),
            ("refused busy", 503, "the node refuses it", true),
            ("what", 503, "what", false),
            ("", 503, "the node refuses it", false),
        ] {
            let refusal = Refusal::read(text.as_bytes()).unwrap();
            let answer = Answer::refused(&refusal);
            assert_eq!(answer.status, status, "{text}");
            assert!(answer.body.contains(says), "{answer:?}");
            let has_retry = answer.fields.iter().any(|(name, _)| *name == "retry-after");
            assert_eq!(has_retry, retries, "{text}");
        }
        assert_eq!(Refusal::read(b"started"), None);
        assert_eq!(Refusal::read(b"changed"), None);
        let long = format!("refused busy {}\n", "x".repeat(1_000));
        assert_eq!(Refusal::read(long.as_bytes()).unwrap().sentence.len(), SENTENCE_LENGTH_MAX);
        assert!(Refusal::read(b"refused limit \xff\x00").is_some());
    }

    #[test]
    fn the_answer_to_a_change_lists_all_settings() {
        let answer = Answer::changed(7, &Choice::default());
        assert_eq!(
            answer.body,
            "{\"change\":7,\"size\":\"160x120\",\"rate\":10,\"kbits\":\"any\",\"format\":\"frames\",\
             \"palette\":\"grey4\",\"dither\":\"ordered\",\"layout\":\"rows\",\"quality\":5}\n"
        );
    }

    #[test]
    fn the_page_needs_nothing_of_anybody_else() {
        let page = Answer::viewer();
        for outside in ["http://", "https://", "//cdn", "@import", "src=\"", "url("] {
            assert!(!page.body.contains(outside), "{outside}");
        }
        assert!(page.body.len() < 64 << 10, "it is sent at each visit");
    }

    proptest! {
        #[test]
        fn whatever_the_node_says_the_answer_is_one_line(
            answer in proptest::collection::vec(any::<u8>(), 0..400),
            sentence in "(refused (busy|limit|x) )?\\PC*",
        ) {
            for answer in [&answer[..], sentence.as_bytes()] {
                if let Some(refusal) = Refusal::read(answer) {
                    let Answer { status, body, .. } = Answer::refused(&refusal);
                    prop_assert!(matches!(status, 502 | 503));
                    prop_assert_eq!(body.chars().filter(|it| it.is_control()).collect::<String>(), "\n");
                    prop_assert!(body.ends_with('\n'));
                }
            }
        }
    }
}
