//! Authorization and provenance: keys, capability tokens, and signatures of modules. Sans-IO: time
//! and randomness are arguments.
//!
//! [`key`] has principals' keys, [`grant`] the rights of a principal, [`request`] the rights that a
//! request needs. A [`token`] is a grant signed by an administrator, which its holder can narrow
//! and pass on offline; it authorizes a request or names the missing rights. [`signature`] is a
//! statement about a module by a [`signer`]'s key, and [`versions`] refuses rollbacks to older
//! modules.
//!
//! ```text
//!  administrator's key ──signs──▶ authority block ── Grant ──▶ principal
//!                                  └ block 1: narrower ── passed on, offline
//!                                     └ block 2: narrower still
//!  AccessRequest + time ──▶ every block agrees? ──▶ Ok, or Denied: the missing rights by name
//! ```

#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

pub mod clock;
mod dimension;
pub mod grant;
pub mod key;
pub mod request;
pub mod signature;
pub mod signer;
pub mod token;
pub mod versions;

pub use clock::{Clock, Reading};
pub use grant::{Ceilings, Extent, Grant, GrantError, Kind, ModulePattern};
pub use key::{KeyError, PublicKey, SecretKey, Seed};
pub use request::{AccessRequest, Missing, Operation, RequestedModule};
pub use signature::{ImageDigest, Signature, SignatureError, SignatureFile};
pub use signer::Signer;
pub use token::{Denied, HeldToken, RevocationId, Token, TokenError};
pub use versions::{Older, VersionError, Versions};

/// Seconds since 1970 (UNIX time), as in tokens. Read by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnixTime(pub u64);
