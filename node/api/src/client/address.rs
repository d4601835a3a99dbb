//! Addresses at which nodes answer, and connections to them.
//!
//! ```text
//!  Socket ─ a path ─────────────────────────────────────▶ HTTP
//!  Remote ─ address ─▶ TCP ─▶ TLS 1.3 ─ the node's key? ─▶ HTTP
//! ```
//!
//! A node proves its key; names, dates and other signatures on its certificate are ignored: they
//! would prove less.

use super::ClientError;
use super::pinned::Pinned;
use rustls::{CertificateError, Error as TlsError};
use std::fmt;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::PathBuf;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use trust::PublicKey;

/// Address at which a node answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeAddress {
    /// UNIX socket of this machine.
    Socket(PathBuf),
    /// Node on the network.
    Remote(RemoteNode),
}

/// Node on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteNode {
    /// Host and TCP port: `192.0.2.1:7443`.
    pub address: String,
    /// Public key that identifies the node.
    pub key: PublicKey,
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Remote(node) => f.write_str(&node.address),
        }
    }
}

/// Byte stream to and from a node.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Opened connection.
pub(super) struct Open {
    pub(super) stream: Box<dyn Stream>,
    pub(super) probe: Probe,
}

/// Second handle of the connection, to see whether the node has closed it.
pub(super) enum Probe {
    Socket(std::os::unix::net::UnixStream),
    Remote(std::net::TcpStream),
}

impl Probe {
    /// Returns true if nothing is readable. A node sends nothing unasked: readable data means that
    /// it has closed the connection.
    pub(super) fn is_silent(&self) -> bool {
        let read = match self {
            Self::Socket(stream) => (&mut &*stream).read(&mut [0]),
            Self::Remote(stream) => stream.peek(&mut [0]),
        };
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl NodeAddress {
    pub(super) async fn open(&self) -> Result<Open, ClientError> {
        let unreachable =
            |source| ClientError::Unreachable { address: Box::new(self.clone()), source };
        match self {
            Self::Socket(path) => {
                let stream = UnixStream::connect(path).await.map_err(unreachable)?;
                let probe = stream.as_fd().try_clone_to_owned().map_err(unreachable)?;
                Ok(Open { stream: Box::new(stream), probe: Probe::Socket(probe.into()) })
            }
            Self::Remote(node) => {
                let stream = TcpStream::connect(&node.address).await.map_err(unreachable)?;
                stream.set_nodelay(true).map_err(unreachable)?;
                let probe = stream.as_fd().try_clone_to_owned().map_err(unreachable)?;
                let tls = Pinned::new(node.key).map_err(unreachable)?;
                let stream = tls.connect(stream).await.map_err(|source| self.refused(source))?;
                Ok(Open { stream: Box::new(stream), probe: Probe::Remote(probe.into()) })
            }
        }
    }

    /// Returns the error of a failed handshake.
    fn refused(&self, source: io::Error) -> ClientError {
        let tls = source.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
        match tls {
            Some(TlsError::InvalidCertificate(problem)) => ClientError::OtherNode {
                address: Box::new(self.clone()),
                reason: match problem {
                    CertificateError::ApplicationVerificationFailure => {
                        "it shows another key".to_owned()
                    }
                    other => other.to_string(),
                },
            },
            _ => ClientError::Unreachable { address: Box::new(self.clone()), source },
        }
    }
}
