//! The API's front: HTTP in, requests to the daemon, documents out.

mod sessions;

use crate::access::Caller;
use crate::answer::{Answer, error};
use crate::config::plain;
use crate::control::change::Change;
use crate::observe::exposition;
use crate::reply::{Reply, stopping};
use crate::request::Incoming;
use crate::request::{LedgerQuestion, Request};
use api::{ErrorCode, ErrorDocument, ErrorInfo, SCHEMA_VERSION};
use axum::body::Bytes;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Query};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Extension, Json, Router};
use ledger::Period;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use trust::UnixTime;

/// Largest request body: a module.
pub(crate) const BODY_LENGTH_MAX: usize = abi::layout::MODULE_LENGTH_MAX + 1;

/// Endpoint of rules.
pub(crate) const RULES_PATH: &str = "/v1/rules";
/// Largest request for rules: a million flows, as long as IPv6 has them.
pub(crate) const RULES_LENGTH_MAX: usize = 128 << 20;

/// Caller of a request, and the channel to the daemon.
struct Daemon {
    caller: Caller,
    requests: mpsc::Sender<Incoming>,
}

impl FromRequestParts<mpsc::Sender<Incoming>> for Daemon {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        requests: &mpsc::Sender<Incoming>,
    ) -> Result<Self, Response> {
        // The gate has set the caller; without it, the caller is unauthenticated.
        let caller = parts.extensions.get().cloned().unwrap_or(Caller::Anyone);
        Ok(Self { caller, requests: requests.clone() })
    }
}

/// Every endpoint of `api::ENDPOINTS`.
pub(crate) fn router(requests: mpsc::Sender<Incoming>) -> Router {
    Router::new()
        .route("/v1/node", get(node))
        .route("/v1/services", get(services).post(deploy))
        .route("/v1/services/{name}", get(service).delete(remove))
        .route("/v1/services/{name}/messages", post(message))
        .route("/v1/services/{name}/move", post(move_service))
        .route("/v1/bpf", post(set_bpf))
        .merge(sessions::routes())
        .route(
            RULES_PATH,
            get(rules).post(add_rules).layer(DefaultBodyLimit::max(RULES_LENGTH_MAX)),
        )
        .route("/v1/rules/{id}", delete(remove_rule))
        .route("/v1/modules", get(modules).post(put_module))
        .route("/v1/modules/{name}/signatures", post(add_signatures))
        .route("/v1/stats", get(stats))
        .route("/v1/events", get(events))
        .route("/metrics", get(metrics))
        .route("/v1/captures", post(begin_capture))
        .route("/v1/captures/{id}", get(captured).delete(end_capture))
        .route("/v1/why", get(why).post(explain))
        .route("/v1/desired", get(desired).post(apply))
        .route("/v1/desired/confirm", post(confirm))
        .route("/v1/desired/rollback", post(rollback))
        .route("/v1/ledger", get(ledger_records))
        .route("/v1/ledger/totals", get(ledger_totals))
        .route("/v1/ledger/receipt", get(ledger_receipt))
        .route("/v1/handover", post(hand_over))
        .route("/v1/backup", get(backup))
        .route("/v1/revocations", get(revocations).post(revoke))
        .route("/v1/openapi.json", get(openapi))
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .layer(DefaultBodyLimit::max(BODY_LENGTH_MAX))
        .with_state(requests)
}

async fn ask<T: Serialize>(
    Daemon { caller, requests }: Daemon,
    request: impl FnOnce(Reply<T>) -> Request,
) -> Response {
    let (reply, awaited) = Reply::pair();
    if requests.send(Incoming { caller, request: request(reply) }).await.is_err() {
        return refuse(stopping());
    }
    match awaited.answer().await {
        Ok(document) => Json(document).into_response(),
        Err(refusal) => refuse(refusal),
    }
}

pub(crate) fn refuse(error: ErrorInfo) -> Response {
    let status =
        StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(ErrorDocument { schema_version: SCHEMA_VERSION, error })).into_response()
}

async fn unknown() -> Response {
    let help = "GET /v1/openapi.json lists every endpoint";
    refuse(error(ErrorCode::NotFound, "there is no such endpoint", Some(help)))
}

