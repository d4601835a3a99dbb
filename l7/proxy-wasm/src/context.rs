//! What a callback may look at and change: the ABI's rules of access, in one place.
//!
//! A map or buffer is open in the callback that shows it, and afterwards as long as its side is
//! paused since then. Trailers may be added in the last call for a body. In `proxy_on_log` all
//! maps are open for reading.

use crate::abi::{BufferType, MapType};
use crate::buffer;
use crate::http_call::HttpResponse;
use crate::limits::{ADDED_BYTES_MAX, BUFFER_LENGTH_MAX, PROPERTIES_MAX};
use crate::map::{HeaderMap, MapError};
use crate::spec::VmSpec;
use crate::stream::{Protocol, Side, Stage, Stream};
use engine::{Limits, Part};
use std::collections::BTreeMap;

/// Why a map or buffer is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// It is not to be changed now, or never.
    NotOpen,
    /// The bytes or fields are none, or a limit is reached.
    Refused(MapError),
    /// No memory for it.
    Full,
}

/// The root context: the module itself, outside any stream.
pub const ROOT: u32 = 1;

/// The contexts of a VM: their streams, what the module has added to them, and the one that a call
/// works on.
pub(crate) struct Contexts {
    streams: BTreeMap<u32, Box<Stream>>,
    /// Bytes that the module has added to all streams.
    added: u64,
    /// The root context's own properties, by path.
    own_properties: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Bytes of the root context's own properties.
    kept: u64,
    last: u32,
    /// The root context was asked whether it is done, and is not.
    is_root_pending: bool,
    current: Current,
}

impl Default for Contexts {
    fn default() -> Self {
        Self {
            streams: BTreeMap::new(),
            added: 0,
            own_properties: BTreeMap::new(),
            kept: 0,
            last: ROOT,
            is_root_pending: false,
            current: Current::default(),
        }
    }
}

/// The call that runs.
#[derive(Debug)]
struct Current {
    /// Context that the call is about.
    own: u32,
    /// Context that host functions work on.
    effective: u32,
    stage: Stage,
    response: Option<HttpResponse>,
    arguments: Vec<u8>,
}

impl Default for Current {
    fn default() -> Self {
        let (response, arguments) = (None, Vec::new());
        Self { own: ROOT, effective: ROOT, stage: Stage::Other, response, arguments }
    }
}

impl Current {
    /// The stage as it is for the context that host functions work on.
    fn stage_here(&self) -> Stage {
        if self.own == self.effective { self.stage } else { Stage::Other }
    }
}

impl Contexts {
    /// Returns true when there is such a context.
    pub(crate) fn is_known(&self, context: u32) -> bool {
        context == ROOT || self.streams.contains_key(&context)
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.streams.keys().copied()
    }

    pub(crate) fn get(&self, context: u32) -> Option<&Stream> {
        self.streams.get(&context).map(AsRef::as_ref)
    }

    pub(crate) fn get_mut(&mut self, context: u32) -> Option<&mut Stream> {
        self.streams.get_mut(&context).map(AsMut::as_mut)
    }

    /// Returns the bytes that the module has added to all streams.
    pub(crate) const fn added(&self) -> u64 {
        self.added
    }

    /// The context that host functions work on.
    pub(crate) const fn effective(&self) -> u32 {
        self.current.effective
    }

    /// The stage of the call, as it is for that context.
    pub(crate) fn stage(&self) -> Stage {
        self.current.stage_here()
    }

    /// The answer that is being shown.
    pub(crate) const fn response(&self) -> Option<&HttpResponse> {
        self.current.response.as_ref()
    }

    /// A property that the module has given the root context.
    pub(crate) fn own_property(&self, path: &[u8]) -> Option<&Vec<u8>> {
        self.own_properties.get(path)
    }

    /// Begins a call that is about a context.
    pub(crate) fn enter(&mut self, context: u32, stage: Stage) {
        self.current = Current { own: context, effective: context, stage, ..Current::default() };
    }

