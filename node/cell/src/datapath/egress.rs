//! Egress scheduling: packets that wait for ports with shares of their rates reserved by sessions.
//!
//! ```text
//!   EgressPath::send ─▶ has the port shares? ─ no ─▶ its transmit ring
//!                        │ yes
//!                        ▼
//!       credit in the session's queue? ─ no ─▶ dropped: `egress_full`
//!                        │
//!                        ▼                  transmit: who is next, by core/session
//!                 core/session::egress ───────────────────────────────▶ transmit ring
//! ```
//!
//! Packets waiting here use the same credit of the session as packets waiting for its turn: one
//! that cannot leave takes the place of one that arrives. Packets that modules at kernel level sent
//! arrive here with credit already taken, when their session's share is used up or others of the
//! session wait ([`Egress::on_arrival`]): they only leave. Packets that the kernel is to route for
//! a service wait here, too, for the port by which the kernel will send them
//! ([`Egress::shared_egress`]). Packets sent directly from lower levels bypass this schedule; they
//! are counted afterwards, so that the port's rate is not given away twice.

use crate::datapath::asker::Asker;
use crate::datapath::kernel::KernelPath;
use crate::datapath::port::{Ports, SendFailure};
use crate::datapath::port_shares::{Counted, PortShareAccounts};
use crate::protocol::{CellPort, HEADER_LENGTH_MAX, SessionSpec};
use crate::sched::sessions::Sessions;
use abi::PacketBytes;
use session::Reservation;
use session::egress::{Next, Outcome, Port, Schedule, SenderConfig};
use session::memory::queue_default;
use std::collections::BTreeMap;
use units::{BitsPerSecond, Bytes, Nanos, Packets, PortId, SessionId};
use xsk::{FramePool, Packet};

/// Overhead of a frame on an Ethernet in bytes: preamble, frame check sequence and gap.
const ETHERNET_REST: Bytes = Bytes(24);
/// Time by which packets may be ahead of the wire: two turns, since nothing leaves during one.
const AHEAD_MAX: Nanos = Nanos(200_000);
/// Longest interruption of the cell that is caught up with afterwards: a tick of the kernel's
/// scheduler.
const BEHIND_MAX: Nanos = Nanos::from_millis(4);

/// Period at which packets sent directly from lower levels are counted.
const BYPASS_PERIOD: Nanos = Nanos::from_millis(1);
/// Longest time by which such packets delay others on the wire.
const BYPASS_DELAY_MAX: Nanos = Nanos::from_millis(4);

/// Destination of a packet that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Egress port, with the packet unchanged.
    Port,
    /// Kernel, which routes the packet.
    Kernel,
    /// Kernel, by the device of the port by which the packet arrived, unchanged.
    Arrival { port: u16, is_ip: bool },
    /// Kernel, by the packet port by which the packet arrived, unchanged.
    Back { arrival: u16, is_ip: bool },
}

/// Packet with its destination.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) packet: Packet,
    pub(crate) by: Destination,
}

impl Outgoing {
    /// Gives the packet to the kernel and recycles it. Returns false if the kernel did not take it.
    pub(crate) fn hand_over(
        self,
        ports: &Ports,
        kernel: Option<&KernelPath>,
        asker: Option<&mut Asker>,
        pool: &mut FramePool,
    ) -> bool {
        let Self { mut packet, by } = self;
        let back = match by {
            Destination::Back { arrival, is_ip } => ports.give_back(arrival, &mut packet, is_ip),
            // A packet that its port's device refuses is dropped: the node's own device has filters
            // that are not meant for its arrival.
            Destination::Arrival { port, is_ip } => {
                let is_ready = !is_ip || ports.address(port, &mut packet);
                Some(is_ready && asker.is_some_and(|asker| asker.arrive(&packet, PortId(port))))
            }
            Destination::Port | Destination::Kernel => None,
        };
        let is_taken = back.or_else(|| kernel.and_then(|kernel| kernel.take_packet(&packet)));
        packet.recycle(pool);
        is_taken.unwrap_or(false)
    }

