//! Calls of modules by active packets.

use crate::access::Caller;
use cell::CallQuestion;
use trust::PublicKey;

/// Sender of active packets.
#[derive(Clone)]
pub(crate) struct Sender {
    pub(crate) caller: Caller,
    /// Principal of the association by which they came; `None` without one.
    pub(crate) principal: Option<PublicKey>,
}

/// Call of a module that the node does not hold.
pub(crate) struct Wanted {
    pub(crate) question: CallQuestion,
    pub(crate) sender: Sender,
}
