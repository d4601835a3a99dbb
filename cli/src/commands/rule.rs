//! `tam rule`: the classifier's rules.

use super::Context;
use crate::amounts;
use crate::failure::{Failure, Outcome};
use crate::output::Rows;
use crate::user_files::read_file;
use api::{ErrorCode, RuleList, RuleRequest, RulesAdded, RulesRequest};
use clap::{ArgGroup, Args, Subcommand};
use daemon::config::plain;
use node::rule::{Action, Match};
use std::path::{Path, PathBuf};

/// Largest file of rules, in bytes: several times the most rules of a node with long matches.
const RULES_FILE_LENGTH_MAX: u64 = 64 << 20;

/// Subcommands of `tam rule`.
#[derive(Debug, Subcommand)]
pub enum Rule {
    /// Add a rule, or all rules of a file
    Add(Add),
    /// List the rules with their counters, best first
    List,
    /// Remove a rule
    #[command(aliases = ["delete", "del", "rm"])]
    Remove {
        /// The rule's number
        #[arg(value_parser = amounts::rule)]
        id: u32,
    },
}

/// Arguments of `tam rule add`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["service", "drop", "forward", "out", "file"]))]
pub struct Add {
    /// The packets that the rule matches, as in "in left proto udp dport 53", or any
    #[arg(value_name = "MATCH", required_unless_present = "file", num_args = 1..)]
    r#match: Vec<String>,
    /// Give the packets to this service
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Drop the packets
    #[arg(long)]
    drop: bool,
    /// Forward the packets plainly
    #[arg(long)]
    forward: bool,
    /// Send the packets out by this port, without a module
    #[arg(long, value_name = "PORT")]
    out: Option<String>,
    /// Match only packets of the flows in this file, one a line: udp 10.0.0.1 4000 10.0.2.9 53
    #[arg(long, value_name = "FLOWS.txt")]
    flows: Option<PathBuf>,
    /// The priority; the highest wins
    #[arg(long)]
    priority: Option<u16>,
    /// The session whose account pays
    #[arg(long)]
    session: Option<String>,
    /// The stage at which the rule is looked up: in or out, for rules of the session system; by
    /// default in
    #[arg(long)]
    stage: Option<String>,
    /// Add all rules of a file, or none: {"rules": [{"match": "...", "action": "drop"}]}
    #[arg(long, value_name = "RULES.json", conflicts_with_all = ["match", "flows", "priority", "session", "stage"])]
    file: Option<PathBuf>,
}

impl Rule {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        match self {
            Self::Add(add) => {
                let request = add.request()?;
                let added = context.client()?.add_rules(&request)?;
                context.output.result(&added, || added_text(&added))
            }
            Self::List => {
                let list = context.client()?.rules()?;
                context.output.result(&list, || list_text(&list))
            }
            Self::Remove { id } => {
                let removed = context.client()?.remove_rule(id)?;
                context.output.result(&removed, || format!("removed rule #{}", removed.rule))
            }
        }
    }
}

impl Add {
    fn request(self) -> Result<RulesRequest, Failure> {
        if let Some(file) = &self.file {
            return rules_of(file);
        }
        let action = match self.service {
            Some(service) => format!("service {service}"),
            None if self.drop => "drop".to_owned(),
            None if self.out.is_some() => format!("out {}", self.out.unwrap_or_default()),
            None => "forward".to_owned(),
        };
        let rule = RuleRequest {
            r#match: self.r#match.join(" "),
            action,
            priority: self.priority,
            session: self.session,
            flows: self.flows.as_deref().map(flows_of).transpose()?,
            stage: self.stage,
        };
        Ok(RulesRequest { rules: vec![rule] })
    }
}

/// Reads the text of a list of flows; the node reports errors in it with their line.
fn flows_of(file: &Path) -> Result<String, Failure> {
    let bytes = read_file(file, RULES_FILE_LENGTH_MAX)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let message = format!("{} is not text from byte {at} on", file.display());
        Failure::new(ErrorCode::Usage, message)
    })
}

