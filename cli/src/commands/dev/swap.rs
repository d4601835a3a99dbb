//! Replacement of a service's module on a node.

use crate::commands::deploy::upload;
use crate::commands::{read_module, short_digest};
use crate::failure::Failure;
use api::{Client, DeployRequest, ErrorCode, ServiceInfo};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time to wait until a version that has just been swapped in can be replaced: the node watches it
/// first.
const READY_WITHIN: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Service to swap into, and the settings to deploy it with when it does not run yet.
pub struct Placing<'a> {
    pub service: &'a str,
    pub rules: &'a [String],
    pub parameters: &'a [(String, String)],
    pub level: Option<&'a str>,
}

/// Result of a swap.
#[derive(Debug, Serialize)]
pub struct Swapped {
    service: String,
    /// Digest of the module that ran before; `None` when none ran.
    old_digest: Option<String>,
    new_digest: String,
    level: String,
    level_reason: String,
    /// `kept`, `lost`, or `none` when no module ran before or it is the same one.
    state: &'static str,
    /// Packets that the service had handled before the swap.
    packets_before: u64,
    /// Packets that entered the node during the swap.
    packets_meanwhile: u64,
    took_ms: u64,
}

/// Swaps the module at `path` into the service, or deploys the service with it.
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
        // A failed service is deployed again even with the same module.
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

/// Returns the parameters of the new module: those given now, else those of the old module that the
/// new one declares.
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

/// Replaces the module under the old deployment's settings, with the old state if the new module
/// can take it over, else with empty state and a notice.
fn replace(
    client: &Client,
    old: &ServiceInfo,
    parameters: BTreeMap<String, String>,
    digest: &str,
) -> Result<(ServiceInfo, &'static str), Failure> {
    // Without rules the new version keeps those of the old one.
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
            // The node still watches the previous replacement for a moment.
            std::thread::sleep(POLL_INTERVAL);
        } else {
            return Err(refused);
        }
    }
}

/// Returns the packets that entered the node by all ports.
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
