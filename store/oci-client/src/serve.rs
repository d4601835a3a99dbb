//! Pull API over a store: the pull half of the OCI distribution specification 1.1.
//!
//! ```text
//! GET /v2/                            version check of the API
//! GET /v2/NAME/manifests/REFERENCE    an image manifest by tag (the module's version,
//!                                     module-HEX, sha256-HEX.sig) or digest
//! GET /v2/NAME/blobs/DIGEST           a module, a config, a payload; whole or a range
//! GET /v2/NAME/tags/list              the versions of a module
//! GET /v2/NAME/referrers/DIGEST       an empty index: signatures are found by their tag
//! ```
//!
//! If the store does not have a module, [`Access::fetch_missing`] may fetch it from elsewhere first.
//!
//! Every object belongs to one module, and [`Access`] decides for each request whether the client
//! may have it. Responses for missing and for forbidden objects are identical. By digest an object
//! is available under every name. HEAD is GET without the body. Read-only.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::State;
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName, HeaderValue,
    RANGE,
};
use axum::http::request::Parts;
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use module_store::layout::INDEX_TYPE;
use module_store::{
    Catalogue, CatalogueEntry, DOCUMENT_LENGTH_MAX, Digest, MODULE_LENGTH_MAX, Store,
};
use serde_json::json;

use crate::address::{is_name, is_tag};

/// Access control of modules.
pub trait Access: Send + Sync + 'static {
    /// Checks whether the client of this request may have the module of this digest.
    ///
    /// # Errors
    /// Access is denied; the response is that of a missing object.
    fn check(&self, request: &Parts, module: &Digest) -> Result<(), AccessDenied>;

    /// Called for a module that the store does not have: may fetch it before the store is read once
    /// more. May block.
    fn fetch_missing(&self, _request: &Parts, _module: &Digest) {}
}

/// Header with the number of further nodes that may be asked for the requested module. Sent by
/// nodes that request on behalf of another client.
pub const HOPS: HeaderName = HeaderName::from_static("tamandua-hops");

/// Access is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessDenied;

impl<F> Access for F
where
    F: Fn(&Parts, &Digest) -> Result<(), AccessDenied> + Send + Sync + 'static,
{
    fn check(&self, request: &Parts, module: &Digest) -> Result<(), AccessDenied> {
        self(request, module)
    }
}

const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
const API_VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");
const FILTERS_APPLIED: HeaderName = HeaderName::from_static("oci-filters-applied");
const OCTETS: &str = "application/octet-stream";

struct Serving<A> {
    store: Store,
    access: A,
}

/// Makes the API over a store, with access control by `access`.
pub fn router<A: Access>(store: Store, access: A) -> Router {
    let serving = Arc::new(Serving { store, access });
    Router::new().fallback(answer::<A>).with_state(serving)
}

/// Object requested by a path.
#[derive(Debug, PartialEq, Eq)]
enum Requested<'a> {
    Api,
    Manifest(&'a str, &'a str),
    Blob(&'a str),
    Tags(&'a str),
    /// Manifests that refer to another one.
    Referrers(&'a str),
}

impl Requested<'_> {
    /// Returns the digest in the request that may be a module's.
    fn module(&self) -> Option<Digest> {
        match self {
            Self::Blob(digest) => digest.parse().ok(),
            Self::Manifest(_, tag) => module_of(tag),
            Self::Api | Self::Tags(_) | Self::Referrers(_) => None,
        }
    }
}

/// Returns the module that a tag of the form `module-HEX` names.
fn module_of(tag: &str) -> Option<Digest> {
    format!("sha256:{}", tag.strip_prefix("module-")?).parse().ok()
}

/// Reason of an error response, by the codes of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Manifest,
    Blob,
    Name,
    Method,
    Digest,
    Store,
}

async fn answer<A: Access>(
    State(serving): State<Arc<Serving<A>>>,
    request: Request<Body>,
) -> Response {
    let (parts, _) = request.into_parts();
    // File access on a blocking thread, which a slow disk may hold up.
    let read = tokio::task::spawn_blocking(move || {
        let is_head = parts.method == Method::HEAD;
        let response = match serving.handle(&parts) {
            Ok(response) => response,
            Err(refusal) => refusal.into_response(),
        };
        if is_head { without_body(response) } else { response }
    });
    read.await.unwrap_or_else(|_| Refusal::Store.into_response())
}

