//! Question of what would become of a frame, while its answer is sought.

use crate::reply::Reply;
use api::Explanation;
use units::PortId;

/// Question with the client that waits for its answer.
pub(crate) struct Asked {
    pub(crate) question: Question,
    pub(crate) reply: Reply<Explanation>,
}

/// Frame that is asked about, and the port by which it comes in.
pub(crate) struct Question {
    pub(super) port: PortId,
    pub(super) frame: Vec<u8>,
}
