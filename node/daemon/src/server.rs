//! The API's connections: how many there are, and how long one may take to say what it wants.
//!
//! A client that is slow, sends endless bodies or opens many connections loses its own connection,
//! and delays no other client: a request reaches the daemon only when it is complete.

use crate::access::{Caller, Gate, Place, SEND_ONE};
use crate::answer::{error, usage};
use crate::http::{BODY_LENGTH_MAX, RULES_LENGTH_MAX, RULES_PATH, refuse};
use crate::pace::Source;
use crate::pull;
use crate::record::machine_ns;
use api::ErrorCode;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::Version;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;
use units::Nanos;

/// Limits of the API.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections at a time.
    pub(crate) connections: usize,
    /// Time for a request's head, and without one.
    pub(crate) head: Duration,
    /// Time for a body.
    pub(crate) body: Duration,
    /// Time in which a client has to read some of an answer that waits.
    pub(crate) answer: Duration,
}

/// More connections than the tools of one machine need, each with a descriptor; times that a
/// client on this machine never needs, nor one that is busy with something else for a while.
pub(crate) const LIMITS: Limits = Limits {
    connections: 128,
    head: Duration::from_secs(10),
    body: Duration::from_secs(30),
    answer: Duration::from_secs(10),
};
/// Longest refusal of the router itself in bytes; one names a parameter of the path.
const ROUTER_TEXT_MAX: usize = 4096;
/// Pause after `accept` failed, for example for lack of descriptors, so that the server does not
/// spin.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Authenticates the sender of a request, before its body is read.
pub(crate) fn guarded(router: Router, gate: Arc<Gate>, place: Place, limits: Limits) -> Router {
    let read = move |request, next| whole_body(limits, request, next);
    let admit = move |request, next| admit(Arc::clone(&gate), place, request, next);
    let admitted = router.layer(middleware::from_fn(read)).layer(middleware::from_fn(admit));
    with_host(admitted)
}

/// Refuses requests that do not say once which host they are for, or not well (RFC 9112, 3.2):
/// HTTP/1.1 has to say it, HTTP/1.0 may.
pub(crate) fn with_host(router: Router) -> Router {
    router.layer(middleware::from_fn(async |request: Request, next: Next| {
        match host_problem(&request) {
            None => next.run(request).await,
            Some(problem) => {
                let help = "HTTP/1.1 wants one header Host; what it names does not matter here";
                refuse(error(ErrorCode::Usage, problem, Some(help))).into_response()
            }
        }
    }))
}

fn host_problem(request: &Request) -> Option<&'static str> {
    let mut values = request.headers().get_all(HOST).iter();
    match (values.next(), values.next()) {
        (None, _) if request.version() == Version::HTTP_11 => Some("the request has no Host"),
        (None, _) => None,
        (Some(_), Some(_)) => Some("the request has more than one Host"),
        (Some(host), None) => {
            // Empty where the target has no authority (RFC 9110, 7.2).
            let is_host = host.is_empty()
                || Authority::try_from(host.as_bytes())
                    .is_ok_and(|authority| !authority.as_str().contains('@'));
            (!is_host).then_some("the request's Host is none")
        }
    }
}

/// Returns the refusal of requests without a capability that may change something.
fn nothing_for_anyone() -> api::ErrorInfo {
    error(ErrorCode::Refused, "this needs a capability", Some(SEND_ONE))
}

