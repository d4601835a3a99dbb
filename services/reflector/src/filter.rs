//! The module: the node's calls, and what is asked of the node.

use crate::config::Config;
use log::{error, warn};
use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType, LogLevel, MetricType, Status};
use std::cell::Cell;
use std::rc::Rc;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(Root(Rc::default())));
}}

/// The node's function that takes a request over.
const REFLECT: &str = "tamandua_reflect";

/// What all streams share.
#[derive(Default)]
struct Shared {
    config: Config,
    counters: Option<Counters>,
    has_warned: Cell<bool>,
}

/// Numbers of the counters.
struct Counters {
    reflected: u32,
    /// The node did not take a request: it goes to its server alone.
    refused: u32,
}

impl Counters {
    fn define() -> Option<Self> {
        let counter = |name: &str| hostcalls::define_metric(MetricType::Counter, name).ok();
        Some(Self { reflected: counter("reflected")?, refused: counter("refused")? })
    }
}

struct Root(Rc<Shared>);

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _: usize) -> bool {
        let text = self.get_plugin_configuration().unwrap_or_default();
        match Config::parse(&text) {
            Ok(config) => {
                let counters = Counters::define();
                self.0 = Rc::new(Shared { config, counters, has_warned: Cell::new(false) });
                true
            }
            Err(reason) => {
                error!("{reason}");
                false
            }
        }
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Request { shared: Rc::clone(&self.0) }))
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
        // What has a body asks for no stream.
        if is_last && let Some(key) = self.shared.config.choose(&method, &host, &path) {
            self.reflect(&key);
        }
        Action::Continue
    }
}

impl Request {
    /// Has the node take the request over; if it does not, the request goes on by itself.
    fn reflect(&self, key: &[u8]) {
        let answer = self.call_foreign_function(REFLECT, Some(key));
        if let Err(status) = answer
            && status != Status::BadArgument
            && !self.shared.has_warned.replace(true)
        {
            warn!("the node shares no streams ({REFLECT}: {status:?}); each client has its own");
        }
        if let Some(counters) = &self.shared.counters {
            let id = if answer.is_ok() { counters.reflected } else { counters.refused };
            // A counter that is not there counts nothing.
            hostcalls::increment_metric(id, 1).ok();
        }
    }
}
