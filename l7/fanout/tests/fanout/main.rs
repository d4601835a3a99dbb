//! Tests of channels on real sockets: an origin, the service and its clients.

mod anything;
mod listeners;
mod media;
mod origin;
mod sharing;
mod world;
