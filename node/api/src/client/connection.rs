//! Connection to a node, kept from one request to the next.

use super::address::{NodeAddress, Open, Probe};
use super::{ANSWER_LENGTH_MAX, ANSWER_TIME_MAX, ANSWER_TIME_USUAL, Call, ClientError, OnDelay};
use http_body_util::{BodyExt, Full, Limited};
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Idle time after which a connection is not used again: the node closes connections that were idle
/// for ten seconds, and may be doing so.
const SILENT_MAX: Duration = Duration::from_secs(5);

/// Limit of the time to open a connection to a node on the network, with the check of its key.
const OPEN_TIME_MAX: Duration = Duration::from_secs(10);

/// Connection of the last request, if it can carry another one.
#[derive(Default)]
pub(super) struct IdleConnection(Mutex<Option<Connection>>);

impl IdleConnection {
    /// Answers a request over the kept connection, or over a new one; concurrent requests have one
    /// each.
    pub(super) fn ask(
        &self,
        address: &NodeAddress,
        call: Call,
        on_delay: Option<OnDelay>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let idle = self.slot().take().filter(Connection::is_open);
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection::open(address)?,
        };
        let answer = connection.ask(address, call, on_delay)?;
        *self.slot() = Some(connection);
        Ok(answer)
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Connection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for IdleConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

/// A clone begins without a connection: connections are not shared by clients.
impl Clone for IdleConnection {
    fn clone(&self) -> Self {
        Self::default()
    }
}

struct Connection {
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
    /// Second handle of the socket, to see whether the node has closed it.
    probe: Probe,
    answered: Instant,
}

impl Connection {
    fn open(address: &NodeAddress) -> Result<Self, ClientError> {
        let unreachable =
            |source| ClientError::Unreachable { address: Box::new(address.clone()), source };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(unreachable)?;
        let opened = async { tokio::time::timeout(OPEN_TIME_MAX, address.open()).await };
        let Open { stream, probe } = runtime.block_on(opened).unwrap_or_else(|_| {
            Err(unreachable(io::Error::new(io::ErrorKind::TimedOut, "it does not answer")))
        })?;
        let sender = runtime.block_on(async {
            let (sender, connection) = handshake(TokioIo::new(stream))
                .await
                .map_err(|source| broken(address, "the first request", source))?;
            // The task ends with the runtime; its errors reach the request, too.
            drop(tokio::spawn(connection));
            Ok(sender)
        })?;
        Ok(Self { runtime, sender, probe, answered: Instant::now() })
    }

    /// Returns true if the node has left the connection open and reads from it.
    fn is_open(&self) -> bool {
        // A node sends nothing unasked: readable data means that it has closed the connection.
        self.probe.is_silent() && !self.sender.is_closed() && self.answered.elapsed() < SILENT_MAX
    }

    fn ask(
        &mut self,
        address: &NodeAddress,
        call: Call,
        on_delay: Option<OnDelay>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let (request, usual) = (call.name(), ANSWER_TIME_USUAL + call.wait);
        let Self { runtime, sender, .. } = self;
        let answer = runtime.block_on(async {
            let mut answer = std::pin::pin!(exchange(address, sender, call));
            match tokio::time::timeout(usual, &mut answer).await {
                Ok(answer) => Ok(answer),
                Err(_) => {
                    on_delay.into_iter().for_each(|call| call(address));
                    tokio::time::timeout(ANSWER_TIME_MAX.saturating_sub(usual), answer).await
                }
            }
        });
        self.answered = Instant::now();
        answer.unwrap_or_else(|_| {
            Err(ClientError::Silent { address: Box::new(address.clone()), request })
        })
    }
}

async fn exchange(
    address: &NodeAddress,
    sender: &mut SendRequest<Full<Bytes>>,
    call: Call,
) -> Result<(StatusCode, Bytes), ClientError> {
    let name = call.name();
    sender.ready().await.map_err(|source| broken(address, &name, source))?;
    let answer = sender.send_request(call.into_request()?).await;
    let answer = answer.map_err(|source| broken(address, &name, source))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_LENGTH_MAX).collect().await;
    let body =
        body.map_err(|source| ClientError::Answer { request: name, reason: source.to_string() })?;
    Ok((status, body.to_bytes()))
}

fn broken(address: &NodeAddress, request: &str, source: hyper::Error) -> ClientError {
    ClientError::Broken { address: Box::new(address.clone()), request: request.to_owned(), source }
}
