//! `tam ping`: calls a module at a node by active packets, and measures the time until it answers.

use super::key::{Passphrase, secret};
use super::{Context, read_module};
use crate::failure::{Failure, Outcome};
use crate::nodes;
use crate::user_files::held_token;
use api::{ErrorCode, SCHEMA_VERSION};
use association::Protection;
use association_client::{Answer, CallError, Caller, Settings};
use clap::Args;
use module_store::Digest;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use trust::PublicKey;
use units::Name;

/// Bytes at the start of a payload that hold the packet's number.
const NUMBER_LENGTH: usize = 8;
/// Longest payload that `--size` accepts, in bytes: fits a frame of 9,000 bytes.
const SIZE_MAX: u64 = 8_900;

/// Arguments of `tam ping`.
#[derive(Debug, Args)]
pub struct Ping {
    /// The node to call: ADDRESS:PORT of its associations, or a node of nodes.toml
    #[arg(value_name = "NODE")]
    at: String,
    /// The module to call: a .wasm file, or a digest
    #[arg(value_name = "MODULE.wasm|sha256:…")]
    module: String,
    /// The key that the token was issued for
    #[arg(long, value_name = "NAME|FILE", default_value = "default")]
    key: String,
    #[command(flatten)]
    passphrase: Passphrase,
    /// The node key that must answer, as `tam show` prints it
    #[arg(long, value_name = "ed25519/…")]
    node_key: Option<PublicKey>,
    /// Packets to send
    #[arg(long, short, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Milliseconds between two packets
    #[arg(long, default_value_t = 200)]
    interval_ms: u64,
    /// Milliseconds to wait for an answer, and for the handshake
    #[arg(long, default_value_t = 5_000)]
    within_ms: u64,
    /// Bytes of each payload
    #[arg(long, short, default_value_t = 64, value_parser = clap::value_parser!(u64).range(NUMBER_LENGTH as u64..=SIZE_MAX))]
    size: u64,
    /// Send payloads unencrypted: everybody can read them, nobody can change them
    #[arg(long)]
    readable: bool,
}

/// Node to call: address and expected key.
struct Target {
    address: SocketAddr,
    key: Option<PublicKey>,
    token: Option<String>,
}

/// Result of one packet.
struct Sent {
    took: Option<Duration>,
}

