//! Test harness: HTTP between a client and a server in memory, with a module that sees everything
//! and changes nothing, or has all responses coded. For tests and fuzz targets that check that no
//! bytes are lost.

use crate::connection::{Addresses, Failure, Fate, Protocol, Side};
use crate::foreign_calls::{Allowed, CodingOrder, ForeignCalls, Requested};
use crate::http::Http;
use crate::module::{Last, Module, Parts, Reply, Wants};
use crate::report::Counters;
use content_coding::{Coding, Pool};
use proxy_wasm::abi::Action;
use proxy_wasm::{Answer, Call, Now, Stream};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use units::Held;

/// Fake module that lets everything go on, or has it coded.
#[derive(Default)]
struct PassThrough {
    streams: BTreeMap<u32, Box<Stream>>,
    last: u32,
    counters: Counters,
    wants: Wants,
    foreign_calls: ForeignCalls,
    pool: Pool,
    /// Coding of all responses, if any.
    coding: Option<Coding>,
}

impl Module for PassThrough {
    fn wants(&self) -> Wants {
        self.wants
    }

    fn is_down(&self) -> bool {
        false
    }

    fn may_call(&mut self, _: u64) -> bool {
        true
    }

    fn call(&mut self, _: u64, _: u32, call: Call, _: Allowed) -> Reply {
        let answer = match call {
            Call::Create(stream) => {
                self.last += 1;
                self.streams.insert(self.last, stream);
                Answer::Created(self.last)
            }
            _ => Answer::Action(Action::Continue),
        };
        Reply::Answered(answer, Vec::new())
    }

    fn take_requested(&mut self) -> Requested {
        let order = self.coding.map(|coding| {
            let memory = Held::default();
            Some(CodingOrder { coding, level: None, memory })
        });
        Requested { order, ..Requested::default() }
    }

    fn foreign_calls(&self) -> &ForeignCalls {
        &self.foreign_calls
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn busy_permille(&self) -> Option<u16> {
        None
    }

    fn count_pictures(&mut self, _: u64) {}

    fn count_coded(&mut self, _: usize, _: usize) {}

    fn stream(&mut self, context: u32) -> Option<&mut Stream> {
        self.streams.get_mut(&context).map(AsMut::as_mut)
    }

    fn count(&mut self, count: fn(&mut Counters)) {
        count(&mut self.counters);
    }

    fn warn(&mut self, _: &str) {}

    fn now(&self) -> Now {
        Now::default()
    }

    fn later(&mut self, last: Last) {
        if let Last::End(context, _) = last {
            self.streams.remove(&context);
        }
    }
}

/// HTTP connection in memory with a fake module.
pub struct Harness {
    http: Http,
    module: PassThrough,
    to_client: Vec<u8>,
    to_server: Vec<u8>,
}

impl Harness {
    /// Creates a connection; `has_callbacks` is true if the module has all callbacks, otherwise it has
    /// none.
    #[must_use]
    pub fn new(has_callbacks: bool) -> Self {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let addresses = Addresses { client: any, server: any };
        let all = Parts { headers: has_callbacks, body: has_callbacks, trailers: has_callbacks };
        let wants = Wants {
            context: has_callbacks,
            request: all,
            response: all,
            end: has_callbacks,
            properties: has_callbacks,
            ..Wants::default()
        };
        Self {
            http: Http::new(1, addresses, Rc::new(Cell::new(Failure::Closed))),
            module: PassThrough { wants, ..PassThrough::default() },
            to_client: Vec::new(),
            to_server: Vec::new(),
        }
    }

    /// Creates a connection of a service that keeps server connections.
    #[must_use]
    pub fn keeping(has_callbacks: bool) -> Self {
        let mut harness = Self::new(has_callbacks);
        harness.http.keep_server();
        harness
    }

    /// Creates a connection with a module that has all responses coded, and does not edit their
    /// heads.
    #[must_use]
    pub fn coding(coding: Coding) -> Self {
        let mut harness = Self::new(true);
        harness.module.coding = Some(coding);
        harness
    }

    /// Returns true if another client may use the server connection now.
    #[must_use]
    pub fn is_server_reusable(&self) -> bool {
        self.http.is_server_reusable()
    }

    /// Handles a pause of the server.
    pub fn handle_pause(&mut self) {
        self.http.handle_pause(&mut self.module);
        self.send();
    }

    /// Handles bytes of a side, as far as they are wanted; returns true if all were.
    pub fn handle_bytes(&mut self, side: Side, bytes: &[u8]) -> bool {
        let is_wanted = self.http.wants(side);
        if is_wanted {
            self.http.handle_bytes(side, bytes, &mut self.module);
        }
        self.send();
        is_wanted
    }

    /// Handles the end of a side's bytes.
    pub fn handle_end(&mut self, side: Side) {
        self.http.handle_end(side, &mut self.module);
        self.send();
    }

    fn send(&mut self) {
        loop {
            let mut moved = false;
            for side in Side::BOTH {
                let out = self.http.out(side);
                let count = out.len();
                let to = match side {
                    Side::Downstream => &mut self.to_client,
                    Side::Upstream => &mut self.to_server,
                };
                to.extend_from_slice(out.bytes());
                if count > 0 {
                    moved = true;
                    self.http.handle_sent(side, count, &mut self.module);
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Returns all bytes sent to a side.
    #[must_use]
    pub fn sent(&self, side: Side) -> &[u8] {
        match side {
            Side::Downstream => &self.to_client,
            Side::Upstream => &self.to_server,
        }
    }

    /// Returns true if both connections end, or have become a tunnel.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.http.fate() != Fate::Open
    }

    /// Returns true if a message was truncated, so that both connections are reset.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        self.http.fate() == Fate::Reset
    }

    /// Returns the number of contexts that have not ended.
    #[must_use]
    pub fn contexts(&self) -> usize {
        self.module.streams.len()
    }
}