fn without_body(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact() {
        parts.headers.insert(CONTENT_LENGTH, length.into());
    }
    Response::from_parts(parts, Body::empty())
}

impl<A: Access> Serving<A> {
    fn handle(&self, parts: &Parts) -> Result<Response, Refusal> {
        if ![Method::GET, Method::HEAD].contains(&parts.method) {
            return Err(Refusal::Method);
        }
        let asked = parse_path(parts.uri.path()).ok_or(Refusal::Name)?;
        let mut catalogue = self.catalogue()?;
        if let Some(module) = asked.module().filter(|module| catalogue.blob(module).is_none()) {
            self.access.fetch_missing(parts, &module);
            catalogue = self.catalogue()?;
        }
        match asked {
            Requested::Api => {
                Ok(([(API_VERSION, "registry/2.0")], axum::Json(json!({}))).into_response())
            }
            Requested::Manifest(name, reference) => {
                self.manifest(parts, &catalogue, name, reference)
            }
            Requested::Blob(digest) => {
                let digest = digest.parse().map_err(|_| Refusal::Blob)?;
                let held = self.allowed(parts, &catalogue, &digest).ok_or(Refusal::Blob)?;
                let limit = MODULE_LENGTH_MAX.max(DOCUMENT_LENGTH_MAX);
                self.give(parts, &digest, held.manifest_type.as_deref(), limit, Refusal::Blob)
            }
            Requested::Tags(name) => self.tags(parts, &catalogue, name),
            Requested::Referrers(digest) => referrers(parts, digest),
        }
    }

    fn manifest(
        &self,
        parts: &Parts,
        catalogue: &Catalogue,
        name: &str,
        reference: &str,
    ) -> Result<Response, Refusal> {
        let digest = match reference.parse::<Digest>() {
            Ok(digest) => digest,
            Err(_) => named(catalogue, name, reference).ok_or(Refusal::Manifest)?,
        };
        let held = self.allowed(parts, catalogue, &digest).ok_or(Refusal::Manifest)?;
        let kind = held.manifest_type.as_deref().ok_or(Refusal::Manifest)?;
        self.give(parts, &digest, Some(kind), DOCUMENT_LENGTH_MAX, Refusal::Manifest)
    }

    fn allowed<'c>(
        &self,
        parts: &Parts,
        catalogue: &'c Catalogue,
        digest: &Digest,
    ) -> Option<&'c CatalogueEntry> {
        let held = catalogue.blob(digest)?;
        self.access.check(parts, &held.module).is_ok().then_some(held)
    }

    fn give(
        &self,
        parts: &Parts,
        digest: &Digest,
        kind: Option<&str>,
        limit: u64,
        absent: Refusal,
    ) -> Result<Response, Refusal> {
        let bytes = self.store.blob(digest, limit).map_err(|_| Refusal::Store)?.ok_or(absent)?;
        let range = parts.headers.get(RANGE).and_then(|value| value.to_str().ok());
        let length = bytes.len();
        let headers = [
            (CONTENT_TYPE, kind.unwrap_or(OCTETS).to_owned()),
            (CONTENT_DIGEST, digest.to_string()),
            (ETAG, format!("\"{digest}\"")),
            (ACCEPT_RANGES, "bytes".to_owned()),
        ];
        Ok(match range.map(|range| part(range, length)) {
            None | Some(Part::Whole) => {
                let length = [(CONTENT_LENGTH, length.to_string())];
                (headers, length, bytes).into_response()
            }
            Some(Part::From(from, to)) => {
                let beside = [
                    (CONTENT_RANGE, format!("bytes {from}-{}/{length}", to - 1)),
                    (CONTENT_LENGTH, (to - from).to_string()),
                ];
                let bytes = bytes[from..to].to_vec();
                (StatusCode::PARTIAL_CONTENT, headers, beside, bytes).into_response()
            }
            Some(Part::Beyond) => {
                let beside = [(CONTENT_RANGE, format!("bytes */{length}"))];
                (StatusCode::RANGE_NOT_SATISFIABLE, beside).into_response()
            }
        })
    }

    fn tags(&self, parts: &Parts, catalogue: &Catalogue, name: &str) -> Result<Response, Refusal> {
        let mine = |(reference, digest): (&str, &Digest)| {
            let (of, version) = reference.split_once(':')?;
            let is_mine = of == name && self.allowed(parts, catalogue, digest).is_some();
            is_mine.then(|| version.to_owned())
        };
        let tags: Vec<String> = catalogue.names().filter_map(mine).collect();
        if tags.is_empty() {
            return Err(Refusal::Name);
        }
        Ok(axum::Json(json!({ "name": name, "tags": tags })).into_response())
    }

    fn catalogue(&self) -> Result<Arc<Catalogue>, Refusal> {
        self.store.catalogue().map_err(|_| Refusal::Store)
    }
}

