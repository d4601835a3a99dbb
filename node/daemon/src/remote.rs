//! The API over TCP: TLS with the node's own key, for holders of a capability.
//!
//! ```text
//!  TCP ─ permit, and a handshake left this second? ─ TLS ─ gate: whose token? ─▶ the same API
//!        (a thread of its own: handshakes take no time of the daemon's)
//! ```
//!
//! The certificate is made at each start and signed by the node's key. A client knows that key,
//! and need not believe anybody else.

use crate::access::{Gate, Place};
use crate::pace::Source;
use crate::server::{self, Limits};
use anyhow::{Context, Result};
use axum::Router;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ED25519};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::NoServerSessionStorage;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use trust::SecretKey;
use units::Name;

/// Limits of connections over the network: separate from those of the socket, so that remote
/// clients cannot lock an operator out.
const LIMITS: Limits = Limits { connections: 64, ..server::LIMITS };
/// Most connections of one address, or of one IPv6 network (/64, what one customer has).
const CONNECTIONS_OF_ONE_MAX: usize = 16;
/// Handshakes in a second: each takes some 0.2 ms of a core, so they never take more than a tenth.
const HANDSHAKES_PER_SECOND: u32 = 400;
/// Time for a handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// The certificate's name in the state's directory, for clients that want one.
const CERTIFICATE_FILE: &str = "api.crt.pem";

/// The API at a TCP port, until it is dropped.
pub(crate) struct Remote {
    end: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.end.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // The thread has reported its errors itself.
            let _ = thread.join();
        }
    }
}

impl Remote {
    /// Listens for connections. `state` is the directory to which the certificate is written for
    /// clients that want it.
    pub(crate) fn start(
        listen: SocketAddr,
        node: &Name,
        key: &SecretKey,
        state: &Path,
        router: Router,
        gate: Arc<Gate>,
    ) -> Result<Self> {
        let (tls, certificate) = tls_of(key, node, listen.ip())?;
        let path = state.join(CERTIFICATE_FILE);
        std::fs::write(&path, certificate)
            .with_context(|| format!("writing {}", path.display()))?;
        let listener = std::net::TcpListener::bind(listen)
            .with_context(|| format!("listening on {listen} for [api]"))?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = watch::channel(false);
        let router = server::guarded(router, gate, Place::Remote, LIMITS);
        let serving = move || {
            runtime.block_on(async {
                match TcpListener::from_std(listener) {
                    Ok(listener) => serve(listener, TlsAcceptor::from(tls), router, ended).await,
                    Err(problem) => tracing::error!(%problem, "the API is not served over TCP"),
                }
            });
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("api-tls".to_owned()).spawn(serving)?;
        Ok(Self { end, thread: Some(thread) })
    }
}

/// TLS with a certificate of the node's key, and that certificate as PEM.
fn tls_of(key: &SecretKey, node: &Name, address: IpAddr) -> Result<(Arc<ServerConfig>, String)> {
    let pem = key.to_pem(None);
    let secret = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| anyhow::anyhow!("the node's key: {error}"))?;
    let pair = KeyPair::from_pkcs8_der_and_sign_algo(&secret, &PKCS_ED25519)
        .context("the node's key for TLS")?;
    let mut names = vec![node.to_string(), "localhost".to_owned()];
    if !address.is_unspecified() {
        names.push(address.to_string());
    }
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, node.as_str());
    let certificate = params.self_signed(&pair)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(secret))?;
    // Each connection proves the node's key again; sessions are not resumed.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok((Arc::new(config), certificate.pem()))
}

/// Connections of each address.
type Counts = Arc<Mutex<BTreeMap<IpAddr, usize>>>;

/// A connection's place in the limits, given back when it is dropped.
struct ConnectionPermit {
    _permit: OwnedSemaphorePermit,
    counts: Counts,
    of: IpAddr,
}

