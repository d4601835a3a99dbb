//! Owners of things, and capabilities that count: numbers for `core/node`, what is revoked, and the
//! time by which capabilities end.
//!
//! ```text
//!  Holder ─▶ owner_of ─▶ Owner { principal 3, capability 7 } ─▶ services, rules
//!                            └ 7: blocks, end ─▶ state.redb
//!  revoked blocks and keys, ends ─▶ ended ─▶ what ran under 7 is removed
//! ```

use crate::access::{Caller, Holder};
use crate::events::wall_clock_ms;
use module_store::Digest;
use node::desired::DesiredState;
use node::{CapabilityId, Node, Owner, PrincipalId, Session};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use trust::{
    AccessRequest, Clock, Denied, Extent, Grant, Kind, ModulePattern, Operation, PublicKey,
    Reading, RevocationId, UnixTime, Versions,
};
use units::Nanos;

/// Largest number of services of clients without a capability: a few small tools that an operator
/// lets anybody use.
const ANYONE_SERVICES_MAX: u64 = 16;
/// Largest number of revoked blocks and keys that a node remembers: some megabytes. One that is
/// full says so, and
/// gives new keys to its administrators.
pub(crate) const REVOKED_MAX: usize = 65_536;
/// Owner of the things of clients without a capability.
const ANYONE: Owner = Owner { principal: PrincipalId(0), capability: CapabilityId(0) };

/// Capability under which something runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Capability {
    /// Principal that holds it.
    pub(crate) principal: PublicKey,
    /// Number of the principal on this node.
    number: PrincipalId,
    /// Administrator that signed it.
    administrator: PublicKey,
    blocks: Vec<RevocationId>,
    #[serde(default)]
    ends: Option<UnixTime>,
}

/// All capabilities under which something runs.
pub(crate) type Capabilities = BTreeMap<CapabilityId, Capability>;

/// Text that names nothing that can be revoked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' can not be revoked; write a block's id, as `tam token inspect` shows it, or a public key"
)]
pub(crate) struct RevokeError(String);

/// Revocation ids that are in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Revoked {
    /// Blocks of tokens.
    pub(crate) blocks: BTreeSet<RevocationId>,
    /// Administrators and principals.
    pub(crate) keys: BTreeSet<PublicKey>,
}

impl Revoked {
    /// Adds a block or key by its text. Returns true when it is news.
    pub(crate) fn insert(&mut self, text: &str) -> Result<bool, RevokeError> {
        match text.parse::<PublicKey>() {
            Ok(key) => Ok(self.keys.insert(key)),
            Err(_) => text.parse().map(|block| self.blocks.insert(block)).map_err(|_| {
                RevokeError(text.chars().take(80).flat_map(char::escape_debug).collect())
            }),
        }
    }

    /// Returns all of them, as text.
    pub(crate) fn texts(&self) -> BTreeSet<String> {
        let blocks = self.blocks.iter().map(ToString::to_string);
        blocks.chain(self.keys.iter().map(ToString::to_string)).collect()
    }

    /// Returns the number of blocks and keys.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len() + self.keys.len()
    }

    fn has_any(&self, blocks: &[RevocationId], keys: [PublicKey; 2]) -> bool {
        blocks.iter().any(|block| self.blocks.contains(block))
            || keys.iter().any(|key| self.keys.contains(key))
    }
}

/// Capabilities of a node, and the clock by which they end.
#[derive(Debug)]
pub(crate) struct Authority {
    clock: Clock,
    anyone: Grant,
    capabilities: Arc<Capabilities>,
    revoked: Revoked,
    /// Highest versions that ran here.
    versions: Versions,
    next_capability: u32,
    /// Set once an implausible wall clock has been reported.
    clock_told: bool,
    /// The latest time that was written down.
    time_kept: UnixTime,
}

impl Authority {
    /// Creates the authority of what the node's journal has. `now` is the node's clock.
    pub(crate) fn new(
        now: Nanos,
        latest: UnixTime,
        anyone: BTreeSet<ModulePattern>,
        capabilities: Capabilities,
        revoked: Revoked,
        versions: Versions,
    ) -> Self {
        let next_capability =
            capabilities.last_key_value().map_or(1, |(id, _)| id.0.wrapping_add(1).max(1));
        Self {
            clock: Clock::new(now, wall(), latest),
            anyone: for_anyone(anyone),
            capabilities: Arc::new(capabilities),
            revoked,
            versions,
            next_capability,
            clock_told: false,
            time_kept: latest,
        }
    }

