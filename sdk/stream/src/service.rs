//! Frame of a service: callbacks of its root context, counters, and messages that are logged once.

use std::cell::Cell;
use std::rc::Rc;

use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{ContextType, LogLevel, MetricType};

/// HTTP service: the state that all its streams share. The default is used without a configuration.
pub trait Service: Default + 'static {
    /// Creates the service from a configuration, which is empty if none was given. Returns `None`,
    /// after logging the reason, if the text is invalid; the service then does not start.
    fn configure(text: &[u8]) -> Option<Rc<Self>>;

    /// Creates the context of a new stream.
    fn stream(shared: &Rc<Self>, context: u32) -> Box<dyn HttpContext>;
}

/// Registers a service: all that `proxy_wasm::main!` has to do.
pub fn begin<S: Service>() {
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(Root::<S>(Rc::default())));
}

/// Root context of a service.
struct Root<S>(Rc<S>);

impl<S> Context for Root<S> {}

impl<S: Service> RootContext for Root<S> {
    fn on_configure(&mut self, _: usize) -> bool {
        let text = self.get_plugin_configuration().unwrap_or_default();
        match S::configure(&text) {
            Some(service) => {
                self.0 = service;
                true
            }
            None => false,
        }
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, context: u32) -> Option<Box<dyn HttpContext>> {
        Some(S::stream(&self.0, context))
    }
}

/// Counter that `tam stats` shows.
#[derive(Clone, Copy, Debug)]
pub struct Counter(u32);

impl Counter {
    /// Defines a counter; `None` if the node's limit is reached.
    #[must_use]
    #[inline]
    pub fn define(name: &str) -> Option<Self> {
        hostcalls::define_metric(MetricType::Counter, name).ok().map(Self)
    }

    /// Adds to the counter.
    #[inline]
    pub fn add(self, count: u32) {
        // Errors are ignored: the counter then counts nothing.
        hostcalls::increment_metric(self.0, i64::from(count)).ok();
    }
}

/// Flag of a message that is logged once.
#[derive(Debug, Default)]
pub struct Once(Cell<bool>);

impl Once {
    /// Returns true at the first call.
    pub fn is_first(&self) -> bool {
        !self.0.replace(true)
    }
}
