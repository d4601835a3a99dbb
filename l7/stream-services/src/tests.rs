//! Tests of filters between real sockets: the view of client and server, with any module.

mod calls;
mod codecs;
mod coded;
mod devices;
mod edits;
mod failures;
mod idle_servers;
mod lab;
mod passing;
mod recovery;
mod reflected;
mod requests;
mod tcp;
mod transcoded;

use crate::{Event, Failure, Harness, Kind, Side};
use lab::{Lab, module};
