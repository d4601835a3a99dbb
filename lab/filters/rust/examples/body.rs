//! Holds a response's body until it is whole, and replaces one with a secret in it.

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Root));
}}

struct Root;

impl Context for Root {}

impl RootContext for Root {
    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Body))
    }
}

struct Body;

impl Context for Body {}

impl HttpContext for Body {
    fn on_http_request_body(&mut self, size: usize, _: bool) -> Action {
        // In front, and behind.
        self.set_http_request_body(0, 0, b"<");
        self.set_http_request_body(size + 1, 0, b">");
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        self.set_http_response_header("content-length", None);
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        if !end_of_stream {
            return Action::Pause;
        }
        if let Some(body) = self.get_http_response_body(0, size) {
            let text = String::from_utf8(body).expect("it is text");
            if text.contains("secret") {
                let new = format!("Original message body ({size} bytes) redacted.\n");
                self.set_http_response_body(0, size, &new.into_bytes());
            }
        }
        Action::Continue
    }
}
