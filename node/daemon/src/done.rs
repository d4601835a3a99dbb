//! Completions of work that is done beside the loop.

use crate::answer::Answer;
use crate::cells::{CodecNews, CodecNumber};
use crate::compilers::Completed;
use crate::dataplane::instances::Loaded;
use crate::demand::Fetched;
use crate::ledger::Billed;
use crate::observe::question::Asked;
use crate::reply::Reply;
use module_store::Digest;
use units::EntryId;

/// Completion of work, with its result.
pub(crate) enum Done {
    /// Job of the compilers.
    Compiled(Completed),
    /// Write of a module to the store.
    Stored(Digest, Answer<api::ModuleStored>, Option<Reply<api::ModuleStored>>),
    /// Load of a service's program for a level.
    Loaded(Box<Loaded>),
    /// Speed of modules below user level, or the reason for its not being known.
    SpeedMeasured(Result<session::in_kernel::Speed, String>),
    /// Arrival of all packets of before a recount.
    Landed(EntryId),
    /// Departure of all packets from a lane that no rule leads to any more.
    LaneUnused(EntryId),
    /// Arrival of all packets in programs of a service that is gone; the number of their arena.
    SpareReady(u32),
    /// Time after which the tables of interceptions that ended are gone.
    InterceptionsLeft,
    /// End of the time for a report of cells.
    ReportOverdue(u64),
    /// End of the time for the answer about memory in use.
    MemoryOverdue(u64),
    /// Run of a copy of the front door over a frame.
    Explained(Box<Asked>, Result<bpf::front_door::Explained, String>),
    /// Write of the desired state to the journal.
    Recorded(Answer<()>),
    /// Fetch of a module.
    Fetched(Box<Fetched>),
    /// Start or end of a codec.
    Codec(CodecNumber, CodecNews),
    /// Write of a bill to the ledger.
    Billed(Result<Billed, String>),
}
