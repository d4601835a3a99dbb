//! Filters between real sockets: what a client and a server see, whatever the module does.

mod again;
mod calls;
mod codecs;
mod coded;
mod devices;
mod edits;
mod failures;
mod lab;
mod passing;
mod reflected;
mod requests;
mod spares;
mod tcp;
mod transcoded;

use crate::{Event, Failure, Kind, Side, Through};
use lab::{Lab, module};
