//! What waits to leave by the ports of whose rates sessions were promised shares.
//!
//! ```text
//!   Exits::send ─▶ has the port shares? ─ no ─▶ its transmit ring
//!                        │ yes
//!                        ▼
//!       room in the session's queue? ─ no ─▶ dropped: `egress_full`
//!                        │
//!                        ▼                  leave: who is next, by core/session
//!                 core/session::egress ───────────────────────────────▶ transmit ring
//! ```
//!
//! What waits here is in the same queue of the session as what waits for its turn: a packet that
//! cannot leave takes the room of one that comes. Packets that modules at kernel level have sent
//! come here with the room that they have taken, when their session's share is used up or others of
//! it wait ([`Egress::come`]): they only leave. What the kernel is to route for a service waits here,
//! too, for the port by which it will send it ([`Egress::shared_egress`]). What leaves straight from
//! below passes by all this;
//! it is looked at, so that the port is not given away twice.

use crate::datapath::asker::Asker;
use crate::datapath::kernel::KernelPath;
use crate::datapath::port::{Ports, SendFailure};
use crate::datapath::port_shares::{Counted, Lines};
use crate::protocol::{HEADER_LENGTH_MAX, PortFacts, SessionFacts};
use crate::sched::sessions::Sessions;
use abi::PacketBytes;
use session::Reservation;
use session::egress::{Next, Outcome, Port, Schedule, SenderConfig};
use session::memory::queue_default;
use std::collections::BTreeMap;
use units::{BitsPerSecond, Bytes, Nanos, Packets, PortId, SessionId};
use xsk::{FramePool, Packet};

/// What goes with each packet on an Ethernet: preamble, frame check sequence and gap.
const ETHERNET_REST: Bytes = Bytes(24);
/// How far packets may be ahead of the wire: two turns, since nothing leaves while one lasts.
const AHEAD_MAX: Nanos = Nanos(200_000);
/// What is caught up with when the kernel gave the core to somebody else: a tick of its scheduler.
const BEHIND_MAX: Nanos = Nanos::from_millis(4);

/// How often it is looked at what left by a port straight from below.
const LOOK_MIN: Nanos = Nanos::from_millis(1);
/// A wire that was busy for longer is not waited for.
const LOOK_MAX: Nanos = Nanos::from_millis(4);

/// The way by which a packet leaves when it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Out of the port, as it is.
    Port,
    /// Into the kernel, which routes it.
    Kernel,
    /// Into the kernel by the device of the port that it came in by, as it came.
    Arrival { port: u16, is_ip: bool },
    /// The same by the packet port that it came in by.
    Back { arrival: u16, is_ip: bool },
}

/// A packet that leaves.
#[derive(Debug)]
pub(crate) struct Departing {
    pub(crate) packet: Packet,
    pub(crate) by: Exit,
}

impl Departing {
    /// Gives it to the kernel; whether that took it. The packet is gone.
    pub(crate) fn leave(
        self,
        ports: &Ports,
        kernel: Option<&KernelPath>,
        asker: Option<&mut Asker>,
        pool: &mut FramePool,
    ) -> bool {
        let Self { mut packet, by } = self;
        let back = match by {
            Exit::Back { arrival, is_ip } => ports.give_back(arrival, &mut packet, is_ip),
            // What the port's device does not take has no other way: by the node's own device it would
            // pass filters that are for its arrival.
            Exit::Arrival { port, is_ip } => {
                let is_ready = !is_ip || ports.address(port, &mut packet);
                Some(is_ready && asker.is_some_and(|asker| asker.arrive(&packet, PortId(port))))
            }
            Exit::Port | Exit::Kernel => None,
        };
        let is_taken = back.or_else(|| kernel.and_then(|kernel| kernel.take_packet(&packet)));
        packet.recycle(pool);
        is_taken.unwrap_or(false)
    }

