//! Reads and edits headers in every way that the SDK has, and answers `/hello` itself.

use log::info;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::{Action, LogLevel};

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Trace);
    proxy_wasm::set_http_context(|context, _| Box::new(Headers { context }));
}}

struct Headers {
    context: u32,
}

impl Context for Headers {
    fn on_done(&mut self) -> bool {
        info!("#{} done", self.context);
        true
    }
}

impl HttpContext for Headers {
    fn on_http_request_headers(&mut self, count: usize, end_of_stream: bool) -> Action {
        for (name, value) in self.get_http_request_headers() {
            info!("#{} {name}: {value}", self.context);
        }
        info!("{count} headers, {end_of_stream}");
        if self.get_http_request_header(":path").as_deref() == Some("/hello") {
            let body = Some(b"Hello, World!\r\n".as_slice());
            self.send_http_response(200, vec![("x-from", "filter")], body);
            return Action::Pause;
        }
        self.add_http_request_header("x-added", "1");
        self.add_http_request_header("x-added", "2");
        self.set_http_request_header("x-replaced", Some("new"));
        self.set_http_request_header("x-removed", None);
        assert_eq!(self.get_http_request_header("x-none"), None);
        Action::Continue
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        self.add_http_request_trailer("x-last", "yes");
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        self.set_http_response_headers(vec![(":status", "200"), ("x-only", "this")]);
        self.set_http_response_header_bytes("x-bytes", Some(&[0xff, 0x01]));
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _: usize) -> Action {
        self.set_http_response_trailers(vec![("x-end", "now")]);
        Action::Continue
    }

    fn on_log(&mut self) {
        info!("#{} path {:?}", self.context, self.get_http_request_header(":path"));
    }
}
