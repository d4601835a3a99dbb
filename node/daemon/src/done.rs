//! What comes back to the daemon from work that was given away.

use crate::answer::Answer;
use crate::cells::{CodecNews, CodecNumber};
use crate::compilers::Completed;
use crate::dataplane::instances::Loaded;
use crate::demand::Fetched;
use crate::ledger::Billed;
use crate::observe::question::Asked;
use crate::reply::Reply;
use module_store::Digest;
use node::Event;
use units::EntryId;

/// What was done, and what became of it.
pub(crate) enum Done {
    /// A job of the compilers has completed.
    Compiled(Completed),
    /// The store has a module, or not.
    Stored(Digest, Answer<api::ModuleStored>, Option<Reply<api::ModuleStored>>),
    /// The kernel has taken a service's program for a level, or not.
    Loaded(Box<Loaded>),
    /// How fast modules run below user level here, or why nobody knows.
    SpeedMeasured(Result<session::below::Speed, String>),
    /// No packet of before a recount is on its way to a ring.
    Landed(EntryId),
    /// No packet is on its way to a lane that no rule leads to any more.
    LaneUnused(EntryId),
    /// No packet is in programs of a service that is gone; the number of their arena.
    SpareReady(u32),
    /// Something became of a service without the cell.
    Happened(Event),
    /// By now the tables of interceptions that ended are gone.
    InterceptionsLeft,
    ReportOverdue(u64),
    /// The cell had time enough to say what memory is in use.
    MemoryOverdue(u64),
    /// The kernel has run a copy of the front door over a frame.
    Explained(Box<Asked>, Result<bpf::front_door::Explained, String>),
    /// The journal has a change, or not.
    Recorded(Answer<()>),
    /// A module that was wanted has come, or not.
    Fetched(Box<Fetched>),
    /// A codec was started, or has ended.
    Codec(CodecNumber, CodecNews),
    /// The ledger has what it was given, or not.
    Billed(Result<Billed, String>),
}