    /// Gives it to whoever has it next: its port's ring, or the kernel.
    ///
    /// # Errors
    /// The packet, when its port's ring is full, or why it is gone.
    pub(crate) fn send(
        self,
        port: u16,
        ports: &mut Ports,
        kernel: Option<&KernelPath>,
        asker: Option<&mut Asker>,
        pool: &mut FramePool,
    ) -> Result<(), (Option<Self>, SendFailure)> {
        if self.by != Exit::Port {
            let gone = (None, SendFailure::NoPort);
            return if self.leave(ports, kernel, asker, pool) { Ok(()) } else { Err(gone) };
        }
        let by = self.by;
        ports.send(port, self.packet, pool).map_err(|(packet, failure)| match failure {
            SendFailure::Full => (Some(Self { packet, by }), failure),
            _ => {
                packet.recycle(pool);
                (None, failure)
            }
        })
    }
}

/// A packet that waits.
struct Waiting {
    departing: Departing,
    /// Where the front door learns of it.
    counted: Option<Counted>,
}

/// A port that can have shares.
struct Line {
    name: String,
    port: Port,
    /// While somebody has a share of it.
    schedule: Option<Schedule<Waiting>>,
    /// The transmit ring had no room for it.
    stuck: Option<(SessionId, Waiting)>,
    /// When it was looked at what passed by.
    looked: Nanos,
}

/// See above.
#[derive(Default)]
pub(crate) struct Egress {
    lines: Vec<Option<Line>>,
    sessions: BTreeMap<SessionId, Reservation>,
    /// What leaves from here pays from the accounts from which what modules below send does: a
    /// session has one share of a port. Here nobody is stopped by it.
    accounts: Lines,
    /// Knows by which port the kernel would send a packet.
    asker: Option<Asker>,
    /// Packets of each session that wait, by its number; and all of them.
    waiting: Vec<u32>,
    total: usize,
    /// When the next of them may leave.
    next: Option<Nanos>,
    now: Nanos,
}

/// Why a packet cannot wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    TooLong,
}

/// What became of those that waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) sent: usize,
    /// Whose port or way is gone.
    pub(crate) lost: u64,
}

impl Line {
    fn new(facts: &PortFacts, rate: BitsPerSecond) -> Self {
        Self {
            name: facts.name.clone(),
            port: port_of(facts, rate),
            schedule: None,
            stuck: None,
            looked: Nanos::ZERO,
        }
    }

    fn terms(&self, reservation: &Reservation) -> SenderConfig {
        let share = reservation.send.iter().find(|(port, _)| port.as_str() == self.name);
        SenderConfig {
            share: share.map(|(_, share)| *share),
            extra: false,
            weight: reservation.weight,
            queue: reservation.queue.unwrap_or_else(|| queue_default(reservation.memory)),
        }
    }
}

fn port_of(facts: &PortFacts, rate: BitsPerSecond) -> Port {
    Port {
        rate,
        packet_max: Bytes(u64::from(facts.mtu + HEADER_LENGTH_MAX)),
        per_packet: if facts.raw { Bytes::ZERO } else { ETHERNET_REST },
        ahead_max: AHEAD_MAX,
        behind_max: BEHIND_MAX,
        in_flight_max: None,
    }
}

impl Egress {
    /// The sessions that every node has.
    pub(crate) fn new() -> Self {
        let built_in = [SessionId::SYSTEM, SessionId::BEST_EFFORT];
        let sessions = built_in.map(|id| (id, Reservation::default())).into();
        Self { sessions, ..Self::default() }
    }

    /// What is sent pays from these accounts.
    pub(crate) fn pay_from(&mut self, accounts: bpf::Lines) {
        self.accounts.pay_from(accounts);
    }

    /// Packets that the kernel is to route are asked about here.
    pub(crate) fn ask(&mut self, asker: Asker) {
        self.asker = Some(asker);
    }

