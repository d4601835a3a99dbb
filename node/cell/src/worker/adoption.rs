//! Another daemon takes a cell over.

use super::Cell;
use super::reports::Reporting;
use crate::PROTOCOL_VERSION;
use crate::datapath::kernel::KernelWay;
use crate::protocol::{Adopted, FromCell, Given};
use anyhow::Result;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::BTreeSet;
use units::EntryId;

impl Cell {
    /// Another daemon takes over: all services but those that it knows go, and it gets what it
    /// cannot have otherwise.
    pub(super) fn adopted(&mut self, keep: &[EntryId]) -> Result<()> {
        let keep: BTreeSet<EntryId> = keep.iter().copied().collect();
        // Captures end with the daemon that was asked for them, and so do reports.
        self.path.tap = None;
        self.reporting = Reporting::default();
        self.sessions.forget_told();
        // The next daemon does not know whose they are.
        self.path.associations.end_all(&mut self.path.pool);
        self.services.retain(|entry| keep.contains(&entry));
        let gone: Vec<EntryId> =
            self.streams.all().map(|(entry, _)| entry).filter(|it| !keep.contains(it)).collect();
        for entry in gone {
            self.streams.stop(entry);
        }
        self.streams.forget_asked();
        let services = self.services.iter();
        let streams = self.streams.all().map(|(entry, _)| (entry, None));
        let mut given: Vec<(Given, OwnedFd)> = Vec::new();
        for (port, queue, fd) in self.path.ports.queues() {
            given.push((Given::Socket(port, queue), fd.try_clone_to_owned()?));
        }
        let kernel = self.path.kernel.as_ref().and_then(|way| match way {
            KernelWay::Tun(device) => Some((Given::Kernel, device.as_fd())),
            // A node without TUN has packet ports, and is not adopted.
            KernelWay::Frames(_) => None,
        });
        let up = self.up.as_ref().map(|up| (Given::Up, up.as_fd()));
        for (what, fd) in kernel.into_iter().chain(up) {
            given.push((what, fd.try_clone_to_owned()?));
        }
        self.link.send(&FromCell::Adopted(Adopted {
            protocol: PROTOCOL_VERSION,
            services: services
                .map(|service| (service.facts.entry, service.home()))
                .chain(streams)
                .collect(),
            given: given.len() as u32,
        }))?;
        for (what, fd) in given {
            self.link.send_with(&FromCell::Given(what), &[fd.as_fd()])?;
        }
        Ok(())
    }
}
