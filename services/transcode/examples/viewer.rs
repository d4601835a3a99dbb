//! Server of the page and a moving picture, without a node and without a video: for work on the
//! page. `cargo run --release --example viewer`, then open the printed URL.

use std::net::TcpListener;
use std::sync::Arc;

#[path = "../tests/canned/mod.rs"]
mod canned;

fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).unwrap_or_else(|| "0".to_owned());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}"))?;
    println!("http://{}/tamandua/viewer?src=/scene.m2v", listener.local_addr()?);
    canned::serve(listener, Arc::new(|_, _, _| None));
    Ok(())
}
