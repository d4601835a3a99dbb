//! Checks of requests about sessions: owners, and the part of a node that one capability may
//! reserve.
//!
//! | session | of somebody else | the operator's | the client's own |
//! |---|---|---|---|
//! | look at it, use it | not there | if the token grants its name | the same |
//! | change it, remove it | not there | refused | if the token grants its name |
//!
//! Ceilings bind what all sessions of one grant have together: of the token that an administrator
//! signed, and of all that were made of it by leaving less. Otherwise two narrower tokens would
//! have twice as much as the one that they are of.

use super::Asker;
use crate::answer::{Answer, error};
use crate::control::authority::Visibility;
use crate::control::sessions::{Promise, no_session, port_rate, to_create, to_set};
use api::{ErrorCode, SessionChange, SessionRequest};
use node::{Owner, Session};
use session::Reservation;
use trust::request::Amounts;
use trust::{AccessRequest, Operation};
use units::Name;

/// Checks a request for a new session.
pub(super) fn create_session(asker: &Asker<'_>, request: &SessionRequest) -> Answer<()> {
    let promise = to_create(request)?;
    check_promise(asker, &promise)?;
    match asker.state.node.session(&promise.session) {
        Some(taken) if !taken.is_built_in() && !sees(asker, taken) => {
            Err(name_taken(&promise.session))
        }
        _ => Ok(()),
    }
}

/// Checks a request to change a reservation.
pub(super) fn set_session(asker: &Asker<'_>, name: &str, change: &SessionChange) -> Answer<()> {
    session(asker, name)?;
    check_promise(asker, &to_set(asker.state, name, change)?)
}

/// Checks a request to remove a session.
pub(super) fn remove_session(asker: &Asker<'_>, name: &str, cascade: bool) -> Answer<()> {
    let session = session(asker, name)?;
    if cascade { all_in(asker, &session.name) } else { Ok(()) }
}

/// Returns a session that is there and that the client may change.
fn session<'a>(asker: &'a Asker<'_>, name: &str) -> Answer<&'a Session> {
    let operation = Operation::Session;
    asker.check(&AccessRequest::to(operation))?;
    let named = Name::new(name).ok();
    let found = named.and_then(|name| asker.state.node.session(&name));
    match found {
        Some(found) if asker.rights.reach(operation, found.name.as_str(), found.owner) => Ok(found),
        // The client sees it, and it is another's.
        Some(found) if sees(asker, found) => {
            asker.everybodys(operation)?;
            Ok(found)
        }
        _ => Err(no_session(&asker.state.node, &sight(asker), name)),
    }
}

/// Checks that the client may have services and rules in a session, as far as its owner matters.
pub(super) fn usable(asker: &Asker<'_>, name: &Name) -> Answer<()> {
    let found = asker.state.node.session(name).filter(|session| {
        session.owner.is_none()
            || asker.rights.is_own(session.owner)
            || asker.rights.reach_everybody(Operation::Deploy)
    });
    match found {
        Some(_) => Ok(()),
        None => Err(no_session(&asker.state.node, &sight(asker), name.as_str())),
    }
}

/// Checks that what goes with a session is the client's, too.
fn all_in(asker: &Asker<'_>, session: &Name) -> Answer<()> {
    let reach =
        |operation, owner: Option<Owner>| asker.rights.reach(operation, session.as_str(), owner);
    let node = &asker.state.node;
    let mut services = node.services().filter(|it| it.session == *session);
    if services.any(|service| !reach(Operation::Remove, service.owner)) {
        return asker.everybodys(Operation::Remove);
    }
    let rules = node.rules();
    let mut rules = rules.iter().filter(|view| view.rule.spec.session == *session);
    if rules.any(|view| view.came_with.is_none() && !reach(Operation::Rule, view.owner)) {
        return asker.everybodys(Operation::Rule);
    }
    Ok(())
}

/// Checks that the session's name is granted, and that with it all sessions of the grant stay below
/// its ceilings.
fn check_promise(asker: &Asker<'_>, promise: &Promise) -> Answer<()> {
    let session = Some(promise.session.to_string());
    let amounts = reserved_with(asker, promise);
    asker.check(&AccessRequest { session, amounts, ..AccessRequest::to(Operation::Session) })
}

fn reserved_with(asker: &Asker<'_>, promise: &Promise) -> Amounts {
    let others = asker.state.node.sessions().filter(|session| {
        session.name != promise.session && asker.rights.is_of_grant(session.owner)
    });
    let all = others.map(|session| &session.reservation).chain([&promise.reservation]);
    let (mut cpu, mut memory, mut bandwidth) = (0_u64, 0_u64, 0_u64);
    for reservation in all {
        let [more_cpu, more_memory, more_bandwidth] = resources(asker, reservation);
        cpu = cpu.saturating_add(more_cpu);
        memory = memory.saturating_add(more_memory);
        bandwidth = bandwidth.saturating_add(more_bandwidth);
    }
    Amounts([None, Some(cpu), Some(memory), Some(bandwidth)])
}

/// Returns processor time at all levels, in parts of a million of one core; bytes; bits per second.
fn resources(asker: &Asker<'_>, reservation: &Reservation) -> [u64; 3] {
    let processors = reservation.processors.iter().map(|it| it.share);
    let cpu = processors.chain(reservation.below).map(session::Share::parts_per_million);
    // A queue is a part of the memory, where there is one.
    let memory = reservation.memory.or(reservation.queue).unwrap_or_default();
    let bandwidth = reservation.send.iter().map(|(port, share)| {
        // A port of unknown rate has no shares to promise.
        let rate = port_rate(&asker.state.node, port).map_or(0, |rate| rate.0);
        let bits = u128::from(rate) * u128::from(share.parts_per_million());
        u64::try_from(bits.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    });
    [cpu.sum(), memory.0, bandwidth.sum()]
}

/// Returns true when a session is no secret to the client.
fn sees(asker: &Asker<'_>, session: &Session) -> bool {
    asker.rights.reach_everybody(Operation::Read)
        || (session.owner.is_none() || asker.rights.is_own(session.owner))
            && asker.rights.names_session(session.name.as_str())
}

/// Returns what the client may see.
pub(super) fn sight(asker: &Asker<'_>) -> Visibility {
    let sessions = asker.state.node.sessions().map(|session| session.name.to_string());
    asker.rights.sight(sessions)
}

fn name_taken(name: &Name) -> api::ErrorInfo {
    let message = format!("the name '{name}' is not free on this node");
    let help = "give the session another one";
    error(ErrorCode::Refused, message, Some(help))
}
