//! Foreign functions: requests of a module to the node beyond the ABI, during a call.
//!
//! ```text
//!   connection ─ Allowed ──▶ ForeignCalls ◀─ function, arguments ─ module
//!              ◀ Requested ──────┘ ── status ────────────────────▶
//! ```
//!
//! The status is returned during the call, so the connection states before the call what is
//! allowed; after the call it takes what was requested.

use crate::codecs::{Codecs, Refusal, Share};
use crate::limits::TRANSCODING_MEMORY;
use crate::report::Reports;
use content_coding::{Coding, CodingRequest, Level, memory_bytes};
use engine::{MemoryAccount, Part};
use fanout::Key;
use mpeg2::TranscodeParams;
use proxy_wasm::ForeignFunction;
use proxy_wasm::abi::Status;
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::rc::Rc;
use units::{Account, Bytes, Held};

/// Foreign function by which a module has a request served by a shared stream.
pub const REFLECT: &str = "tamandua_reflect";

/// Foreign function by which a module gets a response's video body as pictures.
pub const TRANSCODE: &str = "tamandua_transcode";

/// Requests that are allowed in a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// True if nothing of the stream's response has been sent, so that it can still be coded.
    pub codes: bool,
    /// True if the stream's request can be handed over to a shared stream.
    pub reflects: bool,
    /// True if the stream's response has a body, of which the module has seen nothing.
    pub transcodes: bool,
    /// True if the call is for the stream's response, which has no body.
    pub is_bodiless: bool,
}

/// Requests made in a call.
#[derive(Debug, Default)]
pub(crate) struct Requested {
    /// Order to code the response, or not; `None` if the module requested neither.
    pub order: Option<Option<CodingOrder>>,
    /// Shared stream that serves the request.
    pub key: Option<Key>,
    /// Order to transcode the response's body into pictures.
    pub transcoding_order: Option<TranscodingOrder>,
}

/// Order to transcode a response's body into pictures.
pub(crate) struct TranscodingOrder {
    pub params: TranscodeParams,
    pub share: Rc<dyn Share>,
    pub memory: Held,
}

impl fmt::Debug for TranscodingOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TranscodingOrder").field(&self.params).finish()
    }
}

/// Order for a stream's pictures, from a call that may belong to another stream.
#[derive(Debug)]
pub(crate) enum PictureOrder {
    /// Begin to transcode.
    Begin(TranscodingOrder),
    /// Change the parameters.
    Change(TranscodeParams),
}

/// Order to code a response's body.
#[derive(Debug)]
pub(crate) struct CodingOrder {
    pub coding: Coding,
    /// Level; `None` leaves the choice to the node.
    pub level: Option<Level>,
    pub memory: Held,
}

/// Account that charges the memory of shared streams and idle codecs to the session's state.
struct State(Rc<dyn MemoryAccount>);

impl Account for State {
    fn take(&self, bytes: Bytes) -> bool {
        self.0.take(Part::State, bytes.0)
    }

    fn give(&self, bytes: Bytes) {
        self.0.give(Part::State, bytes.0);
    }
}

/// Returns the account of a session's state.
pub(crate) fn state_of(room: &Rc<dyn MemoryAccount>) -> Rc<dyn Account> {
    Rc::new(State(Rc::clone(room)))
}

/// Current call of a stream's context.
#[derive(Debug, Default)]
struct CurrentCall {
    context: u32,
    allowed: Allowed,
    requested: Requested,
}

/// Contexts of streams with pictures.
#[derive(Debug, Default)]
struct Pictures {
    /// Contexts whose responses are held and can still be transcoded.
    held: BTreeSet<u32>,
    /// Contexts whose responses are being transcoded.
    running: BTreeSet<u32>,
    orders: VecDeque<(u32, PictureOrder)>,
}

/// Requests of the module in the current call. Clones share their state.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForeignCalls(Rc<RefCell<CurrentCall>>, Rc<RefCell<Pictures>>);

impl ForeignCalls {
    /// Begins a call; unclaimed requests of the previous one are dropped.
    pub(crate) fn begin(&self, context: u32, allowed: Allowed) {
        *self.0.borrow_mut() = CurrentCall { context, allowed, requested: Requested::default() };
    }

    /// Takes the requests of the call that has ended.
    pub(crate) fn take(&self) -> Requested {
        std::mem::take(&mut *self.0.borrow_mut()).requested
    }

    /// Returns what is allowed to a context in this call.
    fn allowed(&self, context: u32) -> Allowed {
        let call = self.0.borrow();
        if call.context == context { call.allowed } else { Allowed::default() }
    }

    fn code(
        &self,
        context: u32,
        arguments: &[u8],
        room: Option<&Rc<dyn Account>>,
    ) -> Result<(), Status> {
        let request = CodingRequest::parse(arguments).map_err(|_| Status::BadArgument)?;
        if !self.allowed(context).codes {
            return Err(Status::BadArgument);
        }
        let order = match request {
            CodingRequest::Identity => None,
            CodingRequest::Code { coding, level } => {
                let bytes = memory_bytes(coding, level.unwrap_or(Level::DEFAULT));
                let memory = Held::take(room.cloned(), bytes).ok_or(Status::InternalFailure)?;
                Some(CodingOrder { coding, level, memory })
            }
        };
        self.0.borrow_mut().requested.order = Some(order);
        Ok(())
    }

