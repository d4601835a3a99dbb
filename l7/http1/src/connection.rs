//! Connection management fields: persistence, fields for the next hop only, `100-continue`, and
//! switching protocols.

use crate::error::Reason;
use crate::grammar::{elements, is_token};
use crate::headers::{EditError, Headers};
use crate::version::Version;

/// Fields that are for the next hop even if Connection does not name them: RFC 9110, section 7.6.1.
pub const HOP_BY_HOP: [&[u8]; 6] =
    [b"Connection", b"Keep-Alive", b"Proxy-Connection", b"TE", b"Transfer-Encoding", b"Upgrade"];

/// Fields that Connection must not name: the next hop would remove them, and then frame the message
/// differently or send it elsewhere.
const KEPT: [&[u8]; 3] = [b"Content-Length", b"Transfer-Encoding", b"Host"];

/// Returns the options of all Connection fields, in order. Elements that are no tokens are left
/// out.
pub fn options(headers: &Headers) -> impl Iterator<Item = &[u8]> {
    headers.get_all(b"Connection").flat_map(elements).filter(|option| is_token(option))
}

/// Returns true if Connection has this option. Case is ignored.
#[must_use]
pub fn has_option(headers: &Headers, option: &[u8]) -> bool {
    options(headers).any(|has| has.eq_ignore_ascii_case(option))
}

/// Returns true if a field is for the next hop only: always so, or named by Connection.
#[must_use]
pub fn is_hop_by_hop(headers: &Headers, name: &[u8]) -> bool {
    HOP_BY_HOP.iter().any(|hop| hop.eq_ignore_ascii_case(name)) || has_option(headers, name)
}

/// Returns true if the connection persists after a message: RFC 9112, section 9.3.
#[must_use]
pub fn is_persistent(version: Version, headers: &Headers) -> bool {
    if has_option(headers, b"close") {
        return false;
    }
    match version {
        Version::Http11 => true,
        Version::Http10 => has_option(headers, b"keep-alive"),
    }
}

/// Marks the message as the last of its connection: adds `close` and removes `keep-alive`. All
/// other options stay.
///
/// # Errors
/// The fields would exceed their limits.
pub fn set_close(headers: &mut Headers) -> Result<(), EditError> {
    if has_option(headers, b"close") && !has_option(headers, b"keep-alive") {
        return Ok(());
    }
    let mut value = b"close".to_vec();
    for option in options(headers) {
        if !option.eq_ignore_ascii_case(b"close") && !option.eq_ignore_ascii_case(b"keep-alive") {
            value.extend_from_slice(b", ");
            value.extend_from_slice(option);
        }
    }
    headers.replace(b"Connection", &value)?;
    headers.remove(b"Keep-Alive");
    Ok(())
}

/// Removes the `close` option, so that an HTTP/1.1 connection persists after the message. All other
/// options stay.
///
/// # Errors
/// None in practice: the fields do not grow.
pub fn unset_close(headers: &mut Headers) -> Result<(), EditError> {
    unset_option(headers, b"close")
}

/// Removes an option from Connection. All others stay.
fn unset_option(headers: &mut Headers, option: &[u8]) -> Result<(), EditError> {
    if !has_option(headers, option) {
        return Ok(());
    }
    let others = options(headers).filter(|other| !other.eq_ignore_ascii_case(option));
    let value = others.collect::<Vec<_>>().join(&b", "[..]);
    if value.is_empty() {
        headers.remove(b"Connection");
        return Ok(());
    }
    headers.replace(b"Connection", &value)
}

/// Returns true if the message belongs to an authentication of the whole connection (NTLM,
/// Negotiate: RFC 4559). The connection must then not be shared with another client.
#[must_use]
pub fn authenticates_connection(headers: &Headers) -> bool {
    const SCHEMES: [&[u8]; 2] = [b"NTLM", b"Negotiate"];
    const FIELDS: [&[u8]; 4] =
        [b"Authorization", b"Proxy-Authorization", b"WWW-Authenticate", b"Proxy-Authenticate"];
    let of_connection = |element: &[u8]| {
        let scheme = element.split(|&byte| byte == b' ').next().unwrap_or_default();
        SCHEMES.iter().any(|own| own.eq_ignore_ascii_case(scheme))
    };
    FIELDS.iter().any(|field| headers.get_all(field).flat_map(elements).any(of_connection))
}

/// Returns true if the client waits for 100 before it sends the body: RFC 9110, section 10.1.1.
/// Always false for HTTP/1.0.
#[must_use]
pub fn expects_continue(version: Version, headers: &Headers) -> bool {
    version == Version::Http11
        && headers
            .get_all(b"Expect")
            .flat_map(elements)
            .any(|has| has.eq_ignore_ascii_case(b"100-continue"))
}