impl ConnectionPermit {
    fn take(free: &Arc<Semaphore>, counts: &Counts, address: IpAddr) -> Option<Self> {
        let permit = Arc::clone(free).try_acquire_owned().ok()?;
        let of = network_of(address);
        let mut held = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.entry(of).or_default();
        if *count >= CONNECTIONS_OF_ONE_MAX {
            return None;
        }
        *count += 1;
        drop(held);
        Some(Self { _permit: permit, counts: Arc::clone(counts), of })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut held = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.of);
            }
        }
    }
}

/// Returns the address, or the network, to which connections are counted.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

async fn serve(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    router: Router,
    mut ended: watch::Receiver<bool>,
) {
    let free = Arc::new(Semaphore::new(LIMITS.connections));
    let counts = Counts::default();
    let mut handshakes = tokio::time::interval(Duration::from_secs(1) / HANDSHAKES_PER_SECOND);
    handshakes.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = ended.changed() => return,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(problem) => {
                tracing::warn!(%problem, "a connection to the API was not taken");
                tokio::time::sleep(server::ACCEPT_PAUSE).await;
                continue;
            }
        };
        // A connection beyond the limits is closed: an answer would need a handshake.
        let Some(permit) = ConnectionPermit::take(&free, &counts, address.ip()) else { continue };
        handshakes.tick().await;
        tokio::spawn(connection(stream, acceptor.clone(), router.clone(), permit));
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    router: Router,
    permit: ConnectionPermit,
) {
    let _ = stream.set_nodelay(true);
    match tokio::time::timeout(HANDSHAKE_TIME_MAX, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            server::connection(stream, router, LIMITS, Source::Network(permit.of)).await;
        }
        Ok(Err(problem)) => tracing::debug!(%problem, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
    drop(permit);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::ServerName;
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
    use trust::Seed;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_as_one() {
        for (one, of) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("2001:db8:1:2::", "2001:db8:1:2::"),
            ("2001:db8:1:3::1", "2001:db8:1:3::"),
            ("fe80::1", "fe80::"),
            ("::1", "::"),
        ] {
            assert_eq!(network_of(address(one)), address(of), "{one}");
        }
    }

    #[test]
    fn one_address_has_a_limited_part_of_the_connections_and_releases_them() {
        let free = Arc::new(Semaphore::new(LIMITS.connections));
        let counts = Counts::default();
        let take = |text: &str| ConnectionPermit::take(&free, &counts, address(text));
        let mut held: Vec<ConnectionPermit> = (0..CONNECTIONS_OF_ONE_MAX)
            .map(|host| take(&format!("2001:db8::{host}")).unwrap())
            .collect();
        assert!(take("2001:db8::ffff").is_none(), "of the same network");
        let left = LIMITS.connections - CONNECTIONS_OF_ONE_MAX;
        assert_eq!(free.available_permits(), left, "who was refused holds nothing");
        held.pop();
        held.push(take("2001:db8::ffff").unwrap());
        held.extend((0..left).map(|host| take(&format!("192.0.2.{host}")).unwrap()));
        assert!(take("198.51.100.1").is_none(), "there is no more for anybody");
        assert_eq!(counts.lock().unwrap().len(), 1 + left);
        held.clear();
        assert!(counts.lock().unwrap().is_empty(), "nothing is remembered of who is gone");
        assert_eq!(free.available_permits(), LIMITS.connections);
    }

    type Versions = [&'static rustls::SupportedProtocolVersion];

    /// Returns a client that believes one certificate.
    fn client(pem: &str, versions: &Versions) -> tokio_rustls::TlsConnector {
        let mut roots = rustls::RootCertStore::empty();
        let certificate = rustls::pki_types::CertificateDer::from_pem_slice(pem.as_bytes());
        roots.add(certificate.unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        tokio_rustls::TlsConnector::from(Arc::new(config))
    }

    /// Shakes hands with the node as a client; returns the version.
    async fn shake_hands(
        server: &Arc<ServerConfig>,
        pem: &str,
        name: &str,
        versions: &Versions,
    ) -> std::io::Result<Option<rustls::ProtocolVersion>> {
        let (near, far) = tokio::io::duplex(1 << 16);
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let acceptor = TlsAcceptor::from(Arc::clone(server));
        let connecting = client(pem, versions).connect(name, near);
        let (client, _server) = tokio::join!(connecting, acceptor.accept(far));
        Ok(client?.get_ref().1.protocol_version())
    }

    const HELLO: &[u8] = b"GET /hello HTTP/1.1\r\nhost: r1\r\nconnection: close\r\n\r\n";

    #[tokio::test(flavor = "current_thread")]
    async fn one_address_cannot_take_all_connections_and_plain_http_gets_no_answer() {
        let key = SecretKey::from_seed(&Seed::new([7; 32]));
        let (tls, pem) = tls_of(&key, &Name::new("r1").unwrap(), address("127.0.0.1")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let router = Router::new().route("/hello", axum::routing::get(|| async { "hello" }));
        let (end, ended) = watch::channel(false);
        let serving = tokio::spawn(serve(listener, TlsAcceptor::from(tls), router, ended));
        let client = client(&pem, &[&rustls::version::TLS13]);
        let connect = async || {
            let stream = TcpStream::connect(at).await?;
            client.connect(ServerName::try_from("r1").unwrap(), stream).await
        };
        let read = async |stream: &mut (dyn AsyncRead + Unpin + Send)| {
            let mut said = Vec::new();
            // One that is closed with something unread is reset.
            let _ = stream.read_to_end(&mut said).await;
            String::from_utf8_lossy(&said).into_owned()
        };
        let mut plain = TcpStream::connect(at).await.unwrap();
        plain.write_all(HELLO).await.unwrap();
        let said = read(&mut plain).await;
        assert!(!said.contains("HTTP"), "{said}");
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS_OF_ONE_MAX {
            held.push(connect().await.unwrap());
        }
        assert!(connect().await.is_err(), "it is closed before the handshake");
        let mut one = held.pop().unwrap();
        one.write_all(HELLO).await.unwrap();
        let said = read(&mut one).await;
        assert!(said.starts_with("HTTP/1.1 200") && said.ends_with("hello"), "{said}");
        // It has ended; the node sees that a moment later.
        let mut next = None;
        while next.is_none() {
            next = connect().await.ok();
        }
        end.send_replace(true);
        serving.await.unwrap();
        assert!(TcpStream::connect(at).await.is_err(), "it listens no more");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_nodes_key_proves_its_name_and_its_address_with_tls_1_3_alone() {
        let key = |number| SecretKey::from_seed(&Seed::new([number; 32]));
        let node = Name::new("r1").unwrap();
        let (server, pem) = tls_of(&key(7), &node, address("192.0.2.1")).unwrap();
        let new = &[&rustls::version::TLS13][..];
        for name in ["r1", "localhost", "192.0.2.1"] {
            let version = shake_hands(&server, &pem, name, new).await.unwrap();
            assert_eq!(version, Some(rustls::ProtocolVersion::TLSv1_3), "{name}");
        }
        for name in ["r2", "192.0.2.2"] {
            assert!(shake_hands(&server, &pem, name, new).await.is_err(), "{name}");
        }
        let (_, another) = tls_of(&key(8), &node, address("192.0.2.1")).unwrap();
        assert!(shake_hands(&server, &another, "r1", new).await.is_err(), "another node's");
        let old = &[&rustls::version::TLS12][..];
        assert!(shake_hands(&server, &pem, "r1", old).await.is_err());
        // One that listens everywhere has no address to prove.
        let (anywhere, pem) = tls_of(&key(7), &node, address("0.0.0.0")).unwrap();
        assert!(shake_hands(&anywhere, &pem, "0.0.0.0", new).await.is_err());
        assert!(shake_hands(&anywhere, &pem, "r1", new).await.is_ok());
    }
}
