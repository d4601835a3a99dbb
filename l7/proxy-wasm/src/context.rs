//! Contexts of a VM, and the ABI's rules of access to maps and buffers.
//!
//! A map or buffer is accessible in the callback that gets it, and afterwards as long as its side
//! has been paused since. Trailers may be added in the last call for a body. In `proxy_on_log` all
//! maps are readable.

use crate::abi::{BufferType, MapType};
use crate::buffer;
use crate::http_call::HttpResponse;
use crate::limits::{ADDED_BYTES_MAX, BUFFER_LENGTH_MAX, PROPERTIES_MAX};
use crate::map::{HeaderMap, MapError};
use crate::spec::VmSpec;
use crate::stream::{Protocol, Side, Stage, Stream};
use engine::{Limits, Part};
use std::collections::BTreeMap;

/// A map or buffer cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeError {
    /// The map or buffer is not accessible for writing, now or ever.
    NotOpen,
    /// The new content is invalid, or exceeds a limit.
    Refused(MapError),
    /// The memory for it is exhausted.
    Full,
}

/// Number of the root context: the module itself, outside any stream.
pub const ROOT: u32 = 1;

/// Contexts of a VM, with their streams and the memory that the module has added to them, and the
/// state of the current call.
pub(crate) struct Contexts {
    streams: BTreeMap<u32, Box<Stream>>,
    /// Bytes that the module has added to all streams.
    added_bytes: u64,
    /// Properties that the module has set in the root context, by path.
    module_properties: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Bytes of these properties.
    property_bytes: u64,
    last: u32,
    /// True if the module was asked to end the root context, and has not finished.
    is_root_pending: bool,
    current: Current,
}

impl Default for Contexts {
    fn default() -> Self {
        Self {
            streams: BTreeMap::new(),
            added_bytes: 0,
            module_properties: BTreeMap::new(),
            property_bytes: 0,
            last: ROOT,
            is_root_pending: false,
            current: Current::default(),
        }
    }
}

/// State of the current call.
#[derive(Debug)]
struct Current {
    /// Context that the call is about.
    context: u32,
    /// Effective context: the one that host functions work on.
    effective: u32,
    stage: Stage,
    response: Option<HttpResponse>,
    arguments: Vec<u8>,
}

impl Default for Current {
    fn default() -> Self {
        let (response, arguments) = (None, Vec::new());
        Self { context: ROOT, effective: ROOT, stage: Stage::Other, response, arguments }
    }
}

impl Current {
    /// Returns the stage with respect to the effective context.
    fn stage_here(&self) -> Stage {
        if self.context == self.effective { self.stage } else { Stage::Other }
    }
}

impl Contexts {
    /// Returns true if there is such a context.
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
    pub(crate) const fn added_bytes(&self) -> u64 {
        self.added_bytes
    }

    /// Returns the effective context.
    pub(crate) const fn effective(&self) -> u32 {
        self.current.effective
    }

    /// Returns the stage of the call with respect to the effective context.
    pub(crate) fn stage(&self) -> Stage {
        self.current.stage_here()
    }

    /// Returns the response to an HTTP call that the callback is for.
    pub(crate) const fn response(&self) -> Option<&HttpResponse> {
        self.current.response.as_ref()
    }

    /// Returns a property that the module has set in the root context.
    pub(crate) fn module_property(&self, path: &[u8]) -> Option<&Vec<u8>> {
        self.module_properties.get(path)
    }

    /// Begins a call that is about a context.
    pub(crate) fn enter(&mut self, context: u32, stage: Stage) {
        self.current = Current { context, effective: context, stage, ..Current::default() };
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

    /// Adds a stream under an unused number.
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

    /// Moves a stream whose number its caller never learns to number 0.
    pub(crate) fn move_to_zero(&mut self, context: u32) {
        if let Some(stream) = self.streams.remove(&context) {
            self.streams.insert(0, stream);
        }
    }

    /// Removes and returns all streams.
    pub(crate) fn take_all(&mut self) -> BTreeMap<u32, Box<Stream>> {
        std::mem::take(&mut self.streams)
    }

    /// Records whether the module has postponed the end of a context.
    pub(crate) fn set_pending(&mut self, context: u32, is_pending: bool) {
        match self.streams.get_mut(&context) {
            Some(stream) => stream.is_pending = is_pending,
            None => self.is_root_pending = is_pending,
        }
    }

    /// Returns true if the end of the effective context was postponed, and clears that; `None` if
    /// there is no such context.
    pub(crate) fn take_pending(&mut self) -> Option<bool> {
        let is_pending = match self.current.effective {
            ROOT => &mut self.is_root_pending,
            context => &mut self.streams.get_mut(&context)?.is_pending,
        };
        Some(std::mem::take(is_pending))
    }

    /// Returns the stream of the effective context, and the stage with respect to it.
    fn visible(&self) -> Option<(&Stream, Stage)> {
        let stream = self.streams.get(&self.current.effective)?;
        Some((stream, self.current.stage_here()))
    }

    /// Returns a map for reading; `None` if it is not accessible.
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
        let (stream, stage) = self.visible()?;
        let is_open = stage == Stage::Log || is_map_open(stream, stage, map);
        if stream.protocol == Protocol::Http && is_open { map_of(stream, map) } else { None }
    }

