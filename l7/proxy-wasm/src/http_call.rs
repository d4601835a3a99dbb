//! Responses to HTTP calls that a module makes.

use crate::map::HeaderMap;

/// Response to an HTTP call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpResponse {
    /// Number of the call.
    pub call: u32,
    /// Headers, including `:status`; empty if the call failed.
    pub headers: HeaderMap,
    /// Body.
    pub body: Vec<u8>,
    /// Trailers.
    pub trailers: HeaderMap,
}