/// The request's body, or what is wrong with it.
fn body<T>(body: Result<Json<T>, JsonRejection>) -> Answer<T> {
    body.map(|Json(value)| value).map_err(|rejection| {
        let help = "GET /v1/openapi.json has the request's form";
        error(ErrorCode::Usage, body_problem(&rejection.body_text()), Some(help))
    })
}

/// Returns what is wrong with a body, without the names of Rust's types.
fn body_problem(text: &str) -> String {
    let read = ["deserialize the JSON body into the target type", "parse the request body as JSON"];
    let problem = read
        .iter()
        .find_map(|tried| text.strip_prefix("Failed to ")?.strip_prefix(tried)?.strip_prefix(": "));
    let Some(problem) = problem else { return text.to_owned() };
    // The path of the field stands in front.
    let (path, problem) = problem.split_at(problem.find("invalid ").unwrap_or_default());
    let mut problem = plain(problem).replace("expected a table", "expected an object");
    if let Some(at) = problem.find("expected struct ") {
        let end = problem.find(" at line ").unwrap_or(problem.len());
        problem.replace_range(at..end, "expected an object");
    }
    format!("the request's body cannot be read: {path}{problem}")
}

async fn node(state: Daemon) -> Response {
    ask(state, Request::Node).await
}

async fn services(state: Daemon) -> Response {
    ask(state, Request::Services).await
}

async fn service(state: Daemon, Path(name): Path<String>) -> Response {
    ask(state, |reply| Request::Service(name, reply)).await
}

async fn deploy(
    state: Daemon,
    request: Result<Json<api::DeployRequest>, JsonRejection>,
) -> Response {
    match body(request) {
        Ok(request) => {
            ask(state, |reply| Request::Change(Change::Deploy(Box::new(request), reply))).await
        }
        Err(refusal) => refuse(refusal),
    }
}

#[derive(Deserialize)]
struct RemoveOptions {
    #[serde(default)]
    cascade: bool,
}

async fn remove(
    state: Daemon,
    Path(name): Path<String>,
    options: Result<Query<RemoveOptions>, axum::extract::rejection::QueryRejection>,
) -> Response {
    match options {
        Ok(Query(o)) => {
            ask(state, |reply| Request::Change(Change::Remove(name, o.cascade, reply))).await
        }
        Err(rejection) => refuse(error(ErrorCode::Usage, rejection.body_text(), None)),
    }
}

async fn message(
    state: Daemon,
    Path(name): Path<String>,
    request: Result<Json<api::MessageRequest>, JsonRejection>,
) -> Response {
    match body(request) {
        Ok(request) => ask(state, |reply| Request::Message(name, request, reply)).await,
        Err(refusal) => refuse(refusal),
    }
}

async fn move_service(
    state: Daemon,
    Path(name): Path<String>,
    request: Result<Json<api::MoveRequest>, JsonRejection>,
) -> Response {
    match body(request) {
        Ok(request) => {
            ask(state, |reply| Request::Change(Change::Move(name, request, reply))).await
        }
        Err(refusal) => refuse(refusal),
    }
}

async fn set_bpf(state: Daemon, request: Result<Json<api::BpfRequest>, JsonRejection>) -> Response {
    match body(request) {
        Ok(request) => ask(state, |reply| Request::Change(Change::Bpf(request, reply))).await,
        Err(refusal) => refuse(refusal),
    }
}

async fn rules(state: Daemon) -> Response {
    ask(state, Request::Rules).await
}

async fn add_rules(
    state: Daemon,
    request: Result<Json<api::RulesRequest>, JsonRejection>,
) -> Response {
    match body(request) {
        Ok(request) => ask(state, |reply| Request::Change(Change::AddRules(request, reply))).await,
        Err(refusal) => refuse(refusal),
    }
}

async fn remove_rule(state: Daemon, Path(id): Path<String>) -> Response {
    match id.parse() {
        Ok(id) => {
            ask(state, |reply| Request::Change(Change::RemoveRule(units::RuleId(id), reply))).await
        }
        Err(_) => refuse(error(ErrorCode::Usage, format!("'{id}' is no rule number"), None)),
    }
}

async fn modules(state: Daemon) -> Response {
    ask(state, Request::Modules).await
}

