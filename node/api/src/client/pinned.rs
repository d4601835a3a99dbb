//! TLS 1.3 with a node that is known by its key, for the client and between nodes.
//!
//! Names, dates and other signatures on the certificate are ignored: they would prove less than the
//! key.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme,
};
use std::fmt;
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use trust::PublicKey;

/// DER bytes before the 32 bytes of an Ed25519 key in a SubjectPublicKeyInfo (RFC 8410).
const ED25519_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// TLS connector for one node.
#[derive(Clone)]
pub struct Pinned {
    key: PublicKey,
    connector: TlsConnector,
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({})", self.key)
    }
}

impl Pinned {
    /// Creates a connector for the node with this key.
    ///
    /// # Errors
    /// TLS 1.3 is not available.
    pub fn new(key: PublicKey) -> io::Result<Self> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = Arc::new(OneKey { key, provider: Arc::clone(&provider) });
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Ok(Self { key, connector: TlsConnector::from(Arc::new(config)) })
    }

    /// Encrypts a TCP connection, after checking the node's key.
    ///
    /// # Errors
    /// The server does not have the key, or breaks off.
    pub async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        // Only the key counts, whatever the node's name is.
        let name = ServerName::try_from("node").map_err(io::Error::other)?;
        self.connector.connect(name, stream).await
    }
}

/// Certificate verifier that accepts exactly one key.
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
