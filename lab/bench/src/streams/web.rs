//! HTTP client: one connection, one request after another.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HOST};
use hyper_util::rt::TokioIo;
use namespaces::netns::{self, NetNs};
use tokio::runtime::Runtime;

/// Time for a response; longer than any that works.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// HTTP client with one connection, opened from a namespace.
pub(crate) struct Client {
    runtime: Runtime,
    requests: SendRequest<Empty<Bytes>>,
    host: String,
}

/// Response with status 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// True if its content coding is gzip.
    pub(crate) is_gzip: bool,
    /// Body as received.
    pub(crate) body: Vec<u8>,
    /// Time from the request to the first bytes of the body.
    pub(crate) first_byte: Duration,
}

impl Client {
    pub(crate) fn connect(namespace: &NetNs, at: SocketAddr) -> Result<Self> {
        let stream = netns::in_namespace(namespace, || TcpStream::connect(at))?
            .with_context(|| format!("connecting to {at}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting a client")?;
        let requests = runtime.block_on(async {
            let stream = TokioIo::new(tokio::net::TcpStream::from_std(stream)?);
            let (requests, connection) = handshake(stream).await?;
            tokio::spawn(connection);
            anyhow::Ok(requests)
        })?;
        Ok(Self { runtime, requests, host: at.to_string() })
    }

    /// Requests a path, with `Accept-Encoding: gzip` or without.
    pub(crate) fn ask(&mut self, path: &str, accepts_gzip: bool) -> Result<Answer> {
        let Self { runtime, requests, host } = self;
        let mut request = hyper::Request::get(path).header(HOST, host.as_str());
        if accepts_gzip {
            request = request.header(ACCEPT_ENCODING, "gzip");
        }
        let request = request.body(Empty::new()).context("making a request")?;
        let answer = async {
            requests.ready().await?;
            let begun = Instant::now();
            let mut answer = requests.send_request(request).await?;
            let status = answer.status();
            ensure!(status == hyper::StatusCode::OK, "{host}{path} answered {status}");
            let is_gzip = answer.headers().get(CONTENT_ENCODING).is_some_and(|it| it == "gzip");
            let (mut body, mut first_byte) = (Vec::new(), None);
            while let Some(frame) = answer.frame().await {
                if let Ok(data) = frame?.into_data() {
                    first_byte.get_or_insert_with(|| begun.elapsed());
                    body.extend_from_slice(&data);
                }
            }
            let first_byte = first_byte.with_context(|| format!("{path} has no body"))?;
            Ok(Answer { is_gzip, body, first_byte })
        };
        runtime
            .block_on(async { tokio::time::timeout(ANSWER_TIME_MAX, answer).await })
            .with_context(|| {
                format!("no answer to {path} within {} s", ANSWER_TIME_MAX.as_secs())
            })?
    }
}
