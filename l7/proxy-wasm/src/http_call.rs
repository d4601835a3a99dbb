//! HTTP calls that a module makes: what answers them.

use crate::map::HeaderMap;

/// The answer to an HTTP call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpResponse {
    /// The call's number.
    pub call: u32,
    /// Headers, `:status` among them; none when the call failed.
    pub headers: HeaderMap,
    /// The body.
    pub body: Vec<u8>,
    /// Trailers.
    pub trailers: HeaderMap,
}