    /// Returns the capabilities under which something runs.
    pub(crate) const fn capabilities(&self) -> &Arc<Capabilities> {
        &self.capabilities
    }

    /// Returns what is revoked.
    pub(crate) const fn revoked(&self) -> &Revoked {
        &self.revoked
    }

    /// Adds revocations.
    pub(crate) fn revoke(&mut self, more: Revoked) {
        self.revoked.blocks.extend(more.blocks);
        self.revoked.keys.extend(more.keys);
    }

    /// Returns the highest versions that ran here.
    pub(crate) const fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Returns the highest versions that ran here, to be changed.
    pub(crate) fn versions_mut(&mut self) -> &mut Versions {
        &mut self.versions
    }

    /// Reads the time by which capabilities end.
    pub(crate) fn read_clock(&mut self, now: Nanos) -> Reading {
        self.clock.read(now, wall())
    }

    /// Returns true when it is news that the wall clock differs, or no longer does.
    pub(crate) fn report_clock(&mut self, ahead_by: i64) -> bool {
        let is_odd = ahead_by != 0;
        std::mem::replace(&mut self.clock_told, is_odd) != is_odd
    }

    /// Returns true when the time should be written down again.
    pub(crate) fn is_time_to_keep(&mut self, now: UnixTime, every_seconds: u64) -> bool {
        let due = now.0.saturating_sub(self.time_kept.0) >= every_seconds;
        if due {
            self.time_kept = now;
        }
        due
    }

    /// Returns the rights of a client.
    pub(crate) fn rights<'a>(&'a self, caller: &'a Caller, now: UnixTime) -> Rights<'a> {
        Rights { authority: self, caller, now }
    }

    /// Returns a principal's number, if something of it ever ran here.
    fn principal(&self, key: PublicKey) -> Option<PrincipalId> {
        self.capabilities.values().find(|it| it.principal == key).map(|it| it.number)
    }

    /// Returns the owner of what a client starts; `in_use` are capabilities that count.
    pub(crate) fn owner_of(
        &mut self,
        caller: &Caller,
        in_use: &BTreeSet<CapabilityId>,
    ) -> Option<Owner> {
        let holder = match caller {
            Caller::Operator => return None,
            Caller::Anyone => return Some(ANYONE),
            Caller::Holder(holder) => holder,
        };
        let known = self.capabilities.iter().find(|(_, it)| it.blocks == holder.ids);
        if let Some((id, known)) = known {
            return Some(Owner { principal: known.number, capability: *id });
        }
        let key = holder.token.principal();
        let number = self.principal(key).unwrap_or_else(|| {
            let taken = |number: &u32| self.capabilities.values().any(|it| it.number.0 == *number);
            PrincipalId((1..).find(|number| !taken(number)).unwrap_or(u32::MAX))
        });
        let capability = CapabilityId(self.next_capability);
        self.next_capability = self.next_capability.wrapping_add(1).max(1);
        let capabilities = Arc::make_mut(&mut self.capabilities);
        // A principal keeps his number as long as something of his runs.
        capabilities.retain(|id, _| in_use.contains(id));
        let new = Capability {
            principal: key,
            number,
            administrator: holder.token.administrator(),
            blocks: holder.ids.clone(),
            ends: holder.token.ends(),
        };
        capabilities.insert(capability, new);
        Some(Owner { principal: number, capability })
    }

    /// Returns true when a capability is known.
    pub(crate) fn is_known(&self, capability: CapabilityId) -> bool {
        capability == ANYONE.capability || self.capabilities.contains_key(&capability)
    }

    /// Returns the key of a principal.
    pub(crate) fn key_of(&self, owner: Owner) -> Option<PublicKey> {
        self.capabilities.get(&owner.capability).map(|it| it.principal)
    }