/// Returns the protocols of Upgrade that a node forwards, if Connection has the option `upgrade`:
/// RFC 9110, section 7.8. None in HTTP/1.0. Other versions of HTTP are left out: after a switch to
/// HTTP/2 a client would send requests that no filter sees, and RFC 9113, section 3.1, has
/// deprecated that switch.
pub fn upgrades(version: Version, headers: &Headers) -> impl Iterator<Item = &[u8]> {
    let is_meant = version == Version::Http11 && has_option(headers, b"upgrade");
    headers
        .get_all(b"Upgrade")
        .flat_map(elements)
        .filter(move |protocol| is_meant && passes(protocol))
}

/// Returns true if Upgrade names a protocol that no node forwards.
pub(crate) fn upgrades_otherwise(headers: &Headers) -> bool {
    headers.get_all(b"Upgrade").flat_map(elements).any(|it| !it.is_empty() && !passes(it))
}

/// Returns true if an element of Upgrade is a protocol (RFC 9110, section 7.8: a token, optionally
/// with a version) and not a version of HTTP, drafts included.
fn passes(element: &[u8]) -> bool {
    let mut parts = element.splitn(2, |&byte| byte == b'/');
    let name = parts.next().unwrap_or_default();
    is_token(name) && parts.next().is_none_or(is_token) && !is_http(name)
}

/// Returns true if the name of a protocol is HTTP's (IANA, HTTP Upgrade Token Registry), optionally
/// followed by the number of a draft.
fn is_http(name: &[u8]) -> bool {
    let family = name.split(|&byte| byte == b'-').next().unwrap_or_default();
    [&b"h2c"[..], b"h2", b"h3", b"HTTP"].iter().any(|http| http.eq_ignore_ascii_case(family))
}

/// Returns true if a request offers to switch to another version of HTTP.
pub(crate) fn offers_http(headers: &Headers) -> bool {
    upgrades_otherwise(headers) || headers.get(HTTP2_SETTINGS).is_some()
}

/// Removes the offer to switch to another version of HTTP; other protocols stay.
pub(crate) fn withdraw_http(headers: &mut Headers) -> Result<(), EditError> {
    headers.remove(HTTP2_SETTINGS);
    unset_option(headers, HTTP2_SETTINGS)?;
    let all = headers.get_all(b"Upgrade").flat_map(elements);
    let others = all.filter(|protocol| passes(protocol));
    let value = others.collect::<Vec<_>>().join(&b", "[..]);
    if value.is_empty() {
        headers.remove(b"Upgrade");
        return unset_option(headers, b"upgrade");
    }
    headers.replace(b"Upgrade", &value)
}

/// Field of a request that offers HTTP/2: RFC 7540, section 3.2.1.
const HTTP2_SETTINGS: &[u8] = b"HTTP2-Settings";

/// Returns true if TE offers a coding other than chunked; `trailers` is none.
pub(crate) fn offers_codings(headers: &Headers) -> bool {
    let mut all = headers.get_all(b"TE").flat_map(elements);
    all.any(|coding| !coding.eq_ignore_ascii_case(b"trailers"))
}

/// Reduces TE to `trailers`, in its place: this node reads no transfer coding but chunked, so the
/// server must not be offered any (RFC 9110, section 10.1.4).
pub(crate) fn limit_codings(headers: &mut Headers) -> Result<(), EditError> {
    let mut all = headers.get_all(b"TE").flat_map(elements);
    if all.any(|coding| coding.eq_ignore_ascii_case(b"trailers")) {
        drop(all);
        return headers.replace(b"TE", b"trailers");
    }
    drop(all);
    headers.remove(b"TE");
    Ok(())
}

