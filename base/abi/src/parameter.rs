//! Parameters: settings of an operator for a service.
//!
//! A module declares them in its manifest; [`values`] turns the operator's text into typed values;
//! `param_load` copies their bytes. Where the text came from is not known here.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use units::Name;

use crate::meant::Meant;
use crate::streams::{CONFIGURATION_LENGTH_MAX, Capabilities, Protocol, upstreams};

/// Longest value of a text parameter, in bytes: it is copied into a module's memory as a whole.
pub const PARAMETER_TEXT_MAX: usize = 256;
/// Most parameters of one module: a service with more should use a control message.
pub const PARAMETERS_MAX: usize = 32;

/// Parameter as the module declares it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Type of its values.
    #[serde(rename = "type")]
    pub kind: ParameterType,
    /// Default value; without one the operator must set the parameter.
    pub default: Option<ParameterValue>,
    /// Description in one line.
    pub description: String,
}

/// Type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ParameterType {
    /// Integer from 0 to 255.
    U8,
    /// Integer from 0 to 65,535.
    U16,
    /// Integer from 0 to 2^32 - 1.
    U32,
    /// Integer from 0 to 2^64 - 1; a default in a manifest ends at 2^63 - 1, as TOML's numbers do.
    U64,
    /// `true` or `false`.
    Bool,
    /// UTF-8 text of at most [`PARAMETER_TEXT_MAX`] bytes.
    Text,
    /// IPv4 address.
    Ipv4,
    /// IPv6 address.
    Ipv6,
    /// `tcp` or `http`, of stream modules only.
    Protocol,
    /// UTF-8 text of at most [`CONFIGURATION_LENGTH_MAX`] bytes, of stream modules only.
    Document,
    /// Servers by name, of stream modules only.
    Upstreams,
    /// Functions of the node by name, of stream modules only.
    Capabilities,
}

/// Value of a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ParameterValue {
    /// [`ParameterType::U8`].
    U8(u8),
    /// [`ParameterType::U16`].
    U16(u16),
    /// [`ParameterType::U32`].
    U32(u32),
    /// [`ParameterType::U64`].
    U64(u64),
    /// [`ParameterType::Bool`].
    Bool(bool),
    /// [`ParameterType::Text`], and the types of stream modules.
    Text(String),
    /// [`ParameterType::Ipv4`].
    Ipv4(Ipv4Addr),
    /// [`ParameterType::Ipv6`].
    Ipv6(Ipv6Addr),
}

/// Reason for rejecting parameters: a fault of the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// The module does not declare the parameter.
    #[error("module '{module}' has no parameter {name:?}{meant}")]
    Unknown {
        /// Name of the module.
        module: Name,
        /// Name of the parameter as given.
        name: String,
        /// Existing parameters, nearest first.
        meant: Meant,
    },
    /// The text is no value of the parameter's type.
    #[error("parameter '{name}' of module '{module}' is {value:?}; it must be {wanted}")]
    Value {
        /// Name of the module.
        module: Name,
        /// Name of the parameter.
        name: Name,
        /// Value as given.
        value: String,
        /// Values that the type allows.
        wanted: &'static str,
    },
    /// The parameter has no default and no value was given.
    #[error(
        "parameter '{name}' of module '{module}' has no default; set it to {wanted}, as in {name}=VALUE"
    )]
    Missing {
        /// Name of the module.
        module: Name,
        /// Name of the parameter.
        name: Name,
        /// Values that the type allows.
        wanted: &'static str,
    },
}

/// Returns the value of every parameter that `module` declares: the given one, else the default.
pub(crate) fn values(
    module: &Name,
    declared: &BTreeMap<Name, Parameter>,
    given: &BTreeMap<String, String>,
) -> Result<BTreeMap<Name, ParameterValue>, ParameterError> {
    let module = || module.clone();
    let known = || declared.keys().map(Name::as_str);
    if let Some(name) = given.keys().find(|name| !known().any(|known| known == *name)) {
        let meant = Meant::new(name, known());
        return Err(ParameterError::Unknown { module: module(), name: name.clone(), meant });
    }
    let value_of = |(name, parameter): (&Name, &Parameter)| {
        let wanted = parameter.kind.wanted();
        let value = match (given.get(name.as_str()), &parameter.default) {
            (Some(text), _) => parameter.kind.parse(text).ok_or_else(|| ParameterError::Value {
                module: module(),
                name: name.clone(),
                value: text.chars().take(PARAMETER_TEXT_MAX).collect(),
                wanted,
            })?,
            (None, Some(default)) => default.clone(),
            (None, None) => {
                let name = name.clone();
                return Err(ParameterError::Missing { module: module(), name, wanted });
            }
        };
        Ok((name.clone(), value))
    };
    declared.iter().map(value_of).collect()
}

