//! Loss of services' state on the way from a node's present state to another.

use std::collections::BTreeMap;

use units::Name;

use super::DesiredState;
use crate::owner::same_principal;
use crate::service::ModuleInfo;
use crate::state::Node;

/// Returns the services whose state would be lost in another state, each with the reason; services
/// that are removed are left out. `module` returns a module by its digest; services whose module is
/// unknown are left out.
pub fn losses<'a>(
    node: &Node,
    to: &DesiredState,
    module: impl Fn(&str) -> Option<&'a ModuleInfo>,
) -> BTreeMap<Name, String> {
    let changed = node.services().filter_map(|service| {
        let wanted = to.services.get(&service.name)?;
        let stays = same_principal(service.owner, wanted.owner);
        if stays && wanted.is_version(service) && service.session == wanted.session {
            return None;
        }
        if !stays {
            return Some((service.name.clone(), "it becomes another principal's".to_owned()));
        }
        let why = node.would_lose(&service.name, module(&wanted.digest)?, &wanted.session)?;
        Some((service.name.clone(), why))
    });
    changed.collect()
}
