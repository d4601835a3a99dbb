//! Everywhere that the daemon answers: the API on its socket and over TCP, and counters.

use crate::access::Gate;
use crate::config::NodeFile;
use crate::http;
use crate::pull;
use crate::remote::Remote;
use crate::request::Incoming;
use crate::server;
use anyhow::{Context, Result, ensure};
use module_store::Store;
use std::future::IntoFuture;
use std::sync::Arc;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use trust::SecretKey;

/// All of it, until it is dropped.
pub(crate) struct Listening {
    server: JoinHandle<()>,
    metrics: Option<JoinHandle<std::io::Result<()>>>,
    _remote: Option<Remote>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.server.abort();
        self.metrics.iter().for_each(JoinHandle::abort);
    }
}

/// Checks that this machine has the addresses of a node file, and that no two of its sections want
/// the same one, before a daemon that runs is asked to end. Whether another program has one is
/// known only when it is bound.
///
/// # Errors
/// The first address that cannot be listened at.
pub(crate) fn check_addresses(file: &NodeFile) -> Result<()> {
    let api = file.api.as_ref().map(|api| ("api", api.listen));
    let metrics = file.metrics.as_ref().map(|metrics| ("metrics", metrics.listen));
    for (section, mut address) in [api, metrics].into_iter().flatten() {
        address.set_port(0);
        std::net::TcpListener::bind(address)
            .with_context(|| format!("listening on {} for [{section}]", address.ip()))?;
    }
    if let (Some((_, api)), Some((_, metrics))) = (api, metrics) {
        ensure!(api != metrics, "[api] and [metrics] both listen on {api}: give one another port");
    }
    for address in file.associations.iter().flat_map(|text| &text.listen) {
        std::net::UdpSocket::bind((address.ip(), 0))
            .with_context(|| format!("listening on {} for [associations]", address.ip()))?;
    }
    Ok(())
}

/// Begins to answer where the node file says so.
pub(crate) async fn listen(
    file: &NodeFile,
    key: &SecretKey,
    store: Store,
    gate: Arc<Gate>,
    requests: mpsc::Sender<Incoming>,
) -> Result<Listening> {
    let socket = api::socket_of(&file.name);
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket)
        .with_context(|| format!("listening on {}", socket.display()))?;
    let metrics = serve_metrics(file, requests.clone()).await?;
    let router = pull::with_store(http::router(requests.clone()), store, requests);
    let remote = match &file.api {
        Some(api) => Some(Remote::start(
            api.listen,
            &file.name,
            key,
            &file.state,
            router.clone(),
            Arc::clone(&gate),
        )?),
        None => None,
    };
    let server = tokio::spawn(server::serve(listener, router, gate, server::LIMITS));
    Ok(Listening { server, metrics, _remote: remote })
}

async fn serve_metrics(
    file: &NodeFile,
    requests: mpsc::Sender<Incoming>,
) -> Result<Option<JoinHandle<std::io::Result<()>>>> {
    let Some(metrics) = &file.metrics else { return Ok(None) };
    let listener = TcpListener::bind(metrics.listen)
        .await
        .with_context(|| format!("listening on {} for [metrics]", metrics.listen))?;
    let router = server::with_host(http::metrics_router(requests));
    let server = axum::serve(listener, router).into_future();
    Ok(Some(tokio::spawn(server)))
}
