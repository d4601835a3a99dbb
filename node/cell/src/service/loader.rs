//! Preparation of services before they start: code is loaded, memory mapped and charged.

use crate::control::round::Round;
use crate::dispatch::Dispatcher;
use crate::memory::Memory;
use crate::protocol::{Failure, FromCell, ServiceSpec, StateTransfer};
use crate::sched::Timer;
use crate::service::mappings::Mappings;
use crate::service::programs::Programs;
use crate::service::shared::Shared;
use crate::service::{Control, Ready};
use anyhow::{Context, Result, anyhow};
use bpf::Lane;
use engine::Engine;
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;

/// Owner of loaded programs and mapped memory, and of the account that services are charged to.
pub(crate) struct Loader {
    engine: Engine,
    programs: Programs,
    mappings: Mappings,
    accounts: Memory,
}

impl Loader {
    /// Creates a loader without programs.
    pub(crate) fn new(engine: Engine, accounts: Memory) -> Self {
        let (programs, mappings) = (Programs::default(), Mappings::default());
        Self { engine, programs, mappings, accounts }
    }

    /// Returns the memory account of all sessions.
    pub(crate) const fn accounts(&self) -> &Memory {
        &self.accounts
    }

    /// Prepares and starts a service; its code is the first descriptor. Tells the daemon if it
    /// cannot be prepared.
    ///
    /// # Errors
    /// The daemon cannot be notified.
    pub(crate) fn start(
        &mut self,
        facts: ServiceSpec,
        fds: &[OwnedFd],
        dispatcher: &mut Dispatcher<impl Timer>,
        round: &mut Round<'_>,
    ) -> Result<()> {
        let entry = facts.entry;
        match self.prepare_for(facts, fds, dispatcher, true) {
            Ok(ready) => {
                dispatcher.start(ready, round);
                Ok(())
            }
            Err(error) => round.link.send(&FromCell::StartFailed(entry, Failure::of(&error))),
        }
    }

    /// Prepares another version of a service, as far as possible before packets wait for it, and
    /// requests the replacement. Tells the daemon if it cannot be prepared, or the request is
    /// refused.
    ///
    /// # Errors
    /// The daemon cannot be notified.
    pub(crate) fn replace(
        &mut self,
        (facts, transfer): (ServiceSpec, StateTransfer),
        fds: &[OwnedFd],
        dispatcher: &mut Dispatcher<impl Timer>,
        round: &mut Round<'_>,
    ) -> Result<()> {
        let entry = facts.entry;
        let service = dispatcher.services().get(entry);
        let is_new = service.is_none_or(|service| service.shared().is_none());
        let refused = match self.prepare_for(facts, fds, dispatcher, is_new) {
            Ok(ready) => {
                let control = Control::Replace(Box::new(ready), transfer);
                let is_taken = dispatcher.request(entry, control, round);
                (!is_taken).then(|| {
                    anyhow!("the service does not exist, or its queue of requests is full")
                })
            }
            Err(error) => Some(error),
        };
        let failed = |error| FromCell::ReplaceFailed(entry, Failure::of(&error));
        refused.map_or(Ok(()), |error| round.link.send(&failed(error)))
    }

    fn prepare_for(
        &mut self,
        facts: ServiceSpec,
        fds: &[OwnedFd],
        dispatcher: &Dispatcher<impl Timer>,
        is_new: bool,
    ) -> Result<Ready> {
        let (code, memory) = fds.split_first().context("the code of a service is missing")?;
        let lane = dispatcher.services().lane(facts.entry);
        let ports = dispatcher.path().port_numbers();
        self.prepare(facts, (code, memory), ports, lane, is_new)
    }

    /// Prepares a service, or a version of one. `memory` are the descriptors of one that can leave
    /// user level; `is_new` states that no service of this cell uses its lane yet.
    ///
    /// # Errors
    /// The session lacks the memory, the code is invalid, or the shared memory cannot be mapped.
    pub(crate) fn prepare(
        &mut self,
        facts: ServiceSpec,
        (code, memory): (&OwnedFd, &[OwnedFd]),
        ports: BTreeMap<String, u16>,
        lane: Option<Lane<'static>>,
        is_new: bool,
    ) -> Result<Ready> {
        let charge = self.accounts.charge_service(&facts)?;
        let mappings = &mut self.mappings;
        let map = |shared| Shared::map(mappings, shared, memory, lane, is_new);
        let shared = facts.shared.as_ref().map(map);
        let shared = shared.transpose()?;
        let kind = facts.kind();
        let program = self.programs.load(&self.engine, code, kind, facts.functions)?;
        Ok(Ready { program, facts, ports, shared, memory: self.accounts.clone(), charge })
    }

    /// Unmaps memory that no service uses; called when the thread is idle.
    pub(crate) fn handle_idle(&mut self) {
        self.mappings.forget();
    }
}