    pub(crate) const fn set_effective(&mut self, context: u32) {
        self.current.effective = context;
    }

    pub(crate) fn set_response(&mut self, response: Option<HttpResponse>) {
        self.current.response = response;
    }

    pub(crate) fn set_arguments(&mut self, arguments: Vec<u8>) {
        self.current.arguments = arguments;
    }

    /// Adds a stream under a number that no other has.
    pub(crate) fn insert(&mut self, stream: Box<Stream>) -> u32 {
        loop {
            self.last = self.last.checked_add(1).unwrap_or(ROOT + 1);
            if !self.streams.contains_key(&self.last) {
                break;
            }
        }
        self.streams.insert(self.last, stream);
        self.last
    }

    /// Keeps a stream whose caller never hears of its number.
    pub(crate) fn forget_number(&mut self, context: u32) {
        if let Some(stream) = self.streams.remove(&context) {
            self.streams.insert(0, stream);
        }
    }

    /// Takes all streams out.
    pub(crate) fn take_all(&mut self) -> BTreeMap<u32, Box<Stream>> {
        std::mem::take(&mut self.streams)
    }

    /// Notes whether a context was asked whether it is done, and is not.
    pub(crate) fn set_pending(&mut self, context: u32, is_pending: bool) {
        match self.streams.get_mut(&context) {
            Some(stream) => stream.is_pending = is_pending,
            None => self.is_root_pending = is_pending,
        }
    }

    /// Returns whether the effective context is pending, and notes that it is not any more.
    pub(crate) fn take_pending(&mut self) -> Option<bool> {
        let is_pending = match self.current.effective {
            ROOT => &mut self.is_root_pending,
            context => &mut self.streams.get_mut(&context)?.is_pending,
        };
        Some(std::mem::take(is_pending))
    }

    /// The stream that host functions work on, and the stage as far as it is that stream's.
    fn shown(&self) -> Option<(&Stream, Stage)> {
        let stream = self.streams.get(&self.current.effective)?;
        Some((stream, self.current.stage_here()))
    }

    /// A map to read; `None` when it is not open.
    pub(crate) fn map(&self, map: MapType) -> Option<&HeaderMap> {
        match map {
            MapType::HttpCallResponseHeaders => {
                return self.current.response.as_ref().map(|response| &response.headers);
            }
            MapType::HttpCallResponseTrailers => {
                return self.current.response.as_ref().map(|response| &response.trailers);
            }
            _ => {}
        }
        let (stream, stage) = self.shown()?;
        let is_open = stage == Stage::Log || is_map_open(stream, stage, map);
        if stream.protocol == Protocol::Http && is_open { map_of(stream, map) } else { None }
    }

    /// Changes a map, by which it gets at most so many bytes longer.
    pub(crate) fn change_map(
        &mut self,
        limits: &Limits,
        map: MapType,
        longer_max: usize,
        change: impl FnOnce(&mut HeaderMap) -> Result<(), MapError>,
    ) -> Result<(), Closed> {
        let stage = self.current.stage_here();
        let stream = self.streams.get_mut(&self.current.effective).ok_or(Closed::NotOpen)?;
        if stream.protocol != Protocol::Http || !is_map_open(stream, stage, map) {
            return Err(Closed::NotOpen);
        }
        if map_of(stream, map).is_none() {
            return Err(Closed::NotOpen);
        }
        if !take(&mut self.added, limits, longer_max) {
            return Err(Closed::Full);
        }
        match map {
            MapType::HttpRequestHeaders => stream.downstream.keep_headers(),
            MapType::HttpResponseHeaders => stream.upstream.keep_headers(),
            _ => {}
        }
        let found = map_of_mut(stream, map).ok_or(Closed::NotOpen)?;
        let before = found.bytes();
        let changed = change(found).map_err(Closed::Refused);
        let after = found.bytes();
        stream.added += longer_max as u64;
        let unused = longer_max + before - after;
        give(&mut self.added, limits, &mut stream.added, unused);
        changed
    }