    fn reflect(&self, context: u32, arguments: &[u8]) -> Result<(), Status> {
        let key = Key::new(arguments).map_err(|_| Status::BadArgument)?;
        if !self.allowed(context).reflects {
            return Err(Status::BadArgument);
        }
        self.0.borrow_mut().requested.key = Some(key);
        Ok(())
    }

    /// Records that a stream's response is held, and can still be transcoded.
    pub(crate) fn hold(&self, context: u32) {
        self.1.borrow_mut().held.insert(context);
    }

    /// Records that a stream's response can no longer be transcoded.
    pub(crate) fn release_hold(&self, context: u32) {
        self.1.borrow_mut().held.remove(&context);
    }

    /// Records that a stream's pictures have begun and their parameters can be changed.
    pub(crate) fn begin_pictures(&self, context: u32) {
        let mut pictures = self.1.borrow_mut();
        pictures.held.remove(&context);
        pictures.running.insert(context);
    }

    /// Records that a stream's pictures have ended.
    pub(crate) fn end_pictures(&self, context: u32) {
        let mut pictures = self.1.borrow_mut();
        pictures.held.remove(&context);
        pictures.running.remove(&context);
    }

    /// Drops all contexts.
    pub(crate) fn clear_pictures(&self) {
        *self.1.borrow_mut() = Pictures::default();
    }

    /// Takes an order for a stream other than that of the call.
    pub(crate) fn take_order(&self) -> Option<(u32, PictureOrder)> {
        self.1.borrow_mut().orders.pop_front()
    }

    fn transcode(
        &self,
        context: u32,
        arguments: &[u8],
        codecs: &Rc<dyn Codecs>,
        room: Option<&Rc<dyn Account>>,
    ) -> Result<String, Status> {
        let params = TranscodeParams::parse(arguments).map_err(|_| Status::BadArgument)?;
        let (changed, started) = ("changed".to_owned(), "started".to_owned());
        let mut pictures = self.1.borrow_mut();
        let mut call = self.0.borrow_mut();
        let is_own = call.context == context;
        let has_requested = is_own && call.requested.transcoding_order.is_some();
        let has_ordered = pictures.orders.iter().any(|(of, _)| *of == context);
        if has_requested || has_ordered || pictures.running.contains(&context) {
            pictures.orders.push_back((context, PictureOrder::Change(params)));
            return Ok(changed);
        }
        let begins = is_own && call.allowed.transcodes;
        if !begins && !pictures.held.contains(&context) {
            let is_bodiless = is_own && call.allowed.is_bodiless;
            let none = "not-video the response has no body";
            return if is_bodiless {
                Ok(format!("refused {none}"))
            } else {
                Err(Status::BadArgument)
            };
        }
        let share = match codecs.admit() {
            Ok(share) => share,
            Err(refusal) => return Ok(format!("refused {refusal}")),
        };
        let Some(memory) = Held::take(room.cloned(), Bytes(TRANSCODING_MEMORY)) else {
            let why = "its session has not the memory that a codec may need";
            return Ok(format!("refused {}", Refusal::Limit(why.to_owned())));
        };
        let transcoding_order = TranscodingOrder { params, share, memory };
        if begins {
            call.requested.transcoding_order = Some(transcoding_order);
        } else {
            pictures.orders.push_back((context, PictureOrder::Begin(transcoding_order)));
        }
        Ok(started)
    }

    /// Returns the foreign function [`TRANSCODE`], with these codecs and this account.
    pub(crate) fn transcoder(
        &self,
        codecs: Rc<dyn Codecs>,
        room: Option<Rc<dyn Account>>,
        reports: Reports,
    ) -> ForeignFunction {
        let foreign_calls = self.clone();
        Rc::new(move |context, arguments| {
            let answer = foreign_calls.transcode(context, arguments, &codecs, room.as_ref());
            if answer.as_ref().is_ok_and(|answer| answer.starts_with("refused")) || answer.is_err()
            {
                reports.count(|it| it.transcodings_refused += 1);
            }
            answer.map(String::into_bytes)
        })
    }

    /// Returns the foreign function [`content_coding::FUNCTION`], with this account.
    pub(crate) fn coder(&self, room: Option<Rc<dyn Account>>, reports: Reports) -> ForeignFunction {
        let foreign_calls = self.clone();
        Rc::new(move |context, arguments| {
            let answer = foreign_calls.code(context, arguments, room.as_ref());
            if answer.is_err() {
                reports.count(|it| it.codings_refused += 1);
            }
            answer.map(|()| Vec::new())
        })
    }

    /// Returns the foreign function [`REFLECT`].
    pub(crate) fn reflector(&self, reports: Reports) -> ForeignFunction {
        let foreign_calls = self.clone();
        Rc::new(move |context, arguments| {
            let answer = foreign_calls.reflect(context, arguments);
            if answer.is_err() {
                reports.count(|it| it.reflections_refused += 1);
            }
            answer.map(|()| Vec::new())
        })
    }
}