async fn admit(gate: Arc<Gate>, place: Place, mut request: Request, next: Next) -> Response {
    let source = request.extensions().get::<Source>().copied().unwrap_or(Source::Local);
    let reserved = match gate.reserve_unknown(machine_time(), request.headers(), source) {
        Ok(None) => None,
        Ok(Some((reservation, delay))) => {
            wait(delay).await;
            Some(reservation)
        }
        Err(refusal) => return refuse(refusal).into_response(),
    };
    let begun = machine_time();
    match gate.caller(request.headers(), place) {
        Ok(Caller::Anyone) if request.uri().path().starts_with(pull::PREFIX) => pull::challenge(),
        // Checked before the body is read, which an unauthenticated caller may send.
        Ok(Caller::Anyone) if request.method() != axum::http::Method::GET && !gate.anyone => {
            refuse(nothing_for_anyone()).into_response()
        }
        Ok(Caller::Holder(holder)) => {
            let took = Nanos(machine_time().0 - begun.0);
            let verified = reserved.expect("a holder is known by a token");
            let reserved = gate.reserve_known(machine_time(), &verified, took, &holder);
            let (reservation, delay) = match reserved {
                Ok(reserved) => reserved,
                Err(refusal) => return refuse(refusal).into_response(),
            };
            wait(delay).await;
            request.extensions_mut().insert(Caller::Holder(Arc::clone(&holder)));
            let response = next.run(request).await;
            gate.settle_request(machine_time(), &reservation, &holder);
            response
        }
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(refusal) => refuse(refusal).into_response(),
    }
}

/// Returns the machine's monotonic time.
fn machine_time() -> Nanos {
    Nanos(machine_ns())
}

async fn wait(delay: Nanos) {
    if delay.0 > 0 {
        tokio::time::sleep(Duration::from_nanos(delay.0)).await;
    }
}

/// Serves the API on the UNIX socket until the task is ended.
pub(crate) async fn serve(listener: UnixListener, router: Router, gate: Arc<Gate>, limits: Limits) {
    let router = guarded(router, gate, Place::Own, limits);
    let free = Arc::new(Semaphore::new(limits.connections));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(problem) => {
                tracing::warn!(%problem, "a connection to the API was not taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match Arc::clone(&free).try_acquire_owned() {
            Ok(permit) => {
                let router = router.clone();
                drop(tokio::spawn(async move {
                    connection(stream, router, limits, Source::Local).await;
                    drop(permit);
                }));
            }
            Err(_) => drop(tokio::spawn(refuse_connection(stream, limits))),
        }
    }
}

pub(crate) async fn connection(
    stream: impl AsyncRead + AsyncWrite + Send,
    router: Router,
    limits: Limits,
    source: Source,
) {
    let service = TowerToHyperService::new(router.map_request(
        move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(source);
            request.map(Body::new)
        },
    ));
    // A client that reads nothing would keep its connection, of which there are few, for ever.
    let mut stream = Box::pin(TimeoutStream::new(stream));
    stream.as_mut().set_write_timeout_pinned(Some(limits.answer));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(problem) = served {
        // The error is caused by the client, which has been answered as far as it reads.
        tracing::debug!(%problem, "a connection to the API ended early");
    }
}

