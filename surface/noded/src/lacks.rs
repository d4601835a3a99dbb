//! What a module for streams asks of the node and is not granted.
//!
//! A foreign function is called by its name, which lies in the module's data as it is. A service
//! that may not call it runs on without what it is for, and only its log would say so.

use crate::daemon::Daemon;
use abi::check::Kind;
use api::ServiceInfo;
use registry::Digest;

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
        let digest: Option<Digest> = service.digest.parse().ok();
        let module = digest.and_then(|digest| self.modules.get(&digest));
        let Some(module) = module.filter(|module| module.checked.kind == Kind::Streams) else {
            return Vec::new();
        };
        let granted = service.parameters.get("capabilities").map_or("", String::as_str);
        lacks(&module.wasm, granted)
    }
}

fn lacks(wasm: &[u8], granted: &str) -> Vec<String> {
    let granted: Vec<&str> = granted.split(',').map(str::trim).collect();
    let names: Vec<&[u8]> = (wasm.windows(PREFIX.len()).enumerate())
        .filter(|(_, window)| *window == PREFIX)
        .map(|(at, _)| &wasm[at..])
        .collect();
    let is_named = |function: &str| names.iter().any(|name| name.starts_with(function.as_bytes()));
    let missing = FUNCTIONS.iter().filter(|(function, capabilities)| {
        is_named(function) && !capabilities.iter().any(|one| granted.contains(one))
    });
    missing
        .map(|(function, capabilities)| {
            let capability = capabilities[0];
            format!(
                "the module names '{function}', which this service may not call: deploy it with \
                 --param capabilities={capability}, or it goes without"
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_are_those_of_the_streams_host() {
        let wasm = FUNCTIONS.map(|(function, _)| function).join("\0");
        let granted = "code-responses, reflect-no-store,transcode";
        assert_eq!(lacks(wasm.as_bytes(), granted), [""; 0]);
        assert_eq!(lacks(wasm.as_bytes(), "keep-servers").len(), FUNCTIONS.len());
    }

    #[test]
    fn what_is_named_and_not_granted_is_said_with_what_grants_it() {
        let found = lacks(b"\0asm..tamandua_code_responsetamandua_other", "reflect");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("--param capabilities=code-responses"), "{found:?}");
        assert_eq!(lacks(b"\0asm", ""), [""; 0]);
    }
}
