//! HTTP requests: each step has a deadline, each part of a response a limit.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HOST, HeaderMap, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::RepositoryError;
use crate::limits::{
    CONNECT_TIME_MAX, HEAD_LENGTH_MAX, HEAD_TIME_MAX, HEADERS_MAX, IDLE_MAX, RATE_WINDOW,
    WINDOW_BYTES_MIN,
};
use crate::peer::Peer;

/// Bidirectional byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Open connection.
pub struct Connected {
    /// Byte stream of the connection.
    pub stream: Box<dyn Stream>,
    /// Network distance of the other end.
    pub peer: Peer,
}

/// Result of [`Transport::connect`].
pub type Connecting<'a> = Pin<Box<dyn Future<Output = io::Result<Connected>> + Send + 'a>>;

/// Factory of connections: the network, or a test.
pub trait Transport: Send + Sync {
    /// Opens a connection, with TLS if the target requires it. The error contains [`Forbidden`] if
    /// `reach` does not allow the address.
    fn connect<'a>(&'a self, target: &'a Target, reach: Reach) -> Connecting<'a>;
}

/// URI scheme, with or without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// HTTP without TLS.
    Http,
    /// HTTP over TLS.
    Https,
}

/// Host to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Scheme.
    pub scheme: Scheme,
    /// Host name or IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// Refusal to connect to an address that a registry redirected to, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Forbidden(pub String);

/// Restriction of the addresses of a connection. Registries choose the targets of their redirects,
/// which must not reach services that only this machine can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// No restriction: the operator named the target.
    Anywhere,
    /// Addresses at [`Peer::Beyond`] only.
    OtherMachines,
}

impl Target {
    /// Returns host and port as in the header `Host`.
    #[must_use]
    pub fn authority(&self) -> String {
        let host = &self.host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let usual = match self.scheme {
            Scheme::Http => 80,
            Scheme::Https => 443,
        };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.authority())
    }
}

/// HTTP request.
#[derive(Clone, Debug)]
pub struct Call {
    /// Method: GET, HEAD, POST or PUT.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// Additional headers.
    pub headers: HeaderMap,
    /// Request body.
    pub body: Bytes,
    /// Description of the object, for messages.
    pub what: String,
}

/// HTTP response: its head, and the body to be read.
pub struct Answer {
    /// Status code.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    body: Incoming,
    connection: Connection,
    target: Target,
    what: String,
}

/// HTTP client with a common deadline for all its requests.
pub struct Http {
    transport: Arc<dyn Transport>,
    connections: Connections,
    deadline: Instant,
    time_max: Duration,
}

/// Pool of idle connections, shared by clones, which saves handshakes. Connections live as long as
/// the runtime that opened them.
#[derive(Clone, Default)]
pub struct Connections(Arc<Mutex<VecDeque<(Target, Connection)>>>);

impl Connections {
    /// Takes an idle connection to the target, if its address is within `reach`.
    fn take(&self, target: &Target, reach: Reach) -> Option<Connection> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Connections closed by the other end are dropped.
        idle.retain(|(_, connection)| !connection.sender.is_closed());
        let is_in_reach = |peer: Peer| reach == Reach::Anywhere || peer == Peer::Beyond;
        let is_it =
            |(to, connection): &(Target, Connection)| to == target && is_in_reach(connection.peer);
        let at = idle.iter().position(is_it)?;
        idle.remove(at).map(|(_, connection)| connection)
    }

    fn put(&self, target: Target, connection: Connection) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push_front((target, connection));
        idle.truncate(IDLE_MAX);
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connections")
    }
}

struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    peer: Peer,
    _task: Task,
}

