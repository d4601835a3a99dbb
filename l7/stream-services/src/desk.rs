//! What a module asks of the node by functions beyond its ABI, while one of its calls runs.
//!
//! ```text
//!  connection ─ Allowed ─▶ Desk ◀─ function, arguments ─ module
//!             ◀─── Asked ────┘ ── status ──────────────▶
//! ```
//!
//! The answer has to be right when it is given, so that what a connection allows is said before
//! the call; the connection takes what was asked for when the call has ended.

use crate::codecs::{Codecs, Refusal, Share};
use crate::limits::TRANSCODING_MEMORY;
use crate::report::Reports;
use content_coding::{Coding, CodingRequest, Level, memory_bytes};
use engine::{Part, Room};
use fanout::Key;
use mpeg2::TranscodeParams as Picture;
use proxy_wasm::ForeignFunction;
use proxy_wasm::abi::Status;
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::rc::Rc;
use units::{Account, Bytes, Held};

/// The foreign function by which a module has a request answered by a stream that is shared.
pub const REFLECT: &str = "tamandua_reflect";

/// The foreign function by which a module has a response's body, which is video, come as pictures.
pub const TRANSCODE: &str = "tamandua_transcode";

/// What may be asked for in a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// The stream's response has not gone on, and can still be coded.
    pub codes: bool,
    /// The stream's request is one that can be given away.
    pub reflects: bool,
    /// The stream's response has a body, and nothing of it has come to be shown.
    pub transcodes: bool,
    /// The stream's response is shown, and has no body.
    pub is_bodiless: bool,
}

/// What was asked for in a call.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Whether the response is to be coded, and how; nothing when nothing was said of it.
    pub order: Option<Option<Order>>,
    /// The stream that the request is to be answered by.
    pub key: Option<Key>,
    /// The response's body is to come as pictures.
    pub commission: Option<Commission>,
}

/// A response's body is to come as pictures.
pub(crate) struct Commission {
    pub wish: Picture,
    pub share: Rc<dyn Share>,
    pub memory: Held,
}

impl fmt::Debug for Commission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Commission").field(&self.wish).finish()
    }
}

/// What is wanted of a stream's pictures by a call that need not be its own.
#[derive(Debug)]
pub(crate) enum PictureOrder {
    /// They begin.
    Begin(Commission),
    /// They become others.
    Change(Picture),
}

/// A response's body is to be coded.
#[derive(Debug)]
pub(crate) struct Order {
    pub coding: Coding,
    /// Without one the node chooses.
    pub level: Option<Level>,
    pub memory: Held,
}

/// What shared streams and idle codecs keep is state of the service's session.
struct State(Rc<dyn Room>);

impl Account for State {
    fn take(&self, bytes: Bytes) -> bool {
        self.0.take(Part::State, bytes.0)
    }

    fn give(&self, bytes: Bytes) {
        self.0.give(Part::State, bytes.0);
    }
}

/// The account of a session's state.
pub(crate) fn state_of(room: &Rc<dyn Room>) -> Rc<dyn Account> {
    Rc::new(State(Rc::clone(room)))
}

/// One call of a stream's context.
#[derive(Debug, Default)]
struct Turn {
    context: u32,
    allowed: Allowed,
    asked: Asked,
}

/// How far streams are with their pictures.
#[derive(Debug, Default)]
struct Pictures {
    /// Their responses are held, and can still become pictures.
    held: BTreeSet<u32>,
    /// They come as pictures.
    running: BTreeSet<u32>,
    orders: VecDeque<(u32, PictureOrder)>,
}

/// Where modules ask. Clones are of the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Desk(Rc<RefCell<Turn>>, Rc<RefCell<Pictures>>);

impl Desk {
    /// A call begins: what was asked for in the one before and nobody took is forgotten.
    pub(crate) fn begin(&self, context: u32, allowed: Allowed) {
        *self.0.borrow_mut() = Turn { context, allowed, asked: Asked::default() };
    }

    /// What was asked for in the call that has ended.
    pub(crate) fn take(&self) -> Asked {
        std::mem::take(&mut *self.0.borrow_mut()).asked
    }

    /// What is allowed to that context in this call.
    fn allowed(&self, context: u32) -> Allowed {
        let turn = self.0.borrow();
        if turn.context == context { turn.allowed } else { Allowed::default() }
    }