    /// Returns an owner as documents have it.
    pub(crate) fn shown(&self, owner: Option<Owner>) -> Option<String> {
        let key = self.key_of(owner?);
        Some(key.map_or_else(|| "anyone".to_owned(), |key| key.to_string()))
    }

    /// Returns the capabilities that no longer count, with the reason.
    pub(crate) fn ended(&self, now: UnixTime) -> Vec<(CapabilityId, &'static str)> {
        let why = |it: &Capability| {
            if self.revoked.has_any(&it.blocks, [it.principal, it.administrator]) {
                Some("its capability was revoked")
            } else if it.ends.is_some_and(|ends| now >= ends) {
                Some("its capability has ended")
            } else {
                None
            }
        };
        self.capabilities.iter().filter_map(|(id, it)| Some((*id, why(it)?))).collect()
    }
}

/// Returns the capabilities of which something runs, or shall run.
pub(super) fn capabilities_in_use(node: &Node, desired: &DesiredState) -> BTreeSet<CapabilityId> {
    let services = node.services().filter_map(|service| service.owner);
    let rules = node.numbered_rules();
    let rules = rules.iter().filter_map(|(_, rule)| rule.owner);
    let sessions = node.sessions().filter_map(|session| session.owner);
    let desired_sessions = desired.sessions.values().filter_map(|session| session.owner);
    let desired_services = desired.services.values().filter_map(|service| service.owner);
    let desired_rules = desired.rules.iter().filter_map(|rule| rule.owner);
    let owners = services.chain(rules).chain(desired_services).chain(desired_rules);
    let owners = owners.chain(sessions).chain(desired_sessions);
    owners.map(|owner| owner.capability).collect()
}

/// Returns the grant of clients without a capability.
fn for_anyone(modules: BTreeSet<ModulePattern>) -> Grant {
    if modules.is_empty() {
        return Grant::none();
    }
    let mut grant = Grant {
        operations: Extent::only([Operation::Store, Operation::Deploy]),
        sessions: Extent::only([node::session::BEST_EFFORT.to_owned()]),
        modules: Extent::Only(modules),
        kinds: Extent::only([Kind::Application]),
        levels: Extent::All,
        functions: Extent::All,
        ..Grant::none()
    };
    grant.ceilings.0[0] = Some(ANYONE_SERVICES_MAX);
    grant
}

fn wall() -> UnixTime {
    UnixTime(wall_clock_ms() / 1000)
}

/// Rights of one client at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Rights<'a> {
    authority: &'a Authority,
    caller: &'a Caller,
    now: UnixTime,
}

/// Session of a request that is about everybody's things.
pub(crate) const EVERYBODY: &str = "*";

