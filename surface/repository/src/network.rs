//! The network as a transport: TCP, and TLS by the certificates that the system trusts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

use crate::http::{Connecting, Reach, Scheme, Stream, Target, Transport};

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

/// TCP and TLS.
#[derive(Debug, Default)]
pub struct Network {
    tls: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl Transport for Network {
    fn connect<'a>(&'a self, target: &'a Target, reach: Reach) -> Connecting<'a> {
        Box::pin(async move {
            let stream = open(target, reach).await?;
            stream.set_nodelay(true)?;
            if target.scheme == Scheme::Http {
                return Ok(Box::new(stream) as Box<dyn Stream>);
            }
            let config = self.tls.get_or_init(config).clone().map_err(io::Error::other)?;
            let name = ServerName::try_from(target.host.clone()).map_err(io::Error::other)?;
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}

async fn open(target: &Target, reach: Reach) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for address in lookup_host((target.host.as_str(), target.port)).await?.take(ADDRESSES_MAX) {
        last = match connect(address, reach).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
    }
    Err(last)
}

async fn connect(address: SocketAddr, reach: Reach) -> io::Result<TcpStream> {
    if reach == Reach::OtherMachines && is_here(address.ip()) {
        let why = "a registry sends us to an address of this machine or link, where we do not go";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    TcpStream::connect(address).await
}

/// Whether only this machine, or only its link, has what is there: the API of a cloud's host and
/// the services of this machine are not for a registry to ask.
fn is_here(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            v4.is_loopback() || v4.is_link_local() || v4.is_unspecified() || v4.is_multicast()
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unicast_link_local()
                || v6.is_unspecified()
                || v6.is_multicast()
        }
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
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_this_machine_has_is_here() {
        for here in [
            "127.0.0.1",
            "169.254.169.254",
            "0.0.0.0",
            "::1",
            "fe80::1",
            "::ffff:127.0.0.1",
            "224.0.0.1",
        ] {
            assert!(is_here(here.parse().unwrap()), "{here}");
        }
        for there in ["10.0.0.1", "192.0.2.1", "2001:db8::1"] {
            assert!(!is_here(there.parse().unwrap()), "{there}");
        }
    }

    #[tokio::test]
    async fn a_registry_cannot_send_us_to_this_machine() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let error = connect(address, Reach::OtherMachines).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(connect(address, Reach::Anywhere).await.is_ok());
    }
}