    fn code(
        &self,
        context: u32,
        arguments: &[u8],
        room: Option<&Rc<dyn Account>>,
    ) -> Result<(), Status> {
        let wish = CodingRequest::parse(arguments).map_err(|_| Status::BadArgument)?;
        if !self.allowed(context).codes {
            return Err(Status::BadArgument);
        }
        let order = match wish {
            CodingRequest::Identity => None,
            CodingRequest::Code { coding, level } => {
                let bytes = memory_bytes(coding, level.unwrap_or(Level::DEFAULT));
                let memory = Held::take(room.cloned(), bytes).ok_or(Status::InternalFailure)?;
                Some(Order { coding, level, memory })
            }
        };
        self.0.borrow_mut().asked.order = Some(order);
        Ok(())
    }

    fn reflect(&self, context: u32, arguments: &[u8]) -> Result<(), Status> {
        let key = Key::new(arguments).map_err(|_| Status::BadArgument)?;
        if !self.allowed(context).reflects {
            return Err(Status::BadArgument);
        }
        self.0.borrow_mut().asked.key = Some(key);
        Ok(())
    }

    /// A stream's response is held, and may still become pictures.
    pub(crate) fn hold(&self, context: u32) {
        self.1.borrow_mut().held.insert(context);
    }

    /// It may not any more.
    pub(crate) fn let_go(&self, context: u32) {
        self.1.borrow_mut().held.remove(&context);
    }

    /// Its pictures can be changed from now on.
    pub(crate) fn begin_pictures(&self, context: u32) {
        let mut pictures = self.1.borrow_mut();
        pictures.held.remove(&context);
        pictures.running.insert(context);
    }

    /// They cannot any more.
    pub(crate) fn end_pictures(&self, context: u32) {
        let mut pictures = self.1.borrow_mut();
        pictures.held.remove(&context);
        pictures.running.remove(&context);
    }

    /// There are no contexts any more.
    pub(crate) fn forget_pictures(&self) {
        *self.1.borrow_mut() = Pictures::default();
    }

    /// What is wanted of other streams than that of the call, or later.
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
        let wish = Picture::parse(arguments).map_err(|_| Status::BadArgument)?;
        let (changed, started) = ("changed".to_owned(), "started".to_owned());
        let mut pictures = self.1.borrow_mut();
        let mut turn = self.0.borrow_mut();
        let is_own = turn.context == context;
        let has_asked = is_own && turn.asked.commission.is_some();
        let has_ordered = pictures.orders.iter().any(|(of, _)| *of == context);
        if has_asked || has_ordered || pictures.running.contains(&context) {
            pictures.orders.push_back((context, PictureOrder::Change(wish)));
            return Ok(changed);
        }
        let begins = is_own && turn.allowed.transcodes;
        if !begins && !pictures.held.contains(&context) {
            let is_bodiless = is_own && turn.allowed.is_bodiless;
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
        let commission = Commission { wish, share, memory };
        if begins {
            turn.asked.commission = Some(commission);
        } else {
            pictures.orders.push_back((context, PictureOrder::Begin(commission)));
        }
        Ok(started)
    }

    /// [`TRANSCODE`], with these codecs and on that account.
    pub(crate) fn transcoder(
        &self,
        codecs: Rc<dyn Codecs>,
        room: Option<Rc<dyn Account>>,
        reports: Reports,
    ) -> ForeignFunction {
        let desk = self.clone();
        Rc::new(move |context, arguments| {
            let answer = desk.transcode(context, arguments, &codecs, room.as_ref());
            if answer.as_ref().is_ok_and(|answer| answer.starts_with("refused")) || answer.is_err()
            {
                reports.count(|it| it.transcodings_refused += 1);
            }
            answer.map(String::into_bytes)
        })
    }

    /// [`content_coding::FUNCTION`], on that account.
    pub(crate) fn coder(&self, room: Option<Rc<dyn Account>>, reports: Reports) -> ForeignFunction {
        let desk = self.clone();
        Rc::new(move |context, arguments| {
            let answer = desk.code(context, arguments, room.as_ref());
            if answer.is_err() {
                reports.count(|it| it.codings_refused += 1);
            }
            answer.map(|()| Vec::new())
        })
    }

    /// [`REFLECT`].
    pub(crate) fn reflector(&self, reports: Reports) -> ForeignFunction {
        let desk = self.clone();
        Rc::new(move |context, arguments| {
            let answer = desk.reflect(context, arguments);
            if answer.is_err() {
                reports.count(|it| it.reflections_refused += 1);
            }
            answer.map(|()| Vec::new())
        })
    }
}
