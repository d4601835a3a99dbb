//! The node's associations: handshakes here, keys in the cell, and the services that active
//! packets call.
//!
//! ```text
//!                 ┌───────────── daemon ─────────────┐
//!  UDP ── 1,2,3 ─▶│ table ─ Established ─▶ token? ──▶│─ keys ─▶ cell
//!      ◀── confirm│◀──────────── in place ◀──────────│─────────
//!                 │ called ◀─ which service? ◀───────│─────────  (associations/called.rs)
//!                 └──────────────────────────────────┘
//! ```
//!
//! An association needs a token that an administrator of this node has signed, for the key used in
//! the handshake. It ends when that token becomes invalid, and with the cell that has its keys.

use crate::access::{Caller, Gate};
use crate::cells::Cells;
use crate::control::Control;
use crate::control::authorize::check_calls;
use crate::control::calls::Sender;
use crate::events::Note;
use crate::record::machine_ns;
use crate::token_file;
use anyhow::{Context, Result};
use api::EventKind;
use association::table::{Reason, Refusal};
use association::wire::{self, Kind};
use association::{AssociationId, Associations, Budget, Config, Effect, Established};
use cell::CallQuestion;
use cell::protocol::{AssociationReport, SecretBytes, ToCell};
use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket as StdSocket};
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;
use trust::{PublicKey, SecretKey, token};
use units::Nanos;

/// Diffie-Hellman computations in a second, of some 40 µs each: a twelfth of the daemon's time,
/// and 180 handshakes.
const BUDGET: Budget = Budget(2000);
/// Datagrams that are handled before the daemon's other work has its turn.
const DATAGRAMS_AT_ONCE_MAX: usize = 16;
/// Longest datagram over UDP.
const DATAGRAM_LENGTH_MAX: usize = 65_535;

/// Associations of the node with its neighbours.
pub(crate) struct Neighbours {
    table: Associations,
    sockets: Vec<UdpSocket>,
    buffer: Vec<u8>,
    gate: Arc<Gate>,
    live: BTreeMap<AssociationId, Live>,
    counts: Counts,
}

/// Association that is established.
struct Live {
    caller: Caller,
    principal: PublicKey,
    address: SocketAddr,
    since: Nanos,
    /// Datagrams to be sent when the cell has the keys.
    confirm: Vec<(SocketAddr, Vec<u8>)>,
}

/// Results of handshakes, beside those that the table counts.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    established: u64,
    /// Handshakes without a token that counts, or with another principal's.
    not_granted: u64,
    /// Active packets that came in fragments, or past the cell.
    past_cell: u64,
}

/// Datagram that has come, or time that has.
pub(crate) enum News {
    Datagram { socket: usize, from: SocketAddr, length: usize },
    Time,
}

impl Neighbours {
    /// Listens where the node file says; returns `None` without such a section.
    pub(crate) fn listen(
        file: &crate::config::NodeFile,
        key: &SecretKey,
        gate: Arc<Gate>,
    ) -> Result<Option<Self>> {
        let Some(text) = &file.associations else { return Ok(None) };
        let token = text.token.as_deref().map(read_token).transpose()?.unwrap_or_default();
        let config = Config { key: key.clone(), token, budget: BUDGET };
        let table = Associations::new(now(), config, &mut random)?;
        let sockets = text.listen.iter().map(|address| bind(*address)).collect::<Result<_>>()?;
        Ok(Some(Self {
            table,
            sockets,
            buffer: vec![0; DATAGRAM_LENGTH_MAX],
            gate,
            live: BTreeMap::new(),
            counts: Counts::default(),
        }))
    }

