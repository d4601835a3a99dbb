//! Parameters that every stream module has, with the defaults of its manifest.

use std::collections::BTreeMap;

use units::Name;

use super::{CAPABILITIES, CONFIGURATION, PROTOCOL, PROTOCOL_DEFAULT, UPSTREAMS};
use crate::parameter::{Parameter, ParameterType, ParameterValue};

/// Parameter of every stream module.
struct Common {
    name: &'static str,
    kind: ParameterType,
    default: &'static str,
    description: &'static str,
}

const ALL: [Common; 4] = [
    Common {
        name: PROTOCOL,
        kind: ParameterType::Protocol,
        default: PROTOCOL_DEFAULT,
        description: "what the module is shown of connections",
    },
    Common {
        name: CONFIGURATION,
        kind: ParameterType::Document,
        default: "",
        description: "what the module is configured with",
    },
    Common {
        name: UPSTREAMS,
        kind: ParameterType::Upstreams,
        default: "",
        description: "servers that the module may call",
    },
    Common {
        name: CAPABILITIES,
        kind: ParameterType::Capabilities,
        default: "",
        description: "functions of the node that it may call",
    },
];

/// Returns the parameters of a module whose manifest declares these.
///
/// # Errors
/// The name of a parameter that a manifest may not declare, or whose default is none of its type.
pub(crate) fn parameters(
    declared: BTreeMap<Name, Parameter>,
) -> Result<BTreeMap<Name, Parameter>, Name> {
    // Capabilities are granted by the operator who deploys the module.
    let may_declare = |name: &Name| {
        name.as_str() != CAPABILITIES && ALL.iter().any(|common| common.name == name.as_str())
    };
    if let Some(name) = declared.keys().find(|name| !may_declare(name)) {
        return Err(name.clone());
    }
    let parameter = |Common { name, kind, default, description }| {
        let name = Name::new(name).expect("names in `ALL` are short words of lower case");
        let declared = declared.get(&name);
        let given = match declared.and_then(|it| it.default.as_ref()) {
            Some(ParameterValue::Text(text)) => kind.parse(text).ok_or_else(|| name.clone())?,
            Some(_) => return Err(name),
            None => ParameterValue::Text(default.to_owned()),
        };
        let said = declared.map(|it| it.description.as_str()).filter(|said| !said.is_empty());
        let description = said.unwrap_or(description).to_owned();
        Ok((name, Parameter { kind, default: Some(given), description }))
    };
    ALL.into_iter().map(parameter).collect()
}
