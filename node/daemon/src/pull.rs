//! The node as a repository: it serves its store, by the pull half of the OCI distribution
//! specification, to clients whose capability covers the module.
//!
//! ```text
//! GET /v2/NAME/… ─▶ gate: whose token (Bearer, or the password of Basic) ─▶ oci_client::router
//!                                                                             │ may he have it?
//!                    daemon: read, module, kind ◀── MayPull(digest) ─────────┤
//!                    not in the store: demand.rs ◀── WantPull(digest, hops) ──┘
//! ```

use crate::access::Caller;
use crate::reply::Reply;
use crate::request;
use crate::request::Incoming;
use axum::Router;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use module_store::{Digest, Store};
use node::wanted::Hops;
use oci_client::{Access, AccessDenied, HOPS};
use serde_json::json;
use tokio::sync::mpsc;
use tower::ServiceExt;

/// Path prefix of the OCI distribution specification.
pub(crate) const PREFIX: &str = "/v2";

/// Adds what a store holds to the API.
pub(crate) fn with_store(api: Router, store: Store, requests: mpsc::Sender<Incoming>) -> Router {
    let modules = oci_client::router(store, DaemonAuthorizer(requests));
    let answer = move |request: Request<Body>| {
        let modules = modules.clone();
        async move { modules.oneshot(request).await }
    };
    api.route("/v2/", any(answer.clone())).route("/v2/{*rest}", any(answer))
}

/// Returns the answer to a client without a token, which names the accepted credentials.
pub(crate) fn challenge() -> Response {
    let message = "send a capability: as a bearer token, or as the password of any user";
    let errors = json!({ "errors": [{ "code": "UNAUTHORIZED", "message": message }] });
    let ask = [(WWW_AUTHENTICATE, "Basic realm=\"tamandua\"")];
    (StatusCode::UNAUTHORIZED, ask, axum::Json(errors)).into_response()
}

/// Asks the daemon, which knows what capabilities grant.
struct DaemonAuthorizer(mpsc::Sender<Incoming>);

impl Access for DaemonAuthorizer {
    fn check(&self, request: &Parts, module: &Digest) -> Result<(), AccessDenied> {
        self.ask(request, |reply| request::Request::MayPull(*module, reply))
    }

    fn fetch_missing(&self, request: &Parts, module: &Digest) {
        let hops = hops_of(&request.headers);
        // Whether it came is seen by looking for it once more.
        let _ = self.ask(request, |reply| request::Request::WantPull(*module, hops, reply));
    }
}

impl DaemonAuthorizer {
    fn ask(
        &self,
        request: &Parts,
        question: impl FnOnce(Reply<()>) -> request::Request,
    ) -> Result<(), AccessDenied> {
        let caller = request.extensions.get().cloned().unwrap_or(Caller::Anyone);
        let (reply, awaited) = Reply::pair();
        let request = question(reply);
        self.0.blocking_send(Incoming { caller, request }).map_err(|_| AccessDenied)?;
        awaited.blocking_answer().map_err(|_| AccessDenied)
    }
}

/// Returns the number of further nodes that may be asked for this request: the maximum if the
/// client asks for itself, and none if the header is invalid.
fn hops_of(headers: &HeaderMap) -> Hops {
    let mut values = headers.get_all(HOPS).iter();
    match (values.next(), values.next()) {
        (None, _) => Hops::MAX,
        (Some(value), None) => {
            let hops = value.to_str().ok().and_then(|text| text.parse().ok());
            hops.map_or(Hops::NONE, Hops::new)
        }
        (Some(_), Some(_)) => Hops::NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hop_limit_header_is_parsed_and_an_invalid_one_allows_no_hops() {
        for (values, hops) in [
            (&[][..], Hops::MAX),
            (&["3"], Hops::new(3)),
            (&["0"], Hops::NONE),
            (&["200"], Hops::MAX),
            (&["-1"], Hops::NONE),
            (&["many"], Hops::NONE),
            (&["1", "4"], Hops::NONE),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(HOPS, value.parse().unwrap());
            }
            assert_eq!(hops_of(&headers), hops, "{values:?}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn registry_paths_are_served_beside_those_of_the_api() {
        let folder = tempfile::tempdir().unwrap();
        // Nobody receives: what is asked of the daemon is refused.
        let (requests, _) = mpsc::channel(1);
        let store = Store::open(folder.path()).unwrap();
        let router = with_store(crate::http::router(requests.clone()), store, requests);
        let blob = format!("/v2/x/blobs/sha256:{}", "0".repeat(64));
        for (path, status) in [("/v2/", 200), (blob.as_str(), 404), ("/v1/other", 404)] {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status().as_u16(), status, "{path}");
        }
    }
}
