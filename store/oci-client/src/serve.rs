//! What a store holds, to others: the pull half of the OCI distribution specification 1.1.
//!
//! ```text
//! GET /v2/                            the API is here
//! GET /v2/NAME/manifests/REFERENCE    an image manifest by tag (the module's version,
//!                                     module-HEX, sha256-HEX.sig) or digest
//! GET /v2/NAME/blobs/DIGEST           a module, a config, a payload; whole or a range
//! GET /v2/NAME/tags/list              the versions of a module
//! GET /v2/NAME/referrers/DIGEST       an empty index: signatures are found by their tag
//! ```
//!
//! A module that the store does not have may be had from elsewhere: [`Access::want`] is asked for
//! it first.
//!
//! Everything belongs to one module, and whether somebody may have that module is asked of
//! [`Access`] for each request. What is not there and what somebody may not have are one answer.
//! By digest everything is under every name. HEAD is GET without the body. Nothing can be put in.

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
use module_store::{Catalogue, DOCUMENT_LENGTH_MAX, Digest, Held, MODULE_LENGTH_MAX, Store};
use serde_json::json;

use crate::address::{is_name, is_tag};

/// Who may have which module.
pub trait Access: Send + Sync + 'static {
    /// Whether who sent this request may have the module of this digest.
    ///
    /// # Errors
    /// When not; the answer is the same as if there were none.
    fn may(&self, request: &Parts, module: &Digest) -> Result<(), NotYours>;

    /// Who sent this request asks for a module that the store does not have: has it come, if that
    /// can be, before it is looked for once more. May block.
    fn want(&self, _request: &Parts, _module: &Digest) {}
}

/// How many more nodes may be asked for what a request asks for, one behind the other: a number,
/// in a request of a node that asks for somebody else.
pub const HOPS: HeaderName = HeaderName::from_static("tamandua-hops");

/// No.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotYours;

impl<F> Access for F
where
    F: Fn(&Parts, &Digest) -> Result<(), NotYours> + Send + Sync + 'static,
{
    fn may(&self, request: &Parts, module: &Digest) -> Result<(), NotYours> {
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

/// The API over a store. `access` is asked for each request.
pub fn router<A: Access>(store: Store, access: A) -> Router {
    let serving = Arc::new(Serving { store, access });
    Router::new().fallback(answer::<A>).with_state(serving)
}

/// What a path asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked<'a> {
    Api,
    Manifest(&'a str, &'a str),
    Blob(&'a str),
    Tags(&'a str),
    /// What refers to a manifest.
    Referrers(&'a str),
}

impl Asked<'_> {
    /// The digest that may be a module's: of what is asked for first of a module.
    fn module(&self) -> Option<Digest> {
        match self {
            Self::Blob(digest) => digest.parse().ok(),
            Self::Manifest(_, tag) => module_of(tag),
            Self::Api | Self::Tags(_) | Self::Referrers(_) => None,
        }
    }
}

/// The module that a tag names by its digest.
fn module_of(tag: &str) -> Option<Digest> {
    format!("sha256:{}", tag.strip_prefix("module-")?).parse().ok()
}

/// Why there is no answer, in the words of the specification.
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
    // Files are read where a slow disk holds nobody up.
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
        let asked = asked(parts.uri.path()).ok_or(Refusal::Name)?;
        let mut catalogue = self.catalogue()?;
        if let Some(module) = asked.module().filter(|module| catalogue.blob(module).is_none()) {
            self.access.want(parts, &module);
            catalogue = self.catalogue()?;
        }
        match asked {
            Asked::Api => {
                Ok(([(API_VERSION, "registry/2.0")], axum::Json(json!({}))).into_response())
            }
            Asked::Manifest(name, reference) => self.manifest(parts, &catalogue, name, reference),
            Asked::Blob(digest) => {
                let digest = digest.parse().map_err(|_| Refusal::Blob)?;
                let held = self.allowed(parts, &catalogue, &digest).ok_or(Refusal::Blob)?;
                let limit = MODULE_LENGTH_MAX.max(DOCUMENT_LENGTH_MAX);
                self.give(parts, &digest, held.manifest_type.as_deref(), limit, Refusal::Blob)
            }
            Asked::Tags(name) => self.tags(parts, &catalogue, name),
            Asked::Referrers(digest) => referrers(parts, digest),
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
    ) -> Option<&'c Held> {
        let held = catalogue.blob(digest)?;
        self.access.may(parts, &held.module).is_ok().then_some(held)
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

/// What refers to a manifest (distribution specification, "Listing Referrers"): nothing, of
/// whatever digest, which is also the answer about what is not there. Who asks for one type only is
/// told that this was heard.
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

fn asked(path: &str) -> Option<Asked<'_>> {
    let rest = path.strip_prefix("/v2")?;
    if matches!(rest, "" | "/") {
        return Some(Asked::Api);
    }
    let (front, last) = rest.strip_prefix('/')?.rsplit_once('/')?;
    let (name, kind) = front.rsplit_once('/')?;
    match (kind, last) {
        _ if !is_name(name) => None,
        ("manifests", reference) => Some(Asked::Manifest(name, reference)),
        ("blobs", digest) => Some(Asked::Blob(digest)),
        ("tags", "list") => Some(Asked::Tags(name)),
        ("referrers", digest) => Some(Asked::Referrers(digest)),
        _ => None,
    }
}

/// The manifest that a tag means: a version of the module of that name, a module by its digest,
/// the signatures of an image.
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

/// Which part of so many bytes.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Whole,
    /// From the first, to before the second.
    From(usize, usize),
    Beyond,
}

/// RFC 9110, section 14.2, for one range; what is not understood is passed over.
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