impl Rights<'_> {
    /// Checks that all of this is granted.
    ///
    /// # Errors
    /// The rights that are missing.
    pub(crate) fn check(&self, ask: &AccessRequest) -> Result<(), Denied> {
        match self.caller {
            Caller::Operator => Ok(()),
            Caller::Anyone => match self.authority.anyone.missing(ask, self.now) {
                missing if missing.is_empty() => Ok(()),
                missing => Err(Denied::Missing(missing)),
            },
            Caller::Holder(holder) => {
                self.check_revoked(holder)?;
                holder.authorize(ask, self.now)
            }
        }
    }

    /// Returns true when a module may be granted of which nothing but its digest is known. A client
    /// without a capability has only what is named by its digest.
    pub(crate) fn could_have(&self, digest: &Digest) -> bool {
        match self.caller {
            Caller::Operator => true,
            Caller::Anyone => match &self.authority.anyone.modules {
                Extent::Only(patterns) => {
                    patterns.contains(&ModulePattern::Digest(*digest.bytes()))
                }
                Extent::All => false,
            },
            Caller::Holder(holder) => {
                self.check_revoked(holder).is_ok()
                    && holder.token.could_cover_module(digest.bytes())
            }
        }
    }

    fn check_revoked(&self, holder: &Holder) -> Result<(), Denied> {
        let keys = [holder.token.principal(), holder.token.administrator()];
        match self.authority.revoked.has_any(&holder.ids, keys) {
            true => Err(Denied::Revoked),
            false => Ok(()),
        }
    }

    /// Returns true when the rights reach everybody's things.
    pub(crate) fn reach_everybody(&self, operation: Operation) -> bool {
        let session = Some(EVERYBODY.to_owned());
        self.check(&AccessRequest { session, ..AccessRequest::to(operation) }).is_ok()
    }

    /// Returns true when the operation is granted on things of this session and owner.
    pub(crate) fn reach(&self, operation: Operation, session: &str, owner: Option<Owner>) -> bool {
        let own = self.is_own(owner);
        let session = if own { session } else { EVERYBODY };
        self.check(&AccessRequest {
            session: Some(session.to_owned()),
            ..AccessRequest::to(operation)
        })
        .is_ok()
    }

    /// Returns true when a thing is the client's own.
    pub(crate) fn is_own(&self, owner: Option<Owner>) -> bool {
        match self.caller {
            Caller::Operator => true,
            Caller::Anyone => false,
            Caller::Holder(holder) => {
                let own = self.authority.principal(holder.token.principal());
                own.is_some() && own == owner.map(|owner| owner.principal)
            }
        }
    }

    /// Returns true when the capability names a session, for whatever it lets its holder do.
    pub(crate) fn names_session(&self, session: &str) -> bool {
        let may = |operation| {
            let session = Some(session.to_owned());
            self.check(&AccessRequest { session, ..AccessRequest::to(operation) }).is_ok()
        };
        [Operation::Read, Operation::Session, Operation::Deploy].into_iter().any(may)
    }

    /// Returns true when a thing came under the same token of an administrator as the client shows,
    /// whatever was left of it since.
    pub(crate) fn is_of_grant(&self, owner: Option<Owner>) -> bool {
        let (Caller::Holder(holder), Some(owner)) = (self.caller, owner) else { return false };
        let capability = self.authority.capabilities.get(&owner.capability);
        capability.is_some_and(|it| it.blocks.first() == holder.ids.first())
    }

    /// Returns what of a node the client may see.
    pub(crate) fn sight(&self, sessions: impl Iterator<Item = String>) -> Visibility {
        let principal = match self.caller {
            Caller::Holder(holder) => self.authority.principal(holder.token.principal()),
            Caller::Operator | Caller::Anyone => None,
        };
        let may = |session: &String| {
            let session = Some(session.clone());
            self.check(&AccessRequest { session, ..AccessRequest::to(Operation::Read) }).is_ok()
        };
        let everything = self.reach_everybody(Operation::Read);
        let sessions = if everything { BTreeSet::new() } else { sessions.filter(may).collect() };
        Visibility { everything, principal, sessions }
    }
}

/// Part of a node's state that a client may see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Visibility {
    /// Set if things of all owners, and things without an owner, may be seen.
    pub(crate) everything: bool,
    principal: Option<PrincipalId>,
    pub(crate) sessions: BTreeSet<String>,
}

impl Visibility {
    /// The operator's.
    pub(crate) fn of_everything() -> Self {
        Self { everything: true, ..Self::default() }
    }

    /// Returns true when a session is seen: the client's own, and the operator's, if the token
    /// names it.
    pub(crate) fn has_session(&self, session: &Session) -> bool {
        let his = session.owner.is_none_or(|owner| self.principal == Some(owner.principal));
        self.everything || his && self.sessions.contains(session.name.as_str())
    }

