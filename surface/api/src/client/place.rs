//! Where a node answers, and how a client gets there.
//!
//! ```text
//!  Socket ─ a path ─────────────────────────────────────▶ HTTP
//!  Remote ─ address ─▶ TCP ─▶ TLS 1.3 ─ the node's key? ─▶ HTTP
//! ```
//!
//! A node proves its key; names, dates and other people's signatures on its certificate are not
//! looked at, as they would prove less.

use super::ClientError;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme,
};
use std::fmt;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use trust::PublicKey;

/// What stands before the 32 bytes of an Ed25519 key in a SubjectPublicKeyInfo (RFC 8410).
const ED25519_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Where a node answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A UNIX socket of this machine.
    Socket(PathBuf),
    /// Over the network.
    Remote(RemoteNode),
}

/// A node on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteNode {
    /// Host and TCP port: `192.0.2.1:7443`.
    pub address: String,
    /// By which it is known.
    pub key: PublicKey,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Remote(node) => f.write_str(&node.address),
        }
    }
}

/// A way to and from a node.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection that was opened.
pub(super) struct Open {
    pub(super) stream: Box<dyn Stream>,
    pub(super) probe: Probe,
}

/// The same connection, to see whether the node has closed it.
pub(super) enum Probe {
    Socket(std::os::unix::net::UnixStream),
    Remote(std::net::TcpStream),
}

impl Probe {
    /// A node says nothing that it was not asked for: what there is, is its end.
    pub(super) fn is_silent(&self) -> bool {
        let read = match self {
            Self::Socket(stream) => (&mut &*stream).read(&mut [0]),
            Self::Remote(stream) => stream.peek(&mut [0]),
        };
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl Place {
    pub(super) async fn open(&self) -> Result<Open, ClientError> {
        let unreachable =
            |source| ClientError::Unreachable { place: Box::new(self.clone()), source };
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
                let tls = TlsConnector::from(config(node.key).map_err(unreachable)?);
                // Only the key counts, whatever the node is called.
                let name = ServerName::try_from("node").map_err(io::Error::other);
                let stream = tls.connect(name.map_err(unreachable)?, stream).await;
                let stream = stream.map_err(|source| self.refused(source))?;
                Ok(Open { stream: Box::new(stream), probe: Probe::Remote(probe.into()) })
            }
        }
    }

    /// What went wrong in the handshake.
    fn refused(&self, source: io::Error) -> ClientError {
        let tls = source.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
        match tls {
            Some(TlsError::InvalidCertificate(problem)) => ClientError::OtherNode {
                place: Box::new(self.clone()),
                reason: match problem {
                    CertificateError::ApplicationVerificationFailure => {
                        "it shows another key".to_owned()
                    }
                    other => other.to_string(),
                },
            },
            _ => ClientError::Unreachable { place: Box::new(self.clone()), source },
        }
    }
}

fn config(key: PublicKey) -> io::Result<Arc<ClientConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(OneKey { key, provider: Arc::clone(&provider) });
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Believes who has this key.
#[derive(Debug)]
struct OneKey {
    key: PublicKey,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for OneKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let shown = ParsedCertificate::try_from(end_entity)?.subject_public_key_info();
        let wanted = [ED25519_PREFIX.as_slice(), self.key.as_bytes()].concat();
        match shown.as_ref() == wanted {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(TlsError::General("a node speaks TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}
