//! Parameters that every module for streams has, with the defaults of its manifest.

use std::collections::BTreeMap;

use units::Name;

use super::{CAPABILITIES, CONFIGURATION, PROTOCOL, UPSTREAMS};
use crate::parameter::{Parameter, ParameterType, ParameterValue};

/// Parameters that every module for streams has: name, type, default, description.
const ALL: [(&str, ParameterType, &str, &str); 4] = [
    (PROTOCOL, ParameterType::Protocol, "http", "what the module is shown of connections"),
    (CONFIGURATION, ParameterType::Document, "", "what the module is configured with"),
    (UPSTREAMS, ParameterType::Upstreams, "", "servers that the module may call"),
    (CAPABILITIES, ParameterType::Capabilities, "", "functions of the node that it may call"),
];

/// The parameters of a module whose manifest names these defaults; the name of one that it may not
/// have, if it does.
pub(crate) fn parameters(
    declared: BTreeMap<Name, Parameter>,
) -> Result<BTreeMap<Name, Parameter>, Name> {
    // What it may do is for whoever deploys it to say.
    let may_declare =
        |name: &Name| name.as_str() != CAPABILITIES && ALL.iter().any(|it| it.0 == name.as_str());
    if let Some(name) = declared.keys().find(|name| !may_declare(name)) {
        return Err(name.clone());
    }
    let parameter = |(name, kind, default, description): (&str, ParameterType, &str, &str)| {
        let name = Name::new(name).expect("a name");
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
