//! Live streams on sockets: executes the decisions of `reflector` on the ends that a stream service
//! owns.
//!
//! ```text
//!   join ─▶ Name ─▶ Station ── Origin ◀── one connection ── origin
//!                      │ Channel: the ring, once
//!                      ├─▶ Listener ── head, chunk │ slices of the ring ─▶ client
//!                      └─▶ Relay ── not shared ─▶ a connection of its own, through pipes
//! ```
//!
//! A fan-out is no application: the application that embeds it passes on the events of ends that
//! are [owned](Fanout::owns) here. It reads no clock, and works in portions:
//! [`Fanout::poll_timeout`] returns a time in the past while more is to be done. docs/guides/reflector.md
//! is the reference.
//!
//! ```
//! use fanout::{Fanout, Join, Settings};
//! use std::net::SocketAddr;
//! use tcp_intercept::{Application, End, Io};
//! use units::Nanos;
//!
//! struct Service {
//!      fanout: Fanout,
//! }
//!
//! impl Application for Service {
//!      fn accepted(&mut self, io: &mut Io<'_>, end: End, client: SocketAddr, server: SocketAddr) {
//!          # let (_, _, _, _) = (io, end, client, server);
//!          // Reads a request; if it is for a live stream: self.fanout.join(io, end, join).
//!      }
//!
//!      fn ready(&mut self, io: &mut Io<'_>, end: End) {
//!          if self.fanout.owns(end) {
//!              return self.fanout.ready(io, end);
//!          }
//!          // All other ends are the service's own.
//!      }
//!
//!      fn poll_timeout(&self) -> Option<Nanos> {
//!          self.fanout.poll_timeout()
//!      }
//!
//!      fn work(&mut self, io: &mut Io<'_>) {
//!          self.fanout.work(io);
//!      }
//! }
//!
//! let service = Service { fanout: Fanout::new(Settings::default()) };
//! assert_eq!(service.poll_timeout(), None);
//! # fn join(service: &mut Service, io: &mut Io<'_>, end: End, join: Join) {
//! #     service.fanout.join(io, end, join);
//! # }
//! ```

#![forbid(unsafe_code)]

mod chunk;
mod departures;
mod fanout;
mod head;
pub mod limits;
mod listener;
mod listeners;
mod relay;
mod settings;
mod station;
mod stations;
mod stats;

pub use fanout::Fanout;
pub use reflector::NoStore;
pub use settings::{Join, Key, KeyTooLong, Settings, Source};
pub use stats::{FanoutMemory, FanoutStats};
