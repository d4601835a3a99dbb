//! `tam deploy`: a module becomes a service.

use super::{Context, key_and_value, read_module, short_digest};
use crate::failure::{Failure, Outcome};
use crate::output::Rows;
use api::{Client, DeployRequest, Deployed};
use clap::Args;
use std::path::Path;

/// Arguments of `tam deploy`.
#[derive(Debug, Args)]
pub struct Deploy {
    /// A .wasm file, or a module of the node's store: NAME, NAME:VERSION or a digest
    module: String,
    /// The service's name; the module's when it is left out
    #[arg(long)]
    name: Option<String>,
    /// A parameter of the module; may be repeated
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = key_and_value)]
    parameters: Vec<(String, String)>,
    /// A rule that leads to it, as in "proto udp dport 53"; may be repeated
    #[arg(long = "rule", value_name = "MATCH")]
    rules: Vec<String>,
    /// The priority of its rules; higher wins
    #[arg(long)]
    priority: Option<u16>,
    /// The session that pays
    #[arg(long)]
    session: Option<String>,
    /// Where to run it: nic, kernel or user; where its module wants when it is left out
    #[arg(long)]
    level: Option<String>,
    /// A running service that comes after it: what it passes goes there. Up to 4, in the order
    /// of the edges that its module passes by
    #[arg(long = "then", value_name = "SERVICE")]
    then: Vec<String>,
}

impl Deploy {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        let client = context.client()?;
        let module = if is_file(&self.module) {
            upload(&client, Path::new(&self.module))?
        } else {
            self.module
        };
        let request = DeployRequest {
            name: self.name,
            module,
            parameters: self.parameters.into_iter().collect(),
            session: self.session,
            rules: self.rules,
            priority: self.priority,
            level: self.level,
            then: self.then,
        };
        let deployed = client.deploy(&request)?;
        context.output.result(&deployed, || text(&deployed))
    }
}

/// Whether a module is meant by its file rather than by its name in the store.
fn is_file(module: &str) -> bool {
    module.ends_with(".wasm") || module.contains('/') || Path::new(module).is_file()
}

/// Hands the module to the node's store; gives its digest.
pub(crate) fn upload(client: &Client, path: &Path) -> Result<String, Failure> {
    // Checked here first: a fault is then told of the file.
    let (bytes, _) = read_module(path)?;
    Ok(client.store_module(bytes)?.digest)
}

fn text(deployed: &Deployed) -> String {
    let service = &deployed.service;
    let mut rows = Rows::pairs();
    rows.add(["service".into(), format!("{} ({})", service.name, service.state)]);
    let digest = short_digest(&service.digest);
    rows.add(["module".into(), format!("{} {} {digest}", service.module, service.version)]);
    rows.add(["level".into(), format!("{}: {}", service.level, service.level_reason)]);
    rows.add(["rules".into(), numbers(&service.rules)]);
    for (edge, next) in &service.then {
        rows.add([format!("edge {edge}"), next.clone()]);
    }
    for (rule, better) in &deployed.shadowed {
        rows.add([
            String::new(),
            format!("no packet reaches rule {rule}: rule {better} is better"),
        ]);
    }
    if let Some(reason) = &service.reason {
        rows.add(["reason".into(), reason.clone()]);
    }
    rows.add(["took".into(), format!("{} ms", deployed.took_ms)]);
    if service.rules.is_empty() {
        rows.add([
            "next".into(),
            format!("no packet reaches it yet: tam rule add \"MATCH\" --service {}", service.name),
        ]);
    }
    rows.to_string()
}

/// Numbers of rules, or `none`.
pub(crate) fn numbers(rules: &[u32]) -> String {
    match rules {
        [] => "none".to_owned(),
        _ => rules.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_no_name_of_the_store() {
        assert!(is_file("monitor.wasm") && is_file("./monitor") && is_file("/nonexistent/m"));
        assert!(!is_file("monitor") && !is_file("monitor:0.1.0"));
    }
}