    /// Returns true when things of this session and owner are seen.
    pub(crate) fn has(&self, session: &str, owner: Option<Owner>) -> bool {
        let own = self.principal.is_some() && self.principal == owner.map(|it| it.principal);
        self.everything || own && self.sessions.contains(session)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testbed::{holder, token_id};
    use super::*;

    fn authority(anyone: &[&str]) -> Authority {
        let anyone = anyone.iter().map(|text| text.parse().unwrap()).collect();
        let (revoked, versions) = (Revoked::default(), Versions::default());
        Authority::new(Nanos::ZERO, UnixTime(0), anyone, Capabilities::new(), revoked, versions)
    }

    fn revoked(text: &str) -> Revoked {
        let mut revoked = Revoked::default();
        assert!(revoked.insert(text).unwrap());
        revoked
    }

    #[test]
    fn a_principal_and_a_capability_have_the_same_numbers_as_long_as_they_are_in_use() {
        let mut authority = authority(&[]);
        assert_eq!(authority.owner_of(&Caller::Operator, &BTreeSet::new()), None);
        assert_eq!(authority.owner_of(&Caller::Anyone, &BTreeSet::new()), Some(ANYONE));
        let owner = authority.owner_of(&holder(), &BTreeSet::new()).unwrap();
        assert_eq!(authority.owner_of(&holder(), &BTreeSet::new()), Some(owner));
        assert!(authority.is_known(owner.capability) && authority.is_known(ANYONE.capability));
        assert!(!authority.is_known(CapabilityId(77)));
        let Caller::Holder(client) = holder() else { panic!("a holder") };
        assert_eq!(authority.key_of(owner), Some(client.token.principal()));
        assert_eq!(authority.shown(None), None);
        assert_eq!(authority.shown(Some(owner)), Some(client.token.principal().to_string()));
        assert_eq!(authority.shown(Some(ANYONE)), Some("anyone".to_owned()));
    }

    #[test]
    fn a_capability_is_revoked_by_its_token_or_by_either_key() {
        let Caller::Holder(client) = holder() else { panic!("a holder") };
        let keys = [client.token.principal(), client.token.administrator()];
        let texts = [token_id().to_owned(), keys[0].to_string(), keys[1].to_string()];
        for text in texts {
            let mut authority = authority(&[]);
            let owner = authority.owner_of(&holder(), &BTreeSet::new()).unwrap();
            let ask = AccessRequest::to(Operation::Read);
            assert!(authority.ended(UnixTime(7)).is_empty());
            assert!(authority.rights(&holder(), UnixTime(7)).check(&ask).is_ok());
            authority.revoke(revoked(&text));
            let ended = vec![(owner.capability, "its capability was revoked")];
            assert_eq!(authority.ended(UnixTime(7)), ended);
            let denied = authority.rights(&holder(), UnixTime(7)).check(&ask);
            assert_eq!(denied, Err(Denied::Revoked));
            assert!(!authority.rights(&holder(), UnixTime(7)).could_have(&Digest::of(b"x")));
        }
    }

    #[test]
    fn a_revocation_is_named_by_a_key_or_a_block_once() {
        let mut revoked = revoked(token_id());
        assert_eq!(revoked.insert(token_id()), Ok(false), "no news");
        assert_eq!((revoked.len(), revoked.texts()), (1, [token_id().to_owned()].into()));
        let refused = revoked.insert("\u{1b}nonsense").unwrap_err();
        assert!(refused.to_string().starts_with("'\\u{1b}nonsense' can not be revoked"));
    }

    #[test]
    fn a_principal_reaches_its_own_objects_and_the_operator_all() {
        let mut authority = authority(&[]);
        let owner = authority.owner_of(&holder(), &BTreeSet::new());
        let other = Some(Owner { principal: PrincipalId(77), capability: CapabilityId(77) });
        let (client, now) = (holder(), UnixTime(7));
        let rights = authority.rights(&client, now);
        assert!(rights.is_own(owner) && !rights.is_own(other) && !rights.is_own(None));
        assert!(rights.is_of_grant(owner) && !rights.is_of_grant(other));
        let operator = authority.rights(&Caller::Operator, now);
        assert!(operator.is_own(other) && operator.reach_everybody(Operation::Administer));
        let anyone = authority.rights(&Caller::Anyone, now);
        assert!(!anyone.is_own(owner) && !anyone.reach(Operation::Read, "best-effort", None));
        assert!(!anyone.sight(["best-effort".to_owned()].into_iter()).everything);
        assert!(Visibility::of_everything().has("gold", other));
        assert!(!Visibility::default().has("gold", None));
    }

    #[test]
    fn the_time_is_recorded_at_intervals_and_a_clock_jump_reported_once() {
        let mut authority = authority(&[]);
        assert!(authority.is_time_to_keep(UnixTime(60), 60));
        assert!(!authority.is_time_to_keep(UnixTime(119), 60));
        assert!(authority.is_time_to_keep(UnixTime(120), 60));
        let reported = [0, 7, 8, 0, 0].map(|ahead_by| authority.report_clock(ahead_by));
        assert_eq!(reported, [false, true, false, true, false]);
    }
}
