//! `tam deploy`: starts a module as a service.

use super::{Context, key_and_value, read_module, short_digest};
use crate::amounts;
use crate::failure::{Failure, Outcome};
use crate::output::Rows;
use api::{Budget, Client, DeployRequest, Deployed, ErrorCode};
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
    /// A rule that leads to the service, as in "proto udp dport 53"; may be repeated
    #[arg(long = "rule", value_name = "MATCH")]
    rules: Vec<String>,
    /// The priority of the service's rules; the highest wins
    #[arg(long)]
    priority: Option<u16>,
    /// The stage at which the service's rules are looked up: in or out, for the session system
    #[arg(long)]
    stage: Option<String>,
    /// The session whose account pays for the service
    #[arg(long)]
    session: Option<String>,
    /// The level to run at: nic, kernel or user; by default the one that the module's manifest
    /// prefers
    #[arg(long)]
    level: Option<String>,
    /// A running service to which passed packets go next; may be repeated, up to 4, in the order of
    /// the module's edges
    #[arg(long = "then", value_name = "SERVICE")]
    then: Vec<String>,
    /// Limit per second on fuel, packets or bytes below user level; may be repeated
    #[arg(long = "limit", value_name = "WHAT=NUMBER", value_parser = limit)]
    limits: Vec<(Limit, u64)>,
    /// Policy for packets beyond a limit, or beyond the session's time below user level: drop,
    /// or raise to user level
    #[arg(long = "over", value_name = "POLICY", default_value = DEFAULT_OVER)]
    over: String,
    /// Policy for the service's packets while it is down: open (forwarded plainly), closed
    /// (dropped), or bypass[=N] (forwarded plainly, and not restarted after N traps within a minute
    /// until it is deployed again). A service that is replaced keeps its policy, a new one is open
    #[arg(long, value_name = "POLICY")]
    on_failure: Option<String>,
    /// Start the new version with empty state, if the service runs already
    #[arg(long)]
    discard_state: bool,
    /// Accept a signed module older than the version that ran here before
    #[arg(long)]
    allow_older: bool,
}

/// Resource that `--limit` bounds.
#[derive(Clone, Copy, Debug)]
enum Limit {
    Fuel,
    Packets,
    Bytes,
}

fn limit(text: &str) -> Result<(Limit, u64), String> {
    let wrong = || format!("'{text}' is no limit; write fuel=N, packets=N or bytes=N");
    let (what, number) = text.split_once('=').ok_or_else(wrong)?;
    let number = number.parse().map_err(|_| wrong())?;
    match what {
        "fuel" => Ok((Limit::Fuel, number)),
        "packets" => Ok((Limit::Packets, number)),
        "bytes" => Ok((Limit::Bytes, number)),
        _ => Err(wrong()),
    }
}

/// Policy for packets beyond a limit when none is given.
const DEFAULT_OVER: &str = "raise";

fn budget(limits: &[(Limit, u64)], over: String) -> Option<Budget> {
    let mut budget = Budget { over: Some(over), ..Budget::default() };
    for (what, number) in limits {
        let place = match what {
            Limit::Fuel => &mut budget.fuel,
            Limit::Packets => &mut budget.packets,
            Limit::Bytes => &mut budget.bytes,
        };
        *place = Some(*number);
    }
    (!limits.is_empty() || budget.over.as_deref() != Some(DEFAULT_OVER)).then_some(budget)
}

/// Describes a budget in words.
pub(crate) fn budget_text(budget: &Budget) -> String {
    let limits = [("fuel", budget.fuel), ("packets", budget.packets), ("bytes", budget.bytes)];
    let limits: Vec<String> = limits
        .iter()
        .filter_map(|(what, limit)| limit.map(|limit| format!("{limit} {what}")))
        .collect();
    let over = budget.over.as_deref().unwrap_or(DEFAULT_OVER);
    if limits.is_empty() {
        return format!("that of its session; over it: {over}");
    }
    format!("{} a second below user level; over it: {over}", limits.join(", "))
}

impl Deploy {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        let client = context.client()?;
        let module = if is_file(&self.module) {
            let path = Path::new(&self.module);
            upload(&client, path).map_err(|refusal| with_folder(refusal, path))?
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
            stage: self.stage,
            level: self.level,
            then: self.then,
            budget: budget(&self.limits, self.over),
            on_failure: self.on_failure,
            discard_state: self.discard_state,
            allow_older: self.allow_older,
        };
        let deployed = client.deploy(&request).map_err(|error| {
            let refusal = Failure::from(error);
            match refusal.code {
                ErrorCode::NotFound => with_folder(refusal, Path::new(&request.module)),
                _ => refusal,
            }
        })?;
        context.output.result(&deployed, || text(&deployed))
    }
}

/// Says in the refusal of a module what to do if a project's folder of that name was meant. The node
/// is asked first, as a module in its store may have the name of a folder here.
fn with_folder(refusal: Failure, path: &Path) -> Failure {
    if !path.is_dir() {
        return refusal;
    }
    let shown = path.display();
    let name = path.file_name().map(Path::new).unwrap_or(path);
    let built = path.join(name).with_extension("wasm");
    refusal.help(match built.is_file() {
        true => format!("of the folder '{shown}': tam deploy {}", built.display()),
        false => format!("build the module of the folder '{shown}' first: tam build {shown}"),
    })
}

/// Returns true if the argument names a module's file, not a module in the store.
fn is_file(module: &str) -> bool {
    module.ends_with(".wasm") || module.contains('/') || Path::new(module).is_file()
}