#[derive(Deserialize)]
struct StoreOptions {
    #[serde(default)]
    early: bool,
}

async fn put_module(
    state: Daemon,
    options: Result<Query<StoreOptions>, axum::extract::rejection::QueryRejection>,
    wasm: Bytes,
) -> Response {
    match options {
        Ok(Query(o)) => ask(state, |it| Request::PutModule(wasm.to_vec(), o.early, it)).await,
        Err(rejection) => refuse(error(ErrorCode::Usage, rejection.body_text(), None)),
    }
}

async fn add_signatures(
    state: Daemon,
    Path(name): Path<String>,
    request: Result<Json<api::SignaturesRequest>, JsonRejection>,
) -> Response {
    match body(request) {
        Ok(request) => ask(state, |reply| Request::AddSignatures(name, request, reply)).await,
        Err(refusal) => refuse(refusal),
    }
}

async fn stats(state: Daemon) -> Response {
    ask(state, Request::Stats).await
}

#[derive(Deserialize)]
struct EventsOptions {
    #[serde(default)]
    since: u64,
    #[serde(default)]
    wait_seconds: u32,
}

async fn events(
    state: Daemon,
    options: Result<Query<EventsOptions>, axum::extract::rejection::QueryRejection>,
) -> Response {
    match options {
        Ok(Query(o)) => ask(state, |reply| Request::Events(o.since, o.wait_seconds, reply)).await,
        Err(rejection) => refuse(error(ErrorCode::Usage, rejection.body_text(), None)),
    }
}

#[derive(Deserialize)]
struct LedgerOptions {
    #[serde(default)]
    since: u64,
    until: Option<u64>,
}

type LedgerQuery = Result<Query<LedgerOptions>, axum::extract::rejection::QueryRejection>;

async fn ledger_records(state: Daemon, options: LedgerQuery) -> Response {
    match options {
        Ok(Query(o)) => {
            let records = |reply| Request::Ledger(LedgerQuestion::Records(o.since, reply));
            ask(state, records).await
        }
        Err(rejection) => refuse(error(ErrorCode::Usage, rejection.body_text(), None)),
    }
}

async fn ledger_totals(state: Daemon, options: LedgerQuery) -> Response {
    match options {
        Ok(Query(o)) => {
            let (since, until) = (UnixTime(o.since), UnixTime(o.until.unwrap_or(u64::MAX)));
            let period = Period { since, until };
            ask(state, |reply| Request::Ledger(LedgerQuestion::Totals(period, reply))).await
        }
        Err(rejection) => refuse(error(ErrorCode::Usage, rejection.body_text(), None)),
    }
}

#[derive(Deserialize)]
struct ReceiptOptions {
    principal: String,
    #[serde(default)]
    from: u64,
}

async fn ledger_receipt(
    state: Daemon,
    options: Result<Query<ReceiptOptions>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let asked = match options {
        Ok(Query(o)) => o.principal.parse().map(|principal| (principal, o.from)),
        Err(rejection) => return refuse(error(ErrorCode::Usage, rejection.body_text(), None)),
    };
    match asked {
        Ok((principal, from)) => {
            let receipt = |reply| LedgerQuestion::Receipt(Box::new(principal), from, reply);
            ask(state, |reply| Request::Ledger(receipt(reply))).await
        }
        Err(problem) => refuse(error(ErrorCode::Usage, problem.to_string(), None)),
    }
}

async fn begin_capture(
    state: Daemon,
    request: Result<Json<api::CaptureRequest>, JsonRejection>,
) -> Response {
    match body(request) {
        Ok(request) => ask(state, |reply| Request::BeginCapture(request, reply)).await,
        Err(refusal) => refuse(refusal),
    }
}

#[derive(Deserialize)]
struct CapturedOptions {
    #[serde(default)]
    wait_seconds: u32,
}

async fn captured(
    state: Daemon,
    Path(id): Path<String>,
    options: Result<Query<CapturedOptions>, axum::extract::rejection::QueryRejection>,
) -> Response {
    match (id.parse(), options) {
        (Ok(id), Ok(Query(o))) => {
            ask(state, |reply| Request::Captured(id, o.wait_seconds, reply)).await
        }
        (Err(_), _) => refuse(no_capture_number(&id)),
        (_, Err(rejection)) => refuse(error(ErrorCode::Usage, rejection.body_text(), None)),
    }
}

