//! Classification of an origin's response: a live stream that is shared, a complete response for
//! all waiting listeners, or one that each listener has to fetch on its own.

use crate::framing::Format;
use crate::icy::Block;
use crate::limits::{ANSWER_LENGTH_MAX, ICY_INTERVAL, ICY_INTERVAL_MAX};
use crate::share::KEYED;
use http1::{Framing, Headers, ResponseHead, Version};
use std::sync::Arc;

/// The origin's response is not shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLive {
    /// The status is 1xx, or 2xx except 200.
    #[error("the status {status} is not that of a stream")]
    Status {
        /// Status of the response.
        status: u16,
    },
    /// The response has a known length: a file.
    #[error("the length is known: {length} bytes")]
    LengthKnown {
        /// Length in bytes.
        length: u64,
    },
    /// The origin offers ranges: a file.
    #[error("the origin offers ranges")]
    Ranges,
    /// Cache-Control has `private`.
    #[error("the answer is private")]
    Private,
    /// Cache-Control has `no-store`, and the operator's settings do not override it.
    #[error("the answer is not to be stored")]
    NoStore,
    /// The response sets a cookie, which belongs to one client.
    #[error("the answer sets a cookie")]
    SetCookie,
    /// Vary names a field that is not in the key.
    #[error("the answer depends on fields that clients differ in")]
    Varies,
    /// The content is encoded: frames cannot be found, so no listener could join.
    #[error("the content is coded")]
    Coded,
    /// The content is neither audio nor video, or is a playlist.
    #[error("the content is no audio or video")]
    NotMedia,
    /// The container (Ogg, WebM, MP4 and others) needs the beginning of the stream.
    #[error("the content cannot be joined in the middle")]
    NeedsStart,
}

/// Treatment of `Cache-Control: no-store`. Icecast 2.4 sends it with every live stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoStore {
    /// Streams with `no-store` are not shared: RFC 9111, section 5.2.2.5.
    #[default]
    Refuse,
    /// Streams with `no-store` are shared: the operator has the right to, and no bytes outlast the
    /// ring.
    Share,
}

/// Class of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Classified {
    /// A live stream.
    Live(Live),
    /// A redirect or an error, for all waiting listeners.
    Response,
}

/// Properties of a live stream, from its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Live {
    /// Content type in the origin's spelling: has to be the same after a reconnect.
    pub(crate) content_type: Vec<u8>,
    pub(crate) format: Option<Format>,
    pub(crate) is_video: bool,
    pub(crate) interval: Option<u32>,
}

/// Classifies a response by its head.
pub(crate) fn classify(
    head: &ResponseHead,
    framing: Framing,
    no_store: NoStore,
) -> Result<Classified, NotLive> {
    let (status, headers) = (head.status(), &head.headers);
    if status != 200 && status < 300 {
        return Err(NotLive::Status { status });
    }
    check_privacy(headers, no_store)?;
    let length = match framing {
        Framing::Length(length) => Some(length),
        Framing::None => Some(0),
        Framing::Chunked | Framing::UntilClose | Framing::Tunnel => None,
    };
    if status != 200 {
        return match length {
            Some(length) if length > ANSWER_LENGTH_MAX as u64 => {
                Err(NotLive::LengthKnown { length })
            }
            _ => Ok(Classified::Response),
        };
    }
    if let Some(length) = length {
        return Err(NotLive::LengthKnown { length });
    }
    let ranges =
        elements(headers, b"Accept-Ranges").any(|unit| !unit.eq_ignore_ascii_case(b"none"));
    if ranges || headers.contains(b"Content-Range") {
        return Err(NotLive::Ranges);
    }
    if elements(headers, b"Content-Encoding")
        .any(|coding| !coding.eq_ignore_ascii_case(b"identity"))
    {
        return Err(NotLive::Coded);
    }
    let content_type = headers.get(b"Content-Type").unwrap_or_default();
    let (format, is_video) = media(content_type)?;
    let interval = headers.get(b"icy-metaint").and_then(|value| std::str::from_utf8(value).ok());
    let interval = interval.and_then(|value| value.parse().ok());
    Ok(Classified::Live(Live {
        content_type: content_type.to_vec(),
        format,
        is_video,
        interval: interval.filter(|interval| (1..=ICY_INTERVAL_MAX).contains(interval)),
    }))
}

fn check_privacy(headers: &Headers, no_store: NoStore) -> Result<(), NotLive> {
    if headers.contains(b"Set-Cookie") {
        return Err(NotLive::SetCookie);
    }
    let says = |directive: &[u8]| {
        // `private="field"` counts as private too.
        elements(headers, b"Cache-Control").any(|element| {
            let name = element.split(|&byte| byte == b'=').next().unwrap_or_default();
            name.trim_ascii().eq_ignore_ascii_case(directive)
        })
    };
    if says(b"private") {
        return Err(NotLive::Private);
    }
    if no_store == NoStore::Refuse && says(b"no-store") {
        return Err(NotLive::NoStore);
    }
    // The request to the origin is the same for all listeners, except for these fields.
    let is_known = |name: &[u8]| {
        KEYED.iter().any(|known| known.eq_ignore_ascii_case(name))
            || name.eq_ignore_ascii_case(b"Accept-Encoding")
            || name.eq_ignore_ascii_case(b"Icy-MetaData")
    };
    if elements(headers, b"Vary").all(is_known) { Ok(()) } else { Err(NotLive::Varies) }
}