/// Checks that Connection names no field that has to stay; the error has the index of the field.
pub(crate) fn check_options(headers: &Headers) -> Result<(), (usize, Reason)> {
    for (index, (name, value)) in headers.iter().enumerate() {
        if name.eq_ignore_ascii_case(b"Connection")
            && elements(value).any(|has| KEPT.iter().any(|kept| kept.eq_ignore_ascii_case(has)))
        {
            return Err((index, Reason::ConnectionOption));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in pairs {
            headers.add(name.as_bytes(), value.as_bytes()).unwrap();
        }
        headers
    }

    #[test]
    fn persistence_follows_the_table_of_section_9_3() {
        type Pairs = &'static [(&'static str, &'static str)];
        let rows: [(Pairs, bool, bool); 6] = [
            (&[], false, true),
            (&[("connection", "close")], false, false),
            (&[("Connection", "Keep-Alive")], true, true),
            (&[("Connection", "keep-alive, close")], false, false),
            (&[("Connection", "x"), ("Connection", ", CLOSE")], false, false),
            (&[("Connection", "closed"), ("Connection", "close;a=b")], false, true),
        ];
        for (pairs, http10, http11) in rows {
            let headers = headers(pairs);
            assert_eq!(is_persistent(Version::Http10, &headers), http10, "{pairs:?}");
            assert_eq!(is_persistent(Version::Http11, &headers), http11, "{pairs:?}");
        }
    }

    #[test]
    fn closing_keeps_other_options() {
        let mut all =
            headers(&[("Connection", "keep-alive, Upgrade"), ("keep-alive", "timeout=5")]);
        set_close(&mut all).unwrap();
        assert_eq!(all, headers(&[("Connection", "close, Upgrade")]));
        set_close(&mut all).unwrap();
        assert_eq!(all, headers(&[("Connection", "close, Upgrade")]));
        let mut none = headers(&[]);
        set_close(&mut none).unwrap();
        assert_eq!(none, headers(&[("Connection", "close")]));
    }

    #[test]
    fn closing_is_taken_back_and_other_options_stay() {
        for (before, after) in [
            (&[("Connection", "close")][..], &[][..]),
            (&[("Connection", "Close, x"), ("a", "b")], &[("Connection", "x"), ("a", "b")]),
            (&[("connection", "x"), ("Connection", "close")], &[("connection", "x")]),
            (&[("Connection", "x, y")], &[("Connection", "x, y")]),
            (&[], &[]),
        ] {
            let mut all = headers(before);
            unset_close(&mut all).unwrap();
            assert_eq!(all, headers(after), "{before:?}");
            assert!(is_persistent(Version::Http11, &all));
        }
    }

    #[test]
    fn authentication_of_a_connection_is_recognised() {
        for (name, value, is_own) in [
            ("Authorization", "NTLM TlRMTVNTUAAB", true),
            ("authorization", "negotiate YIIJ", true),
            ("WWW-Authenticate", "Basic realm=\"a\", Negotiate", true),
            ("Proxy-Authenticate", "NTLM", true),
            ("Authorization", "Basic TlRMTQ==", false),
            ("Authorization", "Bearer NTLM", false),
            ("X-Authorization", "NTLM", false),
        ] {
            let all = headers(&[(name, value)]);
            assert_eq!(authenticates_connection(&all), is_own, "{name}: {value}");
        }
    }

    #[test]
    fn fields_for_the_next_hop_are_found() {
        let headers = headers(&[("Connection", "X-Mine"), ("X-Mine", "1"), ("Accept", "2")]);
        for (name, is_hop) in
            [("x-mine", true), ("transfer-encoding", true), ("accept", false), ("TE", true)]
        {
            assert_eq!(is_hop_by_hop(&headers, name.as_bytes()), is_hop, "{name}");
        }
    }

    #[test]
    fn upgrade_counts_only_with_its_option_and_in_http11() {
        let asked = headers(&[("Upgrade", "websocket, IRC/6.9"), ("Connection", "Upgrade")]);
        let all: Vec<_> = upgrades(Version::Http11, &asked).collect();
        assert_eq!(all, [&b"websocket"[..], b"IRC/6.9"]);
        assert_eq!(upgrades(Version::Http10, &asked).count(), 0);
        assert_eq!(upgrades(Version::Http11, &headers(&[("Upgrade", "h2c")])).count(), 0);
    }

    #[test]
    fn no_request_offers_another_version_of_http() {
        type Pairs = &'static [(&'static str, &'static str)];
        let rows: [(Pairs, Pairs); 5] = [
            (
                &[
                    ("Connection", "Upgrade, HTTP2-Settings"),
                    ("Upgrade", "H2C"),
                    ("HTTP2-Settings", "AAMAAABk"),
                    ("a", "b"),
                ],
                &[("a", "b")],
            ),
            (
                &[("Connection", "keep-alive, upgrade"), ("Upgrade", "HTTP/2.0, websocket")],
                &[("Connection", "keep-alive, upgrade"), ("Upgrade", "websocket")],
            ),
            // Without the Connection option, Upgrade is not valid, but a recipient may act on it.
            (&[("Upgrade", "h2c")], &[]),
            (&[("http2-settings", "")], &[]),
            (
                &[
                    ("Connection", "upgrade"),
                    ("Upgrade", "h2c-14, h2c;q=1, \"h2c\", h2c x, h3, a/b/c"),
                ],
                &[],
            ),
        ];
        for (pairs, left) in rows {
            let mut all = headers(pairs);
            assert!(offers_http(&all), "{pairs:?}");
            assert!(upgrades(Version::Http11, &all).all(|it| it == b"websocket"));
            withdraw_http(&mut all).unwrap();
            assert_eq!(all, headers(left), "{pairs:?}");
            assert!(!offers_http(&all));
        }
        assert!(!offers_http(&headers(&[("Connection", "upgrade"), ("Upgrade", "websocket")])));
    }

    #[test]
    fn codings_that_are_not_read_here_are_not_offered() {
        for (te, left) in [
            ("trailers", Some("trailers")),
            ("gzip", None),
            ("gzip;q=1, Trailers", Some("trailers")),
        ] {
            let mut all = headers(&[("TE", te), ("a", "b")]);
            assert_eq!(offers_codings(&all), te != "trailers");
            limit_codings(&mut all).unwrap();
            assert_eq!(all.get(b"te"), left.map(str::as_bytes), "{te}");
        }
    }

    #[test]
    fn a_client_of_http10_never_waits_for_100() {
        let headers = headers(&[("Expect", "100-Continue")]);
        assert!(expects_continue(Version::Http11, &headers));
        assert!(!expects_continue(Version::Http10, &headers));
    }
}
