//! Requests to create, change and remove sessions.

use super::authority::Visibility;
use super::edit::Edit;
use super::recorded::{Ahead, Prepared, Purpose};
use super::removals::Removals;
use super::state::NodeState;
use crate::access::Caller;
use crate::answer::{Answer, error, quoted, unexpected, usage};
use crate::events::Note;
use crate::reply::Reply;
use ::session::admission::Capacity;
use ::session::{Reservation, Share, Size, VirtualProcessor, Weight};
use api::{
    ErrorCode, ErrorInfo, EventKind, ReservationInfo, SCHEMA_VERSION, SessionChange,
    SessionPromised, SessionRemoved, SessionRequest,
};
use node::desired::DesiredSession;
use node::{Command, Node, Outcome};
use std::collections::BTreeMap;
use std::str::FromStr;
use units::{BitsPerSecond, Name, SessionId};

/// Reservation of a session, as it was asked for.
#[derive(Debug)]
pub(crate) struct Promise {
    pub(crate) session: Name,
    pub(crate) reservation: Reservation,
}

/// Prepares the creation of a session; `None` when it is refused.
pub(super) fn create(
    state: &mut NodeState,
    caller: &Caller,
    request: &SessionRequest,
    reply: Reply<SessionPromised>,
) -> Option<Prepared> {
    let Promise { session, reservation } = match to_create(request) {
        Ok(promise) => promise,
        Err(refusal) => {
            reply.refuse(refusal);
            return None;
        }
    };
    let owner = state.owner_of(caller);
    let desired = DesiredSession { reservation: reservation.clone(), owner };
    let edit = Edit::SetSession(session.clone(), desired);
    let command = Command::SessionCreate {
        session: session.clone(),
        reservation: reservation.clone(),
        owner,
    };
    let cause = format!("session create {session}");
    let purpose = Purpose::SessionCreated { session, reservation, reply };
    Some((Ahead { command, purpose }, cause, edit))
}

/// Returns the answer to a request for a new session that is done.
pub(super) fn created(
    state: &mut NodeState,
    session: &Name,
    reservation: &Reservation,
    outcome: Answer<Outcome>,
) -> Answer<SessionPromised> {
    let Outcome::SessionCreated { id, .. } = outcome? else {
        return Err(unexpected("a new session"));
    };
    let text = format!("the session '{session}' was made, {}", sentence(reservation));
    state.note_session(EventKind::SessionCreated, session, text);
    Ok(promised(session, id, reservation))
}

/// Prepares the change of a reservation; `None` when it is refused.
pub(super) fn set(
    state: &NodeState,
    wanted: &str,
    change: &SessionChange,
    reply: Reply<SessionPromised>,
) -> Option<Prepared> {
    let Promise { session, reservation } = match to_set(state, wanted, change) {
        Ok(promise) => promise,
        Err(refusal) => {
            reply.refuse(refusal);
            return None;
        }
    };
    let edit = Edit::SetReservation(session.clone(), reservation.clone());
    let command =
        Command::SessionSet { session: session.clone(), reservation: reservation.clone() };
    let cause = format!("session set {session}");
    let purpose = Purpose::SessionSet { session, reservation, reply };
    Some((Ahead { command, purpose }, cause, edit))
}

/// Returns the answer to a changed reservation.
pub(super) fn changed(
    state: &mut NodeState,
    session: &Name,
    reservation: &Reservation,
) -> SessionPromised {
    state.desired.shortfall_mut().sessions.remove(session);
    let reported = sentence(reservation);
    let text = format!("the session '{session}' has another reservation now, {reported}");
    state.note_session(EventKind::SessionChanged, session, text);
    let id = state.node.session(session).map_or(SessionId::BEST_EFFORT, |it| it.id);
    promised(session, id, reservation)
}