impl ParameterType {
    /// Every type that a manifest may name, with its word.
    pub const ALL: &'static [(Self, &'static str)] = &[
        (Self::U8, "u8"),
        (Self::U16, "u16"),
        (Self::U32, "u32"),
        (Self::U64, "u64"),
        (Self::Bool, "bool"),
        (Self::Text, "text"),
        (Self::Ipv4, "ipv4"),
        (Self::Ipv6, "ipv6"),
    ];

    /// Returns a description of the type's values, for messages.
    #[must_use]
    pub const fn wanted(self) -> &'static str {
        match self {
            Self::U8 => "a whole number from 0 to 255",
            Self::U16 => "a whole number from 0 to 65535",
            Self::U32 => "a whole number from 0 to 4294967295",
            Self::U64 => "a whole number from 0 to 18446744073709551615",
            Self::Bool => "true or false",
            Self::Text => "text of at most 256 bytes",
            Self::Ipv4 => "an IPv4 address",
            Self::Ipv6 => "an IPv6 address",
            Self::Protocol => "tcp or http",
            Self::Capabilities => {
                "names of functions of the node: code-responses, reflect, reflect-no-store, transcode, keep-servers"
            }
            Self::Document => "text of at most 16384 bytes",
            Self::Upstreams => {
                "at most 32 names with addresses, as in auth=192.0.2.1:80,cache=[2001:db8::1]:8080"
            }
        }
    }

    /// Parses a value as an operator writes it; returns `None` when it is none of this type.
    #[must_use]
    pub fn parse(self, text: &str) -> Option<ParameterValue> {
        Some(match self {
            Self::U8 => ParameterValue::U8(text.parse().ok()?),
            Self::U16 => ParameterValue::U16(text.parse().ok()?),
            Self::U32 => ParameterValue::U32(text.parse().ok()?),
            Self::U64 => ParameterValue::U64(text.parse().ok()?),
            Self::Bool => ParameterValue::Bool(text.parse().ok()?),
            Self::Text if text.len() <= PARAMETER_TEXT_MAX => ParameterValue::Text(text.into()),
            Self::Document if text.len() <= CONFIGURATION_LENGTH_MAX => {
                ParameterValue::Text(text.into())
            }
            Self::Text | Self::Document => return None,
            Self::Protocol => {
                Protocol::parse(text)?;
                ParameterValue::Text(text.into())
            }
            Self::Capabilities => {
                Capabilities::parse(text)?;
                ParameterValue::Text(text.into())
            }
            Self::Upstreams => {
                upstreams(text)?;
                ParameterValue::Text(text.into())
            }
            Self::Ipv4 => ParameterValue::Ipv4(text.parse().ok()?),
            Self::Ipv6 => ParameterValue::Ipv6(text.parse().ok()?),
        })
    }
}

impl ParameterValue {
    /// Returns the bytes that `param_load` copies: numbers little-endian, a bool as one byte 0 or
    /// 1, text as UTF-8 without a terminator, addresses in network byte order.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::U8(value) => vec![*value],
            Self::U16(value) => value.to_le_bytes().into(),
            Self::U32(value) => value.to_le_bytes().into(),
            Self::U64(value) => value.to_le_bytes().into(),
            Self::Bool(value) => vec![u8::from(*value)],
            Self::Text(value) => value.as_bytes().into(),
            Self::Ipv4(value) => value.octets().into(),
            Self::Ipv6(value) => value.octets().into(),
        }
    }
}

impl core::fmt::Display for ParameterValue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::U8(value) => value.fmt(f),
            Self::U16(value) => value.fmt(f),
            Self::U32(value) => value.fmt(f),
            Self::U64(value) => value.fmt(f),
            Self::Bool(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
            Self::Ipv4(value) => value.fmt(f),
            Self::Ipv6(value) => value.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    fn manifest() -> Manifest {
        Manifest::parse(
            "abi = 1\nname = \"m\"\nversion = \"1.0.0\"\nwindow = 64\n\
             [parameters.dscp]\ntype = \"u8\"\ndefault = 46\n\
             [parameters.gateway]\ntype = \"ipv4\"\n",
        )
        .unwrap()
    }

    fn given(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn what_the_operator_does_not_set_has_its_default() {
        let values = manifest().values(&given(&[("gateway", "10.0.0.1")])).unwrap();
        assert_eq!(values[&Name::new("dscp").unwrap()], ParameterValue::U8(46));
        assert_eq!(values[&Name::new("gateway").unwrap()].to_bytes(), [10, 0, 0, 1]);
    }

    #[test]
    fn a_parameter_without_default_must_be_set() {
        let error = manifest().values(&given(&[])).unwrap_err();
        assert!(
            matches!(&error, ParameterError::Missing { name, .. } if name.as_str() == "gateway")
        );
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_nearest() {
        let error = manifest().values(&given(&[("dcsp", "1")])).unwrap_err().to_string();
        assert!(error.contains("did you mean 'dscp'"), "{error}");
    }

    #[test]
    fn a_value_out_of_its_type_is_refused() {
        let error = manifest().values(&given(&[("dscp", "256"), ("gateway", "::1")])).unwrap_err();
        assert!(error.to_string().contains("0 to 255"), "{error}");
    }

    #[test]
    fn every_type_takes_what_it_prints() {
        for (text, kind) in [
            ("255", ParameterType::U8),
            ("65535", ParameterType::U16),
            ("4294967295", ParameterType::U32),
            ("18446744073709551615", ParameterType::U64),
            ("true", ParameterType::Bool),
            ("some text", ParameterType::Text),
            ("192.0.2.1", ParameterType::Ipv4),
            ("2001:db8::1", ParameterType::Ipv6),
        ] {
            assert_eq!(kind.parse(text).unwrap().to_string(), text);
        }
        assert_eq!(ParameterType::Text.parse(&"x".repeat(PARAMETER_TEXT_MAX + 1)), None);
        assert_eq!(ParameterType::U16.parse("513").unwrap().to_bytes(), [1, 2]);
    }
}