    /// Changes a map, which grows by at most `growth_max` bytes.
    pub(crate) fn change_map(
        &mut self,
        limits: &Limits,
        map: MapType,
        growth_max: usize,
        change: impl FnOnce(&mut HeaderMap) -> Result<(), MapError>,
    ) -> Result<(), ChangeError> {
        let stage = self.current.stage_here();
        let stream = self.streams.get_mut(&self.current.effective).ok_or(ChangeError::NotOpen)?;
        if stream.protocol != Protocol::Http || !is_map_open(stream, stage, map) {
            return Err(ChangeError::NotOpen);
        }
        if map_of(stream, map).is_none() {
            return Err(ChangeError::NotOpen);
        }
        if !charge(&mut self.added_bytes, limits, growth_max) {
            return Err(ChangeError::Full);
        }
        match map {
            MapType::HttpRequestHeaders => stream.downstream.keep_headers(),
            MapType::HttpResponseHeaders => stream.upstream.keep_headers(),
            _ => {}
        }
        let found = map_of_mut(stream, map).ok_or(ChangeError::NotOpen)?;
        let before = found.bytes();
        let changed = change(found).map_err(ChangeError::Refused);
        let after = found.bytes();
        stream.added_bytes += growth_max as u64;
        let unused = growth_max + before - after;
        release(&mut self.added_bytes, limits, &mut stream.added_bytes, unused);
        changed
    }

    /// Returns a buffer for reading; `None` if it is not accessible.
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
                let (stream, stage) = self.visible()?;
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
    ) -> Result<(), ChangeError> {
        let stage = self.current.stage_here();
        let stream = self.streams.get_mut(&self.current.effective).ok_or(ChangeError::NotOpen)?;
        let side = side_of_mut(stream, buffer).ok_or(ChangeError::NotOpen)?;
        if !is_body_open(side, stage, buffer) {
            return Err(ChangeError::NotOpen);
        }
        let length = side.body.len();
        let start = start.min(length);
        let replaced = size.min(length - start);
        let added_bytes = value.len().saturating_sub(replaced);
        if length - replaced + value.len() > BUFFER_LENGTH_MAX && added_bytes > 0 {
            return Err(ChangeError::Full);
        }
        if !charge(&mut self.added_bytes, limits, added_bytes) {
            return Err(ChangeError::Full);
        }
        let is_edited = buffer::edit(&mut side.body, start, size, value, usize::MAX);
        debug_assert!(is_edited, "the length was looked at above");
        side.is_body_edited = true;
        stream.added_bytes += added_bytes as u64;
        let removed = replaced.saturating_sub(value.len());
        release(&mut self.added_bytes, limits, &mut stream.added_bytes, removed);
        Ok(())
    }

    /// Stores a property that the module sets, until its context ends.
    pub(crate) fn keep_property(
        &mut self,
        limits: &Limits,
        context: u32,
        path: Vec<u8>,
        value: Vec<u8>,
    ) -> Result<(), ChangeError> {
        let (properties, property_bytes) = match self.streams.get_mut(&context) {
            Some(stream) => (&mut stream.module_properties, &mut stream.property_bytes),
            None => (&mut self.module_properties, &mut self.property_bytes),
        };
        let old = properties.get(&path).map_or(0, |value| path.len() + value.len());
        let new = path.len() + value.len();
        let added_bytes = new.saturating_sub(old);
        let is_full = properties.len() >= PROPERTIES_MAX && !properties.contains_key(&path);
        if is_full || !charge(&mut self.added_bytes, limits, added_bytes) {
            return Err(ChangeError::Full);
        }
        *property_bytes += added_bytes as u64;
        release(&mut self.added_bytes, limits, property_bytes, old.saturating_sub(new));
        properties.insert(path, value);
        Ok(())
    }

    /// Ends a context, and returns its stream.
    pub(crate) fn take_stream(&mut self, limits: &Limits, context: u32) -> Option<Box<Stream>> {
        self.release_added(limits, context);
        let mut stream = self.streams.remove(&context)?;
        let property_bytes = std::mem::take(&mut stream.property_bytes);
        self.added_bytes -= property_bytes;
        limits.give(Part::State, property_bytes);
        Some(stream)
    }

    /// Releases the memory that the module has added to a stream, which goes on or ends.
    pub(crate) fn release_added(&mut self, limits: &Limits, context: u32) {
        let Some(stream) = self.streams.get_mut(&context) else { return };
        let added_bytes = std::mem::take(&mut stream.added_bytes);
        self.added_bytes -= added_bytes;
        limits.give(Part::State, added_bytes);
    }
}

/// Charges memory that a module adds to a stream.
fn charge(total: &mut u64, limits: &Limits, added_bytes: usize) -> bool {
    let added_bytes = added_bytes as u64;
    let is_taken = *total + added_bytes <= ADDED_BYTES_MAX && limits.take(Part::State, added_bytes);
    *total += if is_taken { added_bytes } else { 0 };
    is_taken
}

/// Releases memory that a module removes, up to what it had added.
fn release(total: &mut u64, limits: &Limits, part: &mut u64, removed: usize) {
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
