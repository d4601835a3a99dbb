//! Document of `GET /v1/modules`.

use api::{ModuleList, ModuleStored, SCHEMA_VERSION};
use module_store::StoredModule;

/// Returns the list of these modules of the store.
pub(crate) fn module_list(modules: Vec<StoredModule>) -> ModuleList {
    let shown = |module: StoredModule| ModuleStored {
        schema_version: SCHEMA_VERSION,
        digest: module.digest.to_string(),
        name: module.name.unwrap_or_default(),
        version: module.version.unwrap_or_default(),
        size_bytes: module.bytes,
    };
    let modules = modules.into_iter().map(shown).collect();
    ModuleList { schema_version: SCHEMA_VERSION, modules }
}