    /// Sends the packet to its port's ring, or to the kernel.
    ///
    /// # Errors
    /// The port's ring is full, with the packet; or the packet was dropped for this reason,
    /// without.
    pub(crate) fn send(
        self,
        port: u16,
        ports: &mut Ports,
        kernel: Option<&KernelPath>,
        asker: Option<&mut Asker>,
        pool: &mut FramePool,
    ) -> Result<(), (Option<Self>, SendFailure)> {
        if self.by != Destination::Port {
            let gone = (None, SendFailure::NoPort);
            return if self.hand_over(ports, kernel, asker, pool) { Ok(()) } else { Err(gone) };
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

/// Packet that waits for its session's share.
struct Waiting {
    outgoing: Outgoing,
    /// Account record through which the front door learns when it has left.
    counted: Option<Counted>,
}

/// Port whose rate is known, and that can therefore have shares.
struct SharedPort {
    name: String,
    port: Port,
    /// Schedule of the port; `None` while no session has a share of it.
    schedule: Option<Schedule<Waiting>>,
    /// Packet for which the transmit ring had no space, to be sent first.
    stuck: Option<(SessionId, Waiting)>,
    /// Time at which bypassing packets were counted.
    counted_at: Nanos,
}

/// Egress schedules of all ports, and the accounts of port shares.
#[derive(Default)]
pub(crate) struct Egress {
    shared_ports: Vec<Option<SharedPort>>,
    sessions: BTreeMap<SessionId, Reservation>,
    /// Accounts of port shares, common with modules at lower levels: a session has one share of a
    /// port. They never delay packets here.
    accounts: PortShareAccounts,
    /// Means to ask the kernel by which port it would send a packet.
    asker: Option<Asker>,
    /// Number of waiting packets of each session, by its number; and of all.
    waiting: Vec<u32>,
    total: usize,
    /// Earliest time at which one of them may leave.
    next: Option<Nanos>,
    now: Nanos,
}

/// Cause for which a packet is refused instead of queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    TooLong,
}

/// Result of a transmission round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transmitted {
    pub(crate) sent: usize,
    /// Packets dropped because their port or destination no longer exists.
    pub(crate) lost: u64,
}

impl SharedPort {
    fn new(facts: &CellPort, rate: BitsPerSecond) -> Self {
        Self {
            name: facts.name.clone(),
            port: port_of(facts, rate),
            schedule: None,
            stuck: None,
            counted_at: Nanos::ZERO,
        }
    }