/// Returns the elements of a list, over all fields of that name.
fn elements<'h>(headers: &'h Headers, name: &[u8]) -> impl Iterator<Item = &'h [u8]> {
    let values = headers.get_all(name).flat_map(|value| value.split(|&byte| byte == b','));
    values.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// Returns the format of a content type, and true if it is video.
fn media(content_type: &[u8]) -> Result<(Option<Format>, bool), NotLive> {
    let name = content_type.split(|&byte| byte == b';').next().unwrap_or_default();
    let name = name.trim_ascii().to_ascii_lowercase();
    let (kind, subtype) = match name.iter().position(|&byte| byte == b'/') {
        Some(slash) => (&name[..slash], &name[slash + 1..]),
        None => return Err(NotLive::NotMedia),
    };
    let is_video = match (kind, subtype) {
        (b"audio", b"mpegurl" | b"x-mpegurl" | b"x-scpls" | b"scpls") => {
            return Err(NotLive::NotMedia);
        }
        (b"application", b"ogg") => return Err(NotLive::NeedsStart),
        (b"audio", _) => false,
        (b"video", _) => true,
        _ => return Err(NotLive::NotMedia),
    };
    match subtype {
        b"mpeg" | b"mp3" | b"x-mp3" | b"x-mpeg" | b"mpeg3" | b"x-mpeg-3" | b"mpg" if !is_video => {
            Ok((Some(Format::MpegAudio), false))
        }
        b"aac" | b"aacp" | b"x-aac" | b"x-hx-aac-adts" | b"aac-adts" => {
            Ok((Some(Format::Adts), is_video))
        }
        b"mp2t" => Ok((Some(Format::TransportStream), true)),
        b"ogg" | b"opus" | b"vorbis" | b"webm" | b"flac" | b"x-flac" | b"mp4" | b"x-m4a"
        | b"wav" | b"x-wav" | b"wave" | b"x-matroska" | b"x-flv" | b"quicktime" | b"3gpp"
        | b"x-msvideo" => Err(NotLive::NeedsStart),
        _ => Ok((None, is_video)),
    }
}

/// Fields that are for one connection, even if `Connection` does not name them: RFC 9110, section
/// 7.6.1.
const CONNECTION_FIELDS: [&[u8]; 4] =
    [b"Connection", b"Keep-Alive", b"Proxy-Connection", b"Upgrade"];
/// Fields of the origin's body framing, and its interval of titles: each listener has its own.
const BODY_FIELDS: [&[u8]; 4] =
    [b"Transfer-Encoding", b"Trailer", b"Content-Length", b"icy-metaint"];

/// Removes the fields that are for one connection.
pub(crate) fn end_to_end(mut head: ResponseHead) -> ResponseHead {
    let named: Vec<Vec<u8>> = elements(&head.headers, b"Connection").map(<[u8]>::to_vec).collect();
    for name in named.iter().map(Vec::as_slice).chain(CONNECTION_FIELDS) {
        head.headers.remove(name);
    }
    head
}

/// Returns the heads of a live stream: for listeners that want the media alone, and for those that
/// want titles.
pub(crate) fn heads(head: &ResponseHead, has_titles: bool) -> Option<[Arc<ResponseHead>; 2]> {
    let mut headers = end_to_end(head.clone()).headers;
    for name in BODY_FIELDS {
        headers.remove(name);
    }
    let of = |headers| ResponseHead::new(Version::Http11, 200, b"OK", headers).ok().map(Arc::new);
    let plain = of(headers.clone())?;
    if !has_titles {
        return Some([Arc::clone(&plain), plain]);
    }
    headers.add(b"icy-metaint", ICY_INTERVAL.to_string().as_bytes()).ok()?;
    Some([plain, of(headers)?])
}

/// Returns the head of an error response of this node, as the origin sent none: RFC 9110, 15.6.3,
/// 15.6.5.
pub(crate) fn failed(status: u16, reason: &[u8]) -> Option<Arc<ResponseHead>> {
    ResponseHead::new(Version::Http11, status, reason, Headers::default()).ok().map(Arc::new)
}

