//! Handshakes per second and core of two nodes in one thread that exchange datagrams directly,
//! against TLS 1.3 by rustls in the same setting, with the same kinds of keys.

use std::ops::DerefMut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, ConnectionCommon, RootCertStore, ServerConfig, ServerConnection,
};

use crate::measurement::{Better, Measurement};
use crate::rounds::{Pair, Rounds};
use crate::{Options, Subject};

/// Handshakes of a round.
const HANDSHAKES: u32 = 500;
const HANDSHAKES_QUICK: u32 = 100;
/// Name in the certificate.
const NAME: &str = "node";

pub(super) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Measurement>> {
    let count = if options.quick { HANDSHAKES_QUICK } else { HANDSHAKES };
    let tls = Tls::new()?;
    let [mut both, mut asking, mut answering] = [const { Vec::new() }; 3].map(Cases);
    for round in 1..=options.rounds() {
        progress(&format!("handshakes, round {round} of {}", options.rounds()));
        let (ours, tls) = (subject.handshakes(count)?, tls.handshakes(count)?);
        let rate = |time: Duration| f64::from(count) / time.as_secs_f64();
        both.0.push([rate(ours[0] + ours[1]), rate(tls[0] + tls[1])]);
        asking.0.push([rate(ours[0]), rate(tls[0])]);
        answering.0.push([rate(ours[1]), rate(tls[1])]);
    }
    Ok(vec![both.compared("both"), asking.compared("asking"), answering.compared("answering")])
}

/// Node's values beside the baseline's, round by round.
struct Cases(Vec<[f64; 2]>);

impl Cases {
    fn compared(self, sides: &str) -> Measurement {
        let mut rounds = Rounds::default();
        self.0.into_iter().for_each(|round| rounds.add(round.to_vec()));
        rounds.compare(Pair {
            metric: format!("install.handshakes.{sides}"),
            unit: "handshakes/s",
            baseline_name: "tls13",
            baseline: 1,
            better: Better::Higher,
            goal: None,
        })
    }
}

/// Handshakes of TLS 1.3 as the API over TCP has them: one side presents a certificate of an
/// Ed25519 key.
struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    fn new() -> Result<Self> {
        let pair = KeyPair::generate_for(&PKCS_ED25519)?;
        let certificate = CertificateParams::new(vec![NAME.to_owned()])?.self_signed(&pair)?;
        let secret = PrivateKeyDer::Pkcs8(pair.serialize_der().into());
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let versions = &[&rustls::version::TLS13];
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], secret)?;
        // Each handshake is a whole one.
        server.send_tls13_tickets = 0;
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }

    /// Returns the time that each side works for `count` handshakes.
    fn handshakes(&self, count: u32) -> Result<[Duration; 2]> {
        let mut worked = [Duration::ZERO; 2];
        for _ in 0..count {
            let [client, server] = &mut worked;
            self.handshake(client, server)?;
        }
        Ok(worked)
    }

    fn handshake(&self, asks: &mut Duration, answers: &mut Duration) -> Result<()> {
        let name = ServerName::try_from(NAME)?;
        let mut client = timed(asks, || ClientConnection::new(Arc::clone(&self.client), name))?;
        let mut server = timed(answers, || ServerConnection::new(Arc::clone(&self.server)))?;
        while client.is_handshaking() || server.is_handshaking() {
            let mut flight = Vec::new();
            timed(asks, || client.write_tls(&mut flight))?;
            timed(answers, || take(&mut server, &flight))?;
            let mut flight = Vec::new();
            timed(answers, || server.write_tls(&mut flight))?;
            timed(asks, || take(&mut client, &flight))?;
        }
        Ok(())
    }
}

/// Feeds one side with the bytes that the other has sent.
fn take<S>(
    side: &mut impl DerefMut<Target = ConnectionCommon<S>>,
    mut flight: &[u8],
) -> Result<()> {
    while !flight.is_empty() {
        side.read_tls(&mut flight)?;
        side.process_new_packets()?;
    }
    Ok(())
}

fn timed<T>(worked: &mut Duration, act: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = act();
    *worked += begun.elapsed();
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_the_baseline_work_for_each_handshake() {
        let worked = Tls::new().unwrap().handshakes(3).unwrap();
        assert!(worked.iter().all(|time| !time.is_zero()), "{worked:?}");
    }
}