    /// A buffer to read; `None` when it is not open.
    pub(crate) fn buffer<'a>(&'a self, spec: &'a VmSpec, buffer: BufferType) -> Option<&'a [u8]> {
        let stage = self.current.stage;
        match buffer {
            BufferType::HttpCallResponseBody => {
                self.current.response.as_ref().map(|response| response.body.as_slice())
            }
            BufferType::VmConfiguration => {
                (stage == Stage::VmStart).then_some(&*spec.vm_configuration)
            }
            BufferType::PluginConfiguration => {
                (stage == Stage::Configure).then_some(&*spec.plugin_configuration)
            }
            BufferType::ForeignFunctionArguments => {
                (stage == Stage::ForeignFunction).then_some(self.current.arguments.as_slice())
            }
            BufferType::GrpcCallMessage => None,
            _ => {
                let (stream, stage) = self.shown()?;
                let side = side_of(stream, buffer)?;
                is_body_open(side, stage, buffer).then_some(side.body.as_slice())
            }
        }
    }

    /// Edits a buffer.
    pub(crate) fn edit_buffer(
        &mut self,
        limits: &Limits,
        buffer: BufferType,
        start: usize,
        size: usize,
        value: &[u8],
    ) -> Result<(), Closed> {
        let stage = self.current.stage_here();
        let stream = self.streams.get_mut(&self.current.effective).ok_or(Closed::NotOpen)?;
        let side = side_of_mut(stream, buffer).ok_or(Closed::NotOpen)?;
        if !is_body_open(side, stage, buffer) {
            return Err(Closed::NotOpen);
        }
        let length = side.body.len();
        let start = start.min(length);
        let replaced = size.min(length - start);
        let added = value.len().saturating_sub(replaced);
        if length - replaced + value.len() > BUFFER_LENGTH_MAX && added > 0 {
            return Err(Closed::Full);
        }
        if !take(&mut self.added, limits, added) {
            return Err(Closed::Full);
        }
        let is_edited = buffer::edit(&mut side.body, start, size, value, usize::MAX);
        debug_assert!(is_edited, "the length was looked at above");
        side.is_body_edited = true;
        stream.added += added as u64;
        let removed = replaced.saturating_sub(value.len());
        give(&mut self.added, limits, &mut stream.added, removed);
        Ok(())
    }

    /// Keeps a property that a module sets, until its context ends.
    pub(crate) fn keep_property(
        &mut self,
        limits: &Limits,
        context: u32,
        path: Vec<u8>,
        value: Vec<u8>,
    ) -> Result<(), Closed> {
        let (own, kept) = match self.streams.get_mut(&context) {
            Some(stream) => (&mut stream.own_properties, &mut stream.kept),
            None => (&mut self.own_properties, &mut self.kept),
        };
        let old = own.get(&path).map_or(0, |value| path.len() + value.len());
        let new = path.len() + value.len();
        let added = new.saturating_sub(old);
        let is_full = own.len() >= PROPERTIES_MAX && !own.contains_key(&path);
        if is_full || !take(&mut self.added, limits, added) {
            return Err(Closed::Full);
        }
        *kept += added as u64;
        give(&mut self.added, limits, kept, old.saturating_sub(new));
        own.insert(path, value);
        Ok(())
    }

    /// A context ends, and its stream is the caller's again.
    pub(crate) fn take_stream(&mut self, limits: &Limits, context: u32) -> Option<Box<Stream>> {
        self.give_added(limits, context);
        let mut stream = self.streams.remove(&context)?;
        let kept = std::mem::take(&mut stream.kept);
        self.added -= kept;
        limits.give(Part::State, kept);
        Some(stream)
    }

