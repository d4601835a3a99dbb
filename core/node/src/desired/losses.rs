//! What services would forget on the way from what a node has to another state.

use std::collections::BTreeMap;

use units::Name;

use super::DesiredState;
use crate::owner::same_principal;
use crate::service::ModuleInfo;
use crate::state::Node;

/// The services that would begin empty in another state, each with the reason; those that the
/// state has not are gone anyway. `module` gives what is known of a module by its digest; of a
/// service whose module is not known nothing is said.
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
