//! Document of `GET /v1/revocations`.

use crate::control::authority::Authority;
use api::{RevocationList, SCHEMA_VERSION};

/// Returns everything that was revoked.
pub(crate) fn revocations(authority: &Authority) -> RevocationList {
    let revoked = authority.revoked().texts().into_iter().collect();
    RevocationList { schema_version: SCHEMA_VERSION, revoked }
}
