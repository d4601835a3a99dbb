//! Entity tags: RFC 9110, sections 8.8.3, 13.1.1 and 13.1.2.
//!
//! A strong tag identifies bytes, and coded bytes differ: so a coded response gets a weak tag. A
//! client sends it back in If-None-Match, which is compared weakly: a conforming server recognises
//! its own tag and responds with 304. Some servers compare byte by byte; for them the strong form
//! is added, which is redundant for the others. In If-Match a weak tag matches nothing, as it
//! should: the client's edit is not based on the server's bytes.

use crate::fields::tags;

const WEAK: &[u8] = b"W/";

/// Returns true for a strong tag: quotes and nothing else around.
fn is_strong(tag: &[u8]) -> bool {
    let inner = tag.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    inner.is_some_and(|inner| {
        inner.iter().all(|&byte| byte == b'!' || (byte >= b'#' && byte != 127))
    })
}

/// Returns the weak form of a strong tag; `None` if it is weak already, or no tag.
pub fn weakened(tag: &[u8]) -> Option<Vec<u8>> {
    is_strong(tag).then(|| [WEAK, tag].concat())
}

/// Returns If-None-Match for the server: after each weak tag its strong form is added, if it is
/// missing. `None` if nothing is to be added.
pub fn with_strong_forms(if_none_match: &[u8]) -> Option<Vec<u8>> {
    let mut list = if_none_match.to_vec();
    for tag in tags(if_none_match) {
        if let Some(strong) = tag.strip_prefix(WEAK)
            && is_strong(strong)
            && !tags(&list).any(|other| other == strong)
        {
            list.extend_from_slice(b", ");
            list.extend_from_slice(strong);
        }
    }
    (list.len() > if_none_match.len()).then_some(list)
}

/// Returns true if a client has the weak form of a tag and not the tag itself: then its cached
/// response is a coded one.
pub fn is_known_weakly(if_none_match: &[u8], tag: &[u8]) -> bool {
    let strong = tags(if_none_match).any(|other| other == tag);
    let weak = tags(if_none_match).any(|other| other.strip_prefix(WEAK) == Some(tag));
    weak && !strong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strong_tags_become_weak() {
        for (tag, expected) in [
            (&br#""a""#[..], Some(&br#"W/"a""#[..])),
            (br#""""#, Some(br#"W/"""#)),
            (br#""a,b""#, Some(br#"W/"a,b""#)),
            (br#"W/"a""#, None),
            (br#"w/"a""#, None),
            (b"a", None),
            (b"\"", None),
            (b"", None),
            (br#""a"b""#, None),
        ] {
            assert_eq!(weakened(tag).as_deref(), expected, "{:?}", tag.escape_ascii());
        }
    }

    #[test]
    fn a_weak_etag_is_also_sent_in_its_strong_form() {
        for (field, expected) in [
            (&br#"W/"a""#[..], Some(&br#"W/"a", "a""#[..])),
            (br#"W/"a", W/"b""#, Some(br#"W/"a", W/"b", "a", "b""#)),
            (br#"W/"a", "a""#, None),
            (br#"W/"a", W/"a""#, Some(br#"W/"a", W/"a", "a""#)),
            (br#""a""#, None),
            (b"*", None),
            (b"W/a", None),
            (b"", None),
        ] {
            assert_eq!(with_strong_forms(field).as_deref(), expected, "{:?}", field.escape_ascii());
        }
    }

    #[test]
    fn a_client_with_a_coded_response_is_recognised_by_its_weak_etag() {
        assert!(is_known_weakly(br#""x", W/"a""#, br#""a""#));
        assert!(!is_known_weakly(br#"W/"a", "a""#, br#""a""#));
        assert!(!is_known_weakly(br#""a""#, br#""a""#));
        assert!(!is_known_weakly(b"*", br#""a""#));
    }
}