/// Prepares the removal of a session; `None` when it is refused.
pub(super) fn remove(
    wanted: &str,
    cascade: bool,
    reply: Reply<SessionRemoved>,
) -> Option<Prepared> {
    let session = match Name::new(wanted) {
        Ok(session) => session,
        Err(problem) => {
            reply.refuse(usage(problem));
            return None;
        }
    };
    let edit = Edit::RemoveSession(session.clone());
    let command = Command::SessionRemove { session: session.clone(), cascade };
    let cause = format!("session remove {session}");
    let purpose = Purpose::SessionRemoved { session, reply };
    Some((Ahead { command, purpose }, cause, edit))
}

/// Answers the removal of a session: now, or when its services have stopped.
pub(super) fn removed(
    state: &mut NodeState,
    removals: &mut Removals,
    session: Name,
    reply: Reply<SessionRemoved>,
    outcome: Answer<Outcome>,
) {
    let (services, rules, stopping) = match outcome {
        Ok(Outcome::SessionRemoved { services, rules, stopping, .. }) => {
            (services, rules, stopping)
        }
        Ok(_) => return reply.refuse(unexpected("a removal")),
        Err(refusal) => return reply.refuse(refusal),
    };
    state.desired.shortfall_mut().sessions.remove(&session);
    let rules = super::deployments::numbers(&rules);
    state.note_rules(EventKind::RulesRemoved, &rules);
    let removed = SessionRemoved {
        schema_version: SCHEMA_VERSION,
        session: session.to_string(),
        services: services.iter().map(Name::to_string).collect(),
        rules,
    };
    if stopping {
        removals.wait_for_session(session, reply, removed);
    } else {
        reply.ok(removed);
    }
}

/// Ends a session whose capability is no longer valid. If it contains things of other owners, it
/// becomes the operator's, without a reservation.
pub(super) fn end(state: &mut NodeState, session: &Name, why: &str) {
    let owner = state.node.session(session).and_then(|it| it.owner);
    let remove = Command::SessionRemove { session: session.clone(), cascade: false };
    let did = match state.command(remove) {
        Ok(_) => "was removed",
        Err(_) => {
            let give_up = Command::SessionGiveUp { session: session.clone() };
            if let Err(problem) = state.command(give_up) {
                tracing::error!(%session, problem = problem.message, "{why}, but it could not be removed and goes on");
                return;
            }
            "is the operator's now, without a reservation"
        }
    };
    let text = format!("the session '{session}' {did}");
    let note = Note::new(EventKind::CapabilityEnded, text).session(session);
    state.note(note.reason(why).owner(owner));
}

/// Sets what the node has to give to sessions. Those for which that is too little are promised
/// nothing, until they are tried again.
pub(super) fn set_capacity(state: &mut NodeState, capacity: Capacity) {
    for (session, refusal) in state.node.set_capacity(capacity) {
        let owner = state.node.session(&session).and_then(|it| it.owner);
        let text = format!("the session '{session}' has no reservation any more");
        let note = Note::new(EventKind::SessionChanged, text).session(&session).owner(owner);
        state.note(note.reason(refusal.to_string()));
        state.desired.shortfall_mut().sessions.insert(session, refusal.to_string());
    }
}

/// Returns the whole reservation that a change asks for.
pub(crate) fn to_set(state: &NodeState, wanted: &str, change: &SessionChange) -> Answer<Promise> {
    let session = Name::new(wanted).map_err(usage)?;
    // What it shall be promised, also while the node has not that much.
    let desired = state.desired.state().sessions.get(&session).map(|it| &it.reservation);
    let present = state.node.session(&session).map(|it| &it.reservation);
    let reservation = desired.or(present).cloned().unwrap_or_default();
    let reservation = with_change(reservation, change)?;
    Ok(Promise { session, reservation })
}

/// Returns the refusal for a session that is not there, or is not the client's: they are one.
pub(crate) fn no_session(node: &Node, sight: &Visibility, wanted: &str) -> ErrorInfo {
    let seen = node.sessions().filter(|session| sight.has_session(session));
    let meant = abi::manifest::Meant::new(wanted, seen.map(|session| session.name.as_str()));
    let message = format!("there is no session '{}' on this node{meant}", quoted(wanted));
    let help = "'tam session list' shows those that there are, 'tam session create' makes one";
    error(ErrorCode::NotFound, message, Some(help))
}