/// Task of a connection, aborted when the connection is dropped.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Http {
    /// Makes a client whose time limit starts now.
    #[must_use]
    pub fn new(
        transport: Arc<dyn Transport>,
        connections: Connections,
        time_max: Duration,
    ) -> Self {
        let deadline = Instant::now() + time_max;
        Self { transport, connections, deadline, time_max }
    }

    /// Awaits a future within the deadline.
    ///
    /// # Errors
    /// The deadline has passed.
    pub async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, RepositoryError> {
        let over = |_| RepositoryError::TookTooLong(self.time_max);
        timeout_at(self.deadline, work).await.map_err(over)
    }

    /// Sends a request and waits for the head of the response.
    ///
    /// # Errors
    /// No response within the time limits.
    pub async fn send(
        &self,
        target: &Target,
        reach: Reach,
        call: &Call,
    ) -> Result<Answer, RepositoryError> {
        self.in_time(async {
            if let Some(connection) = self.connections.take(target, reach)
                && let Ok(answer) = self.try_send(connection, target, call).await
            {
                return Ok(answer);
            }
            // No idle connection, or the other end has closed it.
            let connection = self.connect(target, reach).await?;
            self.try_send(connection, target, call).await
        })
        .await?
    }

    async fn connect(&self, target: &Target, reach: Reach) -> Result<Connection, RepositoryError> {
        let failed = |why: String| RepositoryError::Unreachable { target: target.to_string(), why };
        let opened = timeout(CONNECT_TIME_MAX, self.transport.connect(target, reach)).await;
        let refused = |error: io::Error| match error.get_ref() {
            Some(inner) if inner.is::<Forbidden>() => {
                RepositoryError::Forbidden { target: target.to_string(), why: error.to_string() }
            }
            _ => failed(error.to_string()),
        };
        let Connected { stream, peer } = opened
            .map_err(|_| failed(format!("no answer in {} s", CONNECT_TIME_MAX.as_secs())))?
            .map_err(refused)?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(HEAD_LENGTH_MAX).max_headers(HEADERS_MAX);
        let (sender, connection) = builder
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| failed(error.to_string()))?;
        let task = tokio::spawn(async {
            // Errors of the connection are reported by the request on it.
            let _ = connection.await;
        });
        Ok(Connection { sender, peer, _task: Task(task) })
    }

    async fn try_send(
        &self,
        mut connection: Connection,
        target: &Target,
        call: &Call,
    ) -> Result<Answer, RepositoryError> {
        let request = request(target, call)?;
        let broken = |why: String| RepositoryError::Broken {
            target: target.to_string(),
            what: call.what.clone(),
            why,
        };
        let answer = async {
            connection.sender.ready().await?;
            connection.sender.send_request(request).await
        };
        // The time to send a body at the least rate is included.
        let slow = call.body.len() as u64 * RATE_WINDOW.as_secs() / WINDOW_BYTES_MIN;
        let answer: Response<Incoming> = timeout(HEAD_TIME_MAX + Duration::from_secs(slow), answer)
            .await
            .map_err(|_| broken(format!("no answer in {} s", HEAD_TIME_MAX.as_secs())))?
            .map_err(|error| broken(with_cause(&error)))?;
        let (parts, body) = answer.into_parts();
        let (status, headers) = (parts.status, parts.headers);
        let (target, what) = (target.clone(), call.what.clone());
        Ok(Answer { status, headers, body, connection, target, what })
    }

    /// Appends the body of a response to `into`, which must not become longer than `limit`.
    ///
    /// # Errors
    /// The body is interrupted, too slow or too long; `into` has the bytes received so far.
    pub async fn read(
        &self,
        answer: Answer,
        limit: u64,
        into: &mut Vec<u8>,
        mut on_bytes: impl FnMut(u64),
    ) -> Result<(), RepositoryError> {
        if let Some(coding) = coding(&answer.headers) {
            let (target, what) = (answer.target.to_string(), answer.what);
            let why = format!("its content coding is {coding}, which was not requested");
            return Err(RepositoryError::Malformed { target, what, why });
        }
        let Answer { mut body, connection, target, what, .. } = answer;
        let named = || (target.to_string(), what.clone());
        let mut window = (Instant::now() + RATE_WINDOW, 0);
        self.in_time(async {
            loop {
                let frame = timeout_at(window.0, body.frame()).await;
                if frame.is_err() || Instant::now() >= window.0 {
                    if window.1 < WINDOW_BYTES_MIN {
                        let (target, what) = named();
                        return Err(RepositoryError::TooSlow { target, what });
                    }
                    window = (Instant::now() + RATE_WINDOW, 0);
                }
                let Ok(frame) = frame else { continue };
                let Some(frame) = frame else { return Ok(()) };
                let frame = frame.map_err(|error| {
                    let (target, what) = named();
                    RepositoryError::Broken { target, what, why: with_cause(&error) }
                })?;
                let Ok(bytes) = frame.into_data() else { continue };
                if (into.len() + bytes.len()) as u64 > limit {
                    return Err(RepositoryError::TooLarge { what: what.clone(), limit });
                }
                window.1 += bytes.len() as u64;
                into.extend_from_slice(&bytes);
                on_bytes(into.len() as u64);
            }
        })
        .await??;
        self.connections.put(target, connection);
        Ok(())
    }
}

fn request(target: &Target, call: &Call) -> Result<Request<Full<Bytes>>, RepositoryError> {
    let mut request = Request::new(Full::new(call.body.clone()));
    *request.method_mut() = call.method.clone();
    let malformed = |why: String| RepositoryError::Malformed {
        target: target.to_string(),
        what: call.what.clone(),
        why,
    };
    *request.uri_mut() = call.path.parse().map_err(|_| malformed("no path of HTTP".into()))?;
    *request.headers_mut() = call.headers.clone();
    let host = HeaderValue::from_str(&target.authority());
    let host = host.map_err(|_| malformed("no host of HTTP".into()))?;
    request.headers_mut().insert(HOST, host);
    let agent = HeaderValue::from_static(concat!("tam/", env!("CARGO_PKG_VERSION")));
    request.headers_mut().insert(USER_AGENT, agent);
    // Digests are of the identity coding.
    request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    Ok(request)
}

/// Returns the content coding of a body; `None` for the identity coding.
fn coding(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(CONTENT_ENCODING)?;
    let text: String = String::from_utf8_lossy(value.as_bytes()).chars().take(40).collect();
    let is_none = text.trim().is_empty() || text.trim().eq_ignore_ascii_case("identity");
    (!is_none).then(|| text.escape_debug().to_string())
}

/// Returns an error of hyper with its cause, which it does not display itself.
fn with_cause(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

impl Answer {
    /// Returns the host that sent the response.
    #[must_use]
    pub const fn target(&self) -> &Target {
        &self.target
    }

    /// Returns the network distance of that host.
    #[must_use]
    pub const fn peer(&self) -> Peer {
        self.connection.peer
    }

    /// Returns a header as text.
    #[must_use]
    pub fn header(&self, name: impl hyper::header::AsHeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}