/// Answers a request for referrers (distribution specification, "Listing Referrers"): an empty
/// index for any digest, whether it exists or not. A filter by type is acknowledged.
fn referrers(parts: &Parts, digest: &str) -> Result<Response, Refusal> {
    digest.parse::<Digest>().map_err(|_| Refusal::Digest)?;
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [] });
    let mut response = ([(CONTENT_TYPE, INDEX_TYPE)], index.to_string()).into_response();
    let is_filter = |part: &str| part.split('=').next() == Some("artifactType");
    if parts.uri.query().is_some_and(|query| query.split('&').any(is_filter)) {
        let applied = HeaderValue::from_static("artifactType");
        response.headers_mut().insert(FILTERS_APPLIED, applied);
    }
    Ok(response)
}

fn parse_path(path: &str) -> Option<Requested<'_>> {
    let rest = path.strip_prefix("/v2")?;
    if matches!(rest, "" | "/") {
        return Some(Requested::Api);
    }
    let (front, last) = rest.strip_prefix('/')?.rsplit_once('/')?;
    let (name, kind) = front.rsplit_once('/')?;
    match (kind, last) {
        _ if !is_name(name) => None,
        ("manifests", reference) => Some(Requested::Manifest(name, reference)),
        ("blobs", digest) => Some(Requested::Blob(digest)),
        ("tags", "list") => Some(Requested::Tags(name)),
        ("referrers", digest) => Some(Requested::Referrers(digest)),
        _ => None,
    }
}

/// Returns the manifest of a tag: a version of the module with this name, a module by its digest,
/// or the signatures of an image.
fn named(catalogue: &Catalogue, name: &str, tag: &str) -> Option<Digest> {
    if !is_tag(tag) {
        return None;
    }
    if let Some(module) = module_of(tag) {
        return catalogue.image_of(&module).copied();
    }
    if tag.ends_with(".sig") {
        return catalogue.named(tag).copied();
    }
    catalogue.named(&format!("{name}:{tag}")).copied()
}

/// Requested part of an object.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Whole,
    /// Range from the first byte to before the second.
    From(usize, usize),
    Beyond,
}

/// Parses a single range (RFC 9110, section 14.2). Invalid ranges are ignored.
fn part(range: &str, length: usize) -> Part {
    let Some((from, to)) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-'))
    else {
        return Part::Whole;
    };
    let number = |text: &str| text.trim().parse::<usize>().ok();
    match (from.trim(), to.trim()) {
        ("", last) => match number(last) {
            None => Part::Whole,
            Some(0) => Part::Beyond,
            Some(_) if length == 0 => Part::Beyond,
            Some(last) => Part::From(length.saturating_sub(last), length),
        },
        (from, to) => {
            let to = if to.is_empty() { Some(usize::MAX) } else { number(to) };
            match (number(from), to) {
                (Some(from), Some(to)) if from > to => Part::Whole,
                (Some(from), Some(_)) if from >= length => Part::Beyond,
                (Some(from), Some(to)) => Part::From(from, to.saturating_add(1).min(length)),
                _ => Part::Whole,
            }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, code, message) = match self {
            Self::Manifest => {
                (StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", "there is none that you may have")
            }
            Self::Blob => {
                (StatusCode::NOT_FOUND, "BLOB_UNKNOWN", "there is none that you may have")
            }
            Self::Name => {
                (StatusCode::NOT_FOUND, "NAME_UNKNOWN", "there is nothing that you may have")
            }
            Self::Method => {
                (StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", "modules can only be read here")
            }
            Self::Digest => (
                StatusCode::BAD_REQUEST,
                "DIGEST_INVALID",
                "write 'sha256:' and 64 lower-case hexadecimal digits",
            ),
            Self::Store => {
                (StatusCode::INTERNAL_SERVER_ERROR, "UNKNOWN", "the module store cannot be read")
            }
        };
        let error = json!({ "errors": [{ "code": code, "message": message }] });
        (status, axum::Json(error)).into_response()
    }
}

#[cfg(test)]
mod tests;
