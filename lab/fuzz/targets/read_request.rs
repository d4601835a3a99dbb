//! Any bytes as the body of an API request, or as a node's answer; the rules of what is
//! accepted are given to a node, and what the front door would be told keeps its limits.
//!
//! `cargo +nightly fuzz run read_request --fuzz-dir lab/fuzz`

#![no_main]

use std::fmt::Debug;

use bpf_maps::MASKS_MAX;
use libfuzzer_sys::fuzz_target;
use node::{Action, Command, Effect, Node, RuleSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use units::{Name, Nanos};

fuzz_target!(|bytes: &[u8]| {
    reads_back::<api::DeployRequest>(bytes);
    reads_back::<api::MessageRequest>(bytes);
    reads_back::<api::ErrorDocument>(bytes);
    reads_back::<api::Stats>(bytes);
    reads_back::<api::ServiceList>(bytes);
    reads_back::<api::RuleList>(bytes);
    if let Some(request) = reads_back::<api::RulesRequest>(bytes) {
        add(request.rules.iter().filter_map(spec).collect());
    }
    if let Ok(specs) = serde_json::from_slice::<Vec<RuleSpec>>(bytes) {
        add(specs);
    }
});

/// What is accepted is the same after it was written and read again.
fn reads_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    let text = serde_json::to_string(&value).expect("documents have text as keys");
    assert_eq!(serde_json::from_str::<T>(&text).expect("it was just written"), value);
    Some(value)
}

fn spec(rule: &api::RuleRequest) -> Option<RuleSpec> {
    let action = match rule.action.as_str() {
        "forward" => Action::Forward,
        "drop" => Action::Drop,
        other => Action::Service(Name::new(other.strip_prefix("service ")?).ok()?),
    };
    Some(RuleSpec::new(rule.r#match.parse().ok()?, action))
}

/// All or none of the rules, and never more masks than the front door has room for.
fn add(specs: Vec<RuleSpec>) {
    let name = Name::new("r1").expect("a name");
    let mut node = Node::new(name, Vec::new()).expect("no ports cannot clash");
    let count = specs.len();
    match node.handle_command(Nanos::ZERO, Command::RuleAdd { specs }) {
        Ok(_) => assert_eq!(node.rules().len(), count),
        Err(refusal) => {
            assert!(!refusal.to_string().is_empty());
            assert_eq!(node.rules().len(), 0);
        }
    }
    while let Some(effect) = node.poll_effect() {
        if let Effect::InstallRules { rules, .. } = effect {
            assert!(rules.masks.len() <= MASKS_MAX && rules.entries.len() <= count);
        }
    }
}
