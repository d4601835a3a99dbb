//! Registry client: manifests and blobs by name and digest, with retries, resumption and
//! authentication.
//!
//! Source: OCI distribution specification 1.1.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_RANGE, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue,
    LOCATION, RANGE, RETRY_AFTER,
};
use hyper::{Method, StatusCode};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use module_store::layout::{Descriptor, INDEX_TYPE, MANIFEST_TYPE};
use module_store::{DOCUMENT_LENGTH_MAX, Digest};

use crate::address::{Registry, TagOrDigest};
use crate::auth::{Challenge, Credentials, Token, bearer, token_query};
use crate::error::{RepositoryError, TOO_MANY_REDIRECTS};
use crate::http::{Answer, Call, Connections, Http, Reach, Scheme, Target, Transport};
use crate::image::{DOCKER_INDEX_TYPE, DOCKER_MANIFEST_TYPE, ManifestBytes};
use crate::limits::{
    ATTEMPTS_MAX, BACKOFF_FIRST, BACKOFF_MAX, ERROR_LENGTH_MAX, NOT_FOUND_TIME_MAX, REDIRECTS_MAX,
    TIME_MAX, TOKEN_ANSWER_LENGTH_MAX,
};
use crate::location;
use crate::peer::Peer;

const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Use of TLS.
    pub encryption: Encryption,
    /// Credentials, used when the registry requires them.
    pub credentials: Option<Credentials>,
    /// Bearer token that is sent with each request to the registry.
    pub token: Option<Token>,
    /// Additional headers of each request to the registry.
    pub headers: HeaderMap,
    /// Time limit of all requests together.
    pub time_max: Duration,
    /// Largest number of attempts of one request, the first included.
    pub attempts_max: u32,
    /// Pool of open connections, shared by clones.
    pub connections: Connections,
}

/// Use of TLS for a registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    /// TLS, except on this machine, where certificates are uncommon.
    #[default]
    Usual,
    /// TLS, on this machine as well.
    Always,
    /// No TLS, to any machine.
    Never,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            encryption: Encryption::Usual,
            credentials: None,
            token: None,
            headers: HeaderMap::new(),
            time_max: TIME_MAX,
            attempts_max: ATTEMPTS_MAX,
            connections: Connections::default(),
        }
    }
}

/// Callback for progress: description, and bytes received so far.
pub type Progress<'a> = &'a (dyn Fn(&str, u64) + Send + Sync);

/// Client of one registry.
pub struct Client {
    http: Http,
    registry: Target,
    settings: Settings,
    state: Mutex<State>,
}

/// State learnt about a registry from its responses.
struct State {
    authorization: Option<HeaderValue>,
    /// Network distance of the registry, after its first response.
    peer: Option<Peer>,
}

/// Origin of a target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NamedBy {
    /// The operator: it is the registry.
    Operator,
    /// The registry: a redirect, an upload location, or a token server.
    Registry,
}

/// Object to fetch.
struct Wanted<'a> {
    path: String,
    accept: String,
    is_blob: bool,
    what: String,
    /// Largest length in bytes.
    limit: u64,
    /// Exact length in bytes, where it is known.
    declared: Option<u64>,
    scope: String,
    progress: Option<Progress<'a>>,
}

