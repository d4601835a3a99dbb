//! The service around its streams: the node's calls to its root context, its counters, and what it
//! says once.

use std::cell::Cell;
use std::rc::Rc;

use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{ContextType, LogLevel, MetricType};

/// A service of HTTP: what all its streams share. Without a configuration it is its default.
pub trait Service: Default + 'static {
    /// Makes it of a configuration, which is empty when nobody gave one. `None`: the text is no
    /// configuration, as the service has logged, and it does not start.
    fn configure(text: &[u8]) -> Option<Rc<Self>>;

    /// Makes the context of a new stream.
    fn stream(shared: &Rc<Self>, context: u32) -> Box<dyn HttpContext>;
}

/// Begins a service: all that is to be done in `proxy_wasm::main!`.
pub fn begin<S: Service>() {
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(Root::<S>(Rc::default())));
}

/// The root context of a service.
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

/// A counter that `tam stats` shows.
#[derive(Clone, Copy, Debug)]
pub struct Counter(u32);

impl Counter {
    /// Defines a counter; `None` when the node takes no more.
    #[must_use]
    #[inline]
    pub fn define(name: &str) -> Option<Self> {
        hostcalls::define_metric(MetricType::Counter, name).ok().map(Self)
    }

    /// Adds to it.
    #[inline]
    pub fn add(self, count: u32) {
        // A counter that is not there counts nothing.
        hostcalls::increment_metric(self.0, i64::from(count)).ok();
    }
}

/// Flag of a message that is logged once.
#[derive(Debug, Default)]
pub struct Once(Cell<bool>);

impl Once {
    /// Returns whether this is the first time that it is asked.
    pub fn is_first(&self) -> bool {
        !self.0.replace(true)
    }
}
