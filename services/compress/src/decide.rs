//! Decision about a response, by the heads of request and response. Section numbers are those of
//! RFC 9110.

use crate::accept::Accept;
use crate::coding::Coding;
use crate::config::Config;
use crate::fields::{has_member, members, trimmed};
use crate::tags::{is_known_weakly, weakened};

/// Fields of a head: names in lower case, values as received.
pub type Fields = [(String, Vec<u8>)];

/// Relevant properties of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    accept: Accept,
    is_head: bool,
    /// CONNECT: a successful response has no body.
    is_connect: bool,
    has_range: bool,
    is_no_transform: bool,
    if_none_match: Vec<u8>,
}

impl Request {
    /// Reads a request's head.
    pub fn read(fields: &Fields) -> Self {
        let mut accept = Vec::new();
        let mut request = Self::default();
        for (name, value) in fields {
            let name = name.to_ascii_lowercase();
            match name.as_str() {
                ":method" => {
                    request.is_head = value == b"HEAD";
                    request.is_connect = value == b"CONNECT";
                }
                "accept-encoding" => join(&mut accept, value),
                "range" => request.has_range = true,
                "cache-control" => request.is_no_transform |= has_member(value, NO_TRANSFORM),
                "if-none-match" => join(&mut request.if_none_match, value),
                _ => {}
            }
        }
        request.accept = Accept::parse(&accept);
        request
    }

    /// Returns the entity tags in If-None-Match.
    pub fn if_none_match(&self) -> &[u8] {
        &self.if_none_match
    }
}

/// Relevant properties of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    status: u16,
    length: Option<u64>,
    content_type: Option<Vec<u8>>,
    is_coded: bool,
    is_ranged: bool,
    is_no_transform: bool,
    tag: Option<Vec<u8>>,
    varies: bool,
    /// Fields in [`UNTRUE_WHEN_CODED`] that it has.
    untrue: Vec<&'static str>,
}

impl Response {
    /// Returns its fields that are not valid for the coded body.
    pub fn untrue(&self) -> &[&'static str] {
        &self.untrue
    }

    /// Reads a response's head.
    pub fn read(fields: &Fields) -> Self {
        let mut response = Self::default();
        for (name, value) in fields {
            let name = name.to_ascii_lowercase();
            let value = trimmed(value);
            response.untrue.extend(UNTRUE_WHEN_CODED.iter().filter(|known| **known == name));
            match name.as_str() {
                ":status" => response.status = number(value).unwrap_or(0),
                "content-length" => response.length = number(value),
                "content-type" => response.content_type = Some(value.to_vec()),
                "content-encoding" => response.is_coded = true,
                "content-range" => response.is_ranged = true,
                "cache-control" => response.is_no_transform |= has_member(value, NO_TRANSFORM),
                "etag" => response.tag = Some(value.to_vec()),
                "vary" => {
                    response.varies |= members(value).any(|member| {
                        member == b"*" || member.eq_ignore_ascii_case(b"accept-encoding")
                    });
                }
                _ => {}
            }
        }
        response
    }
}

/// Directive that forbids transformations: RFC 9111, sections 5.2.1.6 and 5.2.2.6.
const NO_TRANSFORM: &[u8] = b"no-transform";

/// Decision about a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Coding; for a response to HEAD only the head declares it.
    pub coding: Option<Coding>,
    /// True if there is a body to code.
    pub has_body: bool,
    /// True if the decision depended on Accept-Encoding and Vary must be added (section 12.5.5).
    pub adds_vary: bool,
    /// New entity tag, if it changes.
    pub tag: Option<Vec<u8>>,
}

/// Fields that describe the original bytes, and are removed with a coding: the length; ranges
/// (14.3); digests (RFC 9530, RFC 3230, RFC 1864).
pub const UNTRUE_WHEN_CODED: [&str; 6] =
    ["content-length", "accept-ranges", "content-digest", "repr-digest", "digest", "content-md5"];

/// Makes the decision. `is_last`: no body follows.
pub fn decide(config: &Config, request: &Request, response: &Response, is_last: bool) -> Decision {
    if response.status == 304 {
        return not_modified(config, request, response);
    }
    let mut decision = Decision::default();
    if !can_be_coded(config, request, response) || (is_last && !request.is_head) {
        return decision;
    }
    decision.adds_vary = !response.varies;
    if request.has_range || request.is_no_transform {
        return decision;
    }
    decision.coding = request.accept.choose(&config.codings);
    if decision.coding.is_some() {
        decision.has_body = !request.is_head;
        decision.tag = response.tag.as_deref().and_then(weakened);
    }
    decision
}

/// Returns true if the response would be coded for a client that accepts a coding.
fn can_be_coded(config: &Config, request: &Request, response: &Response) -> bool {
    // 1xx is not final, 204 and 205 have no body (15.3.5, 15.3.6), 206 is a part of one (15.3.7);
    // the body of a redirect is not read.
    let has_body = matches!(response.status, 200..=203 | 400..=599);
    let is_large = response.length.is_none_or(|length| length >= config.minimum.max(1));
    has_body
        && !request.is_connect
        && !response.is_ranged
        && is_large
        && is_codable(config, response)
}

/// Returns true if the content would be coded, regardless of status and length.
fn is_codable(config: &Config, response: &Response) -> bool {
    let has_type = |content_type: &Vec<u8>| config.types.has(content_type);
    !response.is_coded
        && !response.is_no_transform
        && response.content_type.as_ref().is_some_and(has_type)
}

/// Decides about 304, which has the fields of the 200 response (15.4.5), often without the type.
fn not_modified(config: &Config, request: &Request, response: &Response) -> Decision {
    let of_other_type = response.content_type.is_some() && !is_codable(config, response);
    if of_other_type || response.is_coded || response.is_no_transform {
        return Decision::default();
    }
    let is_ours = |tag: &&[u8]| is_known_weakly(&request.if_none_match, tag);
    Decision {
        adds_vary: !response.varies,
        tag: response.tag.as_deref().filter(is_ours).and_then(weakened),
        ..Decision::default()
    }
}

/// Joins fields of one name into a list (5.3).
fn join(list: &mut Vec<u8>, value: &[u8]) {
    if !list.is_empty() {
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(value);
}

fn number<N: std::str::FromStr>(value: &[u8]) -> Option<N> {
    let is_digits = value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| is_digits)?.parse().ok()
}

#[cfg(test)]
mod tests;