    fn sender_config(&self, reservation: &Reservation) -> SenderConfig {
        let share = reservation.send.iter().find(|(port, _)| port.as_str() == self.name);
        SenderConfig {
            share: share.map(|(_, share)| *share),
            extra: false,
            weight: reservation.weight,
            queue: reservation.queue.unwrap_or_else(|| queue_default(reservation.memory)),
        }
    }
}

fn port_of(facts: &CellPort, rate: BitsPerSecond) -> Port {
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
    /// Creates schedules for the sessions that every node has.
    pub(crate) fn new() -> Self {
        let built_in = [SessionId::SYSTEM, SessionId::BEST_EFFORT];
        let sessions = built_in.map(|id| (id, Reservation::default())).into();
        Self { sessions, ..Self::default() }
    }

    /// Sets the accounts of port shares, from which packets are paid.
    pub(crate) fn pay_from(&mut self, accounts: bpf::PortShares) {
        self.accounts.pay_from(accounts);
    }

    /// Sets the means to ask the kernel by which port it would send a packet.
    pub(crate) fn ask(&mut self, asker: Asker) {
        self.asker = Some(asker);
    }

    /// Returns the port by which the kernel would send a session's packet, if somebody has a share
    /// of that port; the node's own services pay nothing.
    pub(crate) fn shared_egress(&mut self, session: SessionId, outgoing: &Outgoing) -> Option<u16> {
        if session == SessionId::SYSTEM || !self.is_used() {
            return None;
        }
        let arrival = match outgoing.by {
            Destination::Arrival { port, .. } => Some(PortId(port)),
            _ => None,
        };
        let port = self.asker.as_mut()?.egress_of(&outgoing.packet, arrival)?.0;
        self.shares(port).then_some(port)
    }

    /// Returns the device for requests to the kernel, if the node has one.
    pub(crate) fn asker(&mut self) -> Option<&mut Asker> {
        self.asker.as_mut()
    }

    /// Sets the account that a session pays from at a port; `None`: that of all sessions without a
    /// share.
    pub(crate) fn set_payer(&mut self, port: PortId, session: SessionId, account: Option<u32>) {
        self.accounts.set_payer(port, session, account);
    }

    /// Counts the arrival of a packet that has only to leave, and that the front door counted in
    /// this account and epoch.
    pub(crate) fn on_arrival(&mut self, account: u32, epoch: usize) -> Option<Counted> {
        self.accounts.on_arrival(account, epoch)
    }

    /// Counts a packet as gone from its account.
    pub(crate) fn release(&mut self, counted: Option<Counted>) {
        counted.into_iter().for_each(|counted| self.accounts.release(counted));
    }

    /// Settles an epoch that is closed: packets of it that have not arrived are lost.
    pub(crate) fn settle(&mut self, epoch: usize) {
        self.accounts.settle(epoch);
    }

    /// Publishes the accounts once the devices have sent everything: packets from lower levels need
    /// not queue behind it.
    #[inline]
    pub(crate) fn publish_sent(&mut self) {
        self.accounts.publish_all();
    }

    /// Sets the time, once for all packets of a round.
    #[inline]
    pub(crate) fn set_time(&mut self, now: Nanos) {
        self.now = now;
    }

    /// Returns true if any port has a schedule, so that the time matters.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.shared_ports.iter().flatten().any(|shared| shared.schedule.is_some())
    }

    /// Returns true if packets of this port have to wait for their session's share of its rate.
    #[inline]
    pub(crate) fn shares(&self, port: u16) -> bool {
        let shared = self.shared_ports.get(usize::from(port)).and_then(Option::as_ref);
        shared.is_some_and(|shared| shared.schedule.is_some())
    }

    /// Returns true if packets of the session wait.
    pub(crate) fn waits(&self, session: SessionId) -> bool {
        self.waiting.get(usize::from(session.0)).is_some_and(|&count| count > 0)
    }

    /// Returns true if any packet waits.
    #[inline]
    pub(crate) const fn is_waiting(&self) -> bool {
        self.total > 0
    }

    /// Returns the earliest time at which the next packet may leave, as of the last round.
    pub(crate) const fn poll_timeout(&self) -> Option<Nanos> {
        self.next
    }

    /// Adds or changes a port. Returns the packets that waited for it if no session has a share of
    /// it any more.
    pub(crate) fn set_port(&mut self, facts: &CellPort) -> Vec<(SessionId, Outgoing)> {
        let at = usize::from(facts.port.0);
        let Some(rate) = facts.rate else { return self.remove_port(facts.port) };
        if at >= self.shared_ports.len() {
            self.shared_ports.resize_with(at + 1, || None);
        }
        match &mut self.shared_ports[at] {
            Some(shared) => {
                shared.port = port_of(facts, rate);
                if let Some(schedule) = &mut shared.schedule {
                    schedule.set_port(shared.port);
                }
            }
            none => *none = Some(SharedPort::new(facts, rate)),
        }
        self.update_schedule(at)
    }

