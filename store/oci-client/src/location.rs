//! Resolution of `Location` headers: absolute, or relative to the request that they answer (RFC
//! 9110, 10.2.2; RFC 3986, 5.2).

use hyper::http::uri::{Authority, PathAndQuery};

use crate::http::{Scheme, Target};

/// Components of a URI reference (RFC 3986, appendix B), without the fragment.
#[derive(Debug)]
struct Parts<'a> {
    scheme: Option<&'a str>,
    authority: Option<&'a str>,
    path: &'a str,
    query: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn of(reference: &'a str) -> Self {
        let rest = reference.split_once('#').map_or(reference, |(rest, _)| rest);
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let (scheme, rest) = match rest.split_once(':') {
            Some((scheme, rest)) if !scheme.is_empty() && !scheme.contains('/') => {
                (Some(scheme), rest)
            }
            _ => (None, rest),
        };
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => {
                let end = rest.find('/').unwrap_or(rest.len());
                (Some(&rest[..end]), &rest[end..])
            }
            None => (None, rest),
        };
        Self { scheme, authority, path, query }
    }
}

/// Resolves a reference against the request to `base` with this path and query; returns the target
/// with its path and query.
///
/// # Errors
/// The reference is invalid, or leads to a scheme or host that is not followed.
pub fn resolve(
    base: &Target,
    base_path: &str,
    reference: &str,
) -> Result<(Target, String), &'static str> {
    let parts = Parts::of(reference);
    let (target, path, query) = match (parts.scheme, parts.authority) {
        (None, None) => {
            let base_parts = Parts::of(base_path);
            let (path, query) = match (parts.path, parts.query) {
                ("", None) => (base_parts.path.to_owned(), base_parts.query),
                ("", query) => (base_parts.path.to_owned(), query),
                (path, query) if path.starts_with('/') => (path.to_owned(), query),
                (path, query) => (merged(base_parts.path, path), query),
            };
            (base.clone(), path, query)
        }
        (None, Some(authority)) => {
            (target(base.scheme, authority)?, parts.path.to_owned(), parts.query)
        }
        (Some(scheme), authority) => {
            let scheme = scheme_of(base.scheme, scheme)?;
            let authority = authority.ok_or("there is no host in it")?;
            (target(scheme, authority)?, parts.path.to_owned(), parts.query)
        }
    };
    let mut text = without_dots(&path);
    if let Some(query) = query {
        text = format!("{text}?{query}");
    }
    let known: PathAndQuery = text.parse().map_err(|_| "that is no address")?;
    Ok((target, known.as_str().to_owned()))
}

fn scheme_of(base: Scheme, scheme: &str) -> Result<Scheme, &'static str> {
    match scheme.to_ascii_lowercase().as_str() {
        "https" => Ok(Scheme::Https),
        "http" if base == Scheme::Http => Ok(Scheme::Http),
        "http" => Err("that way is not encrypted"),
        _ => Err("that is neither http nor https"),
    }
}

fn target(scheme: Scheme, authority: &str) -> Result<Target, &'static str> {
    if authority.contains('@') {
        return Err("there is a user's name in it");
    }
    let authority: Authority = authority.parse().map_err(|_| "its host is none")?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let host = host.to_ascii_lowercase();
    let usual = if scheme == Scheme::Https { 443 } else { 80 };
    let port = match authority.as_str().rsplit_once(':') {
        Some((_, port)) if !port.is_empty() && !port.ends_with(']') => {
            port.parse().ok().filter(|port| *port != 0).ok_or("its port is none")?
        }
        _ => usual,
    };
    if host.is_empty() { Err("there is no host in it") } else { Ok(Target { scheme, host, port }) }
}

/// Appends a relative path to a base path without its last segment (RFC 3986, 5.2.3).
fn merged(base: &str, path: &str) -> String {
    let end = base.rfind('/').map_or(0, |at| at + 1);
    format!("{}{path}", &base[..end])
}

