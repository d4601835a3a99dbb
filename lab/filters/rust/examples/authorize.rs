//! Asks another server whether a request may go on.

use log::info;
use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::{Action, LogLevel, Status};
use std::time::Duration;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Trace);
    proxy_wasm::set_http_context(|_, _| Box::new(Authorize));
}}

const REQUEST: [(&str, &str); 3] =
    [(":method", "GET"), (":path", "/bytes/1"), (":authority", "authority.example")];

struct Authorize;

impl HttpContext for Authorize {
    fn on_http_request_headers(&mut self, _: usize, _: bool) -> Action {
        let call = |upstream: &str, headers: &[(&str, &str)]| {
            let second = Duration::from_secs(1);
            self.dispatch_http_call(upstream, headers.to_vec(), Some(b"?"), vec![], second)
        };
        assert_eq!(call("stranger", &REQUEST), Err(Status::BadArgument));
        assert_eq!(call("authority", &REQUEST[..2]), Err(Status::BadArgument));
        call("authority", &REQUEST).expect("it is granted");
        // gRPC is not offered: the SDK gets errors that it knows.
        let second = Duration::from_secs(1);
        let grpc = self.dispatch_grpc_call("authority", "s", "m", vec![], None, second);
        assert_eq!(grpc, Err(Status::InternalFailure));
        assert_eq!(self.open_grpc_stream("a", "s", "m", vec![]), Err(Status::InternalFailure));
        let sent = hostcalls::send_grpc_stream_message(7, None, true);
        assert_eq!(sent, Err(Status::NotFound));
        assert_eq!(hostcalls::cancel_grpc_call(7), Err(Status::NotFound));
        assert_eq!(hostcalls::close_grpc_stream(7), Err(Status::NotFound));
        Action::Pause
    }
}

impl Context for Authorize {
    fn on_http_call_response(&mut self, _: u32, headers: usize, size: usize, trailers: usize) {
        info!("{headers} headers, {size} bytes, {trailers} trailers");
        let body = self.get_http_call_response_body(0, size).unwrap_or_default();
        if body.first().is_some_and(|byte| byte % 2 == 0) {
            info!("status {:?}", self.get_http_call_response_header(":status"));
            // The request is still held, so it can be changed.
            self.set_http_request_header("x-authorized", Some("yes"));
            self.resume_http_request();
            return;
        }
        self.send_http_response(403, vec![("x-from", "filter")], Some(b"Access forbidden.\n"));
    }
}
