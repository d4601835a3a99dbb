//! What a connection of HTTP does for its sockets.

use super::message::Own;
use super::way::Head;
use super::{Http, Link};
use crate::connection::{Fate, Given, Protocol, Side, end_unwanted};
use crate::desk::PictureOrder;
use crate::limits::{HEAD_TIME_MAX, KEPT_TIME_MAX, SILENT_TIME_MAX, UNTAKEN_TIME_MAX};
use crate::module::{Fault, Module, Reply};
use crate::outgoing::Outgoing;
use crate::transcoder::Transcoder;
use proxy_wasm::{Effect, Stream};
use std::collections::BTreeMap;
use units::Nanos;

impl Protocol for Http {
    fn handle_bytes(&mut self, side: Side, bytes: &[u8], module: &mut dyn Module) {
        if side == Side::Upstream {
            self.server.again = None;
        }
        match self.fate {
            Fate::Open => {
                let before = self.last_message;
                self.advance(Some((side, bytes)), module);
                if side == Side::Downstream {
                    let now = Nanos(module.now().monotonic_ns);
                    let is_partial = self.last_message == before && self.messages.is_empty();
                    self.head_since = is_partial.then(|| self.head_since.unwrap_or(now));
                }
            }
            Fate::Joined => match side {
                Side::Downstream => self.to_server.end().extend_from_slice(bytes),
                Side::Upstream => self.to_client.end().extend_from_slice(bytes),
            },
            Fate::Closing | Fate::Reset | Fate::Given => {}
        }
    }

    fn handle_end(&mut self, side: Side, module: &mut dyn Module) {
        match side {
            Side::Downstream => self.has_client_ended = true,
            Side::Upstream => self.has_server_ended = true,
        }
        if self.fate == Fate::Open {
            self.advance(None, module);
        }
    }

    fn idle_until(&self, moved: Nanos) -> Option<Nanos> {
        match self.fate {
            Fate::Closing => Some(moved + UNTAKEN_TIME_MAX),
            Fate::Open if !self.messages.is_empty() => Some(moved + SILENT_TIME_MAX),
            Fate::Open => Some(match self.head_since {
                Some(since) => since + HEAD_TIME_MAX,
                None => moved + KEPT_TIME_MAX,
            }),
            Fate::Joined | Fate::Given | Fate::Reset => None,
        }
    }

    fn handle_idle(&mut self, module: &mut dyn Module) {
        module.count(|it| it.idle += 1);
        match self.fate {
            Fate::Open if self.messages.is_empty() && self.head_since.is_some() => {
                self.refuse_slow(module);
            }
            Fate::Open if self.messages.is_empty() => self.close(module),
            _ => {
                // Its client has had its time.
                self.to_client.clear();
                self.reset(module);
            }
        }
    }

    fn handle_unreachable(&mut self, module: &mut dyn Module) {
        module.count(|it| it.unreachable += 1);
        self.link = Link::None;
        self.to_server.clear();
        if self.fate != Fate::Open {
            return;
        }
        match self.messages.front() {
            Some(front) if front.response.head < Head::Gone => {
                let own = Own::text(502, "the server cannot be reached");
                self.answer(0, own, module);
            }
            _ => self.reset(module),
        }
    }

    fn handle_server_lost(&mut self, module: &mut dyn Module) {
        if self.fate == Fate::Joined {
            return self.reset(module);
        }
        if self.fate == Fate::Open {
            self.lose_server(true, module);
        }
    }

    fn handle_lost(&mut self, module: &mut dyn Module) {
        self.reset(module);
    }

    fn handle_go(&mut self, module: &mut dyn Module) {
        if self.fate == Fate::Open && self.calling.is_none() {
            self.advance(None, module);
        }
    }

    fn handle_reply(&mut self, reply: Reply, module: &mut dyn Module) {
        if let Some(calling) = self.calling.take() {
            self.settle(calling, reply, module);
            self.handle_go(module);
        } else {
            end_unwanted(&reply, module);
        }
    }

    fn handle_effect(&mut self, effect: Effect, module: &mut dyn Module) {
        if self.fate == Fate::Open {
            self.take_effect(effect, module);
            self.handle_go(module);
        }
    }

    fn handle_fall(
        &mut self,
        fault: Fault,
        streams: &mut BTreeMap<u32, Box<Stream>>,
        module: &mut dyn Module,
    ) {
        self.calling = None;
        let numbers: Vec<u64> = self.messages.iter().map(|it| it.number).collect();
        for number in numbers {
            let place = self.messages.iter().position(|it| it.number == number);
            let Some(index) = place.filter(|_| self.fate == Fate::Open) else { break };
            self.fall(index, fault, streams, module);
        }
        self.fell_in = None;
        self.handle_go(module);
    }

