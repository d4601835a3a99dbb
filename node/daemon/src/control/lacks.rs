//! Functions of the node that modules for streams name and services are not granted.
//!
//! A foreign function is called by its name, which lies in the module's data as it is. A service
//! that may not call it runs on without what it is for, and only its log would say so.

use super::modules::Modules;
use abi::check::Kind;
use node::Service;
use node::desired::DesiredState;
use std::collections::BTreeMap;

/// Prefix of the names of the node's functions.
const PREFIX: &[u8] = b"tamandua_";
/// Parameter of a service that grants it functions.
const CAPABILITIES: &str = "capabilities";
/// Function of the node, and the capabilities of which one grants it.
type Function = (&'static str, &'static [&'static str]);
const FUNCTIONS: [Function; 3] = [
    ("tamandua_code_response", &["code-responses"]),
    (stream_services::REFLECT, &["reflect", "reflect-no-store"]),
    (stream_services::TRANSCODE, &["transcode"]),
];

/// Returns what a service that has been deployed lacks, a sentence for each.
pub(super) fn of_service(modules: &Modules, service: &Service) -> Vec<String> {
    let named = named_by(modules, &service.module.digest);
    let values = service.module.manifest.values(&service.parameters).unwrap_or_default();
    let granted = values.iter().find(|(name, _)| name.as_str() == CAPABILITIES);
    let granted = granted.map_or_else(String::new, |(_, value)| value.to_string());
    let said = |(function, capability)| {
        format!(
            "the module names '{function}', which this service may not call: deploy it with \
             --param capabilities={capability}, or it goes without"
        )
    };
    missing(&named, &granted).map(said).collect()
}

/// Returns what the services of a state lack, a sentence for each, as far as their modules are
/// here.
pub(super) fn of_state(modules: &mut Modules, state: &DesiredState) -> Vec<String> {
    let mut named: BTreeMap<&str, Vec<Function>> = BTreeMap::new();
    let mut said = Vec::new();
    for (name, service) in &state.services {
        let named = named.entry(&service.digest).or_insert_with(|| {
            // One that is not to be had is refused, or comes with the change.
            let digest = service.digest.parse().ok();
            let is_here = digest.is_some_and(|digest| modules.load(&digest).is_ok());
            if is_here { named_by(modules, &service.digest) } else { Vec::new() }
        });
        let granted = service.parameters.get(CAPABILITIES).map_or("", String::as_str);
        said.extend(missing(named, granted).map(|(function, capability)| {
            format!(
                "the module of the service '{name}' names '{function}', which it may not call: \
                 add {capability} to its parameter 'capabilities', or it goes without"
            )
        }));
    }
    said
}

/// Returns the functions of the node that a module for streams names.
fn named_by(modules: &Modules, digest: &str) -> Vec<Function> {
    let module = digest.parse().ok().and_then(|digest| modules.get(&digest));
    let module = module.filter(|module| module.checked.kind == Kind::Streams);
    module.map_or_else(Vec::new, |module| named(&module.wasm))
}

fn named(wasm: &[u8]) -> Vec<Function> {
    let names: Vec<&[u8]> = (wasm.windows(PREFIX.len()).enumerate())
        .filter(|(_, window)| *window == PREFIX)
        .map(|(at, _)| &wasm[at..])
        .collect();
    let is_named = |function: &str| names.iter().any(|name| name.starts_with(function.as_bytes()));
    FUNCTIONS.into_iter().filter(|(function, _)| is_named(function)).collect()
}

/// Returns those of the functions that a service may not call, each with what grants it.
fn missing(
    named: &[Function],
    granted: &str,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    let granted: Vec<&str> = granted.split(',').map(str::trim).collect();
    let is_granted = move |grants: &[&str]| grants.iter().any(|one| granted.contains(one));
    let missing = named.iter().filter(move |(_, grants)| !is_granted(grants));
    missing.map(|(function, grants)| (*function, grants[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacks(wasm: &[u8], granted: &str) -> Vec<(&'static str, &'static str)> {
        missing(&named(wasm), granted).collect()
    }

    #[test]
    fn the_functions_are_those_of_the_streams_host() {
        let wasm = FUNCTIONS.map(|(function, _)| function).join("\0");
        let granted = "code-responses, reflect-no-store,transcode";
        assert_eq!(lacks(wasm.as_bytes(), granted), []);
        assert_eq!(lacks(wasm.as_bytes(), "keep-servers").len(), FUNCTIONS.len());
    }

    #[test]
    fn what_is_named_and_not_granted_is_found_with_what_grants_it() {
        let found = lacks(b"\0asm..tamandua_code_responsetamandua_other", "reflect");
        assert_eq!(found, [("tamandua_code_response", "code-responses")]);
        assert_eq!(lacks(b"\0asm", ""), []);
    }
}
