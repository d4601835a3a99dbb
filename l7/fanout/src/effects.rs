//! What channels want done.

use crate::fanout::{Fanout, Role};
use crate::head;
use crate::limits::UNSENT_MAX;
use crate::listener::{Listener, StationId};
use crate::relay::Relay;
use crate::station::Origin;
use http1::{Framing, RequestHead, ResponseHead};
use reflector::{Connection, Effect, Ending, ListenerId};
use tcp_intercept::{Closed, Io, Talk};

impl Fanout {
    /// Does what a channel wants done, notes when it wants to be asked again, and forgets it when
    /// nobody is left.
    pub(crate) fn settle(&mut self, io: &mut Io<'_>, id: StationId) {
        loop {
            let Some(station) = self.stations.get_mut(&id) else { return };
            let Some(effect) = station.channel.poll_effect() else { break };
            self.act(io, id, effect);
        }
        let Some(station) = self.stations.get_mut(&id) else { return };
        let payload_max = station.channel.payload_max();
        self.payload = self.payload.saturating_sub(station.share.bytes());
        station.share.shrink(payload_max);
        self.payload += station.share.bytes();
        let is_over = station.channel.is_over();
        let timer = if is_over { None } else { station.poll_timeout() };
        if timer != station.timer {
            if let Some(before) = station.timer {
                self.timers.remove(&(before, id));
            }
            station.timer = timer;
            self.timers.extend(timer.map(|at| (at, id)));
        }
        if is_over && let Some(station) = self.stations.remove(&id) {
            self.stats.add(station.channel.counters());
            if self.names.get(&station.name) == Some(&id) {
                self.names.remove(&station.name);
            }
            if let Some(origin) = station.origin {
                self.close(io, origin.end, Closed::Ended);
            }
        }
    }

    fn act(&mut self, io: &mut Io<'_>, id: StationId, effect: Effect) {
        match effect {
            Effect::Open { connection, request } => self.open(io, id, connection, &request),
            Effect::Close { connection } => self.close_origin(io, id, connection),
            Effect::Head { to, head, body } => self.answer(io, to, &head, body),
            Effect::Ready { to } => self.enqueue(to),
            Effect::End { to, ending } => self.end(io, to, ending),
            Effect::Pass { to, connection, .. } => self.pass(io, id, to, connection),
            Effect::Alone { to, .. } => self.alone(io, to),
        }
    }

    fn open(
        &mut self,
        io: &mut Io<'_>,
        id: StationId,
        connection: Connection,
        request: &RequestHead,
    ) {
        let Some(station) = self.stations.get(&id) else { return };
        let (from, to) = (self.from(station.client), station.name.server);
        let end = io.connect(from, to, Talk::Free);
        self.stats.origins_opened += 1;
        self.roles.insert(end, Role::Origin(id));
        let Some(station) = self.stations.get_mut(&id) else { return };
        let origin = Origin::new(end, connection, head::request(request));
        if let Some(before) = station.origin.replace(origin) {
            self.close(io, before.end, Closed::Ended);
        }
    }

    fn close_origin(&mut self, io: &mut Io<'_>, id: StationId, connection: Connection) {
        let Some(station) = self.stations.get_mut(&id) else { return };
        if let Some(origin) = station.origin.take_if(|it| it.connection == connection) {
            self.close(io, origin.end, Closed::Ended);
        }
    }

    /// A listener's response begins.
    fn answer(&mut self, io: &mut Io<'_>, to: ListenerId, head: &ResponseHead, body: Framing) {
        let Some(listener) = self.listeners.get_mut(&to) else { return };
        if let Some(waiting) = listener.waiting.take() {
            self.waiting = self.waiting.saturating_sub(waiting.memory());
        }
        io.limit_unsent(listener.end, UNSENT_MAX);
        match head::response(head, body, listener.version) {
            Ok((out, is_chunked)) => {
                (listener.out, listener.is_chunked) = (out, is_chunked);
                self.enqueue(to);
            }
            // A head with as many fields as there may be has no room for one more.
            Err(_) => self.lose(io, to),
        }
    }

    /// There is something to send to a listener.
    pub(crate) fn enqueue(&mut self, id: ListenerId) {
        if let Some(listener) = self.listeners.get_mut(&id)
            && !std::mem::replace(&mut listener.is_queued, true)
        {
            self.queue.push_back(id);
        }
    }

    /// A listener's response ends. The channel has forgotten it.
    fn end(&mut self, io: &mut Io<'_>, to: ListenerId, ending: Ending) {
        let Some(listener) = self.remove(to) else { return };
        let end = listener.end;
        match listener.end_of_body().filter(|_| ending.is_clean()) {
            Some(out) => self.leave(io, end, out),
            None => self.close(io, end, Closed::Reset),
        }
    }

    /// Whose end is gone.
    pub(crate) fn lose(&mut self, io: &mut Io<'_>, id: ListenerId) {
        let Some(listener) = self.remove(id) else { return };
        self.close(io, listener.end, Closed::Reset);
        if let Some(station) = self.stations.get_mut(&listener.station) {
            station.channel.handle_leave(id);
        }
    }

    fn remove(&mut self, id: ListenerId) -> Option<Listener> {
        let listener = self.listeners.remove(&id)?;
        self.roles.remove(&listener.end);
        if let Some(station) = self.stations.get_mut(&listener.station) {
            station.listeners = station.listeners.saturating_sub(1);
        }
        let waiting = listener.waiting.as_ref().map_or(0, |waiting| waiting.memory());
        self.waiting = self.waiting.saturating_sub(waiting);
        Some(listener)
    }

    /// An answer that is not shared belongs to the listener that it was asked for.
    fn pass(&mut self, io: &mut Io<'_>, id: StationId, to: ListenerId, connection: Connection) {
        let Some(station) = self.stations.get_mut(&id) else { return };
        let origin = station.origin.take_if(|it| it.connection == connection);
        let Some(origin) = origin else { return self.alone(io, to) };
        let version = self.listeners.get(&to).map(|listener| listener.version);
        let Some(version) = version.filter(|&version| origin.fits(version)) else {
            self.close(io, origin.end, Closed::Ended);
            return self.alone(io, to);
        };
        let Some(listener) = self.remove(to) else { return };
        self.stats.alone += 1;
        let (upstream, down) = origin.give_away();
        self.relay(io, Relay { downstream: listener.end, upstream, version, up: Vec::new(), down });
    }

    /// The others ask for themselves.
    fn alone(&mut self, io: &mut Io<'_>, to: ListenerId) {
        let Some(listener) = self.remove(to) else { return };
        match listener.waiting {
            Some(waiting) => self.go_alone(io, listener.end, *waiting),
            None => self.close(io, listener.end, Closed::Reset),
        }
    }
}