async fn end_capture(state: Daemon, Path(id): Path<String>) -> Response {
    match id.parse() {
        Ok(id) => ask(state, |reply| Request::EndCapture(id, reply)).await,
        Err(_) => refuse(no_capture_number(&id)),
    }
}

fn no_capture_number(text: &str) -> ErrorInfo {
    let shown: String = text.chars().take(40).flat_map(char::escape_default).collect();
    error(ErrorCode::Usage, format!("'{shown}' is no number of a capture"), None)
}

/// Creates the router of the metrics address, which serves counters without authentication, and
/// nothing else.
pub(crate) fn metrics_router(requests: mpsc::Sender<Incoming>) -> Router {
    // The operator has made the counters public.
    let as_operator = Extension(Caller::Operator);
    Router::new()
        .route("/metrics", get(metrics))
        .layer(as_operator)
        .fallback(only_metrics)
        .with_state(requests)
}

async fn only_metrics() -> Response {
    let help = "GET /metrics is all that there is here; the API is on the node's UNIX socket";
    refuse(error(ErrorCode::NotFound, "there is no such endpoint", Some(help)))
}

async fn metrics(headers: HeaderMap, Daemon { caller, requests }: Daemon) -> Response {
    let (reply, awaited) = Reply::pair();
    if requests.send(Incoming { caller, request: Request::Metrics(reply) }).await.is_err() {
        return refuse(stopping());
    }
    match awaited.answer().await {
        Ok(page) => {
            let accepted = headers.get_all(header::ACCEPT).into_iter();
            let format = exposition::Format::of(accepted.filter_map(|value| value.to_str().ok()));
            // Caches must tell the two formats apart.
            let kind = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")];
            (kind, format.text(page)).into_response()
        }
        Err(refusal) => refuse(refusal),
    }
}

async fn why(state: Daemon) -> Response {
    ask(state, Request::Why).await
}

async fn explain(
    state: Daemon,
    request: Result<Json<api::ExplainRequest>, JsonRejection>,
) -> Response {
    match body(request) {
        Ok(request) => ask(state, |reply| Request::Explain(request, reply)).await,
        Err(refusal) => refuse(refusal),
    }
}

async fn desired(state: Daemon) -> Response {
    ask(state, Request::Desired).await
}

async fn apply(state: Daemon, request: Result<Json<api::ApplyRequest>, JsonRejection>) -> Response {
    match body(request) {
        Ok(request) => {
            ask(state, |reply| Request::Change(Change::Apply(Box::new(request), reply))).await
        }
        Err(refusal) => refuse(refusal),
    }
}

async fn confirm(state: Daemon) -> Response {
    ask(state, |reply| Request::Change(Change::Confirm(reply))).await
}

async fn rollback(
    state: Daemon,
    request: Result<Json<api::RollbackRequest>, JsonRejection>,
) -> Response {
    match body(request) {
        Ok(request) => ask(state, |reply| Request::Change(Change::Rollback(request, reply))).await,
        Err(refusal) => refuse(refusal),
    }
}

async fn hand_over(state: Daemon) -> Response {
    ask(state, Request::HandOver).await
}

async fn backup(state: Daemon) -> Response {
    ask(state, Request::Backup).await
}

async fn revocations(state: Daemon) -> Response {
    ask(state, Request::Revocations).await
}