    /// Returns the port by which the kernel would send a session's packet, if somebody has a share
    /// of that port; the node's own services pay nothing.
    pub(crate) fn shared_egress(
        &mut self,
        session: SessionId,
        departing: &Departing,
    ) -> Option<u16> {
        if session == SessionId::SYSTEM || !self.is_used() {
            return None;
        }
        let arrival = match departing.by {
            Exit::Arrival { port, .. } => Some(PortId(port)),
            _ => None,
        };
        let port = self.asker.as_mut()?.egress_of(&departing.packet, arrival)?.0;
        self.shares(port).then_some(port)
    }

    /// Returns what does requests to the kernel, if the node has given it.
    pub(crate) fn asker(&mut self) -> Option<&mut Asker> {
        self.asker.as_mut()
    }

    /// A session pays from this account at a port, or from that of all without a share.
    pub(crate) fn set_payer(&mut self, port: PortId, session: SessionId, account: Option<u32>) {
        self.accounts.set_payer(port, session, account);
    }

    /// A packet has come that only has to leave, counted by the front door in this account and
    /// epoch.
    pub(crate) fn come(&mut self, line: u32, epoch: usize) -> Option<Counted> {
        self.accounts.come(line, epoch)
    }

    /// It is gone, and does not wait any more.
    pub(crate) fn gone(&mut self, counted: Option<Counted>) {
        counted.into_iter().for_each(|counted| self.accounts.leave(counted));
    }

    /// What of an epoch that is closed has not come is lost.
    pub(crate) fn settle(&mut self, epoch: usize) {
        self.accounts.settle(epoch);
    }

    /// The devices have all that left: what comes next from below need not wait behind it.
    #[inline]
    pub(crate) fn have_left(&mut self) {
        self.accounts.publish_all();
    }

    /// What time it is, once for all packets of a round.
    #[inline]
    pub(crate) fn set_time(&mut self, now: Nanos) {
        self.now = now;
    }

