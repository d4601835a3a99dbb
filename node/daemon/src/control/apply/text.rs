//! Resolution of a file into a desired state: module names become digests, and each item keeps its
//! position in the text for error messages.

use crate::config::{ConfigError, SessionText, Wanted, is_file};
use crate::deploy::Module;
use abi::HostFunctions;
use module_store::{Digest, Store};
use node::desired::{self, DesiredRule, DesiredService, DesiredSession, DesiredState, Location};
use node::rule::PRIORITY_DEFAULT;
use node::{Action, Match, ModuleInfo, Node, PortSpec, Refusal, RuleSpec};
use session::admission::Capacity;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::ops::Range;
use units::Name;

/// Module that a text names as a file.
pub(crate) struct Found {
    pub(crate) digest: String,
    /// Description of the module, if it is not in the store yet.
    pub(crate) unstored: Option<ModuleInfo>,
}

type Find<'a> = dyn Fn(&str) -> Result<Found, String> + 'a;

/// Sources in which modules are looked up.
pub(crate) struct Named<'a> {
    pub(crate) store: &'a Store,
    /// Checked modules in the daemon's memory.
    pub(crate) held: &'a BTreeMap<Digest, Module>,
    pub(crate) find: &'a Find<'a>,
}

/// Desired state resolved from a text, with positions.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) state: DesiredState,
    /// Modules by digest.
    modules: BTreeMap<String, ModuleInfo>,
    services: BTreeMap<Name, Spans>,
    /// Position of each session's name.
    sessions: BTreeMap<Name, Range<usize>>,
    /// Position of each rule of the state.
    rules: Vec<Range<usize>>,
}

/// Positions of a service and its parts.
#[derive(Clone, Debug)]
struct Spans {
    module: Range<usize>,
    parameters: Option<Range<usize>>,
    session: Option<Range<usize>>,
    level: Option<Range<usize>>,
    then: Option<Range<usize>>,
}