/// Removes the segments `.` and `..` of a path (RFC 3986, 5.2.4). The result begins with a slash.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    for (at, segment) in segments.iter().enumerate() {
        let is_last = at + 1 == segments.len();
        match *segment {
            "." | ".." => {
                if *segment == ".." {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn base() -> Target {
        Target { scheme: Scheme::Http, host: "a".to_owned(), port: 80 }
    }

    fn resolved(reference: &str) -> String {
        let (target, path) = resolve(&base(), "/b/c/d;p?q", reference).unwrap();
        let scheme = if target.scheme == Scheme::Http { "http" } else { "https" };
        format!("{scheme}://{}{path}", target.authority())
    }

    #[test]
    fn the_examples_of_the_rfc_resolve_as_specified() {
        // Examples of RFC 3986, 5.4.1 and 5.4.2, without fragments, with the slash that a request
        // needs.
        for (reference, expected) in [
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g/"),
            ("?y", "http://a/b/c/d;p?y"),
            ("g?y", "http://a/b/c/g?y"),
            ("#s", "http://a/b/c/d;p?q"),
            ("g#s", "http://a/b/c/g"),
            ("g?y#s", "http://a/b/c/g?y"),
            (";x", "http://a/b/c/;x"),
            ("g;x", "http://a/b/c/g;x"),
            ("g;x?y#s", "http://a/b/c/g;x?y"),
            ("", "http://a/b/c/d;p?q"),
            (".", "http://a/b/c/"),
            ("./", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../", "http://a/b/"),
            ("../g", "http://a/b/g"),
            ("../..", "http://a/"),
            ("../../", "http://a/"),
            ("../../g", "http://a/g"),
            ("../../../g", "http://a/g"),
            ("../../../../g", "http://a/g"),
            ("/./g", "http://a/g"),
            ("/../g", "http://a/g"),
            ("g.", "http://a/b/c/g."),
            (".g", "http://a/b/c/.g"),
            ("g..", "http://a/b/c/g.."),
            ("..g", "http://a/b/c/..g"),
            ("./../g", "http://a/b/g"),
            ("./g/.", "http://a/b/c/g/"),
            ("g/./h", "http://a/b/c/g/h"),
            ("g/../h", "http://a/b/c/h"),
            ("g;x=1/./y", "http://a/b/c/g;x=1/y"),
            ("g;x=1/../y", "http://a/b/c/y"),
            ("g?y/./x", "http://a/b/c/g?y/./x"),
            ("g?y/../x", "http://a/b/c/g?y/../x"),
        ] {
            assert_eq!(resolved(reference), expected, "{reference:?}");
        }
    }

    #[test]
    fn hosts_and_ports_are_read_as_they_are_written() {
        for (reference, expected) in [
            ("http://b", "http://b/"),
            ("HTTP://B.test:8080/x?y", "http://b.test:8080/x?y"),
            ("https://b:/x", "https://b/x"),
            ("https://[2001:DB8::1]/x", "https://[2001:db8::1]/x"),
            ("https://[::1]:5000", "https://[::1]:5000/"),
            ("//b:81?z", "http://b:81/?z"),
        ] {
            assert_eq!(resolved(reference), expected, "{reference:?}");
        }
    }

    #[test]
    fn a_location_that_is_not_followed_is_named() {
        let secure = Target { scheme: Scheme::Https, host: "a".to_owned(), port: 443 };
        for (reference, why) in [
            ("http://b/x", "not encrypted"),
            ("file:///etc/passwd", "neither http nor https"),
            ("sha256:00", "neither http nor https"),
            ("https:x", "no host"),
            ("https:///x", "host"),
            ("https://u:p@b/x", "user's name"),
            ("//u@b/x", "user's name"),
            ("https://b:0/x", "port"),
            ("https://b:99999/x", "port"),
            ("https://[::1/x", "host"),
            ("x y", "no address"),
        ] {
            let said = resolve(&secure, "/v2/x", reference).unwrap_err();
            assert!(said.contains(why), "{reference:?}: {said}");
        }
    }

    proptest! {
        #[test]
        fn no_input_panics_and_no_dot_segments_remain(reference in "[./?#:@\\[\\]a-z0-9%é ]{0,40}") {
            if let Ok((_, path)) = resolve(&base(), "/b/c/d;p?q", &reference) {
                let path = path.split('?').next().unwrap();
                prop_assert!(path.starts_with('/'), "{}", path);
                prop_assert!(path.split('/').all(|it| it != "." && it != ".."), "{}", path);
            }
        }
    }
}
