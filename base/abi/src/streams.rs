//! What an operator says of a module for streams: parameters that every one has.
//!
//! The proxy-wasm ABI has no place where a module says what it is for, nor which servers it may call:
//! whoever deploys it does. A manifest may have other defaults.

pub(crate) mod parameters;

use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Longest configuration of a module, in bytes: it is on record with the service, and in each copy
/// of what a node was told.
pub const CONFIGURATION_LENGTH_MAX: usize = 16 << 10;
/// Servers that a module may call.
pub const UPSTREAMS_MAX: usize = 32;
/// Longest name of one, in bytes.
const UPSTREAM_NAME_MAX: usize = 64;

/// What a module is shown of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Its bytes.
    Tcp,
    /// Requests and responses of HTTP/1.1.
    Http,
}

/// The parameters of a module for streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// What it is shown.
    pub protocol: Protocol,
    /// What `proxy_on_configure` is given.
    pub configuration: String,
    /// The servers that it may call, by name.
    pub upstreams: BTreeMap<String, SocketAddr>,
    /// The functions of the node that it may call.
    pub capabilities: Capabilities,
}

/// Functions of the node, beyond the proxy-wasm ABI, that a module for streams may call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// `code-responses`: has bodies of responses coded.
    pub codes_responses: bool,
    /// `reflect`: gives requests to shared live streams.
    pub reflects: bool,
    /// `reflect-no-store`: the same, also of origins that say `no-store` with everything.
    pub shares_no_store: bool,
    /// `keep-servers`: connections to servers are kept for the next client of the same address.
    pub keeps_servers: bool,
    /// `transcode`: has video of responses come as pictures.
    pub transcodes: bool,
}

const PROTOCOL: &str = "protocol";
const CONFIGURATION: &str = "configuration";
const UPSTREAMS: &str = "upstreams";
const CAPABILITIES: &str = "capabilities";

impl StreamSettings {
    /// From values as they were checked, encoded: what is missing has the usual default.
    #[must_use]
    pub fn of(values: &BTreeMap<String, Vec<u8>>) -> Option<Self> {
        let text = |name: &str| {
            let bytes = values.get(name).map(Vec::as_slice).unwrap_or_default();
            core::str::from_utf8(bytes).ok()
        };
        let protocol = text(PROTOCOL).map(|text| if text.is_empty() { "http" } else { text })?;
        Some(Self {
            protocol: Protocol::parse(protocol)?,
            configuration: text(CONFIGURATION)?.to_owned(),
            upstreams: upstreams(text(UPSTREAMS)?)?,
            capabilities: Capabilities::parse(text(CAPABILITIES)?)?,
        })
    }
}

impl Protocol {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "tcp" => Some(Self::Tcp),
            "http" => Some(Self::Http),
            _ => None,
        }
    }
}

impl Capabilities {
    /// Their names, with commas between several.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut capabilities = Self::default();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "code-responses" => capabilities.codes_responses = true,
                "reflect" => capabilities.reflects = true,
                "reflect-no-store" => {
                    (capabilities.reflects, capabilities.shares_no_store) = (true, true);
                }
                "keep-servers" => capabilities.keeps_servers = true,
                "transcode" => capabilities.transcodes = true,
                _ => return None,
            }
        }
        Some(capabilities)
    }
}

/// `NAME=ADDRESS:PORT`, with commas between several.
pub(crate) fn upstreams(text: &str) -> Option<BTreeMap<String, SocketAddr>> {
    let mut all = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, address) = part.split_once('=')?;
        let (name, address) = (name.trim(), address.trim().parse().ok()?);
        let is_name = !name.is_empty()
            && name.len() <= UPSTREAM_NAME_MAX
            && name.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_name || all.insert(name.to_owned(), address).is_some() {
            return None;
        }
    }
    (all.len() <= UPSTREAMS_MAX).then_some(all)
}

#[cfg(test)]
mod tests {
    use units::Name;

    use super::parameters::parameters;
    use super::*;
    use crate::parameter::{Parameter, ParameterType, ParameterValue};

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        pairs.iter().map(|(name, value)| ((*name).into(), value.as_bytes().into())).collect()
    }

    #[test]
    fn settings_are_read_and_have_defaults() {
        let usual = StreamSettings::of(&values(&[])).unwrap();
        assert_eq!((usual.protocol, usual.configuration.as_str()), (Protocol::Http, ""));
        let given = values(&[
            ("protocol", "tcp"),
            ("configuration", "{}"),
            ("upstreams", "auth=192.0.2.1:80, cache=[2001:db8::1]:8080"),
        ]);
        let settings = StreamSettings::of(&given).unwrap();
        assert_eq!((settings.protocol, settings.configuration.as_str()), (Protocol::Tcp, "{}"));
        assert_eq!(settings.upstreams["cache"], "[2001:db8::1]:8080".parse().unwrap());
        assert_eq!(settings.upstreams.len(), 2);
    }

    #[test]
    fn capabilities_are_granted_by_name_and_a_manifest_grants_none() {
        let of = |text| Capabilities::parse(text);
        let none = Capabilities::default();
        assert_eq!(of(""), Some(none));
        let both = Capabilities { codes_responses: true, reflects: true, ..none };
        assert_eq!(of("code-responses, reflect"), Some(both));
        assert_eq!(of("transcode"), Some(Capabilities { transcodes: true, ..none }));
        let all = Capabilities { reflects: true, shares_no_store: true, ..none };
        assert_eq!(of("reflect-no-store"), Some(all));
        let keeps = Capabilities { keeps_servers: true, ..none };
        assert_eq!(of("keep-servers"), Some(keeps));
        assert_eq!(of("fly"), None);
        let name = Name::new(CAPABILITIES).unwrap();
        let own = Parameter {
            kind: ParameterType::Text,
            default: Some(ParameterValue::Text("reflect".into())),
            description: String::new(),
        };
        assert_eq!(parameters(BTreeMap::from([(name.clone(), own)])), Err(name));
    }

    #[test]
    fn upstreams_that_are_none_are_refused() {
        for text in ["auth", "auth=", "=192.0.2.1:80", "a=192.0.2.1", "a=host:80", "a b=1.1.1.1:1"]
        {
            assert_eq!(upstreams(text), None, "{text}");
        }
        assert_eq!(upstreams("a=192.0.2.1:80,a=192.0.2.1:81"), None, "twice");
        let many: Vec<String> =
            (0..=UPSTREAMS_MAX).map(|at| format!("n{at}=192.0.2.1:80")).collect();
        assert_eq!(upstreams(&many.join(",")), None);
        assert_eq!(upstreams(&many[1..].join(",")).unwrap().len(), UPSTREAMS_MAX);
    }
}