    /// Returns the next datagram, or moment. Cancelling loses nothing.
    pub(crate) async fn news(neighbours: &mut Option<Self>) -> News {
        let Some(neighbours) = neighbours else { return std::future::pending().await };
        let at = neighbours.table.next_timeout();
        let wait = async {
            match at {
                Some(at) => {
                    let wait = std::time::Duration::from_nanos(at.saturating_sub(now()).0);
                    tokio::time::sleep(wait).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            news = receive(&neighbours.sockets, &mut neighbours.buffer) => news,
            () = wait => News::Time,
        }
    }

    /// Returns another datagram that is there already.
    fn more(&mut self) -> Option<News> {
        self.sockets.iter().enumerate().find_map(|(socket, from)| {
            let (length, from) = from.try_recv_from(&mut self.buffer).ok()?;
            Some(News::Datagram { socket, from, length })
        })
    }

    /// Sends a datagram to this address, by the socket at which the address was seen, or one of its
    /// family. It is lost if the send buffer is full.
    fn send(&self, to: SocketAddr, datagram: &[u8], socket: Option<usize>) {
        let fits = |socket: &&UdpSocket| {
            socket.local_addr().is_ok_and(|own| own.is_ipv4() == to.is_ipv4())
        };
        let given = socket.and_then(|number| self.sockets.get(number));
        if let Some(socket) = given.or_else(|| self.sockets.iter().find(fits)) {
            let _ = socket.try_send_to(datagram, to);
        }
    }

    /// Returns the associations that there are.
    pub(crate) fn list(&self) -> Vec<api::AssociationInfo> {
        let now = now();
        let info = |(id, live): (&AssociationId, &Live)| api::AssociationInfo {
            id: id.to_string(),
            principal: live.principal.to_string(),
            address: live.address.to_string(),
            age_seconds: now.saturating_sub(live.since).0 / 1_000_000_000,
        };
        self.live.iter().map(info).collect()
    }

    /// Returns the counters of what came for associations, with those of the cells.
    pub(crate) fn stats(&self, cells: &AssociationReport) -> api::AssociationStats {
        let mut dropped: BTreeMap<String, u64> =
            cells.dropped().into_iter().map(|(why, count)| (why.to_owned(), count)).collect();
        dropped.insert("active_past_cell".to_owned(), self.counts.past_cell);
        dropped.retain(|_, count| *count > 0);
        let refused = self.table.refused().iter();
        let mut handshakes_refused: BTreeMap<String, u64> =
            refused.map(|(why, count)| (refusal_name(*why).to_owned(), *count)).collect();
        if self.counts.not_granted > 0 {
            handshakes_refused.insert("not_granted".to_owned(), self.counts.not_granted);
        }
        api::AssociationStats {
            live: self.live.len() as u64,
            established: self.counts.established,
            handshakes_refused,
            received: cells.received,
            calls: cells.calls,
            to_kernel: cells.to_kernel,
            waiting: cells.waiting,
            dropped,
        }
    }
}

async fn receive(sockets: &[UdpSocket], buffer: &mut [u8]) -> News {
    std::future::poll_fn(|context| {
        for (socket, from) in sockets.iter().enumerate() {
            let mut room = ReadBuf::new(buffer);
            // An error is one of a datagram sent before (ICMP): there is another socket to ask.
            if let Poll::Ready(Ok(from)) = from.poll_recv_from(context, &mut room) {
                let length = room.filled().len();
                return Poll::Ready(News::Datagram { socket, from, length });
            }
        }
        Poll::Pending
    })
    .await
}

/// Reads the clock of associations, which the cell has, too: the machine's monotonic one.
fn now() -> Nanos {
    Nanos(machine_ns())
}

fn random(into: &mut [u8]) {
    getrandom::fill(into).expect("a running system has random bytes");
}

fn bind(address: SocketAddr) -> Result<UdpSocket> {
    let bound = || -> std::io::Result<UdpSocket> {
        let socket = StdSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        UdpSocket::from_std(socket)
    };
    bound().with_context(|| {
        format!(
            "listening on {address} (UDP) for [associations]; it has to be an address of this node"
        )
    })
}

fn read_token(path: &Path) -> Result<String> {
    let about = || format!("reading the token of [associations], {}", path.display());
    let text = token_file::read(path, token::LENGTH_MAX as u64 + 1).with_context(about)?;
    trust::HeldToken::parse(&text).with_context(about)?;
    Ok(text)
}

impl Neighbours {
    /// Handles a datagram of a neighbour, or the time for something, and the datagrams that are there
    /// already.
    pub(crate) fn handle_news(&mut self, control: &mut Control, cells: &Cells, news: News) {
        let mut next = Some(news);
        for _ in 0..DATAGRAMS_AT_ONCE_MAX {
            let Some(news) = next.take() else { return };
            self.handle_one(control, cells, &news);
            next = self.more();
        }
        if let Some(news) = next {
            self.handle_one(control, cells, &news);
        }
    }

    fn handle_one(&mut self, control: &mut Control, cells: &Cells, news: &News) {
        let (effects, socket) = match *news {
            News::Time => (self.table.handle_timeout(now(), &mut random), None),
            News::Datagram { socket, from, length } => {
                let datagram = &self.buffer[..length];
                match wire::kind(datagram) {
                    // The table counts what is no message at all.
                    Ok(Kind::Handshake) | Err(_) => {
                        (self.table.handle(now(), from, datagram, &mut random), Some(socket))
                    }
                    Ok(Kind::Active(_) | Kind::Anyone) => {
                        self.counts.past_cell += 1;
                        return;
                    }
                }
            }
        };
        self.do_effects(control, cells, effects, socket);
    }

    /// Handles effects of the table, news first: a confirmation waits for cells to have the keys.
    fn do_effects(
        &mut self,
        control: &mut Control,
        cells: &Cells,
        effects: Vec<Effect>,
        socket: Option<usize>,
    ) {
        let mut established = None;
        let mut sends = Vec::new();
        for effect in effects {
            match effect {
                Effect::Send { to, datagram } => sends.push((to, datagram)),
                Effect::Ended { id, reason } => self.handle_ended(control, cells, id, reason),
                Effect::Established(new) => established = Some(new),
            }
        }
        match established {
            Some(new) => self.handle_established(control, cells, *new, (sends, socket)),
            None => sends.iter().for_each(|(to, datagram)| self.send(*to, datagram, socket)),
        }
    }

    /// Handles a neighbour that has shown its key: its token must count. `confirm` has the
    /// confirmation, and the socket by which it goes.
    fn handle_established(
        &mut self,
        control: &mut Control,
        cells: &Cells,
        new: Established,
        (confirm, socket): (Vec<(SocketAddr, Vec<u8>)>, Option<usize>),
    ) {
        let caller = self.caller(control, &new.token, new.principal);
        let Established { id, address, principal, traffic, .. } = new;
        let (caller, keys) = match (caller, cells.is_any(), traffic.to_bytes()) {
            (Some(caller), true, Ok(keys)) => (caller, keys),
            (held, ..) => {
                self.counts.not_granted += u64::from(held.is_none());
                let effects = self.table.end(id);
                return self.do_effects(control, cells, effects, socket);
            }
        };
        self.counts.established += 1;
        let since = now();
        self.live.insert(id, Live { caller, principal, address, since, confirm });
        cells.notify_all(&ToCell::Associate(SecretBytes(keys)), &[]);
    }

    /// Returns the client that shook hands with this key and this token, if they count here.
    fn caller(&self, control: &mut Control, token: &str, principal: PublicKey) -> Option<Caller> {
        let holder = self.gate.holder(token).ok()?;
        // At the API a token is valid for any holder, since TLS keeps it secret. Here it is shown
        // to the responder, which may be anyone, so it is valid only for the key that it names.
        if holder.token.principal() != principal {
            return None;
        }
        let caller = Caller::Holder(holder);
        check_calls(control.state_mut(), &caller).then_some(caller)
    }

    /// Returns the sender of active packets; `None` when its association has ended.
    pub(crate) fn sender_of(&self, question: CallQuestion) -> Option<Sender> {
        let Some(id) = question.association else {
            return Some(Sender { caller: Caller::Anyone, principal: None });
        };
        let live = self.live.get(&id)?;
        Some(Sender { caller: live.caller.clone(), principal: Some(live.principal) })
    }

    /// Handles an association whose keys cells have: tells the other side that it may send.
    pub(crate) fn handle_associated(&mut self, id: AssociationId) {
        let Some(live) = self.live.get_mut(&id) else { return };
        let confirm = std::mem::take(&mut live.confirm);
        confirm.iter().for_each(|(to, datagram)| self.send(*to, datagram, None));
    }

    fn handle_ended(
        &mut self,
        control: &mut Control,
        cells: &Cells,
        id: AssociationId,
        reason: Reason,
    ) {
        control.calls().forget(id);
        let Some(live) = self.live.remove(&id) else { return };
        cells.notify_all(&ToCell::Disassociate(id), &[]);
        tracing::debug!(%id, principal = %live.principal, ?reason, "an association has ended");
    }

    /// Ends associations whose capability is no longer valid. Called once a second, and after a
    /// revocation.
    pub(crate) fn end_without_right(&mut self, control: &mut Control, cells: &Cells) {
        let is_gone = |(id, live): (&AssociationId, &Live)| {
            (!check_calls(control.state_mut(), &live.caller)).then_some(*id)
        };
        let gone: Vec<AssociationId> = self.live.iter().filter_map(is_gone).collect();
        if gone.is_empty() {
            return;
        }
        let count = gone.len();
        let text = format!("{count} associations have ended: their capabilities count no more");
        control.note(Note::new(EventKind::CapabilityEnded, text));
        gone.into_iter().for_each(|id| self.end(control, cells, id));
    }

    fn end(&mut self, control: &mut Control, cells: &Cells, id: AssociationId) {
        let effects = self.table.end(id);
        self.do_effects(control, cells, effects, None);
    }

    /// Ends all associations: their keys are lost with the cell, or about to be.
    pub(crate) fn end_all(&mut self, control: &mut Control, cells: &Cells) {
        let ids: Vec<AssociationId> = self.table.ids().collect();
        ids.into_iter().for_each(|id| self.end(control, cells, id));
    }
}

const fn refusal_name(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Malformed => "malformed",
        Refusal::Duplicate => "duplicate",
        Refusal::CookieNeeded => "cookie_needed",
        Refusal::PrefixFull => "prefix_full",
        Refusal::Full => "full",
        Refusal::BudgetSpent => "budget_spent",
        Refusal::Unexpected => "unexpected",
        Refusal::Forged => "forged",
    }
}

#[cfg(test)]
mod tests;
