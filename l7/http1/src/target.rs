//! Request targets and Host: the four forms of a target (RFC 9112, section 3.2), and the check that
//! target and Host name the same authority.

use crate::error::Reason;
use crate::grammar::is_target;

/// Target by its form; parts are as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'t> {
    /// `/path?query`.
    Origin,
    /// `scheme://authority/path`.
    Absolute {
        /// Scheme without `://`.
        scheme: &'t [u8],
        /// Host and port.
        authority: &'t [u8],
    },
    /// `host:port`, only for CONNECT.
    Authority(&'t [u8]),
    /// `*`, only for OPTIONS.
    Asterisk,
}

impl<'t> Target<'t> {
    /// Parses the target of a method.
    ///
    /// # Errors
    /// The target has a byte that is not allowed, or a form that the method may not have.
    pub fn parse(method: &[u8], target: &'t [u8]) -> Result<Self, Reason> {
        if !target.iter().all(|&byte| is_target(byte)) {
            return Err(Reason::TargetByte);
        }
        if method == b"CONNECT" {
            return match Authority::parse(target) {
                Some(Authority { host: [_, ..], port: Some([_, ..]) }) => {
                    Ok(Self::Authority(target))
                }
                _ => Err(Reason::TargetAuthority),
            };
        }
        match target {
            [b'/', ..] => Ok(Self::Origin),
            b"*" if method == b"OPTIONS" => Ok(Self::Asterisk),
            _ => absolute(target),
        }
    }

    /// Returns true if Host names the same authority: RFC 9112, section 3.2. The scheme's default
    /// port may be left out, and so may CONNECT's, as in the example of RFC 9110, section 9.3.6.
    #[must_use]
    pub fn agrees_with(self, host: &[u8]) -> bool {
        let (authority, own_port): (_, Option<&[u8]>) = match self {
            Self::Origin | Self::Asterisk => return true,
            Self::Absolute { scheme, authority } if scheme.eq_ignore_ascii_case(b"http") => {
                (authority, Some(b"80"))
            }
            Self::Absolute { scheme, authority } if scheme.eq_ignore_ascii_case(b"https") => {
                (authority, Some(b"443"))
            }
            Self::Absolute { authority, .. } => (authority, None),
            Self::Authority(authority) => {
                (authority, Authority::parse(authority).and_then(|all| all.port))
            }
        };
        let (Some(one), Some(other)) = (Authority::parse(authority), Authority::parse(host)) else {
            return false;
        };
        let port = |of: Authority<'t>| of.port.filter(|port| !port.is_empty());
        let other_port = other.port.filter(|port| !port.is_empty());
        one.host.eq_ignore_ascii_case(other.host)
            && port(one).or(own_port) == other_port.or(own_port)
    }
}

fn absolute(target: &[u8]) -> Result<Target<'_>, Reason> {
    let colon = target.iter().position(|&byte| byte == b':').ok_or(Reason::TargetForm)?;
    let (scheme, rest) = (&target[..colon], &target[colon + 1..]);
    let is_scheme = scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme.iter().all(|&b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    let (true, Some(rest)) = (is_scheme, rest.strip_prefix(b"//")) else {
        return Err(Reason::TargetForm);
    };
    let end = rest.iter().position(|&byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let authority = &rest[..end];
    if authority.contains(&b'@') {
        return Err(Reason::TargetUser);
    }
    match Authority::parse(authority) {
        Some(Authority { host: [_, ..], .. }) => Ok(Target::Absolute { scheme, authority }),
        _ => Err(Reason::TargetAuthority),
    }
}

/// Host and port of an authority or of Host; userinfo is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority<'a> {
    /// Name, address, address in brackets, or empty.
    pub host: &'a [u8],
    /// Digits; may be empty after the colon.
    pub port: Option<&'a [u8]>,
}

impl<'a> Authority<'a> {
    /// Parses an authority: RFC 3986, section 3.2, without userinfo and without the comma, which
    /// would stand for two Host fields that a recipient has joined.
    #[must_use]
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let (host, rest) = if text.first() == Some(&b'[') {
            let end = text.iter().position(|&byte| byte == b']')?;
            let inner = &text[1..end];
            let is_address = !inner.is_empty()
                && inner.contains(&b':')
                && inner.iter().all(|&b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'));
            if !is_address {
                return None;
            }
            text.split_at(end + 1)
        } else {
            let end = text.iter().position(|&byte| byte == b':').unwrap_or(text.len());
            let (host, rest) = text.split_at(end);
            if !is_name(host) {
                return None;
            }
            (host, rest)
        };
        let port = match rest {
            [] => None,
            [b':', port @ ..] if is_port(port) => Some(port),
            _ => return None,
        };
        Some(Self { host, port })
    }
}