/// Returns the title of a block for display, without control characters.
pub(crate) fn displayed_title(block: &Block) -> Option<String> {
    let title = String::from_utf8_lossy(block.stream_title()?).into_owned();
    Some(title.chars().filter(|c| !c.is_control()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(
        status: u16,
        fields: &[(&str, &str)],
        framing: Framing,
    ) -> Result<Classified, NotLive> {
        let mut headers = Headers::default();
        for (name, value) in fields {
            headers.add(name.as_bytes(), value.as_bytes()).unwrap();
        }
        let head = ResponseHead::new(Version::Http11, status, b"", headers).unwrap();
        classify(&head, framing, NoStore::Refuse)
    }

    fn stream(name: &str, value: &str) -> Result<Classified, NotLive> {
        classified(200, &[("Content-Type", "audio/mpeg"), (name, value)], Framing::UntilClose)
    }

    #[test]
    fn a_stream_has_no_end_and_no_owner() {
        let Ok(Classified::Live(live)) = stream("icy-metaint", "8192") else { panic!("live") };
        assert_eq!((live.format, live.interval), (Some(Format::MpegAudio), Some(8192)));
        assert!(matches!(stream("Cache-Control", "no-cache, max-age=0"), Ok(Classified::Live(_))));
        assert!(matches!(stream("Vary", "Origin, Accept-Encoding"), Ok(Classified::Live(_))));
        assert!(matches!(stream("Accept-Ranges", "none"), Ok(Classified::Live(_))));
        assert_eq!(stream("Accept-Ranges", "bytes"), Err(NotLive::Ranges));
        assert_eq!(stream("Cache-Control", "no-cache, No-Store"), Err(NotLive::NoStore));
        assert_eq!(stream("Cache-Control", "private=\"x\""), Err(NotLive::Private));
        assert_eq!(stream("Set-Cookie", "a=b"), Err(NotLive::SetCookie));
        assert_eq!(stream("Vary", "User-Agent"), Err(NotLive::Varies));
        assert_eq!(stream("Vary", "*"), Err(NotLive::Varies));
        assert_eq!(stream("Content-Encoding", "gzip"), Err(NotLive::Coded));
        let file = classified(200, &[("Content-Type", "audio/mpeg")], Framing::Length(5));
        assert_eq!(file, Err(NotLive::LengthKnown { length: 5 }));
        assert_eq!(classified(206, &[], Framing::UntilClose), Err(NotLive::Status { status: 206 }));
        assert_eq!(classified(302, &[], Framing::Length(0)), Ok(Classified::Response));
        assert_eq!(classified(404, &[], Framing::Chunked), Ok(Classified::Response));
        assert_eq!(classified(403, &[("Set-Cookie", "a")], Framing::None), Err(NotLive::SetCookie));
    }

    #[test]
    fn content_types_say_what_frames_look_like() {
        let of = |name: &str| media(name.as_bytes());
        assert_eq!(of("audio/mpeg"), Ok((Some(Format::MpegAudio), false)));
        assert_eq!(of("Audio/AACP; x=y"), Ok((Some(Format::Adts), false)));
        assert_eq!(of("video/MP2T"), Ok((Some(Format::TransportStream), true)));
        assert_eq!(of("video/mpeg"), Ok((None, true)));
        assert_eq!(of("audio/x-something"), Ok((None, false)));
        for name in ["application/ogg", "audio/ogg", "video/webm", "audio/flac"] {
            assert_eq!(of(name), Err(NotLive::NeedsStart), "{name}");
        }
        for name in ["", "text/html", "audio/x-mpegurl", "application/octet-stream", "audio"] {
            assert_eq!(of(name), Err(NotLive::NotMedia), "{name}");
        }
    }

    #[test]
    fn fields_of_one_connection_are_removed() {
        let mut headers = Headers::default();
        let fields = [
            ("Connection", "close, X-Hop"),
            ("X-Hop", "a"),
            ("Keep-Alive", "b"),
            ("Content-Type", "audio/mpeg"),
            ("icy-metaint", "8192"),
            ("icy-name", "c"),
        ];
        for (name, value) in fields {
            headers.add(name.as_bytes(), value.as_bytes()).unwrap();
        }
        let head = ResponseHead::new(Version::Http10, 200, b"OK", headers).unwrap();
        let names = |head: &ResponseHead| {
            let names =
                head.headers.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(&end_to_end(head.clone())), ["Content-Type", "icy-metaint", "icy-name"]);
        let [media, titles] = heads(&head, true).unwrap();
        assert_eq!(names(&media), ["Content-Type", "icy-name"]);
        assert_eq!(titles.headers.get(b"icy-metaint"), Some(&b"16000"[..]));
    }

    #[test]
    fn a_stream_that_an_operator_may_share_is_shared() {
        let mut headers = Headers::default();
        headers.add(b"Content-Type", b"audio/mpeg").unwrap();
        headers.add(b"Cache-Control", b"no-cache, no-store").unwrap();
        let head = ResponseHead::new(Version::Http10, 200, b"OK", headers).unwrap();
        assert!(matches!(
            classify(&head, Framing::UntilClose, NoStore::Share),
            Ok(Classified::Live(_))
        ));
    }
}