    /// Whether the clock matters here.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.lines.iter().flatten().any(|line| line.schedule.is_some())
    }

    /// Whether packets of this port have to wait for their session's part of its rate.
    #[inline]
    pub(crate) fn shares(&self, port: u16) -> bool {
        let line = self.lines.get(usize::from(port)).and_then(Option::as_ref);
        line.is_some_and(|line| line.schedule.is_some())
    }

    /// Whether something of the session waits.
    pub(crate) fn waits(&self, session: SessionId) -> bool {
        self.waiting.get(usize::from(session.0)).is_some_and(|&count| count > 0)
    }

    /// Whether anything waits.
    #[inline]
    pub(crate) const fn is_waiting(&self) -> bool {
        self.total > 0
    }

    /// When the next packet may leave, at the last look.
    pub(crate) const fn poll_timeout(&self) -> Option<Nanos> {
        self.next
    }

    /// A port is there, or is another one. Gives the packets that waited for it if nobody has a
    /// share of it any more.
    pub(crate) fn set_port(&mut self, facts: &PortFacts) -> Vec<(SessionId, Departing)> {
        let at = usize::from(facts.port.0);
        let Some(rate) = facts.rate else { return self.remove_port(facts.port) };
        if at >= self.lines.len() {
            self.lines.resize_with(at + 1, || None);
        }
        match &mut self.lines[at] {
            Some(line) => {
                line.port = port_of(facts, rate);
                if let Some(schedule) = &mut line.schedule {
                    schedule.set_port(line.port);
                }
            }
            none => *none = Some(Line::new(facts, rate)),
        }
        self.arrange(at)
    }

    /// A port has no rate any more, or is gone. Gives what waited for it.
    pub(crate) fn remove_port(&mut self, port: PortId) -> Vec<(SessionId, Departing)> {
        let line = self.lines.get_mut(usize::from(port.0)).and_then(Option::take);
        line.map_or_else(Vec::new, |line| self.dissolve(line.schedule, line.stuck))
    }

    /// A session is there, or has another reservation. Gives the packets that waited for ports of
    /// which nobody has a share any more.
    pub(crate) fn set(&mut self, facts: &SessionFacts) -> Vec<(PortId, SessionId, Departing)> {
        self.sessions.insert(facts.id, facts.reservation.clone());
        for line in self.lines.iter_mut().flatten() {
            let terms = line.terms(&facts.reservation);
            if let Some(schedule) = &mut line.schedule {
                schedule.set(self.now, facts.id, terms);
            }
        }
        self.arrange_all()
    }

    /// A session is no more. Gives what waited of it, and for ports without shares.
    pub(crate) fn forget(&mut self, id: SessionId) -> Vec<(PortId, SessionId, Departing)> {
        self.sessions.remove(&id);
        let mut left = Vec::new();
        for (number, line) in (0..).zip(&mut self.lines) {
            let Some(line) = line else { continue };
            let Some(schedule) = &mut line.schedule else { continue };
            let accounts = &mut self.accounts;
            let packets = schedule.remove(self.now, id).into_iter();
            let packets = packets.map(|waiting| waiting.into_departing(accounts));
            left.extend(packets.map(|departing| (PortId(number), id, departing)));
        }
        left.iter().for_each(|_| self.count_out(id));
        left.extend(self.arrange_all());
        left
    }

    fn arrange_all(&mut self) -> Vec<(PortId, SessionId, Departing)> {
        let ports = 0..self.lines.len();
        let of = |(number, at)| {
            let port = PortId(number);
            self.arrange(at).into_iter().map(move |(session, departing)| (port, session, departing))
        };
        (0..).zip(ports).flat_map(of).collect()
    }

    /// Begins to share a port, or ends it: when somebody has a share of it, and when nobody has.
    fn arrange(&mut self, at: usize) -> Vec<(SessionId, Departing)> {
        let Some(line) = &mut self.lines[at] else { return Vec::new() };
        let has = |it: &Reservation| it.send.keys().any(|port| port.as_str() == line.name);
        match (self.sessions.values().any(has), &line.schedule) {
            (true, None) => {
                let mut schedule = Schedule::new(line.port);
                for (&id, reservation) in &self.sessions {
                    schedule.set(self.now, id, line.terms(reservation));
                }
                line.schedule = Some(schedule);
                Vec::new()
            }
            (false, Some(_)) => {
                let (schedule, stuck) = (line.schedule.take(), line.stuck.take());
                self.dissolve(schedule, stuck)
            }
            _ => Vec::new(),
        }
    }

    fn dissolve(
        &mut self,
        schedule: Option<Schedule<Waiting>>,
        stuck: Option<(SessionId, Waiting)>,
    ) -> Vec<(SessionId, Departing)> {
        let mut left: Vec<_> = stuck.into_iter().collect();
        if let Some(mut schedule) = schedule {
            let ids: Vec<SessionId> = self.sessions.keys().copied().collect();
            for id in ids {
                let packets = schedule.remove(self.now, id);
                left.extend(packets.into_iter().map(|waiting| (id, waiting)));
            }
        }
        left.iter().for_each(|(id, _)| self.count_out(*id));
        let accounts = &mut self.accounts;
        left.into_iter().map(|(id, waiting)| (id, waiting.into_departing(accounts))).collect()
    }

    /// Has a packet wait until its session may send it; `counted`: what [`Egress::come`] said. If it
    /// cannot, it is gone.
    pub(crate) fn enqueue(
        &mut self,
        port: u16,
        session: SessionId,
        departing: Departing,
        counted: Option<Counted>,
    ) -> Result<(), (Packet, Refused)> {
        let line = self.lines.get_mut(usize::from(port)).and_then(Option::as_mut);
        let Some(schedule) = line.and_then(|line| line.schedule.as_mut()) else {
            self.gone(counted);
            return Err((departing.packet, Refused::Full));
        };
        let bytes = Bytes(departing.packet.length() as u64);
        let counted = counted.or_else(|| self.accounts.wait(usize::from(port), session));
        if let Outcome::Dropped { handle, reason } =
            schedule.enqueue(self.now, session, bytes, Waiting { departing, counted })
        {
            return Err((
                handle.into_departing(&mut self.accounts).packet,
                match reason {
                    session::egress::DropReason::TooLong => Refused::TooLong,
                    _ => Refused::Full,
                },
            ));
        }
        let at = usize::from(session.0);
        if at >= self.waiting.len() {
            self.waiting.resize(at + 1, 0);
        }
        self.waiting[at] += 1;
        self.total += 1;
        // It may be the next.
        self.next = Some(self.now);
        Ok(())
    }

    fn count_out(&mut self, session: SessionId) {
        if let Some(count) = self.waiting.get_mut(usize::from(session.0)) {
            *count -= 1;
        }
        self.total -= 1;
    }

    /// Gives the rings what may leave by now.
    pub(crate) fn leave(
        &mut self,
        ports: &mut Ports,
        kernel: Option<&KernelPath>,
        pool: &mut FramePool,
        sessions: &mut Sessions,
    ) -> Left {
        let mut left = Left::default();
        self.next = None;
        for at in 0..self.lines.len() {
            let found = self.leave_by(at, (&mut *ports, kernel), pool, sessions, &mut left);
            let Some(until) = found else { continue };
            self.next = Some(self.next.map_or(until, |next| next.min(until)));
        }
        left
    }

    /// The same by one port; when the next may leave.
    fn leave_by(
        &mut self,
        at: usize,
        (ports, kernel): (&mut Ports, Option<&KernelPath>),
        pool: &mut FramePool,
        sessions: &mut Sessions,
        left: &mut Left,
    ) -> Option<Nanos> {
        self.look_below(at);
        loop {
            let line = self.lines[at].as_mut()?;
            let (session, Waiting { departing, counted }) = match line.stuck.take() {
                Some(stuck) => stuck,
                None => match line.schedule.as_mut()?.next(self.now) {
                    Next::Packet { handle, session, .. } => (session, handle),
                    Next::Wait(until) => return Some(until),
                    Next::InFlight | Next::Idle => return None,
                },
            };
            let packet = &departing.packet;
            let (length, memory) = (packet.length() as u64, Bytes(packet.memory_length() as u64));
            match departing.send(at as u16, ports, kernel, self.asker.as_mut(), pool) {
                Ok(()) => {
                    left.sent += 1;
                    sessions.sent(session, Bytes(length));
                    let is_of_kernel = counted.is_some_and(|it| it.is_of_kernel);
                    let price = (length, line.port.per_packet);
                    self.accounts.pay(at, session, price, is_of_kernel);
                }
                Err((Some(departing), _)) => {
                    line.stuck = Some((session, Waiting { departing, counted }));
                    return Some(self.now);
                }
                Err((None, _)) => left.lost += 1,
            }
            sessions.release(session, memory);
            self.gone(counted);
            self.count_out(session);
        }
    }

    /// What modules below sent by a port since the last look is on its wire, too.
    fn look_below(&mut self, at: usize) {
        let Some(line) = self.lines[at].as_mut() else { return };
        let since = self.now.saturating_sub(line.looked);
        let Some(schedule) = line.schedule.as_mut().filter(|_| since >= LOOK_MIN) else { return };
        line.looked = self.now;
        let (packets, bytes) = self.accounts.look_below(at);
        if packets > Packets::ZERO {
            schedule.account_bypass(packets, bytes, since.min(LOOK_MAX));
        }
    }
}

impl Waiting {
    /// It does not wait any more.
    fn into_departing(self, accounts: &mut Lines) -> Departing {
        self.counted.into_iter().for_each(|counted| accounts.leave(counted));
        self.departing
    }
}

#[cfg(test)]
mod tests;
