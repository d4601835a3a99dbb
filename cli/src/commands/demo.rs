//! `tam demo`: two hosts with a node between them and real traffic, measured first with plain
//! forwarding and then through a service deployed meanwhile.
//!
//! ```text
//!  client ── to-r1 ─ r1 (tam node) ─ to-r1 ── server
//!    ping, curl, UDP stream ─▶            ◀─ HTTP server, UDP counter
//! ```
//!
//! Without root the demo runs in a user namespace, where the node's ports are packet sockets: the
//! kernel accepts no BPF programs from there.

mod report;
mod traffic;

use super::{Context, deploy, lab};
use crate::failure::{Failure, Outcome};
use crate::samples;
use api::{Client, DeployRequest, PortStatsInfo, Stats};
use clap::Args;
use report::{Phase, Report, ServedBy};
use std::path::{Path, PathBuf};
use topology::{Lab, Plan};
use traffic::Traffic;

/// The demo's topology: what `tam lab up` would take as a file.
const LAB: &str = r#"name = "demo"

[[host]]
name = "client"

[[router]]
name = "r1"

[[host]]
name = "server"

[[link]]
ends = ["client", "r1"]

[[link]]
ends = ["r1", "server"]
"#;

/// Matches of the rules that lead to the service.
const RULES: [&str; 3] = ["proto icmp", "proto tcp", "proto udp"];

/// Arguments of `tam demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// The service to deploy; the sample service monitor when it is left out
    #[arg(long, value_name = "FILE.wasm")]
    module: Option<PathBuf>,
    /// Keep the lab running, to look around with `tam lab exec demo client -- bash`
    #[arg(long)]
    keep: bool,
}

impl Demo {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        let module = self.module.map_or_else(|| samples::module("monitor"), Ok)?;
        let plan =
            Lab::parse(LAB, "the demo's topology").map_err(|e| Failure::failed(e.to_string()))?;
        // Remains of a demo that was killed.
        remove(&plan);
        let step = |text: &str| context.output.progress(text);
        let without_root = !namespaces::userns::is_root();
        if without_root && self.keep {
            let message = "--keep needs root: a lab in a user namespace is nowhere to be found";
            return Err(Failure::new(api::ErrorCode::Usage, message).help("run it with sudo"));
        }
        if without_root {
            step("without root: in a user namespace, where nothing of this machine can be changed");
            namespaces::userns::enter().map_err(|error| {
                Failure::new(api::ErrorCode::Unsupported, error.to_string())
                    .help("run it as root, as with sudo: then nothing of this is needed")
            })?;
        }
        step("making two hosts and a router between them");
        topology::up(&plan, &mut |_| ()).map_err(lab::of_lab)?;
        let outcome = lab::start_all(&plan, lab::Start::All, None, context.output)
            .and_then(|started| run_phases(&plan, &started, &module, without_root, &step));
        if !self.keep {
            remove(&plan);
        }
        let report = outcome?;
        context.output.result(&report, || report.text())
    }
}

fn remove(plan: &Plan) {
    // A lab that does not exist needs no removal.
    let _ = topology::down(plan.lab.as_str());
    for router in plan.routers() {
        if let Ok(node) = lab::node_name(&plan.lab, &router.name) {
            let _ = daemon::cleanup(&node);
        }
    }
    lab::remove_files(plan.lab.as_str());
}

fn run_phases(
    plan: &Plan,
    started: &[String],
    module: &Path,
    without_root: bool,
    step: &dyn Fn(&str),
) -> Result<Report, Failure> {
    let name = started.first().ok_or_else(|| Failure::failed("the demo's node did not start"))?;
    let name = units::Name::new(name.clone()).map_err(|e| Failure::failed(e.to_string()))?;
    let client = Client::of(&name);
    let served_by = ServedBy::of(&client.node()?, without_root);
    let mut traffic = Traffic::start(plan)?;
    step(match served_by.is_packet() {
        false => "plainly: ping, a download by curl and a UDP stream, forwarded by the front door",
        true => "plainly: ping, a download by curl and a UDP stream, forwarded by the kernel",
    });
    let plain = traffic.measure()?;
    let before = client.stats()?;
    step("deploying the service while the stream runs");
    let request = DeployRequest {
        module: deploy::upload(&client, module)?,
        rules: RULES.map(str::to_owned).to_vec(),
        level: Some("user".to_owned()),
        ..DeployRequest::default()
    };
    let deployed = client.deploy(&request)?;
    step("through the service: the same again, each packet handled by WebAssembly");
    let served = traffic.measure()?;
    let stream = traffic.finish()?;
    let after = client.stats()?;
    let lost_by_links = traffic::lost_by_links(plan)?;
    client.remove(&deployed.service.name, false)?;
    Ok(Report::new(
        served_by,
        &deployed,
        [Phase::new(plain, forwarded(&before)), Phase::new(served, handled(&after))],
        stream,
        &after,
        lost_by_links,
    ))
}

/// Returns the number of packets that the front door forwarded itself or by the kernel.
fn forwarded(stats: &Stats) -> u64 {
    let plainly = ["forwarded", "kernel_slow"];
    let of_port = |port: &PortStatsInfo| -> u64 {
        plainly.iter().filter_map(|outcome| port.outcomes.get(*outcome)).sum()
    };
    stats.ports.iter().map(of_port).sum()
}

/// Returns the number of packets that the service handled.
fn handled(stats: &Stats) -> u64 {
    stats.services.values().map(|service| service.packets).sum()
}
