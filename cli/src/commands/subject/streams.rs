//! Stream services: modules of the proxy-wasm ABI and their parameters.

use bench::Service;
use std::collections::BTreeMap;

/// Module without callbacks.
pub(super) const SEES_NOTHING: &str = r#"(module $passes
    (memory (export "memory") 1)
    (func (export "proxy_abi_version_0_2_1")))"#;

/// Filter that is called for headers and bodies of requests and responses, and changes nothing.
pub(super) const PASS_THROUGH: &str = r#"(module $filter
    (memory (export "memory") 1)
    (func (export "proxy_abi_version_0_2_1"))
    (func (export "proxy_on_memory_allocate") (param i32) (result i32) (i32.const 1024))
    (func (export "proxy_on_context_create") (param i32 i32))
    (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 0))
    (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) (i32.const 0))
    (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32) (i32.const 0))
    (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32) (i32.const 0)))"#;

/// Returns true for a stream service, which runs at no level of packets.
pub(super) const fn is_of_streams(service: Service) -> bool {
    matches!(
        service,
        Service::Connections
            | Service::PassThrough
            | Service::PassThroughKeepingServers
            | Service::Compress
            | Service::Reflector
            | Service::Transcode
    )
}

/// Returns the parameters of the service's module.
pub(super) fn parameters(service: Service) -> BTreeMap<String, String> {
    let given: &[(&str, &str)] = match service {
        Service::Connections => &[("protocol", "tcp")],
        Service::PassThroughKeepingServers => &[("capabilities", "keep-servers")],
        Service::Compress => {
            &[("capabilities", "code-responses"), ("configuration", "codings gzip")]
        }
        Service::Reflector => &[("capabilities", "reflect"), ("configuration", "paths /live/")],
        Service::Transcode => &[("capabilities", "transcode")],
        _ => &[],
    };
    given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_keep_to_the_abi() {
        for text in [SEES_NOTHING, PASS_THROUGH] {
            let wasm = wat::parse_str(text).unwrap();
            let checked = abi::Unverified(&wasm).check();
            assert!(checked.is_ok(), "{checked:?}");
        }
    }
}
