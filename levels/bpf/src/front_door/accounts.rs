//! Accounts in the kernel: of fuel, by which services below user level pay, and of shares of ports,
//! in bytes. core/node and the daemon decide who has which; `c/service.h` and `c/share.h` charge
//! packets.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bpf_maps::{Account, PortShare};
use bytemuck::Pod;
use units::{PortId, SessionId};

use super::FrontDoorError;
use super::maps::{ACCOUNTS, LINE_OF, LINES, Maps};
use crate::map::{Map, MappedArray, Update};

/// Accounts of fuel and of shares of ports.
#[derive(Debug)]
pub struct Accounts {
    maps: Arc<Maps>,
    fuel: MappedArray<Account>,
    port_shares: MappedArray<PortShare>,
}

/// Returns a key of the map of payers, as the program computes it.
fn key(port: PortId, session: SessionId) -> u32 {
    u32::from(port.0) << 16 | u32::from(session.0)
}

/// Sets the terms of an account, as [`Accounts::set_account`]. A record begins with its
/// [`Account`].
fn set_terms<T: Pod>(accounts: &MappedArray<T>, index: usize, per_tick: u64, full: u64) -> bool {
    let word = |field: usize| accounts.word(index, field / 8);
    let words = (
        word(offset_of!(Account, left)),
        word(offset_of!(Account, per_tick)),
        word(offset_of!(Account, full)),
    );
    let (Some(left), Some(gains), Some(holds)) = words else { return false };
    let is_new = holds.load(Ordering::Acquire) == 0;
    holds.store(full, Ordering::Release);
    gains.store(per_tick, Ordering::Release);
    // Packets are charged meanwhile, so only the excess is taken off.
    let too_much = (left.load(Ordering::Acquire) as i64).saturating_sub_unsigned(full);
    if is_new {
        left.store(full, Ordering::Release);
    } else if too_much > 0 {
        left.fetch_sub(too_much as u64, Ordering::AcqRel);
    }
    true
}

impl Accounts {
    /// Maps the accounts.
    pub(super) fn new(maps: Arc<Maps>) -> Result<Self, FrontDoorError> {
        let (fuel, port_shares) = (maps.get(ACCOUNTS).map_array()?, maps.get(LINES).map_array()?);
        Ok(Self { maps, fuel, port_shares })
    }

    /// Sets the rate per jiffy and the capacity of an account, in parts of a unit of fuel
    /// ([`bpf_maps::FUEL_SHIFT`]). A new one begins full; an account with the same terms continues.
    /// Returns false when there is no such account.
    pub fn set_account(&self, account: u16, per_tick: u64, full: u64) -> bool {
        set_terms(&self.fuel, usize::from(account), per_tick, full)
    }

    /// Returns the state of an account; `None` beyond the last.
    #[must_use]
    pub fn account(&self, account: u16) -> Option<Account> {
        self.fuel.load(usize::from(account))
    }

    /// Empties an account that no service pays from any more, so that its number can be reused.
    pub fn clear_account(&self, account: u16) {
        self.fuel.store(usize::from(account), &Account::default());
    }

    /// Sets the rate per jiffy and the capacity of a share's account, in parts of a byte; as
    /// [`Accounts::set_account`].
    pub fn set_port_share(&self, index: u32, per_tick: u64, full: u64) -> bool {
        set_terms(&self.port_shares, index as usize, per_tick, full)
    }

    /// Returns the state of a share's account, with the bytes sent; `None` beyond the last.
    #[must_use]
    pub fn port_share(&self, index: u32) -> Option<PortShare> {
        self.port_shares.load(index as usize)
    }

    /// Empties a share's account, so that another share can have it.
    pub fn clear_port_share(&self, index: u32) {
        self.port_shares.store(index as usize, &PortShare::default());
    }

    /// Charges a session's packets that leave by a port to this account, or with `None` to that of
    /// all sessions without a share there.
    ///
    /// # Errors
    /// The map cannot be changed.
    pub fn pay_for_port_share(
        &self,
        port: PortId,
        session: SessionId,
        index: Option<u32>,
    ) -> Result<(), FrontDoorError> {
        let payers = self.maps.get(LINE_OF);
        match index {
            Some(index) => payers.update(&key(port, session), &index, Update::Any)?,
            None => drop(payers.delete(&key(port, session))?),
        }
        Ok(())
    }

    /// Returns the port and session of each share's account.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn payers_of_port_shares(&self) -> Result<Vec<(PortId, SessionId, u32)>, FrontDoorError> {
        let map = self.maps.get(LINE_OF);
        let mut payers = Vec::new();
        for key in map.keys::<u32>()? {
            if let Some(index) = map.lookup::<u32, u32>(&key)? {
                payers.push((PortId((key >> 16) as u16), SessionId(key as u16), index));
            }
        }
        Ok(payers)
    }

    /// Returns the map of the shares' accounts, for [`PortShares`](crate::PortShares) elsewhere.
    #[must_use]
    pub fn port_shares_map(&self) -> &Map {
        self.maps.get(LINES)
    }
}
