//! Module: callbacks of the node, and requests to it.

use crate::config::Config;
use log::{error, warn};
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::{Action, Status};
use std::rc::Rc;
use stream::service::{self, Counter, Once, Service};

proxy_wasm::main! {{
    service::begin::<Shared>();
}}

/// Function of the node that takes a request over.
const REFLECT: &str = "tamandua_reflect";

/// State that all streams share.
#[derive(Default)]
struct Shared {
    config: Config,
    counters: Option<Counters>,
    has_warned: Once,
}

struct Counters {
    reflected: Counter,
    /// Requests that the node refused: they go to their server on their own.
    refused: Counter,
}

impl Counters {
    fn define() -> Option<Self> {
        Some(Self {
            reflected: Counter::define("reflected")?,
            refused: Counter::define("refused")?,
        })
    }
}

impl Service for Shared {
    fn configure(text: &[u8]) -> Option<Rc<Self>> {
        let config = Config::parse(text).map_err(|reason| error!("{reason}")).ok()?;
        Some(Rc::new(Self { config, counters: Counters::define(), ..Self::default() }))
    }

    fn stream(shared: &Rc<Self>, _: u32) -> Box<dyn HttpContext> {
        Box::new(Request { shared: Rc::clone(shared) })
    }
}

struct Request {
    shared: Rc<Shared>,
}

impl Context for Request {}

impl HttpContext for Request {
    fn on_http_request_headers(&mut self, _: usize, is_last: bool) -> Action {
        let field = |name| self.get_http_request_header(name).unwrap_or_default();
        let (method, host, path) = (field(":method"), field(":authority"), field(":path"));
        // A request with a body is for no stream.
        if is_last && let Some(key) = self.shared.config.choose(&method, &host, &path) {
            self.reflect(&key);
        }
        Action::Continue
    }
}

impl Request {
    /// Hands the request over to the node; if it refuses, the request continues by itself.
    fn reflect(&self, key: &[u8]) {
        let answer = self.call_foreign_function(REFLECT, Some(key));
        if let Err(status) = answer
            && status != Status::BadArgument
            && self.shared.has_warned.is_first()
        {
            warn!("the node shares no streams ({REFLECT}: {status:?}); each client has its own");
        }
        if let Some(counters) = &self.shared.counters {
            if answer.is_ok() { counters.reflected } else { counters.refused }.add(1);
        }
    }
}
