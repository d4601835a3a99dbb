//! The node as a repository: what its store holds, by the pull half of the OCI distribution
//! specification, to those whose capability reaches the module.
//!
//! ```text
//! GET /v2/NAME/… ─▶ gate: whose token (Bearer, or the password of Basic) ─▶ repository::router
//!                                                                             │ may he have it?
//!                    daemon: read, and the module ◀─ MayPull(digest) ─────────┘
//! ```

use crate::access::Caller;
use crate::daemon::Request;
use crate::http::Incoming;
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use registry::{Digest, Store};
use repository::{Access, NotYours};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

/// Where the specification has its paths.
pub(crate) const PREFIX: &str = "/v2";

/// Adds what a store holds to the API.
pub(crate) fn with_store(api: Router, store: Store, requests: mpsc::Sender<Incoming>) -> Router {
    let modules = repository::router(store, OfDaemon(requests));
    api.route_service("/v2/", modules.clone()).route_service("/v2/{*rest}", modules)
}

/// What a client without a token is told: what it can send.
pub(crate) fn challenge() -> Response {
    let message = "send a capability: as a bearer token, or as the password of any user";
    let errors = json!({ "errors": [{ "code": "UNAUTHORIZED", "message": message }] });
    let ask = [(WWW_AUTHENTICATE, "Basic realm=\"tamandua\"")];
    (StatusCode::UNAUTHORIZED, ask, axum::Json(errors)).into_response()
}

/// Asks the daemon, which knows what capabilities grant.
struct OfDaemon(mpsc::Sender<Incoming>);

impl Access for OfDaemon {
    fn may(&self, request: &Parts, module: &Digest) -> Result<(), NotYours> {
        let caller = request.extensions.get().cloned().unwrap_or(Caller::Anyone);
        let (reply, answer) = oneshot::channel();
        let request = Request::MayPull(*module, reply);
        self.0.blocking_send(Incoming { caller, request }).map_err(|_| NotYours)?;
        match answer.blocking_recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(NotYours),
        }
    }
}