/// Answers without reading: the limit of connections is reached.
async fn refuse_connection(mut stream: UnixStream, limits: Limits) {
    let open = limits.connections;
    let message = format!("the node has {open} connections open, which is its limit");
    let help = "close some, or try again in some seconds: those that say nothing are closed";
    let document = api::ErrorDocument {
        schema_version: api::SCHEMA_VERSION,
        error: error(ErrorCode::Limit, message, Some(help)),
    };
    let body = serde_json::to_string(&document).unwrap_or_default();
    let status = ErrorCode::Limit.http_status();
    let answer = format!(
        "HTTP/1.1 {status} Too Many Requests\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // A few hundred bytes fit the socket's buffer, whether or not the client reads them.
    let _ = tokio::time::timeout(limits.head, stream.write_all(answer.as_bytes())).await;
    // What the client sends meanwhile would turn the answer into a reset.
    let _ = stream.shutdown().await;
    let mut rest = tokio::io::sink();
    let copied = tokio::io::copy(&mut stream, &mut rest);
    let _ = tokio::time::timeout(Duration::from_secs(1), copied).await;
}

/// Returns the largest body of a request in bytes. Only the operator sends long lists of flows:
/// others could occupy this much of the node's memory by each connection.
fn body_length_max(request: &Request) -> usize {
    let is_operator = matches!(request.extensions().get(), Some(Caller::Operator));
    let is_long = is_operator && request.uri().path() == RULES_PATH;
    if is_long { RULES_LENGTH_MAX } else { BODY_LENGTH_MAX }
}

/// Returns true if a body was not read because it is longer than its limit.
fn is_too_long(problem: &axum::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(problem);
    while let Some(error) = cause {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Returns the innermost cause of an error.
fn root_cause<'a>(problem: &'a (dyn std::error::Error + 'static)) -> &'a dyn std::error::Error {
    let mut cause = problem;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause
}

/// Reads a body as a whole, within limits of length and time.
async fn whole_body(limits: Limits, request: Request, next: Next) -> Response {
    let length_max = body_length_max(&request);
    let (parts, body) = request.into_parts();
    let read = to_bytes(body, length_max);
    let problem = match tokio::time::timeout(limits.body, read).await {
        Ok(Ok(bytes)) if is_array(&parts, &bytes) => error(
            ErrorCode::Usage,
            "the request's body is a JSON array, and an object is expected",
            Some("GET /v1/openapi.json has the request's form"),
        ),
        Ok(Ok(bytes)) => {
            let response = next.run(Request::from_parts(parts, Body::from(bytes))).await;
            return documented(response).await;
        }
        Ok(Err(problem)) if is_too_long(&problem) => error(
            ErrorCode::Limit,
            format!("the request's body has more than {length_max} bytes"),
            Some("modules and files are smaller; GET /v1/openapi.json has the request's form"),
        ),
        Ok(Err(problem)) => error(
            ErrorCode::Usage,
            format!("the request's body cannot be read: {}", root_cause(&problem)),
            Some(
                "it has to be as long as its head says, or in whole chunks (RFC 9112, section 7.1)",
            ),
        ),
        Err(_) => {
            let within = limits.body;
            error(
                ErrorCode::Limit,
                format!("the request's body did not come within {within:?}"),
                None,
            )
        }
    };
    let mut response = refuse(problem).into_response();
    // What is left of the body is not read.
    response.headers_mut().insert("connection", axum::http::HeaderValue::from_static("close"));
    response
}

/// Returns true for a body of JSON that is an array: a parser would take its values for the fields
/// of an object in their order.
fn is_array(parts: &Parts, body: &[u8]) -> bool {
    let kind = parts.headers.get(CONTENT_TYPE);
    let is_json = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    is_json && body.trim_ascii_start().starts_with(b"[")
}

/// Returns a refusal of the router's own, which is plain text, as the document that all others are.
async fn documented(response: Response) -> Response {
    let is_document = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/"));
    if !response.status().is_client_error() || is_document {
        return response;
    }
    let (parts, body) = response.into_parts();
    let text = to_bytes(body, ROUTER_TEXT_MAX).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let message = if text.is_empty() { parts.status.to_string() } else { text };
    let mut response = refuse(usage(message)).into_response();
    // The status, as 405, is the router's, with what belongs to it, as Allow.
    *response.status_mut() = parts.status;
    let of_router = parts.headers.into_iter().filter_map(|(name, value)| Some((name?, value)));
    let of_router = of_router.filter(|(name, _)| ![CONTENT_TYPE, CONTENT_LENGTH].contains(name));
    response.headers_mut().extend(of_router);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::time::timeout;

    /// A server that answers requests with the length of their bodies.
    async fn server() -> (tempfile::TempDir, std::path::PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let length = |body: axum::body::Bytes| async move { body.len().to_string() };
        let name = |name: axum::extract::Path<String>| async move { name.0 };
        let router = Router::new()
            .route("/length", axum::routing::post(length))
            .route("/name/{name}", axum::routing::get(name))
            .layer(axum::extract::DefaultBodyLimit::max(BODY_LENGTH_MAX));
        let gate = Arc::new(Gate::new(Vec::new(), false));
        tokio::spawn(serve(listener, router, gate, SHORT_TIMES));
        (directory, path)
    }

    const SHORT_TIMES: Limits = Limits {
        connections: 8,
        head: Duration::from_millis(200),
        body: Duration::from_millis(300),
        answer: Duration::from_millis(200),
    };

    async fn answer(stream: &mut UnixStream) -> String {
        let mut bytes = Vec::new();
        // Reset by a peer that has seen enough: what came before counts.
        let _ = timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes)).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    async fn ask(path: &std::path::Path, text: &str) -> String {
        let mut stream = UnixStream::connect(path).await.unwrap();
        let _ = stream.write_all(text.as_bytes()).await;
        answer(&mut stream).await
    }

    const SHORT: &str =
        "POST /length HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 3\r\n\r\nabc";

    #[tokio::test(flavor = "current_thread")]
    async fn a_slow_client_loses_its_connection_and_delays_nobody() {
        let (_directory, path) = server().await;
        let mut slow_head = UnixStream::connect(&path).await.unwrap();
        slow_head.write_all(b"POST /length HTTP/1.1\r\nhost").await.unwrap();
        let mut silent = UnixStream::connect(&path).await.unwrap();
        let mut slow_body = UnixStream::connect(&path).await.unwrap();
        let head = b"POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n";
        slow_body.write_all(head).await.unwrap();
        assert!(ask(&path, SHORT).await.ends_with("\r\n\r\n3"));
        // Each ends by itself.
        answer(&mut slow_head).await;
        assert_eq!(answer(&mut silent).await, "");
        let said = answer(&mut slow_body).await;
        assert!(said.contains("did not come within 300ms"), "{said}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_client_that_reads_no_answer_loses_its_connection() {
        let (_directory, path) = server().await;
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let request =
            "POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc".repeat(1000);
        let sent = async { while stream.write_all(request.as_bytes()).await.is_ok() {} };
        timeout(Duration::from_secs(20), sent).await.expect("the connection is closed");
        assert!(ask(&path, SHORT).await.ends_with("\r\n\r\n3"), "others are served");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_array_is_no_object_whose_fields_it_gives_in_their_order() {
        let (_directory, path) = server().await;
        let head = "POST /length HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
        let json = "content-type: application/json\r\ncontent-length: 4\r\n\r\n [1]";
        let said = ask(&path, &format!("{head}{json}")).await;
        assert!(said.contains(" 400 ") && said.contains("an object is expected"), "{said}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_endless_body_ends_at_the_limit() {
        let (_directory, path) = server().await;
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let head = b"POST /length HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head).await.unwrap();
        let chunk = [b"10000\r\n".as_slice(), &[b'a'; 0x10000], b"\r\n"].concat();
        let mut sent = 0;
        while sent < 4 * BODY_LENGTH_MAX && stream.write_all(&chunk).await.is_ok() {
            sent += chunk.len();
        }
        assert!(sent < 4 * BODY_LENGTH_MAX, "it reads on and on");
        let said = answer(&mut stream).await;
        assert!(said.contains("429") && said.contains("more than"), "{said}");
        assert!(ask(&path, SHORT).await.ends_with("\r\n\r\n3"), "others are served");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn refusals_of_the_router_are_documents_like_all_others() {
        let (_directory, path) = server().await;
        for (request, status) in [("GET /length", "405"), ("GET /name/%ff", "400")] {
            let request = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            let said = ask(&path, &request).await;
            assert!(said.starts_with(&format!("HTTP/1.1 {status}")), "{said}");
            let body = said.split_once("\r\n\r\n").unwrap().1;
            let document: api::ErrorDocument = serde_json::from_str(body).unwrap();
            assert!(!document.error.message.is_empty(), "{said}");
            assert_eq!(said.contains("allow: POST"), status == "405", "{said}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_body_that_is_cut_off_or_in_bad_chunks_is_a_mistake_and_no_limit() {
        let (_directory, path) = server().await;
        let cut = "content-length: 100\r\n\r\nonly this";
        let chunks = "transfer-encoding: chunked\r\n\r\nzz\r\nonly this\r\n";
        for rest in [cut, chunks] {
            let mut stream = UnixStream::connect(&path).await.unwrap();
            let text = format!("POST /length HTTP/1.1\r\nhost: x\r\n{rest}");
            stream.write_all(text.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            let said = answer(&mut stream).await;
            assert!(said.contains(" 400 ") && said.contains("cannot be read"), "{rest}: {said}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_connection_beyond_the_limit_is_refused_until_others_have_ended() {
        let (_directory, path) = server().await;
        let mut open = Vec::new();
        for _ in 0..SHORT_TIMES.connections {
            open.push(UnixStream::connect(&path).await.unwrap());
        }
        let said = ask(&path, SHORT).await;
        assert!(said.starts_with("HTTP/1.1 429") && said.contains("connections"), "{said}");
        drop(open);
        for _ in 0..100 {
            if ask(&path, SHORT).await.ends_with("\r\n\r\n3") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("there is no room again");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_request_names_its_host_exactly_once_and_correctly() {
        let (_directory, path) = server().await;
        let ask = async |version: &str, hosts: &str| {
            let rest = "connection: close\r\ncontent-length: 3\r\n\r\nabc";
            ask(&path, &format!("POST /length HTTP/{version}\r\n{hosts}{rest}")).await
        };
        for (version, hosts) in [
            ("1.1", "host: x\r\n"),
            ("1.1", "Host: [::1]:7443\r\n"),
            ("1.1", "host:\r\n"),
            ("1.0", ""),
            ("1.0", "host: x:1\r\n"),
        ] {
            let said = ask(version, hosts).await;
            assert!(said.ends_with("\r\n\r\n3"), "{version} {hosts:?}: {said}");
        }
        for (version, hosts, problem) in [
            ("1.1", "", "no Host"),
            ("1.1", "host: x\r\nhost: x\r\n", "more than one Host"),
            ("1.0", "host: x\r\nHost: y\r\n", "more than one Host"),
            ("1.1", "host: a b\r\n", "Host is none"),
            ("1.1", "host: me@x\r\n", "Host is none"),
            ("1.1", "host: x/y\r\n", "Host is none"),
        ] {
            let said = ask(version, hosts).await;
            let is_refused = said.contains(" 400 ") && said.contains(problem);
            assert!(is_refused, "{version} {hosts:?}: {said}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_no_http_is_refused() {
        let (_directory, path) = server().await;
        for wrong in [
            "\0\0\0\0\r\n\r\n",
            "GET\r\n\r\n",
            "POST /length HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        ] {
            let said = ask(&path, wrong).await;
            assert!(said.starts_with("HTTP/1.1 400") || said.is_empty(), "{wrong:?}: {said}");
        }
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(1 << 20));
        let said = ask(&path, &long).await;
        assert!(said.starts_with("HTTP/1.1 4") || said.is_empty(), "{said}");
        assert!(ask(&path, SHORT).await.ends_with("\r\n\r\n3"));
    }

    /// Sends requests and closes its side; returns all answers.
    async fn say(path: &std::path::Path, text: &[u8]) -> String {
        let mut stream = UnixStream::connect(path).await.unwrap();
        let _ = stream.write_all(text).await;
        let _ = stream.shutdown().await;
        answer(&mut stream).await
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_body_has_one_length_and_all_of_it_comes() {
        let (_directory, path) = server().await;
        let post = |head: &str, body: &str| {
            format!("POST /length HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{head}\r\n{body}")
        };
        for (head, body, length) in [
            ("content-length: 3\r\n", "abc", "3"),
            ("content-length: 03\r\n", "abc", "3"),
            ("Content-Length:3\r\n", "abcdef", "3"),
            ("content-length: 0\r\n", "", "0"),
            ("", "abc", "0"),
            ("transfer-encoding: chunked\r\n", "2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n", "3"),
            ("transfer-encoding: chunked\r\n", "0\r\n\r\n", "0"),
        ] {
            let said = say(&path, post(head, body).as_bytes()).await;
            let is_it =
                said.starts_with("HTTP/1.1 200") && said.ends_with(&format!("\r\n\r\n{length}"));
            assert!(is_it, "{head:?} {body:?}: {said}");
        }
        for (head, body) in [
            ("content-length: 3\r\ncontent-length: 4\r\n", "abcd"),
            ("content-length: 4\r\ncontent-length: 3\r\n", "abcd"),
            ("content-length: 3, 4\r\n", "abcd"),
            ("content-length: -1\r\n", ""),
            ("content-length: +3\r\n", "abc"),
            ("content-length: 0x3\r\n", "abc"),
            ("content-length: 99999999999999999999\r\n", "abc"),
            ("transfer-encoding: gzip\r\n", "abc"),
            ("transfer-encoding: chunked, gzip\r\n", "0\r\n\r\n"),
            // Not all of it.
            ("content-length: 3\r\n", "ab"),
            ("transfer-encoding: chunked\r\n", "3\r\nab"),
            ("transfer-encoding: chunked\r\n", "3\r\nabc\r\n"),
            ("transfer-encoding: chunked\r\n", "x\r\nabc\r\n0\r\n\r\n"),
            ("transfer-encoding: chunked\r\n", "-1\r\n\r\n"),
            ("transfer-encoding: chunked\r\n", "10000000000000003\r\nabc\r\n0\r\n\r\n"),
        ] {
            let said = say(&path, post(head, body).as_bytes()).await;
            assert!(!said.contains(" 200 "), "{head:?} {body:?}: {said}");
        }
        assert!(ask(&path, SHORT).await.ends_with("\r\n\r\n3"), "others are served");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn requests_in_one_piece_are_each_answered_and_nothing_behind_a_wrong_one() {
        let (_directory, path) = server().await;
        let one = "POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc";
        let said = say(&path, format!("{one}{one}{SHORT}{one}").as_bytes()).await;
        assert_eq!(
            said.matches("HTTP/1.1 200").count(),
            3,
            "it is closed behind the third: {said}"
        );
        // A body that a reader of the other length would take for a request.
        let smuggled = "POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n\
                        content-length: 5\r\n\r\n0\r\n\r\nX";
        let said = say(&path, format!("{smuggled}{one}").as_bytes()).await;
        assert!(!said.contains(" 200 "), "{said}");
        let many = format!("POST /length HTTP/1.1\r\nhost: x\r\n{}\r\n", "a: b\r\n".repeat(1000));
        let said = say(&path, many.as_bytes()).await;
        assert!(said.starts_with("HTTP/1.1 431") || said.is_empty(), "{said}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn long_lists_of_flows_are_the_operators_and_all_else_is_as_long_as_a_module() {
        let gate = Arc::new(Gate::new(Vec::new(), true));
        let length = |body: axum::body::Bytes| async move { body.len().to_string() };
        let post = || axum::routing::post(length);
        let router = Router::new().route(RULES_PATH, post()).route("/length", post());
        let router = router.layer(axum::extract::DefaultBodyLimit::disable());
        let more = BODY_LENGTH_MAX + 1;
        for (place, path, length, is_taken) in [
            (Place::Own, RULES_PATH, more, true),
            (Place::Own, RULES_PATH, RULES_LENGTH_MAX + 1, false),
            (Place::Own, "/length", more, false),
            (Place::Own, "/length", BODY_LENGTH_MAX, true),
            (Place::Remote, RULES_PATH, more, false),
            (Place::Remote, RULES_PATH, BODY_LENGTH_MAX, true),
        ] {
            let guarded = guarded(router.clone(), Arc::clone(&gate), place, LIMITS);
            let request =
                Request::post(path).header(HOST, "x").body(Body::from(vec![b'a'; length]));
            let response = guarded.oneshot(request.unwrap()).await.unwrap();
            let status = if is_taken { 200 } else { 429 };
            assert_eq!(response.status(), status, "{place:?} {path} {length}");
        }
    }
}
