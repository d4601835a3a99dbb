//! One connection to a node, and what is kept of it from one request to the next.

use super::place::{Open, Place, Probe};
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

/// A connection that was silent for longer is not used again: the node closes those that were
/// for ten seconds, and may be doing so.
const SILENT_MAX: Duration = Duration::from_secs(5);

/// Time until a node on the network has shown its key.
const OPEN_TIME_MAX: Duration = Duration::from_secs(10);

/// The connection of the last request, if it can have another one.
#[derive(Default)]
pub(super) struct Kept(Mutex<Option<Connection>>);

impl Kept {
    /// Answers a request over it, or over a new one; several at a time have one each.
    pub(super) fn ask(
        &self,
        place: &Place,
        call: Call,
        on_delay: Option<OnDelay>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let kept = self.place().take().filter(Connection::is_open);
        let mut connection = match kept {
            Some(connection) => connection,
            None => Connection::open(place)?,
        };
        let answer = connection.ask(place, call, on_delay)?;
        *self.place() = Some(connection);
        Ok(answer)
    }

    fn place(&self) -> std::sync::MutexGuard<'_, Option<Connection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

/// A connection is one client's.
impl Clone for Kept {
    fn clone(&self) -> Self {
        Self::default()
    }
}

struct Connection {
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
    /// The same socket, to see whether the node has closed it.
    probe: Probe,
    answered: Instant,
}

impl Connection {
    fn open(place: &Place) -> Result<Self, ClientError> {
        let unreachable =
            |source| ClientError::Unreachable { place: Box::new(place.clone()), source };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(unreachable)?;
        let opened = async { tokio::time::timeout(OPEN_TIME_MAX, place.open()).await };
        let Open { stream, probe } = runtime.block_on(opened).unwrap_or_else(|_| {
            Err(unreachable(io::Error::new(io::ErrorKind::TimedOut, "it does not answer")))
        })?;
        let sender = runtime.block_on(async {
            let (sender, connection) = handshake(TokioIo::new(stream))
                .await
                .map_err(|source| broken(place, "the first request", source))?;
            // Ends with the runtime; what fails there is told to the request, too.
            drop(tokio::spawn(connection));
            Ok(sender)
        })?;
        Ok(Self { runtime, sender, probe, answered: Instant::now() })
    }

    /// Whether the node has left it open, and reads what is sent.
    fn is_open(&self) -> bool {
        // A node says nothing that it was not asked for: what there is, is its end.
        self.probe.is_silent() && !self.sender.is_closed() && self.answered.elapsed() < SILENT_MAX
    }

    fn ask(
        &mut self,
        place: &Place,
        call: Call,
        on_delay: Option<OnDelay>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let (request, usual) = (call.name(), ANSWER_TIME_USUAL + call.wait);
        let Self { runtime, sender, .. } = self;
        let answer = runtime.block_on(async {
            let mut answer = std::pin::pin!(exchange(place, sender, call));
            match tokio::time::timeout(usual, &mut answer).await {
                Ok(answer) => Ok(answer),
                Err(_) => {
                    on_delay.into_iter().for_each(|call| call(place));
                    tokio::time::timeout(ANSWER_TIME_MAX.saturating_sub(usual), answer).await
                }
            }
        });
        self.answered = Instant::now();
        answer.unwrap_or_else(|_| {
            Err(ClientError::Silent { place: Box::new(place.clone()), request })
        })
    }
}

async fn exchange(
    place: &Place,
    sender: &mut SendRequest<Full<Bytes>>,
    call: Call,
) -> Result<(StatusCode, Bytes), ClientError> {
    let name = call.name();
    sender.ready().await.map_err(|source| broken(place, &name, source))?;
    let answer = sender.send_request(call.into_request()?).await;
    let answer = answer.map_err(|source| broken(place, &name, source))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_LENGTH_MAX).collect().await;
    let body =
        body.map_err(|source| ClientError::Answer { request: name, reason: source.to_string() })?;
    Ok((status, body.to_bytes()))
}

fn broken(place: &Place, request: &str, source: hyper::Error) -> ClientError {
    ClientError::Broken { place: Box::new(place.clone()), request: request.to_owned(), source }
}
