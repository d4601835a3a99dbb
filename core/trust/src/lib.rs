//! Who may do what. Sans-IO: time and randomness come in as arguments.
//!
//! [`key`] is who somebody is, [`grant`] what somebody may, [`ask`] what somebody wants, and
//! [`token`] a grant that an administrator has signed, that its holder can narrow and pass on,
//! and that says yes or what is missing. [`signature`] is somebody's word for a module, by a
//! [`signer`]'s key, and [`versions`] what keeps yesterday's module out.
//!
//! ```text
//!  administrator's key ──signs──▶ authority block ── Grant ──▶ principal
//!                                  └ block 1: narrower ── passed on, offline
//!                                     └ block 2: narrower still
//!  Ask + time ──▶ every block agrees? ──▶ Ok, or Denied: the missing rights by name
//! ```

#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

pub mod ask;
pub mod clock;
mod dimension;
pub mod grant;
pub mod key;
pub mod signature;
pub mod signer;
pub mod token;
pub mod versions;

pub use ask::{Ask, Missing, ModuleAsk, Operation};
pub use clock::{Clock, Reading};
pub use grant::{Ceilings, Extent, Grant, GrantError, Kind, ModulePattern};
pub use key::{KeyError, PublicKey, SecretKey, Seed};
pub use signature::{ImageDigest, Signature, SignatureError, SignatureFile};
pub use signer::Signer;
pub use token::{Denied, HeldToken, RevocationId, Token, TokenError};
pub use versions::{Older, VersionError, Versions};

/// Seconds since 1970, as tokens have it. It comes from the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnixTime(pub u64);
