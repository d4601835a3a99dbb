//! One module in the place of another, in a service of a node.

use crate::commands::deploy::upload;
use crate::commands::{read_module, short_digest};
use crate::failure::Failure;
use api::{Client, DeployRequest, ErrorCode, ServiceInfo};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

/// A version that has just been swapped in can be replaced within this: it is watched first.
const READY_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Which service, and what it is deployed with when it does not run yet.
pub struct Placing<'a> {
    pub service: &'a str,
    pub rules: &'a [String],
    pub parameters: &'a [(String, String)],
    pub level: Option<&'a str>,
}

/// What was swapped.
#[derive(Debug, Serialize)]
pub struct Swapped {
    service: String,
    /// The module that ran before.
    old_digest: Option<String>,
    new_digest: String,
    level: String,
    level_reason: String,
    /// `kept`, `lost`, or `none` where no module ran before, or it is the same.
    state: &'static str,
    /// Packets that the service had handled before.
    packets_before: u64,
    /// Packets that came to the node meanwhile.
    packets_meanwhile: u64,
    took_ms: u64,
}

/// Puts the module at `path` into the service.
pub fn swap(client: &Client, path: &Path, placing: &Placing<'_>) -> Result<Swapped, Failure> {
    let began = Instant::now();
    let arrived = arrived(client)?;
    let new_digest = upload(client, path)?;
    let old = match client.service(placing.service) {
        Ok(old) => Some(old),
        Err(error) if error.code() == ErrorCode::NotFound => None,
        Err(error) => return Err(error.into()),
    };
    let (service, state) = match &old {
        // What failed is tried again, if nothing else.
        Some(old) if old.digest == new_digest && old.state == "running" => (old.clone(), "none"),
        Some(old) => replace(client, old, parameters(path, old, placing)?, &new_digest)?,
        None => (client.deploy(&first(placing, &new_digest))?.service, "none"),
    };
    Ok(Swapped {
        service: service.name,
        old_digest: old.as_ref().map(|old| old.digest.clone()),
        new_digest,
        level: service.level,
        level_reason: service.level_reason,
        state,
        packets_before: old.map_or(0, |old| old.stats.packets),
        packets_meanwhile: self::arrived(client)?.saturating_sub(arrived),
        took_ms: began.elapsed().as_millis() as u64,
    })
}

fn first(placing: &Placing<'_>, digest: &str) -> DeployRequest {
    DeployRequest {
        name: Some(placing.service.to_owned()),
        module: digest.to_owned(),
        parameters: placing.parameters.iter().cloned().collect(),
        rules: placing.rules.to_vec(),
        level: placing.level.map(str::to_owned),
        ..DeployRequest::default()
    }
}

/// What the new module is started with: what was said now, else what the old one was started
/// with, as far as the new one declares it.
fn parameters(
    path: &Path,
    old: &ServiceInfo,
    placing: &Placing<'_>,
) -> Result<BTreeMap<String, String>, Failure> {
    let (_, checked) = read_module(path)?;
    let mut parameters = old.parameters.clone();
    parameters.extend(placing.parameters.iter().cloned());
    let declared = &checked.manifest.parameters;
    parameters.retain(|name, _| declared.keys().any(|known| known.as_str() == name));
    Ok(parameters)
}

/// The new module with all that the old one was deployed with, and with its state if it can
/// take that over: whoever develops goes on without, and is told.
fn replace(
    client: &Client,
    old: &ServiceInfo,
    parameters: BTreeMap<String, String>,
    digest: &str,
) -> Result<(ServiceInfo, &'static str), Failure> {
    // Without rules it has those of the old one.
    let mut request = DeployRequest {
        name: Some(old.name.clone()),
        module: digest.to_owned(),
        parameters,
        session: Some(old.session.clone()),
        level: Some(old.level.clone()),
        then: old.then.values().cloned().collect(),
        budget: old.budget.clone(),
        ..DeployRequest::default()
    };
    let end = Instant::now() + READY_WITHIN;
    loop {
        let refused = match client.deploy(&request) {
            Ok(deployed) => {
                let kept = deployed.replaced.is_some_and(|replaced| replaced.state_kept);
                return Ok((deployed.service, if kept { "kept" } else { "lost" }));
            }
            Err(error) => Failure::from(error),
        };
        if refused.message.contains("--discard-state") && !request.discard_state {
            request.discard_state = true;
        } else if refused.message.contains("is being replaced") && Instant::now() < end {
            // The version before is watched for a moment still.
            std::thread::sleep(LOOK_EVERY);
        } else {
            return Err(refused);
        }
    }
}

/// Packets that came to the node, by whatever port.
fn arrived(client: &Client) -> Result<u64, Failure> {
    Ok(client.stats()?.ports.iter().map(|port| port.rx_packets).sum())
}

impl fmt::Display for Swapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, level, took_ms, packets_before, packets_meanwhile, .. } = self;
        let new = short_digest(&self.new_digest);
        match (&self.old_digest, self.state) {
            (None, _) => write!(f, "deployed {service}: {new} at {level}, in {took_ms} ms")?,
            (Some(_), "none") => write!(f, "{service} runs {new} already, at {level}")?,
            (Some(old), state) => write!(
                f,
                "swapped {service}: {old} -> {new} at {level}, state {state}, in {took_ms} ms; \
                 {packets_before} packets before, {packets_meanwhile} came to the node meanwhile",
                old = short_digest(old)
            )?,
        }
        match self.level_reason.contains("not at") {
            true => write!(f, "\n  {}", self.level_reason),
            false => Ok(()),
        }
    }
}
