//! Network transport: TCP, and TLS with the system's root certificates.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

use crate::http::{Connected, Connecting, Forbidden, Reach, Scheme, Target, Transport};
use crate::peer::{IsOwn, Peer};

/// Largest number of addresses of a name that are tried.
const ADDRESSES_MAX: usize = 8;

/// Transport over TCP and TLS.
#[derive(Debug)]
pub struct Network {
    is_own: IsOwn,
    tls: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl Network {
    /// Makes a transport; `is_own` recognizes the machine's own addresses.
    #[must_use]
    pub const fn new(is_own: IsOwn) -> Self {
        Self { is_own, tls: OnceLock::new() }
    }

    /// Connects to the first address of a target that answers and is within `reach`. The check is
    /// on the address of each connection, so a name that resolves differently later cannot evade
    /// it.
    ///
    /// # Errors
    /// Error of the last address; contains [`Forbidden`] if it is out of reach.
    pub async fn open(&self, target: &Target, reach: Reach) -> io::Result<(TcpStream, Peer)> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
        for address in lookup_host((target.host.as_str(), target.port)).await?.take(ADDRESSES_MAX) {
            last = match self.connect_to(address, reach).await {
                Ok(connected) => return Ok(connected),
                Err(error) => error,
            };
        }
        Err(last)
    }

    async fn connect_to(&self, address: SocketAddr, reach: Reach) -> io::Result<(TcpStream, Peer)> {
        let peer = self.peer(address.ip(), reach)?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok((stream, peer))
    }

    fn peer(&self, address: IpAddr, reach: Reach) -> io::Result<Peer> {
        match (Peer::of(address, self.is_own), reach) {
            (peer, Reach::Anywhere) => Ok(peer.unwrap_or(Peer::Link)),
            (Ok(Peer::Beyond), Reach::OtherMachines) => Ok(Peer::Beyond),
            (Ok(peer), Reach::OtherMachines) => {
                let why = format!("{address} is {}", peer.name());
                Err(io::Error::new(io::ErrorKind::PermissionDenied, Forbidden(why)))
            }
            (Err(error), Reach::OtherMachines) => {
                let why = format!(
                    "it is unknown whether {address} is an address of this machine: {error}"
                );
                Err(io::Error::new(io::ErrorKind::PermissionDenied, Forbidden(why)))
            }
        }
    }
}

impl Transport for Network {
    fn connect<'a>(&'a self, target: &'a Target, reach: Reach) -> Connecting<'a> {
        Box::pin(async move {
            let (stream, peer) = self.open(target, reach).await?;
            if target.scheme == Scheme::Http {
                return Ok(Connected { stream: Box::new(stream), peer });
            }
            let config = self.tls.get_or_init(config).clone().map_err(io::Error::other)?;
            let name = ServerName::try_from(target.host.clone()).map_err(io::Error::other)?;
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            Ok(Connected { stream: Box::new(stream), peer })
        })
    }
}

/// Loads the root certificates of the system, or of `SSL_CERT_FILE`.
fn config() -> Result<Arc<ClientConfig>, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err("this machine trusts no certificates; install ca-certificates".to_owned());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(host: &str, port: u16) -> Target {
        Target { scheme: Scheme::Http, host: host.to_owned(), port }
    }

    #[tokio::test]
    async fn a_registry_cannot_redirect_to_this_machine_by_any_name() {
        let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // Treats every address as one of this machine's own.
        let network = Network::new(|_| Ok(true));
        for host in ["127.0.0.1", "localhost", "0.0.0.0", "127.1", "0x7f000001", "2130706433"] {
            let target = target(host, port);
            let error = network.open(&target, Reach::OtherMachines).await.unwrap_err();
            assert!(
                error.get_ref().is_some_and(|error| error.is::<Forbidden>()),
                "{host}: {error}"
            );
            let (_, peer) = network.open(&target, Reach::Anywhere).await.unwrap();
            assert_eq!(peer, Peer::Machine, "{host}");
        }
        let elsewhere = network.open(&target("192.0.2.1", port), Reach::OtherMachines).await;
        assert!(elsewhere.unwrap_err().to_string().contains("192.0.2.1 is an address of this"));
        let silent = Network::new(|_| Err(io::Error::other("no netlink")));
        let untold = silent.open(&target("192.0.2.1", port), Reach::OtherMachines).await;
        assert!(untold.unwrap_err().to_string().contains("of this machine: no netlink"));
    }
}
