//! Any bytes as the body of each kind of API request, and as each of a node's answers. Accepted
//! rules are added to a node, and its table for the front door keeps its limits.

use std::fmt::Debug;

use bpf_maps::MASKS_MAX;
use node::{Action, Command, Effect, Node, RuleSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use units::{Name, Nanos};

pub fn read(bytes: &[u8]) {
    requests(bytes);
    answers(bytes);
    if let Some(request) = reads_back::<api::RulesRequest>(bytes) {
        add(request.rules.iter().filter_map(spec).collect());
    }
    if let Ok(specs) = serde_json::from_slice::<Vec<RuleSpec>>(bytes) {
        add(specs);
    }
}

fn requests(bytes: &[u8]) {
    reads_back::<api::DeployRequest>(bytes);
    reads_back::<api::Budget>(bytes);
    reads_back::<api::MoveRequest>(bytes);
    reads_back::<api::BpfRequest>(bytes);
    reads_back::<api::RuleRequest>(bytes);
    reads_back::<api::MessageRequest>(bytes);
    reads_back::<api::ExplainRequest>(bytes);
    reads_back::<api::SessionRequest>(bytes);
    reads_back::<api::SessionChange>(bytes);
}

/// Reads bytes as a node's answers, which a client treats as untrusted.
fn answers(bytes: &[u8]) {
    reads_back::<api::ErrorDocument>(bytes);
    reads_back::<api::NodeInfo>(bytes);
    reads_back::<api::Stats>(bytes);
    reads_back::<api::ServiceInfo>(bytes);
    reads_back::<api::ServiceList>(bytes);
    reads_back::<api::Deployed>(bytes);
    reads_back::<api::Removed>(bytes);
    reads_back::<api::Moved>(bytes);
    reads_back::<api::BpfSet>(bytes);
    reads_back::<api::RuleList>(bytes);
    reads_back::<api::RulesAdded>(bytes);
    reads_back::<api::RuleRemoved>(bytes);
    reads_back::<api::ModuleStored>(bytes);
    reads_back::<api::ModuleList>(bytes);
    reads_back::<api::MessageAnswers>(bytes);
    reads_back::<api::EventList>(bytes);
    reads_back::<api::WhyList>(bytes);
    reads_back::<api::Explanation>(bytes);
    reads_back::<api::SessionList>(bytes);
    reads_back::<api::SessionPromised>(bytes);
    reads_back::<api::SessionRemoved>(bytes);
}

/// Parses bytes; checks that an accepted value is the same after it was written and read again.
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

/// Adds the rules, all or none, and checks that the front door's limit of masks holds.
fn add(specs: Vec<RuleSpec>) {
    let name = Name::new("r1").expect("a name");
    let mut node = Node::new(name, Vec::new()).expect("no ports cannot clash");
    let count = specs.len();
    match node.handle_command(Nanos::ZERO, Command::RuleAdd { specs, owner: None }) {
        Ok(_) => assert_eq!(node.rules().len(), count),
        Err(refusal) => {
            assert!(!refusal.to_string().is_empty());
            assert_eq!(node.rules().len(), 0);
        }
    }
    while let Some(effect) = node.poll_effect() {
        if let Effect::InstallRules { rules, .. } = effect {
            assert!(rules.masks.len() <= MASKS_MAX);
        }
    }
}

/// Returns a request or an answer of each kind, from which mutations start.
pub fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        r#"{"level":"nic"}"#,
        r#"{"enabled":false}"#,
        r#"{"fuel":1000,"packets":5,"bytes":null,"over":"drop"}"#,
        r#"{"match":"proto udp dport 53","action":"drop"}"#,
        r#"{"module":"monitor","name":"m","parameters":{"dscp":"8"},"rules":["any"],"then":["b"],"level":"nic"}"#,
        r#"{"name":"gold","cpu":["1ms/4ms+extra"],"memory":"64MiB","send":{"left":"2ms/6ms"},"weight":200}"#,
        r#"{"cpu":[],"below":"400us/4ms","without":["memory"]}"#,
        r#"{"schema_version":1,"rule":3}"#,
        r#"{"schema_version":1,"services":[]}"#,
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
