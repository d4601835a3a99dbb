//! Settings of a stream module: the parameters that every one has, and their values.
//!
//! The proxy-wasm ABI has no way for a module to declare its protocol, nor which servers it may
//! call: the operator sets these parameters on deployment. The module's manifest may have other
//! defaults for all but [`Capabilities`], which only a deployment grants.

pub(crate) mod parameters;

use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Longest configuration of a module, in bytes: it is kept with the service, and in each copy of
/// the node's desired state.
pub const CONFIGURATION_LENGTH_MAX: usize = 16 << 10;
/// Most servers that a module may call.
pub const UPSTREAMS_MAX: usize = 32;
/// Longest name of such a server, in bytes.
const UPSTREAM_NAME_MAX: usize = 64;

const PROTOCOL: &str = "protocol";
const CONFIGURATION: &str = "configuration";
const UPSTREAMS: &str = "upstreams";
const CAPABILITIES: &str = "capabilities";
/// Value of [`PROTOCOL`] where neither an operator nor a manifest has one.
const PROTOCOL_DEFAULT: &str = "http";

/// Protocol at which a module handles a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Bytes of the connection.
    Tcp,
    /// Requests and responses of HTTP/1.1.
    Http,
}

/// Settings of one stream module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// Protocol of its connections.
    pub protocol: Protocol,
    /// Text that `proxy_on_configure` is given.
    pub configuration: String,
    /// Servers that it may call, by name.
    pub upstreams: BTreeMap<String, SocketAddr>,
    /// Functions of the node that it may call.
    pub capabilities: Capabilities,
}

/// Functions of the node, beyond the proxy-wasm ABI, that a stream module may call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// `code-responses`: content coding of response bodies.
    pub codes_responses: bool,
    /// `reflect`, `reflect-no-store`: shared live streams for requests.
    pub reflection: Reflection,
    /// `keep-servers`: connections to servers kept for the next client of the same address.
    pub keeps_servers: bool,
    /// `transcode`: pictures of the video in responses.
    pub transcodes: bool,
}

/// Origins whose streams a module may share among clients; each variant includes those before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reflection {
    /// No origin.
    #[default]
    Refused,
    /// `reflect`: origins that do not forbid it by `Cache-Control: no-store`.
    Storable,
    /// `reflect-no-store`: also origins that send `no-store` with everything.
    Any,
}

/// Parameter value that no stream module accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the parameter {parameter} of a module for streams has a value that it cannot have")]
pub struct StreamSettingsError {
    /// Name of the parameter.
    pub parameter: &'static str,
}

impl StreamSettings {
    /// Parses parameters as they are encoded for a module, UTF-8 text by name; a missing one has
    /// its default.
    ///
    /// # Errors
    /// The first parameter for which a deployment would have been refused.
    pub fn from_parameters(
        values: &BTreeMap<String, Vec<u8>>,
    ) -> Result<Self, StreamSettingsError> {
        Ok(Self {
            protocol: read(values, PROTOCOL, |text| match text {
                "" => Protocol::parse(PROTOCOL_DEFAULT),
                _ => Protocol::parse(text),
            })?,
            configuration: read(values, CONFIGURATION, |text| Some(text.to_owned()))?,
            upstreams: read(values, UPSTREAMS, upstreams)?,
            capabilities: read(values, CAPABILITIES, Capabilities::parse)?,
        })
    }
}

fn read<T>(
    values: &BTreeMap<String, Vec<u8>>,
    parameter: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, StreamSettingsError> {
    let bytes = values.get(parameter).map(Vec::as_slice).unwrap_or_default();
    core::str::from_utf8(bytes).ok().and_then(parse).ok_or(StreamSettingsError { parameter })
}

impl Protocol {
    /// Parses a value of [`PROTOCOL`]; returns `None` for another text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "tcp" => Some(Self::Tcp),
            "http" => Some(Self::Http),
            _ => None,
        }
    }
}

impl Capabilities {
    /// Parses a value of [`CAPABILITIES`], names separated by commas; returns `None` when one is
    /// unknown.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut capabilities = Self::default();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "code-responses" => capabilities.codes_responses = true,
                "reflect" => capabilities.allow_reflection(Reflection::Storable),
                "reflect-no-store" => capabilities.allow_reflection(Reflection::Any),
                "keep-servers" => capabilities.keeps_servers = true,
                "transcode" => capabilities.transcodes = true,
                _ => return None,
            }
        }
        Some(capabilities)
    }

    fn allow_reflection(&mut self, reflection: Reflection) {
        self.reflection = self.reflection.max(reflection);
    }
}

/// Parses a value of [`UPSTREAMS`], `NAME=ADDRESS:PORT` separated by commas; returns `None` when
/// one is malformed, two have the same name, or there are more than [`UPSTREAMS_MAX`].
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
        let usual = StreamSettings::from_parameters(&values(&[])).unwrap();
        assert_eq!((usual.protocol, usual.configuration.as_str()), (Protocol::Http, ""));
        let given = values(&[
            ("protocol", "tcp"),
            ("configuration", "{}"),
            ("upstreams", "auth=192.0.2.1:80, cache=[2001:db8::1]:8080"),
        ]);
        let settings = StreamSettings::from_parameters(&given).unwrap();
        assert_eq!((settings.protocol, settings.configuration.as_str()), (Protocol::Tcp, "{}"));
        assert_eq!(settings.upstreams["cache"], "[2001:db8::1]:8080".parse().unwrap());
        assert_eq!(settings.upstreams.len(), 2);
    }

    #[test]
    fn a_value_that_a_parameter_cannot_have_is_named_by_its_parameter() {
        for (parameter, value) in [
            (PROTOCOL, &b"udp"[..]),
            (CONFIGURATION, &[0xff]),
            (UPSTREAMS, b"auth"),
            (CAPABILITIES, b"fly"),
        ] {
            let values = BTreeMap::from([(parameter.to_owned(), value.to_vec())]);
            let refused = Err(StreamSettingsError { parameter });
            assert_eq!(StreamSettings::from_parameters(&values), refused);
        }
    }

    #[test]
    fn capabilities_are_granted_by_name_and_a_manifest_grants_none() {
        let of = |text| Capabilities::parse(text);
        let none = Capabilities::default();
        assert_eq!(of(""), Some(none));
        let reflects = |reflection| Capabilities { reflection, ..none };
        let both = Capabilities { codes_responses: true, ..reflects(Reflection::Storable) };
        assert_eq!(of("code-responses, reflect"), Some(both));
        assert_eq!(of("transcode"), Some(Capabilities { transcodes: true, ..none }));
        for text in ["reflect-no-store", "reflect,reflect-no-store", "reflect-no-store,reflect"] {
            assert_eq!(of(text), Some(reflects(Reflection::Any)), "{text}");
        }
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
    fn malformed_upstreams_two_of_one_name_and_too_many_are_refused() {
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
