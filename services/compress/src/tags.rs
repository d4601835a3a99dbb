//! Entity tags. RFC 9110, sections 8.8.3, 13.1.1 and 13.1.2.
//!
//! A strong tag names bytes, and coded bytes are others: so a coded response has a weak one. A
//! client sends that back in If-None-Match, which is compared weakly: a server that does so sees
//! its own tag and answers 304. Some compare byte by byte. For these the strong form goes along;
//! to the others it means nothing new. In If-Match a weak tag matches nothing, as it should: what
//! a client edits is not what the server has.

use crate::fields::tags;

const WEAK: &[u8] = b"W/";

/// Whether it is a strong tag: quotes and nothing else around.
fn is_strong(tag: &[u8]) -> bool {
    let inner = tag.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    inner.is_some_and(|inner| {
        inner.iter().all(|&byte| byte == b'!' || (byte >= b'#' && byte != 127))
    })
}

/// The weak form of a strong tag; none when it is weak already, or no tag.
pub fn weakened(tag: &[u8]) -> Option<Vec<u8>> {
    is_strong(tag).then(|| [WEAK, tag].concat())
}

/// What If-None-Match becomes for the server: behind each weak tag its strong form, if it is not
/// there. None when there is nothing to add.
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

/// Whether a client has asked about the weak form of a tag and not about the tag itself: then
/// what it has is a coded response.
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
    fn a_server_that_compares_bytes_finds_its_tag() {
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
    fn who_has_a_coded_response_is_known_by_its_tag() {
        assert!(is_known_weakly(br#""x", W/"a""#, br#""a""#));
        assert!(!is_known_weakly(br#"W/"a", "a""#, br#""a""#));
        assert!(!is_known_weakly(br#""a""#, br#""a""#));
        assert!(!is_known_weakly(b"*", br#""a""#));
    }
}
