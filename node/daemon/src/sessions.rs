//! Sessions at a node's API: made, promised something else, shown, removed.
//!
//! ```text
//! create, set, remove ─▶ tried on a copy ─▶ record ─▶ done ─▶ answer
//!                                                     └ remove: when the cell has stopped all of it
//! ```
//!
//! One change after another, so two that ask at the same time cannot be promised the same twice.
//! What sessions use is in `usage`.

mod capacity;
mod history;
mod memory;
mod usage;

pub(crate) use history::LOOK_EVERY;
pub(crate) use memory::MemoryWanted;
pub(crate) use usage::Sessions;

use crate::access::Caller;
use crate::authority::Sight;
use crate::cells::AfterReport;
use crate::daemon::Daemon;
use crate::edit::Edit;
use crate::events::Note;
use crate::http::Answer;
use crate::recorded::{Ahead, Purpose};
use crate::reply::Reply;
use crate::views::{failed, usage};
use ::session::admission::Left;
use ::session::{Reservation, Share, Size, VirtualProcessor, Weight};
use api::{
    ErrorInfo, EventKind, LeftInfo, ReservationInfo, SCHEMA_VERSION, SessionChange, SessionDetails,
    SessionList, SessionPromised, SessionRemoved, SessionRequest,
};
use cell::protocol::ToCell;
use node::desired::DesiredSession;
use node::{Command, Outcome, Session};
use std::collections::BTreeMap;
use std::str::FromStr;
use units::{Name, SessionId};

/// What the API asks about sessions.
pub(crate) enum SessionQuestion {
    List(Reply<SessionList>),
    Show(String, Reply<SessionDetails>),
    Create(Box<SessionRequest>, Reply<SessionPromised>),
    Set(String, Box<SessionChange>, Reply<SessionPromised>),
    Remove(String, bool, Reply<SessionRemoved>),
}

impl SessionQuestion {
    /// Answers it with a refusal.
    pub(crate) fn refuse(self, refusal: ErrorInfo) {
        match self {
            Self::List(reply) => reply.refuse(refusal),
            Self::Show(_, reply) => reply.refuse(refusal),
            Self::Create(_, reply) | Self::Set(_, _, reply) => reply.refuse(refusal),
            Self::Remove(_, _, reply) => reply.refuse(refusal),
        }
    }
}

/// What is in a session.
#[derive(Default)]
struct Things {
    services: Vec<String>,
    rules: Vec<u32>,
    /// Linear memories of its services.
    memory_bytes: u64,
}

/// What is to be promised, as it was asked for.
#[derive(Debug)]
pub(crate) struct Promise {
    pub(crate) session: Name,
    pub(crate) reservation: Reservation,
}

impl Daemon {
    /// Answers a question about sessions, now or when what it needs has come.
    pub(crate) fn ask_session(&mut self, caller: &Caller, question: SessionQuestion) {
        match question {
            SessionQuestion::List(reply) => {
                let sight = self.sight(caller);
                self.after_report(AfterReport::Sessions(sight, reply));
            }
            SessionQuestion::Show(wanted, reply) => {
                let sight = self.sight(caller);
                self.after_report(AfterReport::Session(sight, wanted, reply));
            }
            SessionQuestion::Create(request, reply) => self.create_session(caller, &request, reply),
            SessionQuestion::Set(wanted, change, reply) => {
                self.set_session(&wanted, &change, reply);
            }
            SessionQuestion::Remove(wanted, cascade, reply) => {
                self.remove_session(&wanted, cascade, reply);
            }
        }
    }

    fn create_session(
        &mut self,
        caller: &Caller,
        request: &SessionRequest,
        reply: Reply<SessionPromised>,
    ) {
        let Promise { session, reservation } = match to_create(request) {
            Ok(promise) => promise,
            Err(refusal) => return reply.refuse(refusal),
        };
        let owner = self.owner_of(caller);
        let desired = DesiredSession { reservation: reservation.clone(), owner };
        let edit = Edit::SetSession(session.clone(), desired);
        let command = Command::SessionCreate {
            session: session.clone(),
            reservation: reservation.clone(),
            owner,
        };
        let cause = format!("session create {session}");
        let purpose = Purpose::SessionCreated { session, reservation, reply };
        self.record_ahead(Ahead { command, purpose }, cause, edit);
    }