fn rules_of(file: &Path) -> Result<RulesRequest, Failure> {
    let wrong = |problem: String| {
        Failure::new(ErrorCode::Usage, format!("{}: {problem}", file.display())).help(
            "write it as {\"rules\": [{\"match\": \"proto udp\", \"action\": \"drop\", \"priority\": 100}]}",
        )
    };
    parse_rules(&read_file(file, RULES_FILE_LENGTH_MAX)?).map_err(wrong)
}

/// Parses a file of rules; an error names the line, or the rule by its place from 1.
fn parse_rules(bytes: &[u8]) -> Result<RulesRequest, String> {
    let request: RulesRequest = serde_json::from_slice(bytes).map_err(|error| {
        // serde_json's own place stands behind what is wrong.
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default().to_owned();
        format!("line {}, column {}: {}", error.line(), error.column(), plain(&message))
    })?;
    for (at, rule) in (1..).zip(&request.rules) {
        let r#match = rule.r#match.parse::<Match>().map_err(|error| error.to_string()).map(drop);
        let action = rule.action.parse::<Action>().map_err(|error| error.to_string()).map(drop);
        r#match.and(action).map_err(|problem| format!("rule {at}: {problem}"))?;
    }
    Ok(request)
}

/// Warns that a rule never matches because a better one shadows it, with advice.
pub(super) fn shadowed_text(rule: u32, better: u32) -> String {
    format!(
        "no packet reaches rule #{rule}: better rules have them all, among them rule #{better}; give it \
         a higher priority, or, where both lead to services of packets, have one follow the other by \
         --then"
    )
}

fn added_text(added: &RulesAdded) -> String {
    let mut text = match added.rules.as_slice() {
        [] => "the file has no rules".to_owned(),
        [rule] => format!("added rule #{rule}"),
        [first, .., last] => format!("added {} rules, #{first} to #{last}", added.rules.len()),
    };
    for (rule, better) in &added.shadowed {
        text.push_str(&format!("\n{}", shadowed_text(*rule, *better)));
    }
    text
}

fn list_text(list: &RuleList) -> String {
    if list.rules.is_empty() {
        return "no rules: every packet is forwarded plainly".to_owned();
    }
    let headings =
        ["rule", "priority", "match", "action", "session", "stage", "packets", "bytes", "state"];
    let mut rows = Rows::new(headings);
    for rule in &list.rules {
        let came_with = rule.came_with.as_ref().map(|name| format!(", came with {name}"));
        rows.add([
            format!("#{}", rule.id),
            rule.priority.to_string(),
            match rule.flows {
                Some(flows) => format!("{}, {flows} flows", rule.r#match),
                None => rule.r#match.clone(),
            },
            rule.action.clone(),
            rule.session.clone(),
            rule.stage.clone(),
            rule.packets.to_string(),
            amounts::size(rule.bytes),
            format!("{}{}", rule.reach, came_with.unwrap_or_default()),
        ]);
    }
    rows.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_in_a_file_of_rules_is_named_with_its_line_or_its_rule() {
        let wrong = |text: &str| parse_rules(text.as_bytes()).unwrap_err();
        let rule = |key: &str, r#match: &str, action: &str| {
            format!(
                "{{\"rules\": [\n{{\"match\": \"any\", \"action\": \"drop\"}},\n{{\"match\": \"{match}\", \"{key}\": \"{action}\"}}]}}"
            )
        };
        assert!(parse_rules(rule("action", "proto udp", "drop").as_bytes()).is_ok());
        let action = wrong(&rule("action", "proto udp", "dorp"));
        assert!(action.starts_with("rule 2: ") && action.contains("dorp"), "{action}");
        let r#match = wrong(&rule("action", "proto udp dprt 5", "drop"));
        assert!(r#match.starts_with("rule 2: ") && r#match.contains("dprt"), "{match}");
        let key = wrong(&rule("acton", "proto udp", "drop"));
        assert!(key.starts_with("line 3, column ") && key.contains("acton"), "{key}");
    }
}
