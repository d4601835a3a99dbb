//! Shares data by compare-and-swap, feeds and empties a queue, counts, reads properties, calls a
//! foreign function, and wakes up by a timer.

use log::{error, info};
use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType, LogLevel, MetricType, Status};
use std::time::Duration;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Trace);
    proxy_wasm::set_root_context(|_| Box::new(Root { configuration: String::new() }));
}}

struct Root {
    configuration: String,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_vm_start(&mut self, _: usize) -> bool {
        let configuration = self.get_vm_configuration().unwrap_or_default();
        info!("vm {}", String::from_utf8_lossy(&configuration));
        true
    }

    fn on_configure(&mut self, _: usize) -> bool {
        let configuration = self.get_plugin_configuration().unwrap_or_default();
        self.configuration = String::from_utf8(configuration).expect("it is text");
        if self.configuration == "refuse" {
            error!("I refuse.");
            return false;
        }
        self.set_tick_period(Duration::from_millis(50));
        self.register_shared_queue("jobs");
        true
    }

    fn on_tick(&mut self) {
        let now = self.get_current_time().duration_since(std::time::UNIX_EPOCH);
        info!("tick at {:?}", now.expect("it is later"));
        self.set_tick_period(Duration::ZERO);
    }

    fn on_queue_ready(&mut self, queue: u32) {
        while let Ok(Some(job)) = self.dequeue_shared_queue(queue) {
            info!("job {}", String::from_utf8_lossy(&job));
        }
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Share))
    }
}

struct Share;

impl Context for Share {}

impl HttpContext for Share {
    fn on_http_request_headers(&mut self, count: usize, _: bool) -> Action {
        let (value, cas) = self.get_shared_data("count");
        let count_before = value.map_or(0, |value| value[0]);
        self.set_shared_data("count", Some(&[count_before + 1]), cas).expect("nobody else did");
        if let Some(cas) = cas {
            let stale = self.set_shared_data("count", Some(&[0]), Some(cas));
            assert_eq!(stale, Err(Status::CasMismatch));
        }

        let queue = self.resolve_shared_queue("vm", "jobs").expect("the root has registered it");
        self.enqueue_shared_queue(queue, Some(b"one")).expect("there is room");
        assert_eq!(self.resolve_shared_queue("vm", "none"), None);
        assert_eq!(self.dequeue_shared_queue(99), Err(Status::NotFound));

        let counter = hostcalls::define_metric(MetricType::Counter, "requests").expect("new");
        hostcalls::increment_metric(counter, 1).expect("it counts");
        assert_eq!(hostcalls::increment_metric(counter, -1), Err(Status::BadArgument));
        let sizes = hostcalls::define_metric(MetricType::Histogram, "headers").expect("new");
        hostcalls::record_metric(sizes, count as u64).expect("it counts");
        info!("requests {:?}", hostcalls::get_metric(counter));

        info!("source {:?}", self.get_property(vec!["source", "address"]));
        info!("path {:?}", self.get_property(vec!["request", "path"]));
        info!("name {:?}", self.get_property(vec!["plugin_name"]));
        assert_eq!(self.get_property(vec!["none"]), None);
        self.set_property(vec!["mark"], Some(b"seen"));
        assert_eq!(self.get_property(vec!["mark"]), Some(b"seen".to_vec()));

        info!("upper {:?}", self.call_foreign_function("upper", Some(b"abc")));
        assert_eq!(self.call_foreign_function("none", None), Err(Status::NotFound));
        Action::Continue
    }
}