    /// Returns the answer to a request for a new session.
    pub(crate) fn session_created(
        &mut self,
        session: &Name,
        reservation: &Reservation,
        outcome: Answer<Outcome>,
    ) -> Answer<SessionPromised> {
        let Outcome::SessionCreated { id, .. } = outcome? else {
            return Err(failed("the node answered a new session with something else"));
        };
        let told = told(reservation);
        let text = format!("the session '{session}' was made, {told}");
        self.note_session(EventKind::SessionCreated, session, text);
        Ok(promised(session, id, reservation))
    }

    fn set_session(&mut self, wanted: &str, change: &SessionChange, reply: Reply<SessionPromised>) {
        let Promise { session, reservation } = match self.to_set(wanted, change) {
            Ok(promise) => promise,
            Err(refusal) => return reply.refuse(refusal),
        };
        let edit = Edit::SetReservation(session.clone(), reservation.clone());
        let command =
            Command::SessionSet { session: session.clone(), reservation: reservation.clone() };
        let cause = format!("session set {session}");
        let purpose = Purpose::SessionSet { session, reservation, reply };
        self.record_ahead(Ahead { command, purpose }, cause, edit);
    }

    /// Returns the answer to a changed reservation.
    pub(crate) fn session_set(
        &mut self,
        session: &Name,
        reservation: &Reservation,
    ) -> SessionPromised {
        self.desired.short.remove(session);
        let told = told(reservation);
        let text = format!("the session '{session}' is promised something else, {told}");
        self.note_session(EventKind::SessionChanged, session, text);
        let id = self.node.session(session).map_or(SessionId::BEST_EFFORT, |it| it.id);
        promised(session, id, reservation)
    }

    /// What a change asks for, as a whole.
    pub(crate) fn to_set(&self, wanted: &str, change: &SessionChange) -> Answer<Promise> {
        let session = Name::new(wanted).map_err(usage)?;
        // What it shall be promised, also while the node has not that much.
        let desired = self.desired.state().sessions.get(&session).map(|it| &it.reservation);
        let present = self.node.session(&session).map(|it| &it.reservation);
        let reservation = desired.or(present).cloned().unwrap_or_default();
        let reservation = changed(reservation, change)?;
        Ok(Promise { session, reservation })
    }

    fn remove_session(&mut self, wanted: &str, cascade: bool, reply: Reply<SessionRemoved>) {
        let session = match Name::new(wanted) {
            Ok(session) => session,
            Err(problem) => return reply.refuse(usage(problem)),
        };
        let edit = Edit::RemoveSession(session.clone());
        let command = Command::SessionRemove { session: session.clone(), cascade };
        let cause = format!("session remove {session}");
        let purpose = Purpose::SessionRemoved { session, reply };
        self.record_ahead(Ahead { command, purpose }, cause, edit);
    }

    /// Answers the removal of a session, now or when the cell has stopped its services.
    pub(crate) fn session_removed(
        &mut self,
        session: Name,
        reply: Reply<SessionRemoved>,
        outcome: Answer<Outcome>,
    ) {
        match outcome {
            Ok(Outcome::SessionRemoved { services, rules, stopping, .. }) => {
                self.desired.short.remove(&session);
                let rules: Vec<u32> = rules.iter().map(|rule| rule.0).collect();
                self.note_rules(EventKind::RulesRemoved, &rules);
                let removed = SessionRemoved {
                    schema_version: SCHEMA_VERSION,
                    session: session.to_string(),
                    services: services.iter().map(Name::to_string).collect(),
                    rules,
                };
                if stopping {
                    self.sessions.removing.insert(session, (reply, removed));
                } else {
                    reply.ok(removed);
                }
            }
            Ok(_) => reply.refuse(failed("the node answered a removal with something else")),
            Err(refusal) => reply.refuse(refusal),
        }
    }

    /// The node has no session of this name any more.
    pub(crate) fn session_gone(&mut self, session: &Name) {
        let text = format!("the session '{session}' is gone");
        self.note_session(EventKind::SessionRemoved, session, text);
        // Another one of that name begins from zero; the ledger has what this one used.
        self.closed.remove(session);
        self.fuel_closed.remove(session);
        self.sessions.history.forget(session);
        if let Some((reply, removed)) = self.sessions.removing.remove(session) {
            reply.ok(removed);
        }
    }