    /// Removes a port, or one whose rate is no longer known. Returns the packets that waited for
    /// it.
    pub(crate) fn remove_port(&mut self, port: PortId) -> Vec<(SessionId, Outgoing)> {
        let shared = self.shared_ports.get_mut(usize::from(port.0)).and_then(Option::take);
        shared.map_or_else(Vec::new, |shared| self.dissolve(shared.schedule, shared.stuck))
    }

    /// Adds a session, or changes its reservation. Returns the packets that waited for ports of
    /// which no session has a share any more.
    pub(crate) fn set(&mut self, facts: &SessionSpec) -> Vec<(PortId, SessionId, Outgoing)> {
        self.sessions.insert(facts.id, facts.reservation.clone());
        for shared in self.shared_ports.iter_mut().flatten() {
            let config = shared.sender_config(&facts.reservation);
            if let Some(schedule) = &mut shared.schedule {
                schedule.set(self.now, facts.id, config);
            }
        }
        self.update_schedules()
    }

    /// Removes a session. Returns its waiting packets, and those for ports without shares now.
    pub(crate) fn forget(&mut self, id: SessionId) -> Vec<(PortId, SessionId, Outgoing)> {
        self.sessions.remove(&id);
        let mut left = Vec::new();
        for (number, shared) in (0..).zip(&mut self.shared_ports) {
            let Some(shared) = shared else { continue };
            let Some(schedule) = &mut shared.schedule else { continue };
            let accounts = &mut self.accounts;
            let packets = schedule.remove(self.now, id).into_iter();
            let packets = packets.map(|waiting| waiting.into_outgoing(accounts));
            left.extend(packets.map(|outgoing| (PortId(number), id, outgoing)));
        }
        left.iter().for_each(|_| self.count_out(id));
        left.extend(self.update_schedules());
        left
    }

    fn update_schedules(&mut self) -> Vec<(PortId, SessionId, Outgoing)> {
        let ports = 0..self.shared_ports.len();
        let of = |(number, at)| {
            let port = PortId(number);
            self.update_schedule(at)
                .into_iter()
                .map(move |(session, outgoing)| (port, session, outgoing))
        };
        (0..).zip(ports).flat_map(of).collect()
    }

    /// Creates the schedule of a port when a session has a share of it, or removes it when none
    /// has.
    fn update_schedule(&mut self, at: usize) -> Vec<(SessionId, Outgoing)> {
        let Some(shared) = &mut self.shared_ports[at] else { return Vec::new() };
        let has = |it: &Reservation| it.send.keys().any(|port| port.as_str() == shared.name);
        match (self.sessions.values().any(has), &shared.schedule) {
            (true, None) => {
                let mut schedule = Schedule::new(shared.port);
                for (&id, reservation) in &self.sessions {
                    schedule.set(self.now, id, shared.sender_config(reservation));
                }
                shared.schedule = Some(schedule);
                Vec::new()
            }
            (false, Some(_)) => {
                let (schedule, stuck) = (shared.schedule.take(), shared.stuck.take());
                self.dissolve(schedule, stuck)
            }
            _ => Vec::new(),
        }
    }

    fn dissolve(
        &mut self,
        schedule: Option<Schedule<Waiting>>,
        stuck: Option<(SessionId, Waiting)>,
    ) -> Vec<(SessionId, Outgoing)> {
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
        left.into_iter().map(|(id, waiting)| (id, waiting.into_outgoing(accounts))).collect()
    }

