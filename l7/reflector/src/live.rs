//! What an origin's answer is: a live stream that is shared, an answer for everybody who waits,
//! or something that each has to fetch for itself.

use crate::framing::Format;
use crate::icy::Block;
use crate::limits::{ANSWER_LENGTH_MAX, ICY_INTERVAL, ICY_INTERVAL_MAX};
use crate::share::KEYED;
use http1::{Framing, Headers, ResponseHead, Version};
use std::sync::Arc;

/// Why an answer is not shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLive {
    /// 1xx, or 2xx but 200.
    #[error("the status {status} is not that of a stream")]
    Status {
        /// What it is.
        status: u16,
    },
    /// It has an end: a file.
    #[error("the length is known: {length} bytes")]
    LengthKnown {
        /// How long it is.
        length: u64,
    },
    /// Parts of it can be asked for: a file.
    #[error("the origin offers ranges")]
    Ranges,
    /// Cache-Control: private.
    #[error("the answer is private")]
    Private,
    /// Cache-Control: no-store, and the operator has not said that it is shared nevertheless.
    #[error("the answer is not to be stored")]
    NoStore,
    /// Set-Cookie: one person's.
    #[error("the answer sets a cookie")]
    SetCookie,
    /// Vary names a field that is not in the key.
    #[error("the answer depends on fields that clients differ in")]
    Varies,
    /// Content-Encoding: frames are not to be seen, and nobody can join.
    #[error("the content is coded")]
    Coded,
    /// Neither audio nor video, or a playlist.
    #[error("the content is no audio or video")]
    NotMedia,
    /// Ogg, WebM, MP4 and the like: a decoder needs the beginning of the stream.
    #[error("the content cannot be joined in the middle")]
    NeedsStart,
}

/// What is done with `Cache-Control: no-store`. Icecast 2.4 sends it with every live stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoStore {
    /// Such a stream is not shared: RFC 9111, section 5.2.2.5.
    #[default]
    Refuse,
    /// It is: the operator has the right to, and knows that nothing outlasts the ring.
    Share,
}

/// What the answer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// A live stream.
    Live(Live),
    /// A redirect or an error, for everybody.
    Answer,
}

/// What is known of a live stream from its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Live {
    /// As the origin spelt it: after a reconnect it has to be the same.
    pub(crate) content_type: Vec<u8>,
    pub(crate) format: Option<Format>,
    pub(crate) is_video: bool,
    pub(crate) interval: Option<u32>,
}