/// Returns true if the text is a reg-name: RFC 3986, section 3.2.2.
fn is_name(mut name: &[u8]) -> bool {
    while let [first, rest @ ..] = name {
        name = match first {
            b'%' => match rest {
                [high, low, rest @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                    rest
                }
                _ => return false,
            },
            b'-' | b'.' | b'_' | b'~' => rest,
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'=' => rest,
            byte if byte.is_ascii_alphanumeric() => rest,
            _ => return false,
        };
    }
    true
}

fn is_port(port: &[u8]) -> bool {
    port.len() <= 5
        && port.iter().all(u8::is_ascii_digit)
        && port.iter().fold(0_u32, |sum, &digit| sum * 10 + u32::from(digit - b'0')) <= 65_535
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_has_its_forms() {
        let absolute = Target::Absolute { scheme: b"http", authority: b"a:8" };
        let rows: [(&str, &str, Result<Target, Reason>); 18] = [
            ("GET", "/", Ok(Target::Origin)),
            ("GET", "//a/b?c|d", Ok(Target::Origin)),
            ("GET", "http://a:8/b", Ok(absolute)),
            ("GET", "http://a:8?b", Ok(absolute)),
            ("GET", "http://a:8/\u{e9}", Ok(absolute)),
            ("GET", "http://\u{e9}/", Err(Reason::TargetAuthority)),
            ("OPTIONS", "*", Ok(Target::Asterisk)),
            ("GET", "*", Err(Reason::TargetForm)),
            ("GET", "a", Err(Reason::TargetForm)),
            ("GET", "a:80", Err(Reason::TargetForm)),
            ("GET", "urn:a", Err(Reason::TargetForm)),
            ("GET", "1a://b/", Err(Reason::TargetForm)),
            ("GET", "http:///b", Err(Reason::TargetAuthority)),
            ("GET", "http://user@a/", Err(Reason::TargetUser)),
            ("GET", "/a#b", Err(Reason::TargetByte)),
            ("CONNECT", "a:443", Ok(Target::Authority(b"a:443"))),
            ("CONNECT", "a", Err(Reason::TargetAuthority)),
            ("CONNECT", "/a", Err(Reason::TargetAuthority)),
        ];
        for (method, target, expected) in rows {
            let found = Target::parse(method.as_bytes(), target.as_bytes());
            assert_eq!(found, expected, "{method} {target}");
        }
    }

    #[test]
    fn hosts_are_compared_with_targets() {
        let rows = [
            ("GET", "http://a/", "A", true),
            ("GET", "http://a/", "a:80", true),
            ("GET", "http://a:80/", "a:", true),
            ("GET", "https://a:80/", "a", false),
            ("GET", "http://a/", "b", false),
            ("GET", "http://a/", "", false),
            ("GET", "ftp://a:1/", "a", false),
            ("GET", "http://[::1]:8/", "[::1]:8", true),
            ("CONNECT", "a:443", "a", true),
            ("CONNECT", "a:443", "a:80", false),
            ("GET", "/", "any", true),
        ];
        for (method, target, host, agrees) in rows {
            let found = Target::parse(method.as_bytes(), target.as_bytes()).unwrap();
            assert_eq!(found.agrees_with(host.as_bytes()), agrees, "{target} {host}");
        }
    }

    #[test]
    fn invalid_authorities_are_refused() {
        for text in ["a b", "a,b", "a/b", "a:b", "a:1:2", "a:65536", "a:000001", "u@a", "[]", "[a]"]
        {
            assert_eq!(Authority::parse(text.as_bytes()), None, "{text}");
        }
        for text in ["[::1]x", "[::1", "a%2", "a%zz", "a\\b", "[fe80::1%25eth0]", "\u{e9}"] {
            assert_eq!(Authority::parse(text.as_bytes()), None, "{text}");
        }
        for text in ["", "a", "a.b.", "1.2.3.4:80", "[::ffff:1.2.3.4]", "a%2Db", "a_b:"] {
            assert!(Authority::parse(text.as_bytes()).is_some(), "{text}");
        }
    }
}