impl Ping {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let digest = self.digest()?;
        let place = self.target(context)?;
        let within = Duration::from_millis(self.within_ms);
        let mut caller = match place.token {
            None => Caller::anyone(place.address),
            Some(token) => {
                let key = secret(&self.key, &self.passphrase)?;
                Caller::connect(place.address, Settings { key, token, node: place.key, within })
            }
        }
        .map_err(|error| failed(&error))?;
        let mut sent = Vec::new();
        for number in 0..self.count {
            if number > 0 {
                std::thread::sleep(Duration::from_millis(self.interval_ms));
            }
            let took = self.ask(&mut caller, &digest, u64::from(number), within);
            let took = took.map_err(|error| failed(&error))?;
            self.progress(context, place.address, number, took);
            sent.push(Sent { took });
        }
        let (handshake, principal) = (caller.handshake_took(), caller.principal());
        caller.end();
        self.print(context, place.address, &digest, &sent, handshake, principal)
    }

    fn digest(&self) -> Result<Digest, Failure> {
        match self.module.parse() {
            Ok(digest) => Ok(digest),
            Err(_) if self.module.starts_with("sha256:") => {
                let message =
                    format!("'{}' is no digest: 64 hexadecimal digits follow", self.module);
                Err(Failure::new(ErrorCode::Usage, message))
            }
            Err(_) => Ok(Digest::of(&read_module(Path::new(&self.module))?.0)),
        }
    }

    fn target(&self, context: &Context<'_>) -> Result<Target, Failure> {
        let given = context.token.as_deref().map(|file| held_token(file).map(|it| it.to_string()));
        let given = given.transpose()?;
        if let Ok(address) = self.at.parse() {
            return Ok(Target { address, key: self.node_key, token: given });
        }
        let known = match Name::new(&self.at) {
            Ok(name) => nodes::written_down(&name)?,
            Err(_) => None,
        };
        let Some((node, token)) = known else {
            let message = format!("'{}' is neither ADDRESS:PORT nor a node of nodes.toml", self.at);
            return Err(Failure::new(ErrorCode::Usage, message)
                .help("as in `tam ping 192.0.2.1:7443 echo.wasm`"));
        };
        let address = node.address.parse().map_err(|_| {
            let message =
                format!("'{}' in nodes.toml is no ADDRESS:PORT, as packets need it", node.address);
            Failure::new(ErrorCode::Usage, message)
        })?;
        Ok(Target { address, key: self.node_key.or(Some(node.key)), token: given.or(token) })
    }

    /// Sends one packet; returns the time until the answer.
    fn ask(
        &self,
        caller: &mut Caller,
        digest: &Digest,
        number: u64,
        within: Duration,
    ) -> Result<Option<Duration>, CallError> {
        let mut payload = number.to_be_bytes().to_vec();
        payload.extend((NUMBER_LENGTH..self.size as usize).map(|at| at as u8));
        let protection =
            if self.readable { Protection::Authenticated } else { Protection::Encrypted };
        let begin = Instant::now();
        caller.call(digest.bytes(), &payload, protection)?;
        while let Some(left) = within.checked_sub(begin.elapsed()) {
            let Some(answer) = caller.answer(left)? else { return Ok(None) };
            if is_for(&answer, digest, number) {
                return Ok(Some(begin.elapsed()));
            }
        }
        Ok(None)
    }

    fn progress(
        &self,
        context: &Context<'_>,
        address: SocketAddr,
        number: u32,
        took: Option<Duration>,
    ) {
        let number = number + 1;
        let line = match took {
            Some(took) => {
                let (size, millis) = (self.size, took.as_secs_f64() * 1e3);
                format!("{size} bytes from {address}: packet {number}, {millis:.3} ms")
            }
            None => format!("no answer to packet {number} within {} ms", self.within_ms),
        };
        context.output.note(&line);
    }

    fn print(
        &self,
        context: &Context<'_>,
        address: SocketAddr,
        digest: &Digest,
        sent: &[Sent],
        handshake: Duration,
        principal: Option<PublicKey>,
    ) -> Outcome {
        let mut micros: Vec<u64> =
            sent.iter().filter_map(|it| u64::try_from(it.took?.as_micros()).ok()).collect();
        micros.sort_unstable();
        let (asked, answered) = (sent.len(), micros.len());
        if answered == 0 {
            return Err(unanswered(principal.is_some()));
        }
        let median = micros.get(answered / 2).copied();
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "address": address.to_string(),
            "module": digest.to_string(),
            "node_key": principal.map(|key| key.to_string()),
            "sent": asked,
            "answered": answered,
            "handshake_us": if principal.is_some() { json!(handshake.as_micros() as u64) } else { Value::Null },
            "answer_us": { "min": micros.first(), "median": median, "max": micros.last() },
        });
        context.output.result(&document, || {
            let ms = |us: Option<&u64>| us.map_or("-".to_owned(), |us| format!("{:.3}", *us as f64 / 1e3));
            let (first, last) = (ms(micros.first()), ms(micros.last()));
            let met = match principal {
                Some(key) => {
                    format!("; {key} there, handshake {:.3} ms", handshake.as_secs_f64() * 1e3)
                }
                None => String::new(),
            };
            let median = ms(median.as_ref());
            format!("{answered} of {asked} answered, {first} / {median} / {last} ms (least, median, most){met}")
        })
    }
}

/// Returns true if an answer belongs to this packet; a module may have changed the number.
fn is_for(answer: &Answer, digest: &Digest, number: u64) -> bool {
    let echoed = answer.payload.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    let is_before = echoed.is_some_and(|echoed| echoed < number);
    answer.digest == *digest.bytes() && !is_before
}

fn unanswered(is_known: bool) -> Failure {
    let failure = Failure::new(ErrorCode::Unreachable, "the node has answered none of the packets");
    failure.help(match is_known {
        true => {
            "the module must be on the node or in one of its repositories, granted by the token with the host functions that it imports (`tam check`) and level user, and bounce its packets; on the node, `tam events` says what is missing"
        }
        false => {
            "without --token a node runs only modules that its [trust] anyone names; on the node, `tam events` says what is missing"
        }
    })
}

fn failed(error: &CallError) -> Failure {
    let code = match error {
        CallError::Io { .. } | CallError::NoAnswer(_) => ErrorCode::Unreachable,
        CallError::OtherNode { .. } | CallError::Ended(_) => ErrorCode::Refused,
        CallError::TooLong(_) | CallError::Association(_) => ErrorCode::Limit,
    };
    Failure::new(code, error.to_string())
}
