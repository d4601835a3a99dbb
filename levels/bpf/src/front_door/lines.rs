//! Shares of ports below user level: accounts in bytes, and whose each is. Who has which is
//! core/node's and the daemon's decision; `c/share.h` has packets pay.

use bpf_maps::Line;
use units::{PortId, SessionId};

use super::services::set_terms;
use super::{FrontDoor, FrontDoorError, LINE_OF, LINES};
use crate::map::{Map, Update};

/// As the program looks for it.
fn key(port: PortId, session: SessionId) -> u32 {
    u32::from(port.0) << 16 | u32::from(session.0)
}

impl FrontDoor {
    /// Has an account of a share gain so much in each jiffy and hold so much at most, in parts of a
    /// byte; as [`FrontDoor::set_account`].
    pub fn set_line(&self, index: u32, per_tick: u64, full: u64) -> bool {
        set_terms(&self.lines, index as usize, per_tick, full)
    }

    /// What it has now, and what was sent; `None` beyond the last.
    #[must_use]
    pub fn line(&self, index: u32) -> Option<Line> {
        self.lines.load(index as usize)
    }

    /// Another share may have this account.
    pub fn clear_line(&self, index: u32) {
        self.lines.store(index as usize, &Line::default());
    }

    /// Has a session's packets that leave by a port pay from this account, or with `None` from
    /// that of all without a share there.
    ///
    /// # Errors
    /// When the map cannot be changed.
    pub fn pay_for_line(
        &self,
        port: PortId,
        session: SessionId,
        index: Option<u32>,
    ) -> Result<(), FrontDoorError> {
        match index {
            Some(index) => self.map(LINE_OF).update(&key(port, session), &index, Update::Any)?,
            None => drop(self.map(LINE_OF).delete(&key(port, session))?),
        }
        Ok(())
    }

    /// Who pays from which account.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn payers_of_lines(&self) -> Result<Vec<(PortId, SessionId, u32)>, FrontDoorError> {
        let map = self.map(LINE_OF);
        let mut payers = Vec::new();
        for key in map.keys::<u32>()? {
            if let Some(index) = map.lookup::<u32, u32>(&key)? {
                payers.push((PortId((key >> 16) as u16), SessionId(key as u16), index));
            }
        }
        Ok(payers)
    }

    /// The map of these accounts, for [`Lines`](crate::Lines) elsewhere.
    #[must_use]
    pub fn lines_map(&self) -> &Map {
        self.map(LINES)
    }
}