/// Resolves a file's sessions, services and rules.
pub(crate) fn resolve(wanted: &Wanted, modules: &Named<'_>) -> Result<Resolved, ConfigError> {
    let mut resolved = Resolved {
        state: DesiredState { bpf: wanted.bpf, ..DesiredState::default() },
        modules: BTreeMap::new(),
        services: BTreeMap::new(),
        sessions: BTreeMap::new(),
        rules: Vec::new(),
    };
    for session in &wanted.sessions {
        resolved.add_session(wanted, session.get_ref())?;
    }
    for service in &wanted.services {
        resolved.add_service(wanted, service, modules)?;
    }
    for rule in &wanted.rules {
        let text = rule.get_ref();
        let mut spec = RuleSpec::new(text.r#match.clone(), text.action.0.clone());
        spec.priority = text.priority.unwrap_or(PRIORITY_DEFAULT);
        spec.stage = text.stage;
        // A rule that leads to a service has that one's session, unless it names another.
        let of_service = || {
            let service = spec.action.service().and_then(|name| resolved.state.services.get(name));
            service.map(|service| service.session.clone())
        };
        if let Some(session) = text.session.clone().or_else(of_service) {
            spec.session = session;
        }
        resolved.state.rules.push(DesiredRule { spec, came_with: None, owner: None });
        resolved.rules.push(rule.span());
    }
    Ok(resolved)
}

/// Returns a digest of what a text wants; it is the same for texts that differ only in comments and
/// the order of keys.
pub(crate) fn fingerprint(wanted: &Wanted) -> String {
    let mut text = format!("{:?}", without_places(wanted));
    // A file without sessions has the same fingerprint as before sessions existed.
    for session in wanted.sessions.iter().map(toml::Spanned::get_ref) {
        text.push_str(&format!("{:?}", (session.name.get_ref(), session.reservation())));
    }
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the contents of a text without positions.
fn without_places(wanted: &Wanted) -> impl std::fmt::Debug {
    let services: Vec<_> = wanted
        .services
        .iter()
        .map(|service| {
            let it = service.get_ref();
            (
                it.name.as_ref().map(|name| name.get_ref().clone()),
                it.module.get_ref().clone(),
                it.parameters.as_ref().map(|values| values.get_ref().clone()),
                it.session.as_ref().map(|name| name.get_ref().clone()),
                it.level.as_ref().map(|level| *level.get_ref()),
                it.then.as_ref().map(|then| then.get_ref().clone()),
                (it.budget, it.on_failure, it.priority, it.stage),
                it.rules.iter().map(|rule| rule.get_ref().clone()).collect::<Vec<_>>(),
            )
        })
        .collect();
    let rules: Vec<_> = wanted.rules.iter().map(|rule| rule.get_ref().clone()).collect();
    (wanted.bpf, services, rules)
}

impl Resolved {
    fn add_session(&mut self, wanted: &Wanted, text: &SessionText) -> Result<(), ConfigError> {
        let (name, place) = (text.name.get_ref().clone(), text.name.span());
        if self.sessions.insert(name.clone(), place.clone()).is_some() {
            let problem = format!("there are two sessions '{name}'; leave one of them out");
            return Err(wanted.at(place, problem));
        }
        let session = DesiredSession { reservation: text.reservation(), owner: None };
        self.state.set_session(name, session);
        Ok(())
    }

    fn add_service(
        &mut self,
        wanted: &Wanted,
        service: &toml::Spanned<crate::config::ServiceText>,
        modules: &Named<'_>,
    ) -> Result<(), ConfigError> {
        let text = service.get_ref();
        let module = modules
            .look_up(text.module.get_ref())
            .map_err(|problem| wanted.at(text.module.span(), problem))?;
        let (name, place) = match &text.name {
            Some(name) => (name.get_ref().clone(), name.span()),
            None => (module.manifest.name.clone(), text.module.span()),
        };
        let session = text.session.as_ref().map(|name| name.get_ref().clone());
        let session = session.unwrap_or_else(node::session::best_effort);
        let spans = Spans {
            module: place.clone(),
            parameters: text.parameters.as_ref().map(toml::Spanned::span),
            session: text.session.as_ref().map(toml::Spanned::span),
            level: text.level.as_ref().map(toml::Spanned::span),
            then: text.then.as_ref().map(toml::Spanned::span),
        };
        if self.services.insert(name.clone(), spans).is_some() {
            let problem = format!(
                "there are two services '{name}'; give this one another name, as in name = \"{name}-2\""
            );
            return Err(wanted.at(place, problem));
        }
        let values = text.parameters.iter().flat_map(|values| values.get_ref());
        let then = text.then.iter().flat_map(|then| then.get_ref().iter().cloned());
        let desired = DesiredService {
            digest: module.digest.clone(),
            parameters: values.map(|(name, value)| (name.clone(), value.0.clone())).collect(),
            session: session.clone(),
            level: text.level.as_ref().map(|level| *level.get_ref()),
            then: (0..).zip(then).collect(),
            budget: text.budget,
            on_failure: text.on_failure,
            owner: None,
            functions: HostFunctions::ALL,
        };
        let priority = text.priority.unwrap_or(PRIORITY_DEFAULT);
        let to_it = Action::Service(name.clone());
        let mut rules = Vec::with_capacity(text.rules.len());
        for rule in &text.rules {
            let parsed: Result<Match, _> = rule.get_ref().parse();
            let r#match = parsed.map_err(|error| wanted.at(rule.span(), error.to_string()))?;
            let spec = RuleSpec::new(r#match, to_it.clone());
            rules.push(RuleSpec { priority, session: session.clone(), stage: text.stage, ..spec });
        }
        self.state.deploy(name, desired, rules);
        self.rules.extend(text.rules.iter().map(toml::Spanned::span));
        self.modules.insert(module.digest.clone(), module);
        Ok(())
    }

    /// Checks whether a node with these ports and this capacity can have the state. Returns
    /// messages about rules that no packet reaches.
    pub(crate) fn check(
        &self,
        ports: &[PortSpec],
        capacity: Option<&Capacity>,
        wanted: &Wanted,
    ) -> Result<Vec<String>, ConfigError> {
        match desired::check(ports, capacity, &self.state, &self.modules) {
            Ok(shadowed) => Ok(shadowed.iter().map(|pair| self.shadowed(*pair)).collect()),
            Err(fault) => {
                let span = self.span(&fault.location, &fault.refusal);
                Err(wanted.at(span, fault.refusal.to_string()))
            }
        }
    }

    /// Returns the services of a node that would begin empty in this state, with the reasons.
    pub(crate) fn losses(
        &self,
        node: &Node,
        is_known: impl Fn(&str) -> bool,
    ) -> BTreeMap<Name, String> {
        let module = |digest: &str| self.modules.get(digest).filter(|_| is_known(digest));
        desired::losses(node, &self.state, module)
    }

    /// Returns the refusal of a change by which services would begin empty, with their positions.
    pub(crate) fn refusal_of(&self, losses: &BTreeMap<Name, String>, wanted: &Wanted) -> String {
        let complaint = |(name, why): (&Name, &String)| {
            let (span, text) = (self.services.get(name), forgets(name, why));
            let span = span.map_or(0..0, |spans| match &spans.session {
                Some(session) if why.contains("session") => session.clone(),
                _ => spans.module.clone(),
            });
            wanted.at(span, text).to_string()
        };
        losses.iter().map(complaint).collect::<Vec<_>>().join("\n")
    }

    fn shadowed(&self, (rule, by): (usize, usize)) -> String {
        let shown = |at: usize| {
            let rule = self.state.rules.get(at).map(|rule| &rule.spec);
            rule.map_or_else(String::new, |spec| {
                format!("'{}' ({}, priority {})", spec.r#match, spec.action, spec.priority)
            })
        };
        let (rule, by) = (shown(rule), shown(by));
        format!("no packet reaches the rule {rule}: better ones have them all, among them {by}")
    }

    fn span(&self, location: &Location, refusal: &Refusal) -> Range<usize> {
        let of = |name: &Name, part: fn(&Spans) -> Option<Range<usize>>| {
            let spans = self.services.get(name);
            spans.and_then(|spans| part(spans).or_else(|| Some(spans.module.clone())))
        };
        let span = match (location, refusal) {
            (Location::Session(name), _) => self.sessions.get(name).cloned(),
            (Location::Rule(at), _) => self.rules.get(*at).cloned(),
            (Location::Edges(name), _) => of(name, |spans| spans.then.clone()),
            (Location::Service(name), Refusal::Parameter(_)) => {
                of(name, |spans| spans.parameters.clone())
            }
            (Location::Service(name), Refusal::SessionUnknown { .. }) => {
                of(name, |spans| spans.session.clone())
            }
            (
                Location::Service(name),
                Refusal::LevelAbsent { .. }
                | Refusal::LevelNotDeclared { .. }
                | Refusal::BpfOff { .. },
            ) => of(name, |spans| spans.level.clone()),
            (Location::Service(name), _) => of(name, |_| None),
            (Location::Whole, _) => None,
        };
        span.unwrap_or(0..0)
    }
}

impl Named<'_> {
    /// Looks up a module by the name in the text.
    fn look_up(&self, module: &str) -> Result<ModuleInfo, String> {
        let digest = if is_file(module) {
            let Found { digest, unstored } = (self.find)(module)?;
            if let Some(unstored) = unstored {
                return Ok(unstored);
            }
            digest.parse().map_err(|_| format!("'{module}' came without a digest"))?
        } else {
            // A module that has just arrived may not be on the disk yet.
            let held = module.parse().ok().filter(|digest| self.held.contains_key(digest));
            let found = held.map_or_else(|| self.store.resolve(module), Ok);
            found.map_err(|problem| match module.parse::<Digest>() {
                Ok(_) => format!(
                    "{problem}; `tam apply` asks the node's repositories for it, if it has some"
                ),
                Err(_) => problem.to_string(),
            })?
        };
        if let Some(module) = self.held.get(&digest) {
            return Ok(ModuleInfo::of(digest.to_string(), &module.checked));
        }
        let wasm = self.store.get(&digest).map_err(|problem| problem.to_string())?;
        let module = Module::check(wasm).map_err(|problem| problem.to_string())?;
        Ok(ModuleInfo::of(digest.to_string(), &module.checked))
    }
}

fn forgets(service: &Name, why: &str) -> String {
    format!(
        "the service '{service}' would lose what it knows: {why}; with --discard-state it begins empty"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeFile;

    const PAGE: &str = include_str!("../../../../../docs/reference/node-file.md");

    /// Returns the example of the manual, with its modules as files.
    fn example() -> String {
        let block = PAGE.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
        block
            .unwrap()
            .replace("module = \"monitor\"", "module = \"./monitor\"")
            .replace("module = \"touch\"", "module = \"./touch\"")
    }

    fn resolved(text: &str) -> Result<(Resolved, Wanted, NodeFile), ConfigError> {
        let store = tempfile::tempdir().unwrap();
        let store = Store::open(store.path()).unwrap();
        let find = |module: &str| {
            let name = module.trim_start_matches("./");
            let manifest = format!(
                "abi = 1\nname = \"{name}\"\nversion = \"0.1.0\"\nwindow = 64\nlevels = [\"user\"]\n\
                 [parameters.dscp]\ntype = \"u8\"\ndefault = 46\ndescription = \"the mark\"\n"
            );
            let manifest = abi::Manifest::parse(&manifest).unwrap();
            let digest = format!("sha256:{name}");
            let module = ModuleInfo {
                digest: digest.clone(),
                kind: abi::check::Kind::Packets,
                manifest,
                hands_state_over: false,
                image: abi::check::MemoryImage::default(),
                imports: HostFunctions::NONE,
                granted: HostFunctions::ALL,
            };
            Ok(Found { digest, unstored: Some(module) })
        };
        let modules = Named { store: &store, held: &BTreeMap::new(), find: &find };
        let file = NodeFile::parse(text, "edge.toml")?;
        let wanted = file.parse_wanted(text, "edge.toml")?;
        Ok((resolve(&wanted, &modules)?, wanted, file))
    }

    #[test]
    fn the_example_of_the_manual_is_a_state_that_a_node_can_have() {
        let (resolved, wanted, file) = resolved(&example()).unwrap();
        assert_eq!(resolved.check(&file.ports, None, &wanted).unwrap(), [""; 0]);
        let state = &resolved.state;
        let name = |text: &str| Name::new(text).unwrap();
        let monitor = &state.services[&name("monitor")];
        assert_eq!(monitor.parameters["dscp"], "10");
        assert_eq!(monitor.then[&0], name("touch"));
        assert_eq!(monitor.budget.packets, Some(100_000));
        let rules: Vec<String> = state
            .rules
            .iter()
            .map(|rule| {
                format!("{} {} {}", rule.spec.priority, rule.spec.r#match, rule.spec.action)
            })
            .collect();
        assert_eq!(
            rules,
            [
                "200 proto icmp in left service monitor",
                "200 proto udp dst 10.0.2.0/24 dport 5001 service monitor",
                "300 proto tcp dport 23 drop",
                "100 proto udp dport 53 service touch",
            ]
        );
    }

    #[test]
    fn the_mistake_of_the_manual_is_told_as_the_manual_says() {
        let (resolved, wanted, file) = resolved(&example().replace("in left", "in lft")).unwrap();
        let said = resolved.check(&file.ports, None, &wanted).unwrap_err().to_string();
        assert!(PAGE.contains(&format!("error: {said}\n")), "{said}");
    }

    #[test]
    fn files_with_the_same_meaning_have_the_same_fingerprint_and_others_do_not() {
        let digest = |text: &str| fingerprint(&NodeFile::parse(text, "x").unwrap().wanted);
        let text = example();
        assert_eq!(digest(&text), digest(&text.replace("# ---- ", "# ---> ")));
        assert_eq!(digest(&text), digest(&text.replace("fast_path = \"auto\"", "")));
        assert_ne!(digest(&text), digest(&text.replace("dscp = 10", "dscp = 11")));
        assert_ne!(digest(&text), digest(&text.replace("priority = 300", "priority = 301")));
        assert_ne!(digest(&text), digest(&text.replace("bpf = true", "bpf = false")));
    }
}
