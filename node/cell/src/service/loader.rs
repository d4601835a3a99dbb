//! What a service needs to start: its code loaded, its memory mapped and charged.

use crate::memory::Memory;
use crate::protocol::ServiceFacts;
use crate::service::Ready;
use crate::service::mappings::Mappings;
use crate::service::programs::Programs;
use crate::service::shared::Shared;
use anyhow::Result;
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
    /// Creates one that has loaded nothing.
    pub(crate) fn new(engine: Engine, accounts: Memory) -> Self {
        let (programs, mappings) = (Programs::default(), Mappings::default());
        Self { engine, programs, mappings, accounts }
    }

    /// Returns the account of all sessions' memory.
    pub(crate) const fn accounts(&self) -> &Memory {
        &self.accounts
    }

    /// Prepares a service, or a version of one; `memory` are descriptors of one that can leave user
    /// level, `is_new`: nobody in this cell has its lane yet.
    ///
    /// # Errors
    /// When its session has not the memory, the code is none, or what it shares cannot be mapped.
    pub(crate) fn prepare(
        &mut self,
        facts: ServiceFacts,
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

    /// Unmaps memory that nobody has any more; the thread has nothing else to do.
    pub(crate) fn handle_idle(&mut self) {
        self.mappings.forget();
    }
}