    /// A stream goes on, or ends: what its module added is no longer here.
    pub(crate) fn give_added(&mut self, limits: &Limits, context: u32) {
        let Some(stream) = self.streams.get_mut(&context) else { return };
        let added = std::mem::take(&mut stream.added);
        self.added -= added;
        limits.give(Part::State, added);
    }
}

/// Takes memory for what a module adds to a stream.
fn take(total: &mut u64, limits: &Limits, added: usize) -> bool {
    let added = added as u64;
    let is_taken = *total + added <= ADDED_BYTES_MAX && limits.take(Part::State, added);
    *total += if is_taken { added } else { 0 };
    is_taken
}

/// What a module takes away again is given back, as far as it had added something.
fn give(total: &mut u64, limits: &Limits, part: &mut u64, removed: usize) {
    let given = (removed as u64).min(*part);
    *part -= given;
    *total -= given;
    limits.give(Part::State, given);
}

fn is_map_open(stream: &Stream, stage: Stage, map: MapType) -> bool {
    let (request, response) = (stream.downstream.held, stream.upstream.held);
    match map {
        MapType::HttpRequestHeaders => stage == Stage::RequestHeaders || request.headers,
        MapType::HttpRequestTrailers => {
            matches!(stage, Stage::RequestTrailers | Stage::RequestBody { is_last: true })
                || request.trailers
        }
        MapType::HttpResponseHeaders => stage == Stage::ResponseHeaders || response.headers,
        MapType::HttpResponseTrailers => {
            matches!(stage, Stage::ResponseTrailers | Stage::ResponseBody { is_last: true })
                || response.trailers
        }
        _ => false,
    }
}

fn map_of(stream: &Stream, map: MapType) -> Option<&HeaderMap> {
    Some(match map {
        MapType::HttpRequestHeaders => &stream.downstream.headers,
        MapType::HttpRequestTrailers => &stream.downstream.trailers,
        MapType::HttpResponseHeaders => &stream.upstream.headers,
        MapType::HttpResponseTrailers => &stream.upstream.trailers,
        _ => return None,
    })
}

fn map_of_mut(stream: &mut Stream, map: MapType) -> Option<&mut HeaderMap> {
    Some(match map {
        MapType::HttpRequestHeaders => &mut stream.downstream.headers,
        MapType::HttpRequestTrailers => &mut stream.downstream.trailers,
        MapType::HttpResponseHeaders => &mut stream.upstream.headers,
        MapType::HttpResponseTrailers => &mut stream.upstream.trailers,
        _ => return None,
    })
}

fn side_of(stream: &Stream, buffer: BufferType) -> Option<&Side> {
    match (stream.protocol, buffer) {
        (Protocol::Http, BufferType::HttpRequestBody)
        | (Protocol::Tcp, BufferType::DownstreamData) => Some(&stream.downstream),
        (Protocol::Http, BufferType::HttpResponseBody)
        | (Protocol::Tcp, BufferType::UpstreamData) => Some(&stream.upstream),
        _ => None,
    }
}

fn side_of_mut(stream: &mut Stream, buffer: BufferType) -> Option<&mut Side> {
    match (stream.protocol, buffer) {
        (Protocol::Http, BufferType::HttpRequestBody)
        | (Protocol::Tcp, BufferType::DownstreamData) => Some(&mut stream.downstream),
        (Protocol::Http, BufferType::HttpResponseBody)
        | (Protocol::Tcp, BufferType::UpstreamData) => Some(&mut stream.upstream),
        _ => None,
    }
}

fn is_body_open(side: &Side, stage: Stage, buffer: BufferType) -> bool {
    let is_shown = match buffer {
        BufferType::HttpRequestBody => matches!(stage, Stage::RequestBody { .. }),
        BufferType::HttpResponseBody => matches!(stage, Stage::ResponseBody { .. }),
        BufferType::DownstreamData => stage == Stage::DownstreamData,
        BufferType::UpstreamData => stage == Stage::UpstreamData,
        _ => false,
    };
    is_shown || side.held.body
}
