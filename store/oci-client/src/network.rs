//! The network as a transport: TCP, and TLS by the certificates that the system trusts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

use crate::http::{Connected, Connecting, Forbidden, Reach, Scheme, Target, Transport};
use crate::peer::{IsOwn, Peer};

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

/// TCP and TLS.
#[derive(Debug)]
pub struct Network {
    is_own: IsOwn,
    tls: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl Network {
    /// Makes a network of a machine that knows its own addresses by `is_own`.
    #[must_use]
    pub const fn new(is_own: IsOwn) -> Self {
        Self { is_own, tls: OnceLock::new() }
    }

    /// Connects to the first address of a target that answers and may be reached. What is judged is
    /// each address that is connected to, whatever its name resolved to before.
    ///
    /// # Errors
    /// What was wrong with the last address: [`Forbidden`] inside when it is out of reach.
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
                let why = format!("whether {address} is this machine cannot be told: {error}");
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

/// The certificates of the system, or of `SSL_CERT_FILE`.
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
    async fn a_registry_cannot_send_us_to_this_machine_by_whatever_name() {
        let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // Every address counts as this machine's own, as one of its devices' would.
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
        assert!(untold.unwrap_err().to_string().contains("cannot be told: no netlink"));
    }
}
