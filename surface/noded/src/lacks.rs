//! What a module for streams asks of the node and is not granted.
//!
//! A foreign function is called by its name, which lies in the module's data as it is. A service
//! that may not call it runs on without what it is for, and only its log would say so.

use crate::daemon::Daemon;
use abi::check::Kind;
use api::ServiceInfo;
use node::desired::DesiredState;
use registry::Digest;
use std::collections::BTreeMap;

/// Prefix of the names of the node's functions.
const PREFIX: &[u8] = b"tamandua_";
/// Functions of the node, and the capabilities of which one grants them.
const FUNCTIONS: [(&str, &[&str]); 3] = [
    ("tamandua_code_response", &["code-responses"]),
    (filter::REFLECT, &["reflect", "reflect-no-store"]),
    (filter::TRANSCODE, &["transcode"]),
];

impl Daemon {
    /// Returns what a service that has been deployed lacks, a sentence for each.
    pub(crate) fn lacks(&self, service: &ServiceInfo) -> Vec<String> {
        let lacks = self.lacks_of(&service.digest, &service.parameters);
        let said = |(function, capability)| {
            format!(
                "the module names '{function}', which this service may not call: deploy it with \
                 --param capabilities={capability}, or it goes without"
            )
        };
        lacks.into_iter().map(said).collect()
    }

    /// Returns what the services of a state lack, a sentence for each, as far as their modules are
    /// here.
    pub(crate) fn all_lack(&mut self, state: &DesiredState) -> Vec<String> {
        let mut said = Vec::new();
        for (name, service) in &state.services {
            // One that is not to be had is refused, or comes with the change.
            if service.digest.parse().is_ok_and(|digest| self.take_in(&digest).is_ok()) {
                let lacks = self.lacks_of(&service.digest, &service.parameters);
                said.extend(lacks.into_iter().map(|(function, capability)| {
                    format!(
                        "the module of the service '{name}' names '{function}', which it may not \
                         call: add {capability} to its parameter 'capabilities', or it goes without"
                    )
                }));
            }
        }
        self.forget_modules();
        said
    }

    fn lacks_of(&self, digest: &str, parameters: &BTreeMap<String, String>) -> Vec<Missing> {
        let digest: Option<Digest> = digest.parse().ok();
        let module = digest.and_then(|digest| self.modules.get(&digest));
        let Some(module) = module.filter(|module| module.checked.kind == Kind::Streams) else {
            return Vec::new();
        };
        lacks(&module.wasm, parameters.get("capabilities").map_or("", String::as_str))
    }
}

/// A function that a module names, and the capability that grants it.
type Missing = (&'static str, &'static str);

fn lacks(wasm: &[u8], granted: &str) -> Vec<Missing> {
    let granted: Vec<&str> = granted.split(',').map(str::trim).collect();
    let names: Vec<&[u8]> = (wasm.windows(PREFIX.len()).enumerate())
        .filter(|(_, window)| *window == PREFIX)
        .map(|(at, _)| &wasm[at..])
        .collect();
    let is_named = |function: &str| names.iter().any(|name| name.starts_with(function.as_bytes()));
    let missing = FUNCTIONS.iter().filter(|(function, capabilities)| {
        is_named(function) && !capabilities.iter().any(|one| granted.contains(one))
    });
    missing.map(|(function, capabilities)| (*function, capabilities[0])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
