//! The keys of one association on their way from the process that shook hands to the one that
//! handles packets. There is one value of it and it moves: whoever gets it opens each counter
//! once. When that process ends, so does the association; nobody has the keys a second time.

use crate::packet::{Opener, Sealer};
use crate::secret::{Chain, Secret, wipe_stack};
use crate::wire::AssociationId;
use serde::{Deserialize, Serialize};
use trust::PublicKey;
use units::Nanos;
use zeroize::Zeroizing;

/// Most bytes of the keys of one association between processes: they have fixed sizes, and
/// their numbers take at most ten bytes each.
pub const TRAFFIC_LENGTH_MAX: usize = 256;

/// What writing and reading have on their stack, generously.
const POSTCARD_STACK: usize = 4096;

/// Why bytes are no keys of an association. Our fault: they come from a process of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these are no keys of an association: {0}; both processes have to be of one version")]
pub struct TrafficError(String);

/// An association's keys, its limits, and whose it is.
#[derive(Debug, Serialize, Deserialize)]
pub struct Traffic {
    /// By which the other side names it in what it sends here.
    pub id: AssociationId,
    /// By which it is named in what is sent there.
    pub peer_id: AssociationId,
    /// Who is at the other side.
    #[serde(with = "principal")]
    pub principal: PublicKey,
    /// When it ends, by the node's monotonic clock. Its holder stops then, or before when told.
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

    /// For the way to another process: secret bytes, overwritten when they go.
    ///
    /// # Errors
    /// Never in practice: all of it can be written.
    pub fn to_bytes(&self) -> Result<Zeroizing<Vec<u8>>, TrafficError> {
        let mut bytes = Zeroizing::new(vec![0; TRAFFIC_LENGTH_MAX]);
        let written = postcard::to_slice(self, &mut bytes).map(|written| written.len());
        wipe_stack::<POSTCARD_STACK>();
        bytes.truncate(written.map_err(error)?);
        Ok(bytes)
    }

    /// On the other side of it.
    ///
    /// # Errors
    /// When they are something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TrafficError> {
        let read = postcard::take_from_bytes(bytes);
        wipe_stack::<POSTCARD_STACK>();
        match read.map_err(error)? {
            (traffic, []) => Ok(traffic),
            (_, rest) => Err(TrafficError(format!("{} bytes too many", rest.len()))),
        }
    }

    /// What opens packets from the other side, and what seals packets to it.
    #[must_use]
    pub fn split(self) -> (Opener, Sealer) {
        let opener = Opener::new(self.id, Chain::new(&self.open));
        (opener, Sealer::new(self.peer_id, Chain::new(&self.seal)))
    }
}

fn error(error: postcard::Error) -> TrafficError {
    TrafficError(error.to_string())
}

/// The secrets that a handshake ends with, one for each direction.
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