    /// A session whose capability counts no more goes. With things of others in it, it becomes the
    /// operator's, and is promised nothing any more.
    pub(crate) fn end_session(&mut self, session: &Name, why: &str) {
        let owner = self.node.session(session).and_then(|it| it.owner);
        let remove = Command::SessionRemove { session: session.clone(), cascade: false };
        let did = match self.command(remove) {
            Ok(_) => "was removed",
            Err(_) => {
                if let Err(problem) =
                    self.command(Command::SessionGiveUp { session: session.clone() })
                {
                    tracing::error!(%session, problem = problem.message, "{why}, and it goes on");
                    return;
                }
                "is the operator's now, and promised nothing"
            }
        };
        let text = format!("the session '{session}' {did}");
        let note = Note::new(EventKind::CapabilityEnded, text).session(session);
        self.note(note.reason(why).owner(owner));
    }

    /// The cell may give the number's part to others.
    pub(crate) fn forget_session(&mut self, session: SessionId) {
        self.sessions.forget(session);
        if let Ok(front) = self.plane.front.front() {
            front.clear_account(session.0);
        }
        self.cells.tell_all(&ToCell::ForgetSession(session), &[]);
    }

    pub(crate) fn note_session(&mut self, kind: EventKind, session: &Name, text: String) {
        let owner = self.node.session(session).and_then(|it| it.owner);
        self.note(Note::new(kind, text).session(session).owner(owner));
    }

    pub(crate) fn session_list(&self, sight: &Sight) -> Answer<SessionList> {
        let counts = self.session_counts()?;
        let seen = self.node.sessions().filter(|session| sight.has_session(session));
        let mut things = self.things_by_session(sight);
        let details = seen.map(|it| self.shown_session(it, &counts, &mut things));
        let sessions = details.collect();
        let left = self.node.left().filter(|_| sight.everything).map(shown_left);
        Ok(SessionList { schema_version: SCHEMA_VERSION, sessions, left })
    }

    pub(crate) fn session_details(&self, sight: &Sight, wanted: &str) -> Answer<SessionDetails> {
        let counts = self.session_counts()?;
        let named = Name::new(wanted).ok();
        let found = named.and_then(|name| self.node.session(&name));
        let found = found.filter(|session| sight.has_session(session));
        let found = found.ok_or_else(|| self.no_session(sight, wanted))?;
        let mut things = self.things_by_session(sight);
        let mut details = self.shown_session(found, &counts, &mut things);
        details.used.history = self.history_of(&found.name);
        Ok(details)
    }

    /// The services and rules of each session that somebody sees, and its memory.
    fn things_by_session(&self, sight: &Sight) -> BTreeMap<Name, Things> {
        let mut things: BTreeMap<Name, Things> = BTreeMap::new();
        for service in self.node.services() {
            let of = things.entry(service.session.clone()).or_default();
            if sight.has(service.session.as_str(), service.owner) {
                of.services.push(service.name.to_string());
            }
            of.memory_bytes += self.cells.report_of(service.entry).map_or(0, |it| it.memory_bytes);
        }
        let rules = self.node.all_rules().into_iter();
        for view in rules.filter(|it| sight.has(it.rule.spec.session.as_str(), it.owner)) {
            things.entry(view.rule.spec.session).or_default().rules.push(view.rule.id.0);
        }
        things
    }

    fn shown_session(
        &self,
        session: &Session,
        counts: &BTreeMap<Name, api::SessionCounts>,
        things: &mut BTreeMap<Name, Things>,
    ) -> SessionDetails {
        let things = things.remove(&session.name).unwrap_or_default();
        let Things { services, mut rules, memory_bytes } = things;
        rules.sort_unstable();
        SessionDetails {
            schema_version: SCHEMA_VERSION,
            id: session.id.0,
            name: session.name.to_string(),
            owner: self.owner_shown(session.owner),
            built_in: session.is_built_in(),
            state: if session.leaving { "leaving" } else { "there" }.to_owned(),
            promised: shown(&session.reservation),
            short: self.desired.short.get(&session.name).cloned(),
            used: self.session_use(session, memory_bytes, counts),
            services,
            rules,
        }
    }