/// Returns the rate of a port, if the node file or its driver says it.
pub(crate) fn port_rate(node: &Node, port: &Name) -> Option<BitsPerSecond> {
    node.capacity()?.ports.get(port).map(|port| port.rate)
}

/// Returns the reservation that a request asks for.
pub(crate) fn to_create(request: &SessionRequest) -> Answer<Promise> {
    let session = Name::new(&request.name).map_err(usage)?;
    let reservation = Reservation {
        processors: processors(&request.cpu)?,
        below: read(request.below.as_deref())?,
        memory: size(request.memory.as_deref())?,
        queue: size(request.queue.as_deref())?,
        send: send(&request.send)?,
        weight: request.weight.map_or_else(|| Ok(Weight::default()), Weight::new).map_err(usage)?,
    };
    Ok(Promise { session, reservation })
}

fn with_change(mut reservation: Reservation, change: &SessionChange) -> Answer<Reservation> {
    for what in &change.without {
        match what.as_str() {
            "cpu" => reservation.processors.clear(),
            "below" => reservation.below = None,
            "memory" => reservation.memory = None,
            "queue" => reservation.queue = None,
            "send" => reservation.send.clear(),
            other => {
                let named = quoted(other);
                return Err(usage(format!(
                    "'{named}' cannot be taken away; it is cpu, below, memory, queue or send"
                )));
            }
        }
    }
    if let Some(texts) = &change.cpu {
        reservation.processors = processors(texts)?;
    }
    reservation.below = read(change.below.as_deref())?.or(reservation.below);
    reservation.memory = size(change.memory.as_deref())?.or(reservation.memory);
    reservation.queue = size(change.queue.as_deref())?.or(reservation.queue);
    if let Some(texts) = &change.send {
        reservation.send = send(texts)?;
    }
    if let Some(weight) = change.weight {
        reservation.weight = Weight::new(weight).map_err(usage)?;
    }
    Ok(reservation)
}

fn read<T: FromStr<Err: std::fmt::Display>>(text: Option<&str>) -> Answer<Option<T>> {
    text.map(str::parse).transpose().map_err(usage)
}

fn size(text: Option<&str>) -> Answer<Option<units::Bytes>> {
    Ok(read::<Size>(text)?.map(|size| size.0))
}

fn processors(texts: &[String]) -> Answer<Vec<VirtualProcessor>> {
    texts.iter().map(|text| text.parse().map_err(usage)).collect()
}

fn send(texts: &BTreeMap<String, String>) -> Answer<BTreeMap<Name, Share>> {
    let share = |(port, text): (&String, &String)| {
        Ok((Name::new(port).map_err(usage)?, text.parse().map_err(usage)?))
    };
    texts.iter().map(share).collect()
}

fn promised(session: &Name, id: SessionId, reservation: &Reservation) -> SessionPromised {
    SessionPromised {
        schema_version: SCHEMA_VERSION,
        session: session.to_string(),
        id: id.0,
        promised: shown(reservation),
    }
}

/// Returns a reservation in the API's words.
pub(crate) fn shown(reservation: &Reservation) -> ReservationInfo {
    let Reservation { processors, below, memory, queue, send, weight } = reservation;
    let text = |(port, share): (&Name, &Share)| (port.to_string(), share.to_string());
    ReservationInfo {
        cpu: processors.iter().map(ToString::to_string).collect(),
        below: below.map(|share| share.to_string()),
        memory_bytes: memory.map(|bytes| bytes.0),
        queue_bytes: queue.map(|bytes| bytes.0),
        send: send.iter().map(text).collect(),
        weight: weight.get(),
    }
}