    fn awaits_more(&self, side: Side) -> bool {
        match (self.fate, side) {
            (Fate::Open, Side::Downstream) => {
                self.head_since.is_some()
                    || self.messages.back().is_some_and(|last| !last.request.has_ended)
            }
            (Fate::Open, Side::Upstream) => {
                self.messages.front().is_some_and(|front| !front.is_response_whole())
            }
            _ => false,
        }
    }

    fn wants(&self, side: Side) -> bool {
        let is_open = self.fate == Fate::Open && self.calling.is_none();
        match (self.fate, side) {
            (Fate::Joined, Side::Downstream) => !self.has_client_ended && !self.to_server.is_full(),
            (Fate::Joined, Side::Upstream) => !self.has_server_ended && !self.to_client.is_full(),
            (_, Side::Downstream) => {
                let last = self.messages.back().filter(|it| !it.request.has_ended);
                let may = match last {
                    Some(last) => !last.request.is_stopped(),
                    None => self.exchange.may_begin_request(),
                };
                let is_empty = self.from_client.is_empty() && !self.has_client_ended;
                is_open && may && is_empty && !self.is_refused && !self.to_server.is_full()
            }
            (_, Side::Upstream) => {
                let is_stopped = self.messages.front().is_some_and(|it| it.response.is_stopped());
                let is_empty = self.from_server.is_empty() && !self.has_server_ended;
                let is_stopped =
                    is_stopped || self.messages.front().is_some_and(|it| !it.wants_body());
                is_open && !is_stopped && is_empty && !self.to_client.is_full()
            }
        }
    }

    fn out(&mut self, side: Side) -> &mut Outgoing {
        match side {
            Side::Downstream => &mut self.to_client,
            Side::Upstream => &mut self.to_server,
        }
    }

    fn handle_sent(&mut self, side: Side, count: usize, module: &mut dyn Module) {
        let was_full = match side {
            Side::Downstream => self.to_client.is_full(),
            Side::Upstream => self.to_server.is_full(),
        };
        self.out(side).take(count);
        if side == Side::Downstream {
            self.meter.handle_sent(count);
        }
        self.has_sent |= side == Side::Upstream && count > 0;
        let is_next = side == Side::Downstream && self.awaits_client();
        if was_full || is_next {
            self.handle_go(module);
        }
    }

    fn wants_server(&self) -> bool {
        match self.fate {
            Fate::Open => self.link != Link::None || !self.to_server.is_empty(),
            Fate::Joined => true,
            Fate::Closing | Fate::Reset | Fate::Given => false,
        }
    }

    fn finishes(&self, side: Side) -> bool {
        match (self.fate, side) {
            (Fate::Joined, Side::Downstream) => self.has_server_ended,
            (Fate::Joined, Side::Upstream) => self.has_client_ended,
            _ => false,
        }
    }

    fn handle_full(&mut self, side: Side, module: &mut dyn Module) {
        if side == Side::Downstream {
            self.meter.handle_full(Nanos(module.now().monotonic_ns));
        }
    }

    fn has_unflushed(&self) -> bool {
        Self::has_unflushed(self)
    }

    fn handle_pause(&mut self, module: &mut dyn Module) {
        self.flush_coded(module);
    }

    fn handle_pictures(&mut self, context: u32, order: PictureOrder, module: &mut dyn Module) {
        if self.fate == Fate::Open {
            self.order_pictures(context, order, module);
            self.handle_go(module);
        }
    }

    fn transcoder(&mut self) -> Option<(u64, &mut Transcoder)> {
        let front = self.messages.front_mut()?;
        Some((front.number, front.transcoder.as_deref_mut()?))
    }

    fn take_given(&mut self) -> Option<Box<Given>> {
        self.given.take()
    }

    fn may_share_server(&self) -> bool {
        self.server.again.is_some() && !self.has_sent
    }

    fn handle_server(&mut self, is_shared: bool, module: &mut dyn Module) {
        if is_shared {
            module.count(|it| it.servers_shared += 1);
        } else {
            self.server.again = None;
        }
    }

    fn leaves_server(&self) -> bool {
        let is_whole = self.to_server.is_empty() && !self.has_server_ended && !self.aborts_server;
        self.fate == Fate::Closing && self.server.is_left && is_whole
    }

    fn drops_server(&mut self) -> bool {
        std::mem::take(&mut self.drops_server)
    }

    fn aborts_server(&self) -> bool {
        self.aborts_server
    }

    fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    fn fate(&self) -> Fate {
        self.fate
    }
}
