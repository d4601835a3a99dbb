//! HTTP between a client and a server in memory, with a module that looks at everything and
//! changes nothing, or has all responses coded: for those who prove that nothing is lost on the way.

use crate::connection::{Addresses, Failure, Fate, Protocol, Side};
use crate::desk::{Allowed, Asked, Desk, Order};
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

/// A module that lets everything go on, or has it coded.
#[derive(Default)]
struct Willing {
    streams: BTreeMap<u32, Box<Stream>>,
    last: u32,
    counters: Counters,
    wants: Wants,
    desk: Desk,
    pool: Pool,
    /// It has all responses coded so.
    coding: Option<Coding>,
}

impl Module for Willing {
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

    fn take_asked(&mut self) -> Asked {
        let order = self.coding.map(|coding| {
            let memory = Held::default();
            Some(Order { coding, level: None, memory })
        });
        Asked { order, ..Asked::default() }
    }

    fn desk(&self) -> &Desk {
        &self.desk
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

/// See above.
pub struct Through {
    http: Http,
    module: Willing,
    to_client: Vec<u8>,
    to_server: Vec<u8>,
}

impl Through {
    /// A new connection; `looks`: the module has all callbacks, else none.
    #[must_use]
    pub fn new(looks: bool) -> Self {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let addresses = Addresses { client: any, server: any };
        let all = Parts { headers: looks, body: looks, trailers: looks };
        let wants = Wants {
            context: looks,
            request: all,
            response: all,
            end: looks,
            properties: looks,
            ..Wants::default()
        };
        Self {
            http: Http::new(1, addresses, Rc::new(Cell::new(Failure::Closed))),
            module: Willing { wants, ..Willing::default() },
            to_client: Vec::new(),
            to_server: Vec::new(),
        }
    }

    /// The same of a service that keeps connections to servers.
    #[must_use]
    pub fn keeping(looks: bool) -> Self {
        let mut through = Self::new(looks);
        through.http.keep_server();
        through
    }

    /// The same with a module that has all responses coded, and leaves their heads as they are.
    #[must_use]
    pub fn coding(coding: Coding) -> Self {
        let mut through = Self::new(true);
        through.module.coding = Some(coding);
        through
    }

    /// Whether another client may have the connection to the server now.
    #[must_use]
    pub fn leaves_server(&self) -> bool {
        self.http.leaves_server()
    }

    /// The server has paused.
    pub fn handle_pause(&mut self) {
        self.http.handle_pause(&mut self.module);
        self.send();
    }

    /// Bytes come of a side, as far as they are wanted; whether all were.
    pub fn handle_bytes(&mut self, side: Side, bytes: &[u8]) -> bool {
        let is_wanted = self.http.wants(side);
        if is_wanted {
            self.http.handle_bytes(side, bytes, &mut self.module);
        }
        self.send();
        is_wanted
    }

    /// Nothing more comes of a side.
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

    /// All that has gone to a side.
    #[must_use]
    pub fn sent(&self, side: Side) -> &[u8] {
        match side {
            Side::Downstream => &self.to_client,
            Side::Upstream => &self.to_server,
        }
    }

    /// Whether both connections end, or are another protocol's.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.http.fate() != Fate::Open
    }

    /// Whether a message was broken off, so that both connections are reset.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        self.http.fate() == Fate::Reset
    }

    /// Contexts that have not ended.
    #[must_use]
    pub fn contexts(&self) -> usize {
        self.module.streams.len()
    }
}