    /// Queues a packet until its session may send it; `counted` is the result of
    /// [`Egress::on_arrival`]. Returns the packet if it cannot be queued.
    pub(crate) fn enqueue(
        &mut self,
        port: u16,
        session: SessionId,
        outgoing: Outgoing,
        counted: Option<Counted>,
    ) -> Result<(), (Packet, Refused)> {
        let shared = self.shared_ports.get_mut(usize::from(port)).and_then(Option::as_mut);
        let Some(schedule) = shared.and_then(|shared| shared.schedule.as_mut()) else {
            self.release(counted);
            return Err((outgoing.packet, Refused::Full));
        };
        let bytes = Bytes(outgoing.packet.length() as u64);
        let counted = counted.or_else(|| self.accounts.wait(usize::from(port), session));
        if let Outcome::Dropped { handle, reason } =
            schedule.enqueue(self.now, session, bytes, Waiting { outgoing, counted })
        {
            return Err((
                handle.into_outgoing(&mut self.accounts).packet,
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
        // The new packet may be the next to leave.
        self.next = Some(self.now);
        Ok(())
    }

    fn count_out(&mut self, session: SessionId) {
        if let Some(count) = self.waiting.get_mut(usize::from(session.0)) {
            *count -= 1;
        }
        self.total -= 1;
    }

    /// Moves packets that may leave by now into the transmit rings.
    pub(crate) fn transmit(
        &mut self,
        ports: &mut Ports,
        kernel: Option<&KernelPath>,
        pool: &mut FramePool,
        sessions: &mut Sessions,
    ) -> Transmitted {
        let mut left = Transmitted::default();
        self.next = None;
        for at in 0..self.shared_ports.len() {
            let found = self.transmit_by(at, (&mut *ports, kernel), pool, sessions, &mut left);
            let Some(until) = found else { continue };
            self.next = Some(self.next.map_or(until, |next| next.min(until)));
        }
        left
    }

    /// Moves packets of one port; returns the earliest time at which its next may leave.
    fn transmit_by(
        &mut self,
        at: usize,
        (ports, kernel): (&mut Ports, Option<&KernelPath>),
        pool: &mut FramePool,
        sessions: &mut Sessions,
        left: &mut Transmitted,
    ) -> Option<Nanos> {
        self.count_bypass(at);
        loop {
            let shared = self.shared_ports[at].as_mut()?;
            let (session, Waiting { outgoing, counted }) = match shared.stuck.take() {
                Some(stuck) => stuck,
                None => match shared.schedule.as_mut()?.next(self.now) {
                    Next::Packet { handle, session, .. } => (session, handle),
                    Next::Wait(until) => return Some(until),
                    Next::InFlight | Next::Idle => return None,
                },
            };
            let packet = &outgoing.packet;
            let (length, memory) = (packet.length() as u64, Bytes(packet.memory_length() as u64));
            match outgoing.send(at as u16, ports, kernel, self.asker.as_mut(), pool) {
                Ok(()) => {
                    left.sent += 1;
                    sessions.sent(session, Bytes(length));
                    let is_of_kernel = counted.is_some_and(|it| it.is_of_kernel);
                    let price = (length, shared.port.per_packet);
                    self.accounts.pay(at, session, price, is_of_kernel);
                }
                Err((Some(outgoing), _)) => {
                    shared.stuck = Some((session, Waiting { outgoing, counted }));
                    return Some(self.now);
                }
                Err((None, _)) => left.lost += 1,
            }
            sessions.release(session, memory);
            self.release(counted);
            self.count_out(session);
        }
    }

    /// Accounts for packets that lower levels sent by a port since the last time: they use its
    /// wire, too.
    fn count_bypass(&mut self, at: usize) {
        let Some(shared) = self.shared_ports[at].as_mut() else { return };
        let since = self.now.saturating_sub(shared.counted_at);
        let Some(schedule) = shared.schedule.as_mut().filter(|_| since >= BYPASS_PERIOD) else {
            return;
        };
        shared.counted_at = self.now;
        let (packets, bytes) = self.accounts.take_bypassed(at);
        if packets > Packets::ZERO {
            schedule.account_bypass(packets, bytes, since.min(BYPASS_DELAY_MAX));
        }
    }
}

impl Waiting {
    /// Ends the wait: counts the packet as gone from its account.
    fn into_outgoing(self, accounts: &mut PortShareAccounts) -> Outgoing {
        self.counted.into_iter().for_each(|counted| accounts.release(counted));
        self.outgoing
    }
}

#[cfg(test)]
mod tests;