async fn revoke(
    state: Daemon,
    request: Result<Json<api::RevokeRequest>, JsonRejection>,
) -> Response {
    match body(request) {
        Ok(request) => ask(state, |reply| Request::Revoke(request, reply)).await,
        Err(refusal) => refuse(refusal),
    }
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], Json(api::openapi::document())).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http;
    use tower::ServiceExt;

    #[tokio::test(flavor = "current_thread")]
    async fn every_endpoint_of_the_table_is_routed_and_nothing_else() {
        // Nobody receives: what is routed answers that the node is stopping.
        let (requests, _) = mpsc::channel(1);
        for endpoint in api::ENDPOINTS {
            let path = endpoint.path.replace("{name}", "x").replace("{id}", "1");
            let request = http::Request::builder()
                .method(endpoint.method.as_str())
                .uri(path)
                .header("content-type", "application/json")
                .body(Body::from("{}"))
                .unwrap();
            let response = router(requests.clone()).oneshot(request).await.unwrap();
            assert_ne!(response.status(), StatusCode::NOT_FOUND, "{endpoint:?}");
        }
        let request = http::Request::builder().uri("/v1/other").body(Body::empty()).unwrap();
        let response = router(requests).oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
    }

    /// Sends a request; what comes to the daemon is refused with its client and its own words.
    async fn send(
        router: fn(mpsc::Sender<Incoming>) -> Router,
        request: http::Request<Body>,
    ) -> (u16, ErrorInfo) {
        let (requests, mut incoming) = mpsc::channel(1);
        let daemon = async move {
            if let Some(Incoming { caller, request }) = incoming.recv().await {
                let words = format!("{caller:?}: {}", words(&request));
                request.refuse(error(ErrorCode::Limit, words, None));
            }
        };
        let served = router(requests).oneshot(request);
        let (served, ()) = tokio::join!(served, daemon);
        let served = served.unwrap();
        let status = served.status().as_u16();
        let bytes = axum::body::to_bytes(served.into_body(), BODY_LENGTH_MAX).await.unwrap();
        (status, serde_json::from_slice::<ErrorDocument>(&bytes).unwrap().error)
    }

    /// Returns what a request asks for.
    fn words(request: &Request) -> String {
        match request {
            Request::Change(Change::Remove(name, cascade, _)) => {
                format!("remove {name:?} {cascade}")
            }
            Request::Change(Change::RemoveSession(name, cascade, _)) => {
                format!("remove session {name:?} {cascade}")
            }
            Request::Change(Change::RemoveRule(rule, _)) => format!("remove rule {rule}"),
            Request::Service(name, _) => format!("service {name:?}"),
            Request::PutModule(wasm, early, _) => format!("module of {} bytes {early}", wasm.len()),
            Request::Events(since, wait, _) => format!("events {since} {wait}"),
            Request::Captured(id, wait, _) => format!("captured {id} {wait}"),
            Request::EndCapture(id, _) => format!("end capture {id}"),
            Request::Ledger(LedgerQuestion::Records(since, _)) => format!("ledger {since}"),
            Request::Ledger(LedgerQuestion::Totals(period, _)) => {
                format!("totals {} {}", period.since.0, period.until.0)
            }
            Request::Metrics(_) => "metrics".to_owned(),
            _ => "something else".to_owned(),
        }
    }

    fn request(method: &str, uri: &str, kind: Option<&str>, body: &str) -> http::Request<Body> {
        let builder = http::Request::builder().method(method).uri(uri);
        let builder = match kind {
            Some(kind) => builder.header("content-type", kind),
            None => builder,
        };
        builder.body(Body::from(body.to_owned())).unwrap()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_a_path_and_its_question_say_comes_to_the_daemon() {
        for (method, uri, says) in [
            ("GET", "/v1/services/a%2Fb", "service \"a/b\""),
            ("DELETE", "/v1/services/a", "remove \"a\" false"),
            ("DELETE", "/v1/services/a?cascade=true", "remove \"a\" true"),
            ("DELETE", "/v1/sessions/a?cascade=true", "remove session \"a\" true"),
            ("DELETE", "/v1/rules/4294967295", "remove rule 4294967295"),
            ("POST", "/v1/modules", "module of 2 bytes false"),
            ("POST", "/v1/modules?early=true", "module of 2 bytes true"),
            ("GET", "/v1/events", "events 0 0"),
            (
                "GET",
                "/v1/events?since=18446744073709551615&wait_seconds=7",
                "events 18446744073709551615 7",
            ),
            ("GET", "/v1/captures/7?wait_seconds=1", "captured 7 1"),
            ("DELETE", "/v1/captures/7", "end capture 7"),
            ("GET", "/v1/ledger?since=7", "ledger 7"),
            ("GET", "/v1/ledger/totals?since=7", "totals 7 18446744073709551615"),
            ("GET", "/v1/ledger/totals?until=9", "totals 0 9"),
            ("GET", "/metrics?x=y", "metrics"),
        ] {
            let (status, refusal) = send(router, request(method, uri, None, "{}")).await;
            // Nobody has asked the gate.
            assert_eq!(
                (status, refusal.message),
                (429, format!("Anyone: {says}")),
                "{method} {uri}"
            );
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_no_request_is_told_so_and_does_not_come_to_the_daemon() {
        let json = Some("application/json");
        for (method, uri, kind, body, says) in [
            ("DELETE", "/v1/services/a?cascade=perhaps", None, "", "cascade"),
            ("DELETE", "/v1/rules/-1", None, "", "'-1' is no rule number"),
            ("DELETE", "/v1/rules/4294967296", None, "", "'4294967296' is no rule number"),
            ("GET", "/v1/captures/x", None, "", "'x' is no number of a capture"),
            ("DELETE", "/v1/captures/%1b", None, "", "'\\u{1b}' is no number of a capture"),
            ("GET", "/v1/captures/7?wait_seconds=-1", None, "", "wait_seconds"),
            ("GET", "/v1/events?since=a", None, "", "since"),
            ("GET", "/v1/ledger?since=", None, "", "since"),
            ("GET", "/v1/ledger/receipt", None, "", "principal"),
            ("GET", "/v1/ledger/receipt?principal=me", None, "", "'me' is no public key"),
            ("POST", "/v1/modules?early=1", None, "", "early"),
            ("POST", "/v1/services", None, "{}", "Content-Type: application/json"),
            ("POST", "/v1/services", json, "", "EOF"),
            ("POST", "/v1/services", json, "{\"module\":", "EOF"),
            ("POST", "/v1/services", json, "{}", "missing field 'module'"),
            ("POST", "/v1/services", json, "{\"module\":7}", "module: expected text in quotes"),
            (
                "POST",
                "/v1/services",
                json,
                "{\"module\":\"a\",\"module\":\"b\"}",
                "duplicate field",
            ),
            ("POST", "/v1/services/a/move", json, "[]", "expected an object"),
            ("POST", "/v1/sessions", json, "{\"name\":\"a\",\"weight\":-1}", "weight"),
            ("POST", "/v1/sessions/a", json, "7", "expected an object"),
            ("POST", "/v1/rules", json, "{\"rules\":{}}", "rules: expected a list"),
            ("POST", "/v1/desired", json, "\u{0}", "expected value"),
        ] {
            let (status, refusal) = send(router, request(method, uri, kind, body)).await;
            assert_eq!((status, refusal.code), (400, ErrorCode::Usage), "{uri}: {refusal:?}");
            assert!(refusal.message.contains(says), "{uri}: {}", refusal.message);
            let is_body = kind.is_some() || body == "{}";
            let help = is_body.then_some("GET /v1/openapi.json has the request's form");
            assert_eq!(refusal.help.as_deref(), help, "{uri}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn other_methods_and_paths_are_no_endpoints_and_only_counters_are_for_everybody() {
        for (method, uri) in [
            ("GET", "/"),
            ("GET", "/v1"),
            ("GET", "/v1/services/"),
            ("GET", "/v1/services/a/b"),
            ("GET", "/V1/services"),
            ("PUT", "/v1/services"),
            ("DELETE", "/v1/node"),
            ("OPTIONS", "/v1/node"),
        ] {
            let (status, refusal) = send(router, request(method, uri, None, "")).await;
            assert_eq!((status, refusal.code), (404, ErrorCode::NotFound), "{method} {uri}");
            assert_eq!(refusal.help.unwrap(), "GET /v1/openapi.json lists every endpoint");
        }
        let (_, refusal) = send(metrics_router, request("GET", "/metrics", None, "")).await;
        assert_eq!(refusal.message, "Operator: metrics", "the operator has said so");
        for uri in ["/v1/node", "/v1/services", "/metrics/"] {
            let (status, refusal) = send(metrics_router, request("GET", uri, None, "")).await;
            assert_eq!(status, 404);
            assert!(refusal.help.unwrap().starts_with("GET /metrics is all that there is here"));
        }
        // Nobody receives.
        let (requests, _) = mpsc::channel(1);
        let gone = router(requests).oneshot(request("GET", "/v1/node", None, "")).await.unwrap();
        assert_eq!(gone.status().as_u16(), ErrorCode::Unreachable.http_status());
    }
}
