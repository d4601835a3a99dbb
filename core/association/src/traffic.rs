//! Keys of one association, in transit from the process that made the handshake to the one that
//! handles packets. The value is moved and never copied: its holder opens each counter once, and
//! the association ends with the holder's process.

use crate::packet::{Opener, Sealer};
use crate::secret::{Chain, Secret, wipe_stack};
use crate::wire::AssociationId;
use serde::{Deserialize, Serialize};
use trust::PublicKey;
use units::Nanos;
use zeroize::Zeroizing;

/// Largest encoding of the keys of one association, in bytes: secrets have fixed sizes, and each
/// number takes at most ten bytes.
pub const TRAFFIC_LENGTH_MAX: usize = 256;

/// Upper estimate of the stack that encoding and decoding use, in bytes.
const POSTCARD_STACK: usize = 4096;

/// Decoding error. A fault of this software: the bytes come from another of its processes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are not an association's keys: {0}; both processes must have the same version")]
pub struct TrafficError(String);

/// Keys of an association, with its ids, its peer and its end.
#[derive(Debug, Serialize, Deserialize)]
pub struct Traffic {
    /// Id by which the other side addresses this side.
    pub id: AssociationId,
    /// Id by which this side addresses the other side.
    pub peer_id: AssociationId,
    /// Principal of the other side.
    #[serde(with = "principal")]
    pub principal: PublicKey,
    /// End of the association, by the node's monotonic clock. The holder stops then, or earlier on
    /// request.
    pub until: Nanos,
    open: Secret,
    seal: Secret,
}

impl Traffic {
    pub(crate) fn new(
        (id, peer_id): (AssociationId, AssociationId),
        principal: PublicKey,
        until: Nanos,
        roots: &Roots,
    ) -> Self {
        let (open, seal) = (roots.theirs.derive("traffic"), roots.ours.derive("traffic"));
        Self { id, peer_id, principal, until, open, seal }
    }

    /// Encodes the keys for another process: secret bytes, overwritten on drop.
    ///
    /// # Errors
    /// Never in practice: every value can be encoded.
    pub fn to_bytes(&self) -> Result<Zeroizing<Vec<u8>>, TrafficError> {
        let mut bytes = Zeroizing::new(vec![0; TRAFFIC_LENGTH_MAX]);
        let written = postcard::to_slice(self, &mut bytes).map(|written| written.len());
        wipe_stack::<POSTCARD_STACK>();
        bytes.truncate(written.map_err(error)?);
        Ok(bytes)
    }

    /// Decodes the keys in the other process.
    ///
    /// # Errors
    /// The bytes are not an encoding of keys.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TrafficError> {
        let read = postcard::take_from_bytes(bytes);
        wipe_stack::<POSTCARD_STACK>();
        match read.map_err(error)? {
            (traffic, []) => Ok(traffic),
            (_, rest) => Err(TrafficError(format!("{} bytes too many", rest.len()))),
        }
    }

    /// Splits the keys into the one that opens the other side's packets and the one that seals
    /// packets to it.
    #[must_use]
    pub fn split(self) -> (Opener, Sealer) {
        let opener = Opener::new(self.id, Chain::new(&self.open));
        (opener, Sealer::new(self.peer_id, Chain::new(&self.seal)))
    }
}

fn error(error: postcard::Error) -> TrafficError {
    TrafficError(error.to_string())
}

/// Root secrets of a handshake, one for each direction.
#[derive(Debug)]
pub struct Roots {
    pub(crate) ours: Secret,
    pub(crate) theirs: Secret,
}

mod principal {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use trust::PublicKey;

    pub fn serialize<S: Serializer>(key: &PublicKey, to: S) -> Result<S::Ok, S::Error> {
        key.as_bytes().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PublicKey, D::Error> {
        PublicKey::from_bytes(&<[u8; 32]>::deserialize(from)?).map_err(D::Error::custom)
    }
}