/// Judges a head.
pub(crate) fn judge(
    head: &ResponseHead,
    framing: Framing,
    no_store: NoStore,
) -> Result<Judged, NotLive> {
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
            _ => Ok(Judged::Answer),
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
    Ok(Judged::Live(Live {
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
        // `private="field"` is private too.
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
    // What the origin is asked with is the same for everybody, but for these.
    let is_known = |name: &[u8]| {
        KEYED.iter().any(|known| known.eq_ignore_ascii_case(name))
            || name.eq_ignore_ascii_case(b"Accept-Encoding")
            || name.eq_ignore_ascii_case(b"Icy-MetaData")
    };
    if elements(headers, b"Vary").all(is_known) { Ok(()) } else { Err(NotLive::Varies) }
}

/// The elements of a list, over all fields of that name.
fn elements<'h>(headers: &'h Headers, name: &[u8]) -> impl Iterator<Item = &'h [u8]> {
    let values = headers.get_all(name).flat_map(|value| value.split(|&byte| byte == b','));
    values.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// The format of a content type, and whether it is video.
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

/// Fields that hold for one connection, whether `Connection` names them or not: RFC 9110,
/// section 7.6.1.
const OF_THE_CONNECTION: [&[u8]; 4] =
    [b"Connection", b"Keep-Alive", b"Proxy-Connection", b"Upgrade"];
/// Fields of the origin's body, and its interval of titles: a listener has its own.
const OF_THE_BODY: [&[u8]; 4] =
    [b"Transfer-Encoding", b"Trailer", b"Content-Length", b"icy-metaint"];

/// A head as it may go on, on other connections.
pub(crate) fn end_to_end(mut head: ResponseHead) -> ResponseHead {
    let named: Vec<Vec<u8>> = elements(&head.headers, b"Connection").map(<[u8]>::to_vec).collect();
    for name in named.iter().map(Vec::as_slice).chain(OF_THE_CONNECTION) {
        head.headers.remove(name);
    }
    head
}

/// The heads of a live stream: for those who want the media alone, and for those who want
/// titles.
pub(crate) fn heads(head: &ResponseHead, has_titles: bool) -> Option<[Arc<ResponseHead>; 2]> {
    let mut headers = end_to_end(head.clone()).headers;
    for name in OF_THE_BODY {
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

/// The head of an answer that comes from here, as the origin gave none: RFC 9110, 15.6.3, 15.6.5.
pub(crate) fn failed(status: u16, reason: &[u8]) -> Option<Arc<ResponseHead>> {
    ResponseHead::new(Version::Http11, status, reason, Headers::default()).ok().map(Arc::new)
}

/// The title in a block, for whoever shows it; control characters are taken out.
pub(crate) fn shown(block: &Block) -> Option<String> {
    let title = String::from_utf8_lossy(block.stream_title()?).into_owned();
    Some(title.chars().filter(|c| !c.is_control()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(status: u16, fields: &[(&str, &str)], framing: Framing) -> Result<Judged, NotLive> {
        let mut headers = Headers::default();
        for (name, value) in fields {
            headers.add(name.as_bytes(), value.as_bytes()).unwrap();
        }
        let head = ResponseHead::new(Version::Http11, status, b"", headers).unwrap();
        judge(&head, framing, NoStore::Refuse)
    }

    fn stream(name: &str, value: &str) -> Result<Judged, NotLive> {
        judged(200, &[("Content-Type", "audio/mpeg"), (name, value)], Framing::UntilClose)
    }

    #[test]
    fn a_stream_is_what_has_no_end_and_belongs_to_nobody() {
        let Ok(Judged::Live(live)) = stream("icy-metaint", "8192") else { panic!("live") };
        assert_eq!((live.format, live.interval), (Some(Format::MpegAudio), Some(8192)));
        assert!(matches!(stream("Cache-Control", "no-cache, max-age=0"), Ok(Judged::Live(_))));
        assert!(matches!(stream("Vary", "Origin, Accept-Encoding"), Ok(Judged::Live(_))));
        assert!(matches!(stream("Accept-Ranges", "none"), Ok(Judged::Live(_))));
        assert_eq!(stream("Accept-Ranges", "bytes"), Err(NotLive::Ranges));
        assert_eq!(stream("Cache-Control", "no-cache, No-Store"), Err(NotLive::NoStore));
        assert_eq!(stream("Cache-Control", "private=\"x\""), Err(NotLive::Private));
        assert_eq!(stream("Set-Cookie", "a=b"), Err(NotLive::SetCookie));
        assert_eq!(stream("Vary", "User-Agent"), Err(NotLive::Varies));
        assert_eq!(stream("Vary", "*"), Err(NotLive::Varies));
        assert_eq!(stream("Content-Encoding", "gzip"), Err(NotLive::Coded));
        let file = judged(200, &[("Content-Type", "audio/mpeg")], Framing::Length(5));
        assert_eq!(file, Err(NotLive::LengthKnown { length: 5 }));
        assert_eq!(judged(206, &[], Framing::UntilClose), Err(NotLive::Status { status: 206 }));
        assert_eq!(judged(302, &[], Framing::Length(0)), Ok(Judged::Answer));
        assert_eq!(judged(404, &[], Framing::Chunked), Ok(Judged::Answer));
        assert_eq!(judged(403, &[("Set-Cookie", "a")], Framing::None), Err(NotLive::SetCookie));
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
    fn what_is_of_one_connection_does_not_go_on() {
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
        assert!(matches!(judge(&head, Framing::UntilClose, NoStore::Share), Ok(Judged::Live(_))));
    }
}
