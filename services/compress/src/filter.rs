//! Module: callbacks of the node, and requests to it.

use crate::coding::Coding;
use crate::config::Config;
use crate::decide::{Decision, Request, Response, UNTRUE_WHEN_CODED, decide};
use crate::tags::with_strong_forms;
use log::{error, warn};
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use std::rc::Rc;
use stream::service::{self, Counter, Once, Service};

proxy_wasm::main! {{
    service::begin::<Shared>();
}}

/// Function of the node that codes the body of this stream's response.
const CODE_RESPONSE: &str = "tamandua_code_response";
const IF_NONE_MATCH: &str = "if-none-match";

/// State that all streams share.
#[derive(Default)]
struct Shared {
    config: Config,
    counters: Option<Counters>,
    has_warned: Once,
}

struct Counters {
    coded: [Option<Counter>; Coding::COUNT],
    /// Bodies that the node refused to code.
    refused: Counter,
}

impl Counters {
    fn define() -> Option<Self> {
        let mut coded = [None; Coding::COUNT];
        for coding in Coding::PREFERRED {
            coded[coding.index()] = Some(Counter::define(&format!("coded.{}", coding.token()))?);
        }
        Some(Self { coded, refused: Counter::define("refused")? })
    }
}

impl Service for Shared {
    fn configure(text: &[u8]) -> Option<Rc<Self>> {
        let config = Config::parse(text).map_err(|reason| error!("{reason}")).ok()?;
        Some(Rc::new(Self { config, counters: Counters::define(), ..Self::default() }))
    }

    fn stream(shared: &Rc<Self>, _: u32) -> Box<dyn HttpContext> {
        let request = Request::default();
        Box::new(Stream { shared: Rc::clone(shared), request, is_coded: false })
    }
}

struct Stream {
    shared: Rc<Shared>,
    request: Request,
    is_coded: bool,
}

impl Context for Stream {}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _: usize, _: bool) -> Action {
        self.request = Request::read(&self.get_http_request_headers_bytes());
        // Accept-Encoding is forwarded unchanged: a server that codes by itself saves the work
        // here.
        if let Some(list) = with_strong_forms(self.request.if_none_match()) {
            self.set_http_request_header_bytes(IF_NONE_MATCH, Some(&list));
        }
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _: usize, is_last: bool) -> Action {
        let response = Response::read(&self.get_http_response_headers_bytes());
        let mut decision = decide(&self.shared.config, &self.request, &response, is_last);
        if let Some(coding) = decision.coding
            && decision.has_body
            && !self.has_coded(coding)
        {
            decision = Decision { coding: None, tag: None, ..decision };
        }
        self.edit(&decision, &response);
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _: usize) -> Action {
        if self.is_coded {
            for name in UNTRUE_WHEN_CODED {
                self.set_http_response_trailer(name, None);
            }
        }
        Action::Continue
    }
}

impl Stream {
    /// Requests the coding of the body; returns true if the node accepts.
    fn has_coded(&mut self, coding: Coding) -> bool {
        let arguments = [coding.number(), self.shared.config.level];
        let answer = self.call_foreign_function(CODE_RESPONSE, Some(&arguments));
        self.is_coded = answer.is_ok();
        if let Err(status) = answer
            && self.shared.has_warned.is_first()
        {
            warn!("the node does not code ({CODE_RESPONSE}: {status:?}); bodies stay as they are");
        }
        if let Some(Counters { coded, refused }) = &self.shared.counters {
            let counter = if self.is_coded { coded[coding.index()] } else { Some(*refused) };
            counter.into_iter().for_each(|counter| counter.add(1));
        }
        self.is_coded
    }

    fn edit(&self, decision: &Decision, response: &Response) {
        if let Some(coding) = decision.coding {
            for name in response.untrue() {
                self.set_http_response_header(name, None);
            }
            self.set_http_response_header("content-encoding", Some(coding.token()));
        }
        if let Some(tag) = &decision.tag {
            self.set_http_response_header_bytes("etag", Some(tag));
        }
        if decision.adds_vary {
            self.add_http_response_header("vary", "Accept-Encoding");
        }
    }
}
