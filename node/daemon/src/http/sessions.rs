//! The endpoints of sessions.

use super::{Daemon, RemoveOptions, ask, body, error, refuse};
use crate::control::change::Change;
use crate::request::Request;
use api::ErrorCode;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query};
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use tokio::sync::mpsc;

type Requests = mpsc::Sender<super::Incoming>;

/// Returns the routes of `api::ENDPOINTS` that begin with `/v1/sessions`.
pub(super) fn routes() -> Router<Requests> {
    Router::new()
        .route("/v1/sessions", get(list).post(create))
        .route("/v1/sessions/{name}", get(show).post(set).delete(remove))
}

async fn list(state: Daemon) -> Response {
    ask(state, Request::Sessions).await
}

async fn show(state: Daemon, Path(name): Path<String>) -> Response {
    ask(state, |reply| Request::Session(name, reply)).await
}

async fn create(
    state: Daemon,
    request: Result<Json<api::SessionRequest>, JsonRejection>,
) -> Response {
    match body(request) {
        Ok(request) => {
            let question = |reply| Change::CreateSession(Box::new(request), reply);
            ask(state, |reply| Request::Change(question(reply))).await
        }
        Err(refusal) => refuse(refusal),
    }
}

async fn set(
    state: Daemon,
    Path(name): Path<String>,
    request: Result<Json<api::SessionChange>, JsonRejection>,
) -> Response {
    match body(request) {
        Ok(change) => {
            let question = |reply| Change::SetSession(name, Box::new(change), reply);
            ask(state, |reply| Request::Change(question(reply))).await
        }
        Err(refusal) => refuse(refusal),
    }
}

async fn remove(
    state: Daemon,
    Path(name): Path<String>,
    options: Result<Query<RemoveOptions>, QueryRejection>,
) -> Response {
    match options {
        Ok(Query(o)) => {
            let question = |reply| Change::RemoveSession(name, o.cascade, reply);
            ask(state, |reply| Request::Change(question(reply))).await
        }
        Err(rejection) => refuse(error(ErrorCode::Usage, rejection.body_text(), None)),
    }
}