/// Returns a reservation in words.
fn sentence(reservation: &Reservation) -> String {
    let Reservation { processors, below, memory, queue, send, weight } = reservation;
    let mut parts: Vec<String> = processors.iter().map(|it| format!("cpu {it}")).collect();
    parts.extend(below.map(|share| format!("below {share}")));
    parts.extend(memory.map(|bytes| format!("memory {}", Size(bytes))));
    parts.extend(queue.map(|bytes| format!("queue {}", Size(bytes))));
    parts.extend(send.iter().map(|(port, share)| format!("send {port} {share}")));
    let weight = format!("weight {weight}");
    match parts.is_empty() {
        true => format!("nothing reserved, {weight}"),
        false => format!("{}, {weight}", parts.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::action::Action;
    use super::super::change::Change;
    use super::super::testbed::{Testbed, deploy, name};
    use super::*;

    fn request() -> SessionRequest {
        SessionRequest {
            name: "gold".into(),
            cpu: vec!["1ms/4ms+extra".into(), "10%/20ms".into()],
            below: Some("0.4ms/4ms".into()),
            memory: Some("64MiB".into()),
            queue: Some("256KiB".into()),
            send: [("right".to_owned(), "2ms/6ms".to_owned())].into(),
            weight: Some(200),
        }
    }

    #[test]
    fn a_session_request_becomes_a_reservation_shown_in_one_form() {
        let Promise { session, reservation } = to_create(&request()).unwrap();
        assert_eq!(session.as_str(), "gold");
        let info = shown(&reservation);
        assert_eq!(info.cpu, ["1ms/4ms+extra", "2ms/20ms"]);
        assert_eq!((info.below.as_deref(), info.memory_bytes), (Some("400us/4ms"), Some(64 << 20)));
        assert_eq!(
            sentence(&reservation),
            "cpu 1ms/4ms+extra, cpu 2ms/20ms, below 400us/4ms, memory 64MiB, queue 256KiB, \
             send right 2ms/6ms, weight 200"
        );
        assert_eq!(sentence(&Reservation::default()), "nothing reserved, weight 100");
    }

    #[test]
    fn what_a_change_does_not_name_stays() {
        let Promise { reservation, .. } = to_create(&request()).unwrap();
        let change = SessionChange {
            cpu: Some(vec!["2ms/4ms".into()]),
            without: vec!["memory".into(), "send".into()],
            ..SessionChange::default()
        };
        let info = shown(&with_change(reservation.clone(), &change).unwrap());
        assert_eq!((info.cpu, info.memory_bytes), (vec!["2ms/4ms".to_owned()], None));
        assert!(info.send.is_empty() && info.queue_bytes.is_some() && info.weight == 200);
        assert_eq!(
            with_change(reservation.clone(), &SessionChange::default()).unwrap(),
            reservation
        );
        let change = SessionChange { without: vec!["cpus".into()], ..SessionChange::default() };
        assert!(with_change(reservation, &change).unwrap_err().message.contains("cpu, below"));
    }

    #[test]
    fn a_mistake_is_a_usage_error_with_what_to_write() {
        for (field, text, says) in [
            ("cpu", "1ms", ""),
            ("cpu", "5ms/4ms", "more than"),
            ("memory", "64MB", ""),
            ("send", "1ms/0.1ms", ""),
            ("weight", "0", "1 and 1000"),
        ] {
            let mut wrong = request();
            match field {
                "cpu" => wrong.cpu = vec![text.into()],
                "memory" => wrong.memory = Some(text.into()),
                "weight" => wrong.weight = text.parse().ok(),
                _ => drop(wrong.send.insert("right".into(), text.into())),
            }
            let change = SessionChange {
                cpu: Some(wrong.cpu.clone()),
                memory: wrong.memory.clone(),
                send: Some(wrong.send.clone()),
                weight: wrong.weight,
                ..SessionChange::default()
            };
            let changed = with_change(Reservation::default(), &change);
            for refusal in [to_create(&wrong).unwrap_err(), changed.unwrap_err()] {
                assert_eq!(refusal.code, ErrorCode::Usage, "{field}: {}", refusal.message);
                assert!(refusal.message.contains(says), "{field}: {}", refusal.message);
            }
        }
    }

    #[test]
    fn sessions_are_made_changed_and_removed_when_that_is_recorded() {
        let mut bed = Testbed::new();
        let gold = |weight| SessionRequest {
            name: "gold".to_owned(),
            weight: Some(weight),
            ..SessionRequest::default()
        };
        let there = |bed: &Testbed| bed.control.node().session(&name("gold")).cloned();
        let mut failed = bed.ask(|reply| Change::CreateSession(Box::new(gold(7)), reply));
        bed.fail_write();
        assert!(failed.try_answer().unwrap().is_err() && there(&bed).is_none());
        bed.made(|reply| Change::CreateSession(Box::new(gold(7)), reply));
        assert_eq!(there(&bed).unwrap().reservation.weight, Weight::new(7).unwrap());
        bed.refused(|reply| Change::CreateSession(Box::new(gold(8)), reply));
        let change = SessionChange { weight: Some(9), ..SessionChange::default() };
        let set = |reply| Change::SetSession("gold".to_owned(), Box::new(change), reply);
        assert_eq!(bed.made(set).session, "gold");
        let desired = &bed.control.state().desired().state().sessions[&name("gold")];
        assert_eq!(desired.reservation.weight, Weight::new(9).unwrap());
        bed.made(|reply| Change::RemoveSession("gold".to_owned(), false, reply));
        assert!(there(&bed).is_none() && bed.control.state().desired().state().sessions.is_empty());
        let gone = |reply| Change::RemoveSession("gold".to_owned(), false, reply);
        assert_eq!(bed.refused(gone).code, ErrorCode::NotFound);
    }

    #[test]
    fn removing_a_session_is_answered_when_its_services_have_stopped() {
        let mut bed = Testbed::new();
        let gold = SessionRequest { name: "gold".to_owned(), ..SessionRequest::default() };
        bed.made(|reply| Change::CreateSession(Box::new(gold), reply));
        let session = Some("gold".to_owned());
        let request = api::DeployRequest { session, ..deploy("monitor", 4) };
        let _asked = bed.ask(|reply| Change::Deploy(Box::new(request), reply));
        bed.starts("monitor");
        bed.write_all();
        bed.refused(|reply| Change::RemoveSession("gold".to_owned(), false, reply));
        let mut removed = bed.ask(|reply| Change::RemoveSession("gold".to_owned(), true, reply));
        bed.write_all();
        assert!(removed.try_answer().is_none() && !bed.is_desired("monitor"));
        bed.stops("monitor");
        assert_eq!(removed.try_answer().unwrap().unwrap().services, ["monitor"]);
    }

    #[test]
    fn memory_is_asked_for_before_it_is_promised() {
        let mut bed = Testbed::new();
        let gold = SessionRequest {
            name: "gold".to_owned(),
            memory: Some("64M".to_owned()),
            ..SessionRequest::default()
        };
        let mut made = bed.ask(|reply| Change::CreateSession(Box::new(gold), reply));
        let asked = bed.actions.iter().find_map(|action| match action {
            Action::AskMemory(number, session) => Some((*number, *session)),
            _ => None,
        });
        let (number, session) = asked.expect("cells are asked");
        assert!(session.is_none() && made.try_answer().is_none() && !bed.is_writing());
        bed.control.handle_memory_overdue(number);
        bed.settle();
        bed.write_all();
        assert!(made.try_answer().is_some(), "it is decided by what is known");
    }

    #[test]
    fn a_session_that_is_refused_after_it_was_recorded_is_not_desired() {
        let capacity = |cores: u16| Capacity {
            guest_cores: cores,
            packet_cores: 2,
            memory: units::Bytes::ZERO,
            packet_memory: units::Bytes::ZERO,
            ports: BTreeMap::new(),
            ports_unheld: false,
            one_core: false,
        };
        let mut bed = Testbed::new();
        bed.control.set_capacity(capacity(1));
        let request = SessionRequest {
            name: "gold".into(),
            cpu: vec!["1ms/4ms".into()],
            ..SessionRequest::default()
        };
        let mut answer = bed.ask(|reply| Change::CreateSession(Box::new(request), reply));
        bed.control.set_capacity(capacity(0));
        bed.write_all();
        assert!(answer.try_answer().unwrap().is_err());
        let desired = bed.control.state().desired();
        assert!(desired.state().sessions.is_empty(), "{:?}", desired.state().sessions);
        assert!(bed.control.is_idle());
    }
}