impl Client {
    /// Makes a client; its time limit starts now. With [`Encryption::Usual`] a registry on this
    /// machine is used without TLS, as by docker and cosign, since it rarely has a certificate.
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>, registry: &Registry, settings: Settings) -> Self {
        let plain = match settings.encryption {
            Encryption::Usual => registry.is_loopback(),
            Encryption::Always => false,
            Encryption::Never => true,
        };
        let scheme = if plain { Scheme::Http } else { Scheme::Https };
        let port = registry.port.unwrap_or(if plain { 80 } else { 443 });
        let target = Target { scheme, host: registry.host.clone(), port };
        let http = Http::new(transport, settings.connections.clone(), settings.time_max);
        let authorization = settings.token.as_ref().map(Token::header);
        let state = Mutex::new(State { authorization, peer: None });
        Self { http, registry: target, settings, state }
    }

    /// Returns the registry's address, for messages.
    #[must_use]
    pub fn target(&self) -> String {
        self.registry.to_string()
    }

    /// Fetches a manifest: the one of a digest, or the one that a tag points at now.
    ///
    /// # Errors
    /// The manifest cannot be fetched, or has another digest.
    pub async fn manifest(
        &self,
        name: &str,
        tag_or_digest: &TagOrDigest,
    ) -> Result<ManifestBytes, RepositoryError> {
        let what = format!("the manifest {name}:{tag_or_digest}");
        let wanted = Wanted {
            path: format!("/v2/{name}/manifests/{tag_or_digest}"),
            accept: format!(
                "{MANIFEST_TYPE}, {INDEX_TYPE}, {DOCKER_MANIFEST_TYPE}, {DOCKER_INDEX_TYPE}"
            ),
            is_blob: false,
            what: what.clone(),
            limit: DOCUMENT_LENGTH_MAX,
            declared: None,
            scope: format!("repository:{name}:pull"),
            progress: None,
        };
        let (bytes, headers) = self.fetch(&wanted).await?;
        let found = Digest::of(&bytes);
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let said = text(CONTENT_DIGEST).and_then(|text| text.parse().ok());
        let pinned =
            if let TagOrDigest::Digest(digest) = tag_or_digest { Some(*digest) } else { said };
        if let Some(wanted) = pinned.filter(|wanted| *wanted != found) {
            return Err(RepositoryError::OtherBytes { target: self.target(), what, found, wanted });
        }
        let media_type = text(CONTENT_TYPE).and_then(|text| text.split(';').next());
        let media_type = media_type.map(|text| text.trim().to_owned());
        Ok(ManifestBytes { digest: found, media_type, bytes })
    }

    /// Fetches a blob of the length and digest in its descriptor.
    ///
    /// # Errors
    /// The blob cannot be fetched, is longer than `limit`, or has another digest.
    pub async fn blob(
        &self,
        name: &str,
        blob: &Descriptor,
        limit: u64,
        progress: Option<Progress<'_>>,
    ) -> Result<Vec<u8>, RepositoryError> {
        if blob.size > limit {
            return Err(RepositoryError::TooLarge { what: blob_name(&blob.digest), limit });
        }
        self.blob_of(name, &blob.digest, Some(blob.size), limit, progress).await
    }

    /// Fetches a blob whose length is not known.
    ///
    /// # Errors
    /// Errors of [`Client::blob`].
    pub async fn blob_of(
        &self,
        name: &str,
        digest: &Digest,
        declared: Option<u64>,
        limit: u64,
        progress: Option<Progress<'_>>,
    ) -> Result<Vec<u8>, RepositoryError> {
        let what = blob_name(digest);
        let wanted = Wanted {
            path: format!("/v2/{name}/blobs/{digest}"),
            accept: "*/*".to_owned(),
            is_blob: true,
            what: what.clone(),
            limit,
            declared,
            scope: format!("repository:{name}:pull"),
            progress,
        };
        let (bytes, _) = self.fetch(&wanted).await?;
        let found = Digest::of(&bytes);
        if found == *digest {
            return Ok(bytes);
        }
        Err(RepositoryError::OtherBytes { target: self.target(), what, found, wanted: *digest })
    }

    /// Fetches an object; resumes and retries after an interruption.
    async fn fetch(&self, wanted: &Wanted<'_>) -> Result<(Vec<u8>, HeaderMap), RepositoryError> {
        let mut bytes = Vec::new();
        let mut attempt = 1;
        loop {
            let mut wait = backoff(attempt);
            match self.fetch_rest(wanted, &mut bytes, &mut wait).await {
                Ok(headers) => return Ok((bytes, headers)),
                Err(error) if !error.is_transient() || attempt >= self.settings.attempts_max => {
                    return Err(error);
                }
                Err(_) => {}
            }
            self.http.in_time(tokio::time::sleep(wait)).await?;
            attempt += 1;
        }
    }

    /// Requests the bytes after those received, if the registry supports ranges.
    async fn fetch_rest(
        &self,
        wanted: &Wanted<'_>,
        bytes: &mut Vec<u8>,
        wait: &mut Duration,
    ) -> Result<HeaderMap, RepositoryError> {
        let mut headers = HeaderMap::new();
        let accept = HeaderValue::from_str(&wanted.accept).expect("media types are a header");
        headers.insert(ACCEPT, accept);
        if !wanted.is_blob {
            // The tag may point at another manifest by now.
            bytes.clear();
        }
        if !bytes.is_empty() {
            let range = format!("bytes={}-", bytes.len());
            let range = HeaderValue::from_str(&range).expect("digits are a header");
            headers.insert(RANGE, range);
        }
        let call = Call {
            method: Method::GET,
            path: wanted.path.clone(),
            headers,
            body: Bytes::new(),
            what: wanted.what.clone(),
        };
        let answer = self.exchange(call, &wanted.scope).await?;
        let from = match answer.status {
            StatusCode::OK => 0,
            StatusCode::PARTIAL_CONTENT if !bytes.is_empty() => begin_of_range(&answer)
                .ok_or_else(|| RepositoryError::Malformed {
                    target: self.target(),
                    what: wanted.what.clone(),
                    why: "it does not say which part of it came".into(),
                })?,
            StatusCode::RANGE_NOT_SATISFIABLE => {
                bytes.clear();
                return Err(self.broken(wanted, "it has less than it sent before"));
            }
            _ => return Err(self.refused(answer, &wanted.what, Some(wait)).await),
        };
        if from != bytes.len() as u64 {
            bytes.clear();
            if from != 0 {
                return Err(self.broken(wanted, "another part of it came than the one asked for"));
            }
        }
        let headers = answer.headers.clone();
        let limit = wanted.declared.unwrap_or(wanted.limit);
        let report = |length| {
            if let Some(progress) = wanted.progress {
                progress(&wanted.what, length);
            }
        };
        let read = self.http.read(answer, limit, bytes, report).await;
        match (read, wanted.declared) {
            (Err(RepositoryError::TooLarge { what, .. }), Some(declared)) => {
                Err(RepositoryError::Longer { what, declared })
            }
            (Ok(()), Some(declared)) if declared > bytes.len() as u64 => {
                Err(self.broken(wanted, "it ended too soon"))
            }
            (read, _) => read.map(|()| headers),
        }
    }

    fn broken(&self, wanted: &Wanted<'_>, why: &str) -> RepositoryError {
        let (target, what) = (self.target(), wanted.what.clone());
        RepositoryError::Broken { target, what, why: why.to_owned() }
    }

    /// Sends a request to the registry, follows redirects, and authenticates where required.
    pub(crate) async fn exchange(
        &self,
        call: Call,
        scope: &str,
    ) -> Result<Answer, RepositoryError> {
        self.exchange_at(&self.registry, NamedBy::Operator, call, scope).await
    }

    /// Sends a request to the location in a response of the registry to a request for `base`.
    /// `more` is appended to the query.
    pub(crate) async fn exchange_at_location(
        &self,
        (base, location): (&str, &str),
        more: &str,
        mut call: Call,
        scope: &str,
    ) -> Result<Answer, RepositoryError> {
        let (target, path) = self.resolve_location(&self.registry, base, location)?;
        let join = if path.contains('?') { '&' } else { '?' };
        call.path = format!("{path}{join}{more}");
        self.exchange_at(&target, NamedBy::Registry, call, scope).await
    }

    async fn exchange_at(
        &self,
        target: &Target,
        named_by: NamedBy,
        call: Call,
        scope: &str,
    ) -> Result<Answer, RepositoryError> {
        let mut has_asked = false;
        loop {
            let answer = self.follow(target.clone(), named_by, call.clone()).await?;
            let is_asked = answer.status == StatusCode::UNAUTHORIZED && !has_asked;
            // Credentials are not sent to hosts other than the registry.
            if !is_asked || *answer.target() != self.registry {
                return Ok(answer);
            }
            has_asked = true;
            let Some(challenge) = Challenge::of(&answer.headers) else { return Ok(answer) };
            let authorization = self.authorization(&challenge, scope, &call).await?;
            self.state().authorization = Some(authorization);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and follows redirects.
    async fn follow(
        &self,
        mut target: Target,
        mut named_by: NamedBy,
        mut call: Call,
    ) -> Result<Answer, RepositoryError> {
        for _ in 0..=REDIRECTS_MAX {
            let is_registry = target == self.registry;
            let mut sent = call.clone();
            if is_registry {
                sent.headers.extend(self.settings.headers.clone());
            }
            let authorization = self.state().authorization.clone();
            if let Some(authorization) = authorization.filter(|_| is_registry) {
                sent.headers.insert(AUTHORIZATION, authorization);
            }
            let answer = self.send(&target, named_by, &sent).await?;
            let is_read = matches!(call.method, Method::GET | Method::HEAD);
            if !answer.status.is_redirection() || !is_read {
                return Ok(answer);
            }
            let Some(location) = answer.header(LOCATION).map(str::to_owned) else {
                return Ok(answer);
            };
            (target, call.path) = self.resolve_location(&target, &call.path, &location)?;
            named_by = NamedBy::Registry;
        }
        Err(self.redirected(&call.path, TOO_MANY_REDIRECTS))
    }

    /// Sends one request, within the reach of its target.
    async fn send(
        &self,
        target: &Target,
        named_by: NamedBy,
        call: &Call,
    ) -> Result<Answer, RepositoryError> {
        let answer = self.http.send(target, self.reach(target, named_by), call).await;
        let answer = answer.map_err(|error| match error {
            RepositoryError::Forbidden { target, why } => {
                self.redirected(&format!("{target}{}", call.path), &why)
            }
            other => other,
        })?;
        if *target == self.registry {
            self.state().peer.get_or_insert(answer.peer());
        }
        Ok(answer)
    }

    /// Returns the addresses that a target may have. A target named by the operator is not
    /// restricted. Redirects by a registry on this machine are not restricted either; one on a
    /// directly connected network may redirect to itself and to remote machines; any other one,
    /// whose name may resolve differently next time, only to remote machines.
    fn reach(&self, target: &Target, named_by: NamedBy) -> Reach {
        let peer = self.state().peer;
        let is_near = match peer {
            Some(Peer::Machine) => true,
            Some(Peer::Link) => *target == self.registry,
            Some(Peer::Beyond) | None => false,
        };
        if named_by == NamedBy::Operator || is_near {
            Reach::Anywhere
        } else {
            Reach::OtherMachines
        }
    }

    fn redirected(&self, to: &str, why: &str) -> RepositoryError {
        let to = to.chars().take(120).flat_map(char::escape_debug).collect();
        RepositoryError::Redirected { target: self.target(), to, why: why.to_owned() }
    }

    /// Resolves a location in a response against the request.
    fn resolve_location(
        &self,
        from: &Target,
        path: &str,
        location: &str,
    ) -> Result<(Target, String), RepositoryError> {
        location::resolve(from, path, location).map_err(|why| self.redirected(location, why))
    }

    /// Obtains the header `Authorization` for a challenge.
    async fn authorization(
        &self,
        challenge: &Challenge,
        scope: &str,
        asked: &Call,
    ) -> Result<HeaderValue, RepositoryError> {
        let denied = |why: &str| RepositoryError::Denied {
            target: self.target(),
            what: asked.what.clone(),
            why: why.to_owned(),
        };
        let basic = self.settings.credentials.as_ref().and_then(Credentials::basic);
        let Challenge::Bearer { realm, service, scope: wanted } = challenge else {
            let is_known = self.settings.token.is_some();
            let why = if is_known { "it does not know this token" } else { NO_PASSWORD };
            return basic.ok_or_else(|| denied(why));
        };
        let (target, path) = self.resolve_location(&self.registry, &asked.path, realm)?;
        let query = token_query(service.as_deref(), wanted.as_deref().unwrap_or(scope));
        let join = if path.contains('?') { '&' } else { '?' };
        let mut headers = HeaderMap::new();
        let is_known = basic.is_some();
        if let Some(basic) = basic {
            headers.insert(AUTHORIZATION, basic);
        }
        let call = Call {
            method: Method::GET,
            path: format!("{path}{join}{query}"),
            headers,
            body: Bytes::new(),
            what: "a token".to_owned(),
        };
        let answer = self.send(&target, NamedBy::Registry, &call).await?;
        match answer.status {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if is_known => {
                return Err(denied("it does not know this user and password"));
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(denied(NO_PASSWORD)),
            _ => return Err(self.refused(answer, "a token", None).await),
        }
        let mut bytes = Vec::new();
        self.http.read(answer, TOKEN_ANSWER_LENGTH_MAX, &mut bytes, |_| {}).await?;
        bearer(&bytes).map_err(|why| RepositoryError::Malformed {
            target: target.to_string(),
            what: "a token".to_owned(),
            why,
        })
    }

    /// Returns the error for a response that is not the requested object.
    pub(crate) async fn refused(
        &self,
        answer: Answer,
        what: &str,
        wait: Option<&mut Duration>,
    ) -> RepositoryError {
        let (target, what, status) = (self.target(), what.to_owned(), answer.status);
        if let (Some(later), Some(wait)) = (retry_after(&answer), wait) {
            *wait = later.clamp(*wait, BACKOFF_MAX);
        }
        match status {
            StatusCode::NOT_FOUND => {
                // Reading the body makes the connection reusable.
                let mut bytes = Vec::new();
                let read = self.http.read(answer, ERROR_LENGTH_MAX, &mut bytes, |_| {});
                let _ = tokio::time::timeout(NOT_FOUND_TIME_MAX, read).await;
                RepositoryError::NotFound { target, what }
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let is_known = self.settings.credentials.is_some() || self.settings.token.is_some();
                let why = if is_known { "this user may not" } else { NO_PASSWORD };
                RepositoryError::Denied { target, what, why: why.to_owned() }
            }
            _ => {
                let mut bytes = Vec::new();
                // The body is only for human readers; without it the status suffices.
                let _ = self.http.read(answer, ERROR_LENGTH_MAX, &mut bytes, |_| {}).await;
                let message = message(&bytes);
                RepositoryError::Status { target, what, status: status.as_u16(), message }
            }
        }
    }

    pub(crate) const fn http(&self) -> &Http {
        &self.http
    }
}

const NO_PASSWORD: &str = "it asks who we are, and there is no password for it; `docker login` and `skopeo login` keep one where it is looked for";

fn blob_name(digest: &Digest) -> String {
    format!("the blob {digest}")
}

/// Returns the delay that a registry asks for: seconds, or a date, which is compared with the
/// registry's clock if it states the time, else with the local one (RFC 9110, 10.2.3).
fn retry_after(answer: &Answer) -> Option<Duration> {
    let text = answer.header(RETRY_AFTER)?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = |text: &str| rfc2822::parse(text).ok().map(|date| date.timestamp());
    let then = date(text)?;
    let now = answer.header(DATE).and_then(date).unwrap_or_else(Timestamp::now);
    Some(Duration::try_from(then.duration_since(now)).unwrap_or_default())
}

/// Returns the first byte of a `Content-Range` such as `bytes 1000-1999/2000`.
fn begin_of_range(answer: &Answer) -> Option<u64> {
    let text = answer.header(CONTENT_RANGE)?.strip_prefix("bytes ")?;
    text.split_once('-')?.0.parse().ok()
}

pub(crate) fn backoff(attempt: u32) -> Duration {
    BACKOFF_FIRST.saturating_mul(1 << (attempt - 1).min(16)).min(BACKOFF_MAX)
}

/// Returns the error message of a registry: the first one in its JSON, or else the first line.
fn message(bytes: &[u8]) -> String {
    let document: Option<serde_json::Value> = serde_json::from_slice(bytes).ok();
    let said = document.as_ref().and_then(|document| {
        let first = document.get("errors")?.get(0)?;
        first.get("message").or_else(|| first.get("code"))?.as_str()
    });
    let text = String::from_utf8_lossy(bytes);
    let text = said.unwrap_or_else(|| text.lines().next().unwrap_or_default());
    let text: String = text.chars().take(200).flat_map(char::escape_debug).collect();
    if text.is_empty() { text } else { format!(": {text}") }
}
