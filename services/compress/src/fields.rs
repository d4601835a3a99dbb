//! Fields of heads as bytes: lists, parameters, directives. RFC 9110, section 5.6.

/// Removes optional white space (section 5.6.3) at both ends.
pub fn trimmed(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// Returns the members of a comma-separated list (section 5.6.1), without empty ones. Commas within
/// quotes are part of a member.
pub fn members(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    split(list, b',', Some(b'\\')).filter(|member| !member.is_empty())
}

/// Returns the members of a list of entity tags (section 8.8.3), in which a backslash is an
/// ordinary character.
pub fn tags(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    split(list, b',', None).filter(|tag| !tag.is_empty())
}

/// Returns a member's name, and its parameters (section 5.6.6).
pub fn parameters(member: &[u8]) -> (&[u8], impl Iterator<Item = &[u8]>) {
    let mut parts = split(member, b';', Some(b'\\'));
    (parts.next().unwrap_or_default(), parts)
}

/// Returns a parameter's or directive's name and value, without quotes.
pub fn pair(part: &[u8]) -> (&[u8], Option<&[u8]>) {
    match part.iter().position(|&byte| byte == b'=') {
        None => (part, None),
        Some(at) => {
            let (name, value) = part.split_at(at);
            let value = trimmed(value.get(1..).unwrap_or_default());
            let inner = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
            (trimmed(name), Some(inner.unwrap_or(value)))
        }
    }
}

/// Returns true if a member of a list has this name, with any value.
pub fn has_member(list: &[u8], name: &[u8]) -> bool {
    members(list).any(|member| pair(parameters(member).0).0.eq_ignore_ascii_case(name))
}

/// Splits at separators outside quoted strings (section 5.6.4), and trims the parts.
fn split(bytes: &[u8], separator: u8, escape: Option<u8>) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let bytes = rest?;
        let mut is_quoted = false;
        let mut is_escaped = false;
        let end = bytes.iter().position(|&byte| {
            match byte {
                _ if is_escaped => is_escaped = false,
                byte if is_quoted && Some(byte) == escape => is_escaped = true,
                b'"' => is_quoted = !is_quoted,
                _ => return byte == separator && !is_quoted,
            }
            false
        });
        let (part, behind) = match end {
            Some(at) => (bytes.get(..at), bytes.get(at + 1..)),
            None => (Some(bytes), None),
        };
        rest = behind;
        part.map(trimmed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_end_members_at_commas_outside_quotes() {
        for (list, expected) in [
            (&b""[..], &[][..]),
            (b" , ,\t", &[]),
            (b"a,b , c", &[&b"a"[..], b"b", b"c"]),
            (br#"a="1,2", b"#, &[br#"a="1,2""#, b"b"]),
            (br#"a="\",", b"#, &[br#"a="\",""#, b"b"]),
            (br#"a="1, b"#, &[br#"a="1, b"#]),
        ] {
            assert_eq!(members(list).collect::<Vec<_>>(), expected, "{:?}", list.escape_ascii());
        }
    }

    #[test]
    fn tags_have_no_escapes() {
        let list = br#""a\", W/"b,c""#;
        assert_eq!(tags(list).collect::<Vec<_>>(), [&br#""a\""#[..], br#"W/"b,c""#]);
        assert_ne!(members(list).next(), tags(list).next());
    }

    #[test]
    fn a_directive_is_found_by_its_name() {
        for (list, expected) in [
            (&b"no-transform"[..], true),
            (b"max-age=1, No-Transform", true),
            (b"no-transform=\"x\"", true),
            (b"private=\"no-transform\"", false),
            (b"private=\"a, no-transform\"", false),
            (b"no-transformation", false),
        ] {
            assert_eq!(has_member(list, b"no-transform"), expected, "{:?}", list.escape_ascii());
        }
    }

    #[test]
    fn pairs_lose_their_quotes() {
        assert_eq!(pair(b"q = 0.5"), (&b"q"[..], Some(&b"0.5"[..])));
        assert_eq!(pair(b"q=\"1\""), (&b"q"[..], Some(&b"1"[..])));
        assert_eq!(pair(b"q=\""), (&b"q"[..], Some(&b"\""[..])));
        assert_eq!(pair(b"q"), (&b"q"[..], None));
    }
}
