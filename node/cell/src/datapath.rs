//! Data path of a cell: what packets come and leave by, lent as [`Exits`] to whoever has a packet.
//!
//! ```text
//!  Datapath ─ exits(sessions, session) ─▶ Exits ─ forward, redirect, hand_back ─▶ End
//! ```
//!
//! It decides nothing about services; sessions are another owner's, and lent beside it.

pub(crate) mod asker;
pub(crate) mod associations;
pub(crate) mod checksum;
pub(crate) mod counts;
pub(crate) mod cycle;
pub(crate) mod deliver;
pub(crate) mod egress;
pub(crate) mod facts;
pub(crate) mod kernel;
pub(crate) mod link;
pub(crate) mod port;
pub(crate) mod port_shares;
pub(crate) mod source;
pub(crate) mod tap;
pub(crate) mod tap_reader;

use crate::datapath::associations::Associations;
use crate::datapath::deliver::Exits;
use crate::datapath::egress::Egress;
use crate::datapath::facts::Facts;
use crate::datapath::kernel::KernelWay;
use crate::datapath::port::Ports;
use crate::datapath::tap::Tap;
use crate::sched::sessions::Sessions;
use units::SessionId;
use xsk::FramePool;

/// Egress resources of a cell.
pub(crate) struct Datapath {
    pub(crate) ports: Ports,
    /// Frames of packet memory that are free.
    pub(crate) pool: FramePool,
    /// Device by which packets go into the kernel's stack; `None` until the daemon has given it.
    pub(crate) kernel: Option<KernelWay>,
    /// Copies of packets for captures; `None` while nobody captures.
    pub(crate) tap: Option<Tap>,
    /// Actions of rules, for the stages behind a service.
    pub(crate) rules: Option<Facts>,
    /// Packets of ports of whose rates sessions have shares.
    pub(crate) egress: Egress,
    pub(crate) associations: Associations,
}

impl Datapath {
    /// Creates a data path without ports, rules or a way into the kernel.
    pub(crate) fn new(pool: FramePool) -> Self {
        Self {
            ports: Ports::default(),
            pool,
            kernel: None,
            tap: None,
            rules: None,
            egress: Egress::new(),
            associations: Associations::default(),
        }
    }

    /// Lends everything that a packet of a session can leave by, for one call.
    pub(crate) fn exits<'a>(
        &'a mut self,
        sessions: &'a mut Sessions,
        session: SessionId,
    ) -> Exits<'a> {
        Exits {
            ports: &mut self.ports,
            pool: &mut self.pool,
            kernel: self.kernel.as_ref(),
            tap: self.tap.as_mut(),
            rules: self.rules.as_ref(),
            associations: &mut self.associations,
            egress: &mut self.egress,
            sessions,
            session,
            sent: 0,
        }
    }
}
