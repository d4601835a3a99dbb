//! A filter of TCP streams: greets, replaces bytes in both directions, and closes on a word.

use log::info;
use proxy_wasm::traits::{Context, StreamContext};
use proxy_wasm::types::{Action, LogLevel, PeerType};

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Trace);
    proxy_wasm::set_stream_context(|_, _| Box::new(Replace));
}}

struct Replace;

impl Context for Replace {}

impl StreamContext for Replace {
    fn on_new_connection(&mut self) -> Action {
        info!("new connection");
        Action::Continue
    }

    fn on_downstream_data(&mut self, size: usize, end_of_stream: bool) -> Action {
        let data = self.get_downstream_data(0, size).unwrap_or_default();
        if data.starts_with(b"quit") {
            self.close_downstream();
            return Action::Continue;
        }
        if !data.ends_with(b"\n") && !end_of_stream {
            return Action::Pause;
        }
        self.set_downstream_data(0, size, &data.to_ascii_uppercase());
        Action::Continue
    }

    fn on_downstream_close(&mut self, peer: PeerType) {
        info!("downstream closed: {}", peer as u32);
    }

    fn on_upstream_data(&mut self, size: usize, _: bool) -> Action {
        self.set_upstream_data(0, size.min(1), b"[");
        self.set_upstream_data(usize::MAX, 0, b"]");
        Action::Continue
    }

    fn on_upstream_close(&mut self, peer: PeerType) {
        info!("upstream closed: {}", peer as u32);
    }

    fn on_log(&mut self) {
        info!("log");
    }
}
