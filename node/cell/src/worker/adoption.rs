//! Adoption: a new daemon takes over a cell that has outlived the old one.

use super::Cell;
use crate::PROTOCOL_VERSION;
use crate::control::round::Round;
use crate::protocol::{Adopted, FromCell, ReturnedFd};
use crate::sched::Timer;
use anyhow::Result;
use rustix::fd::AsFd;
use std::collections::BTreeSet;
use units::{CoarseInstant, EntryId};

/// Begins to serve a new daemon: removes all services but those that it knows, and sends it the
/// descriptors that it cannot get elsewhere.
///
/// # Errors
/// The process has no descriptor left, or the daemon cannot be notified.
pub(super) fn adopt<T: Timer>(
    cell: &mut Cell<T>,
    keep: &[EntryId],
    now: CoarseInstant,
) -> Result<()> {
    let keep: BTreeSet<EntryId> = keep.iter().copied().collect();
    let Cell { link, reports, intake, dispatcher, streams, .. } = cell;
    // Captures and reports end with the daemon that requested them.
    dispatcher.path_mut().set_capture(None);
    reports.forget();
    dispatcher.scheduler_mut().sessions_mut().forget_reported();
    // The new daemon does not know their owners.
    dispatcher.path_mut().end_associations();
    dispatcher.retain(|entry| keep.contains(&entry), &mut Round { now, link });
    streams.retain(|entry| keep.contains(&entry));
    let mut given = dispatcher.path().given()?;
    if let Some(tap) = intake.tap() {
        given.push((ReturnedFd::Tap, tap.try_clone_to_owned()?));
    }
    let services = dispatcher.services().iter();
    link.send(&FromCell::Adopted(Adopted {
        protocol: PROTOCOL_VERSION,
        services: services
            .map(|service| (service.entry(), service.home()))
            .chain(streams.all().map(|(entry, _)| (entry, None)))
            .collect(),
        given: given.len() as u32,
    }))?;
    for (what, fd) in given {
        link.send_with(&FromCell::Returned(what), &[fd.as_fd()])?;
    }
    Ok(())
}