    /// What is answered for a session that is not there, and for one that is not the caller's.
    pub(crate) fn no_session(&self, sight: &Sight, wanted: &str) -> ErrorInfo {
        let seen = self.node.sessions().filter(|session| sight.has_session(session));
        let meant = abi::manifest::Meant::new(wanted, seen.map(|session| session.name.as_str()));
        let named: String = wanted.chars().take(40).flat_map(char::escape_default).collect();
        let message = format!("there is no session '{named}' on this node{meant}");
        let help = "'tam session list' shows those that there are, 'tam session create' makes one";
        crate::http::error(api::ErrorCode::NotFound, message, Some(help))
    }
}

/// What a request asks for.
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

fn changed(mut reservation: Reservation, change: &SessionChange) -> Answer<Reservation> {
    for what in &change.without {
        match what.as_str() {
            "cpu" => reservation.processors.clear(),
            "below" => reservation.below = None,
            "memory" => reservation.memory = None,
            "queue" => reservation.queue = None,
            "send" => reservation.send.clear(),
            other => {
                let named: String = other.chars().take(40).flat_map(char::escape_default).collect();
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

/// A reservation in the API's words.
fn shown(reservation: &Reservation) -> ReservationInfo {
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

/// What can still be promised, in the API's words.
fn shown_left(left: Left) -> LeftInfo {
    let Left { guest, below, memory, packet_memory, ports } = left;
    LeftInfo {
        cpu_parts: guest.into_iter().map(|parts| parts.0).collect(),
        below_parts: below.0,
        memory_bytes: memory.0,
        queue_bytes: packet_memory.0,
        port_parts: ports.into_iter().map(|(port, parts)| (port.to_string(), parts.0)).collect(),
    }
}

/// A reservation in a sentence.
fn told(reservation: &Reservation) -> String {
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
    fn what_is_asked_for_is_promised_and_told_in_one_form() {
        let Promise { session, reservation } = to_create(&request()).unwrap();
        assert_eq!(session.as_str(), "gold");
        let info = shown(&reservation);
        assert_eq!(info.cpu, ["1ms/4ms+extra", "2ms/20ms"]);
        assert_eq!((info.below.as_deref(), info.memory_bytes), (Some("400us/4ms"), Some(64 << 20)));
        assert_eq!(
            told(&reservation),
            "cpu 1ms/4ms+extra, cpu 2ms/20ms, below 400us/4ms, memory 64MiB, queue 256KiB, \
             send right 2ms/6ms, weight 200"
        );
        assert_eq!(told(&Reservation::default()), "nothing reserved, weight 100");
    }

    #[test]
    fn what_a_change_does_not_name_stays() {
        let Promise { reservation, .. } = to_create(&request()).unwrap();
        let change = SessionChange {
            cpu: Some(vec!["2ms/4ms".into()]),
            without: vec!["memory".into(), "send".into()],
            ..SessionChange::default()
        };
        let info = shown(&changed(reservation.clone(), &change).unwrap());
        assert_eq!((info.cpu, info.memory_bytes), (vec!["2ms/4ms".to_owned()], None));
        assert!(info.send.is_empty() && info.queue_bytes.is_some() && info.weight == 200);
        assert_eq!(changed(reservation.clone(), &SessionChange::default()).unwrap(), reservation);
        let change = SessionChange { without: vec!["cpus".into()], ..SessionChange::default() };
        assert!(changed(reservation, &change).unwrap_err().message.contains("cpu, below"));
    }

    #[test]
    fn a_mistake_is_a_usage_error_with_what_to_write() {
        for (field, text) in [("cpu", "1ms"), ("memory", "64MB"), ("send", "1ms/0.1ms")] {
            let mut wrong = request();
            match field {
                "cpu" => wrong.cpu = vec![text.into()],
                "memory" => wrong.memory = Some(text.into()),
                _ => drop(wrong.send.insert("right".into(), text.into())),
            }
            let refusal = to_create(&wrong).unwrap_err();
            assert_eq!(refusal.code, api::ErrorCode::Usage, "{field}: {}", refusal.message);
        }
    }
}