/// Uploads the module to the node's store; returns its digest.
pub(crate) fn upload(client: &Client, path: &Path) -> Result<String, Failure> {
    // Checked here first, so that the error names the file.
    let (bytes, _) = read_module(path)?;
    let signatures = read_signatures(path)?;
    let digest = client.store_module_early(bytes)?.digest;
    if let Some(file) = signatures {
        client.add_signatures(&digest, &file)?;
    }
    Ok(digest)
}

/// Returns the signatures that `tam sign` wrote beside a module, or `None`.
pub(crate) fn read_signatures(path: &Path) -> Result<Option<String>, Failure> {
    let file = super::module::file_of(path)?;
    Ok((!file.signatures().is_empty()).then(|| file.to_string()))
}

fn text(deployed: &Deployed) -> String {
    let service = &deployed.service;
    let mut rows = Rows::pairs();
    rows.add(["service".into(), format!("{} ({})", service.name, service.state)]);
    let digest = short_digest(&service.digest);
    rows.add(["module".into(), format!("{} {} {digest}", service.module, service.version)]);
    rows.add(["level".into(), format!("{}: {}", service.level, service.level_reason)]);
    rows.add(["rules".into(), rules_text(deployed)]);
    for (edge, next) in &service.then {
        rows.add([format!("edge {edge}"), next.clone()]);
    }
    if let Some(budget) = &service.budget {
        rows.add(["budget".into(), budget_text(budget)]);
    }
    rows.add(["on failure".into(), service.on_failure.clone()]);
    for lacks in &deployed.lacks {
        rows.add(["lacks".into(), lacks.clone()]);
    }
    for (rule, better) in &deployed.shadowed {
        rows.add([String::new(), super::rule::shadowed_text(*rule, *better)]);
    }
    if let Some(reason) = &service.reason {
        rows.add(["reason".into(), reason.clone()]);
    }
    if let Some(replaced) = &deployed.replaced {
        let waited = replaced.paused_us as f64 / 1000.0;
        let how = match (replaced.state_kept, service.stats.streams.is_some()) {
            (_, true) => "open connections stay with it, new ones go to this version".to_owned(),
            (true, false) => format!("took over its state, packets waited {waited:.1} ms"),
            (false, false) => format!("began empty, packets waited {waited:.1} ms"),
        };
        rows.add(["replaced".into(), format!("{}: {how}", short_digest(&replaced.digest))]);
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

/// Formats the numbers of the service's rules, and which of them this deployment added or removed.
fn rules_text(deployed: &Deployed) -> String {
    let mut text = amounts::rules(&deployed.service.rules);
    if deployed.replaced.is_none() {
        return text;
    }
    let (added, removed) = (&deployed.rules_added, &deployed.rules_removed);
    for (what, rules) in [("added", added), ("removed", removed)] {
        if !rules.is_empty() {
            text.push_str(&format!("; {what}: {}", amounts::rules(rules)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the answer to a deployment of a name that ran, by which rules came and went.
    fn replaced(rules: &[u32], added: &[u32], removed: &[u32]) -> Deployed {
        serde_json::from_value(serde_json::json!({
            "schema_version": 1,
            "service": {
                "name": "a", "digest": "sha256:ab", "module": "a", "version": "1",
                "description": "", "session": "best-effort", "level": "user", "level_reason": "",
                "state": "running", "reason": null, "restarts": 0, "entry": 0, "lanes": 1,
                "parameters": {}, "rules": rules, "stats": api::ServiceStats::default(),
            },
            "took_ms": 1,
            "shadowed": [],
            "rules_added": added,
            "rules_removed": removed,
            "replaced": { "digest": "sha256:aa", "state_kept": true, "paused_us": 1 },
        }))
        .unwrap()
    }

    #[test]
    fn rules_that_a_new_version_brought_and_ended_are_named() {
        let text = rules_text(&replaced(&[0, 2], &[2], &[1]));
        assert_eq!(text, "#0, #2; added: #2; removed: #1");
        assert_eq!(rules_text(&replaced(&[0], &[], &[])), "#0");
        let new = Deployed { replaced: None, ..replaced(&[0], &[0], &[]) };
        assert_eq!(rules_text(&new), "#0");
        assert!(super::text(&replaced(&[2], &[2], &[1])).contains("removed: #1"));
    }

    #[test]
    fn a_budget_limit_is_parsed_and_displayed() {
        let limits = [limit("fuel=1000").unwrap(), limit("packets=5").unwrap()];
        let budget = budget(&limits, "drop".to_owned()).unwrap();
        assert_eq!(
            budget_text(&budget),
            "1000 fuel, 5 packets a second below user level; over it: drop"
        );
        assert!(super::budget(&[], "raise".to_owned()).is_none());
        let none = super::budget(&[], "drop".to_owned()).unwrap();
        assert_eq!(budget_text(&none), "that of its session; over it: drop");
        assert!(limit("fuel").is_err() && limit("time=3").is_err() && limit("bytes=-1").is_err());
    }

    #[test]
    fn a_path_is_no_name_of_the_store() {
        assert!(is_file("monitor.wasm") && is_file("./monitor") && is_file("/nonexistent/m"));
        assert!(!is_file("monitor") && !is_file("monitor:0.1.0"));
    }

    #[test]
    fn a_project_folder_is_answered_with_the_module_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let project = folder.path().join("hello");
        let refused = || Failure::new(ErrorCode::NotFound, "refused").help("as before");
        let help = |path: &Path| with_folder(refused(), path).help.unwrap();
        assert_eq!(help(&project), "as before", "a name that is no folder");
        std::fs::create_dir(&project).unwrap();
        assert!(help(&project).contains("tam build"), "{}", help(&project));
        std::fs::write(project.join("hello.wasm"), b"").unwrap();
        assert!(help(&project).ends_with("hello/hello.wasm"), "{}", help(&project));
    }
}
