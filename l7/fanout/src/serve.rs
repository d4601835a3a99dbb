//! What is done when ends are ready.

use crate::fanout::{Fanout, Role};
use crate::limits::{ORIGIN_PORTION, SAID_LENGTH_MAX};
use crate::listener::StationId;
use crate::station::Heard;
use reflector::{Failure, ListenerId};
use std::io::IoSlice;
use tcp_intercept::{Closed, End, Io, Received, State};

/// Sends of one listener before others have their turn: a burst goes at once.
const ROUNDS_MAX: usize = 4;

impl Fanout {
    pub(crate) fn listener_ready(&mut self, io: &mut Io<'_>, end: End, id: ListenerId) {
        let Some(listener) = self.listeners.get_mut(&id) else { return };
        let station = listener.station;
        if io.state(end) != State::Open {
            self.lose(io, id);
            return self.settle(io, station);
        }
        // Nobody wants to hear it; who has said all that it wants may still listen.
        while let Received::Bytes(count) = io.receive(end, &mut self.buffer) {
            listener.said = listener.said.saturating_add(count);
            if listener.said > SAID_LENGTH_MAX {
                self.lose(io, id);
                return self.settle(io, station);
            }
        }
        self.serve(io, id);
    }

    /// Sends a listener what there is for it.
    pub(crate) fn serve(&mut self, io: &mut Io<'_>, id: ListenerId) {
        let Some(listener) = self.listeners.get_mut(&id) else { return };
        let station_id = listener.station;
        let Some(station) = self.stations.get_mut(&station_id) else { return };
        let now = io.now();
        let mut goes_on = true;
        for _ in 0..ROUNDS_MAX {
            let sent = listener.send(io, &station.channel, id);
            station.channel.handle_taken(now, id, sent.data);
            goes_on = sent.goes_on;
            if !goes_on {
                break;
            }
        }
        station.let_go();
        self.settle(io, station_id);
        if goes_on {
            self.enqueue(id);
        }
    }

    pub(crate) fn origin_ready(&mut self, io: &mut Io<'_>, end: End, id: StationId) {
        let now = io.now();
        let Some(station) = self.stations.get_mut(&id) else { return };
        let Some(origin) = station.origin.as_mut().filter(|origin| origin.end == end) else {
            return;
        };
        match io.state(end) {
            State::Connecting => return,
            State::Open | State::Broken => {
                origin.ask(io);
                origin.is_readable = true;
                if origin.is_due(now) {
                    self.hear(io, id);
                }
            }
            State::Unreachable => self.lose_origin(io, id, Failure::Connect),
            State::Failed | State::Gone => self.lose_origin(io, id, Failure::Reset),
        }
        self.settle(io, id);
    }

    fn lose_origin(&mut self, io: &mut Io<'_>, id: StationId, failure: Failure) {
        let Some(station) = self.stations.get_mut(&id) else { return };
        let Some(origin) = station.origin.take() else { return };
        self.stats.origin_failures += 1;
        station.channel.handle_upstream_failed(io.now(), origin.connection, failure);
        self.close(io, origin.end, Closed::Reset);
    }

    /// Reads what has come from an origin, a portion of it at most.
    pub(crate) fn hear(&mut self, io: &mut Io<'_>, id: StationId) {
        let now = io.now();
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut body = std::mem::take(&mut self.body);
        let mut length = 0;
        while let Some(station) = self.stations.get_mut(&id).filter(|_| length < ORIGIN_PORTION) {
            if !station.may_read(now) {
                break;
            }
            let limit = station.read_length().min(buffer.len());
            let Some(origin) = &mut station.origin else { break };
            match io.receive(origin.end, &mut buffer[..limit]) {
                Received::Bytes(count) => {
                    length += count;
                    if !self.take(io, id, &buffer[..count], &mut body) {
                        break;
                    }
                }
                Received::Ended => {
                    if self.stations.get_mut(&id).is_some_and(|station| station.is_whole()) {
                        self.end_origin(io, id);
                    } else {
                        self.lose_origin(io, id, Failure::Reset);
                    }
                    break;
                }
                Received::Nothing => {
                    origin.is_readable = false;
                    if length > 0 {
                        origin.gather(now, length);
                    }
                    break;
                }
            }
        }
        // What is left after a portion is due: its time has not changed.
        (self.buffer, self.body) = (buffer, body);
    }

    /// Gives a channel bytes of its origin; whether more of them can be taken.
    fn take(&mut self, io: &mut Io<'_>, id: StationId, bytes: &[u8], body: &mut Vec<u8>) -> bool {
        let now = io.now();
        let Some(station) = self.stations.get_mut(&id) else { return false };
        let mut heard = station.receive(now, bytes, body);
        while let Ok(Heard::Head { left }) = heard {
            // Who asks alone takes the connection, and all that was read of it.
            self.settle(io, id);
            let Some(station) = self.stations.get_mut(&id) else { return false };
            if station.origin.is_none() {
                return false;
            }
            station.forget_raw();
            let rest = bytes.get(bytes.len().saturating_sub(left)..).unwrap_or_default();
            heard = station.decode(now, rest, body);
        }
        match heard {
            Ok(Heard::Taken) => true,
            Ok(Heard::Head { .. }) => false,
            Ok(Heard::End) => {
                self.end_origin(io, id);
                false
            }
            Err(_) => {
                self.lose_origin(io, id, Failure::Reset);
                false
            }
        }
    }

    /// An origin's body is over.
    fn end_origin(&mut self, io: &mut Io<'_>, id: StationId) {
        let Some(station) = self.stations.get_mut(&id) else { return };
        let Some(origin) = station.origin.take() else { return };
        station.channel.handle_upstream_end(io.now(), origin.connection);
        self.close(io, origin.end, Closed::Ended);
    }

    /// Sends what is left of a response, and waits until its client has seen that it is over: if
    /// bytes came that nobody reads, closing would be a reset, and take away what was sent.
    pub(crate) fn see_off(&mut self, io: &mut Io<'_>, end: End) {
        if io.state(end) != State::Open {
            return self.close(io, end, Closed::Reset);
        }
        let Some(Role::Leaving { out, is_told }) = self.roles.get_mut(&end) else { return };
        if !out.is_empty() {
            let taken = io.send(end, &[IoSlice::new(out)]);
            out.drain(..taken);
            if !out.is_empty() {
                return;
            }
        }
        if !std::mem::replace(is_told, true) {
            io.finish(end);
        }
        let mut said = 0;
        while said <= SAID_LENGTH_MAX {
            match io.receive(end, &mut self.buffer) {
                Received::Bytes(count) => said += count,
                Received::Ended => return self.close(io, end, Closed::Ended),
                Received::Nothing => return,
            }
        }
    }
}
