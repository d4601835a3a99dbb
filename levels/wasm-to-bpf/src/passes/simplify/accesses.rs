//! Loads, stores and calls: where an access lies, whether it needs a
//! check, and whether a value was loaded before.
//!
//! A load is the same as one before if nothing was written to its class of
//! places between them. Each class has a version, a number that changes with
//! each write; where ways join it is a new one, unless the function never
//! writes that class at all.

use foldhash::{HashMap, HashMapExt};

use abi::HostFunction;
use abi::layout::{META_ADDRESS, META_LENGTH, WINDOW_ADDRESS};

use super::bytes::Place;
use super::range::Range;
use super::rules::Simpler;
use super::{Key, Simplifier, Undo};
use crate::ir::{Access, BinaryOp, BlockId, Function, Op, Region, Type, Value, Width};
use crate::passes::fold::ones;

/// Bytes of a page.
const PAGE_LENGTH: u64 = 65_536;
/// Distance of the bases of sums: an instruction's offset reaches from one to the next.
const BASE_STEP: u64 = 0x8000;
/// Where the metadata lies.
const METADATA: (u64, u64) = (META_ADDRESS as u64, META_ADDRESS as u64 + META_LENGTH as u64);
/// Sums that are followed from an address to the stack pointer.
const SUMS_MAX: usize = 8;
/// Offsets of the fields of metadata whose range is known.
const PACKET_LENGTH: u64 = 0;
const WINDOW_LENGTH: u64 = 4;
/// Versions: of memory, window, metadata, the memory's size, what lies behind it.
const CLASSES: usize = 5;
const METADATA_CLASS: usize = 2;
const SIZE: usize = 3;
const BEHIND: usize = 4;

/// The version of each class of places, here and at the ends of blocks.
pub(super) struct Versions {
    now: Vec<u64>,
    ends: HashMap<BlockId, Vec<u64>>,
    written: Vec<bool>,
    /// For each block whether a block after it, in some loop, writes metadata.
    disturbed: Vec<bool>,
    next: u64,
}

impl Versions {
    /// `keeps_metadata`: no store at an address that only the run knows is of metadata.
    pub(super) fn new(function: &Function, keeps_metadata: bool) -> Self {
        let mut written = vec![false; CLASSES];
        let mut disturbed = vec![false; function.blocks.len()];
        for (index, block) in function.blocks.iter().enumerate() {
            for instruction in &block.instructions {
                for class in writes(&instruction.op, keeps_metadata) {
                    written[class] = true;
                    if class == METADATA_CLASS && block.loop_depth > 0 {
                        // The header of a loop that it is in comes before it.
                        disturbed[..=index].fill(true);
                    }
                }
            }
        }
        Self { now: vec![0; CLASSES], ends: HashMap::new(), written, disturbed, next: 1 }
    }

    /// Whether nothing was written to metadata since the packet came: then it
    /// is what the node wrote.
    pub(super) fn is_metadata_new(&self) -> bool {
        self.now[METADATA_CLASS] == 0
    }

    /// Returns whether nothing in the function writes metadata.
    pub(super) fn keeps_metadata(&self) -> bool {
        !self.written[METADATA_CLASS]
    }

    pub(super) fn enter(&mut self, block: BlockId, predecessors: &[BlockId]) {
        let end = match predecessors {
            [one] => self.ends.get(one),
            _ => None,
        };
        match end {
            Some(end) => self.now.clone_from(end),
            None if block == BlockId(0) => {}
            None => {
                let is_new = |from: &BlockId| match self.ends.get(from) {
                    Some(end) => end[METADATA_CLASS] == 0,
                    // Not walked yet: a way back in a loop, or never reached.
                    None => !self.disturbed[block.0 as usize],
                };
                let keeps_metadata = predecessors.iter().all(is_new);
                for class in 0..self.now.len() {
                    if class == METADATA_CLASS && keeps_metadata {
                        self.now[class] = 0;
                    } else if self.written[class] {
                        self.change(class);
                    }
                }
            }
        }
    }

    pub(super) fn leave(&mut self, block: BlockId) {
        self.ends.insert(block, self.now.clone());
    }

    fn change(&mut self, class: usize) {
        self.now[class] = self.next;
        self.next += 1;
    }
}

/// Classes that an operation may write.
fn writes(op: &Op, keeps_metadata: bool) -> Vec<usize> {
    const PLACES: [usize; 3] = [0, 1, 2];
    match op {
        Op::Store { access, .. } => {
            let unknown = if keeps_metadata { &PLACES[..METADATA_CLASS] } else { &PLACES };
            class(access.region).map_or(unknown.to_vec(), |class| vec![class])
        }
        Op::MemoryGrow(_) => vec![SIZE],
        Op::MemoryCopy(..) | Op::MemoryFill(..) => PLACES.to_vec(),
        Op::Call(..) => (0..CLASSES).collect(),
        Op::Host(host, _) => match host {
            HostFunction::NowMs
            | HostFunction::Event
            | HostFunction::MessageSend
            | HostFunction::PacketSend
            | HostFunction::PortFind => Vec::new(),
            _ => PLACES.to_vec(),
        },
        _ => Vec::new(),
    }
}

fn class(region: Region) -> Option<usize> {
    match region {
        Region::Memory => Some(0),
        Region::Window => Some(1),
        Region::Metadata => Some(2),
        Region::Behind => Some(BEHIND),
        Region::Unknown { .. } => None,
    }
}

impl Simplifier<'_> {
    /// An operation with an effect, or one that depends on effects.
    pub(super) fn access(&mut self, op: Op, results: &[Value]) {
        match op {
            Op::Load { width, signed, access } => {
                let access = self.place_of(access, width);
                if let [result] = results[..] {
                    self.load(result, width, signed, access);
                }
            }
            Op::Store { width, value, access } => {
                let access = self.place_of(access, width);
                let value = self.stored(value, width);
                self.store(width, value, access);
            }
            Op::GlobalGet(_) => {
                if let [result] = results[..] {
                    self.definitions[result.0 as usize] = Some(op.clone());
                }
                self.append(results, op);
            }
            Op::MemorySize => {
                if let [result] = results[..] {
                    self.memory_size(result);
                }
            }
            other => {
                for class in writes(&other, self.premises.keeps_metadata) {
                    self.versions.change(class);
                }
                self.append(results, other);
            }
        }
    }

    /// The access with its address as simple as it gets, its region and
    /// whether it must be checked; what is learnt of the address by the check.
    fn place_of(&mut self, access: Access, width: Width) -> Access {
        let Access { mut address, mut offset, .. } = access;
        while let Some((base, more)) = self.without_number(address, offset) {
            address = base;
            offset = more;
        }
        if let Some(number) = self.constant(address)
            && let Ok(sum) = u32::try_from(number + u64::from(offset))
        {
            address = self.number(u64::from(sum), Type::I32);
            offset = 0;
        }
        if access.region == Region::Behind {
            return Access { address, offset, ..access };
        }
        let end = u64::from(offset) + u64::from(width.bytes());
        let (low, high) = (self.range(address).low, self.range(address).high);
        let region = match access.region {
            Region::Unknown { .. } => self.region(low + u64::from(offset), high + end, address),
            known => known,
        };
        let memory = self.surroundings.memory;
        let (least, most) = memory.map_or((0, 0), |memory| {
            (u64::from(memory.pages_min) * PAGE_LENGTH, u64::from(memory.pages_max) * PAGE_LENGTH)
        });
        if region == Region::Memory
            && let Some((base, more)) = self.common_base(address, offset)
        {
            (address, offset) = (base, more);
        }
        let end = u64::from(offset) + u64::from(width.bytes());
        let high = self.range(address).high;
        let is_within = high + end <= least || self.checked.get(&address) >= Some(&end);
        if !is_within {
            let before = self.checked.insert(address, end);
            self.undo_later(Undo::Checked(address, before));
            if let Some(high) = most.checked_sub(end) {
                self.narrow(address, Range::up_to(high), 3);
            }
        }
        Access { address, offset, region, bounds_check: access.bounds_check && !is_within }
    }

    /// `x + c` with an offset is `x` with a larger one if nothing overflows.
    fn without_number(&self, address: Value, offset: u32) -> Option<(Value, u32)> {
        let Some(&Op::Binary(BinaryOp::Add, x, c)) = self.definition(address) else { return None };
        let c = self.constant(c)?;
        let fits = self.range(x).high + c <= ones(Type::I32);
        let offset = u64::from(offset) + c;
        (fits && self.constant(address).is_none()).then_some(())?;
        Some((x, u32::try_from(offset).ok()?))
    }

    /// `x + c` as a sum with a round number and an offset, where nothing says that `x` alone is an
    /// address: accesses of what lies close together have one base then.
    fn common_base(&mut self, address: Value, offset: u32) -> Option<(Value, u32)> {
        let Some(&Op::Binary(BinaryOp::Add, x, c)) = self.definition(address) else { return None };
        let (c, low) = (self.constant(c)?, self.range(address).low);
        let more = c % BASE_STEP;
        let fits = more > 0 && more <= low && self.constant(address).is_none();
        let offset = u32::try_from(u64::from(offset) + more).ok().filter(|_| fits)?;
        let c = self.number(c - more, Type::I32);
        Some((self.compute(Op::Binary(BinaryOp::Add, x, c), Type::I32, None), offset))
    }

    fn region(&self, low: u64, end: u64, address: Value) -> Region {
        let Some(window) = self.surroundings.window else { return Region::Memory };
        if self.surroundings.memory.is_none_or(|memory| memory.pages_min == 0) {
            return Region::Memory;
        }
        let window = (u64::from(WINDOW_ADDRESS), u64::from(WINDOW_ADDRESS) + u64::from(window));
        let inside = |(from, to): (u64, u64)| from <= low && end <= to;
        let apart = |(from, to): (u64, u64)| end <= from || low >= to;
        if inside(window) {
            Region::Window
        } else if inside(METADATA) {
            Region::Metadata
        } else if apart(window) && apart(METADATA) || self.constant(address).is_some() {
            // A constant address over an edge means the memory, too.
            Region::Memory
        } else {
            Region::Unknown { below: self.is_stack(address) }
        }
    }

    /// Whether an address comes from the stack pointer: a global below the metadata.
    fn is_stack(&self, address: Value) -> bool {
        let mut base = address;
        for _ in 0..SUMS_MAX {
            match self.definition(base) {
                Some(Op::Binary(BinaryOp::Add, inner, _)) => base = *inner,
                Some(Op::GlobalGet(global)) => {
                    let global = self.surroundings.globals.get(*global as usize);
                    return global.is_some_and(|global| global.initial <= METADATA.0);
                }
                _ => return false,
            }
        }
        false
    }

    fn load(&mut self, result: Value, width: Width, signed: bool, access: Access) {
        let ty = self.type_of(result);
        let range = self.loaded(width, signed, &access, ty);
        let key = self.access_key(width, signed, &access, ty);
        self.reuse(result, Op::Load { width, signed, access }, key);
        if self.aliases.find(result) == result {
            self.ranges[result.0 as usize] = range;
            let at = self.constant(access.address).map(|base| base + u64::from(access.offset));
            if width == Width::Four && at == Some(METADATA.0 + WINDOW_LENGTH) {
                self.lengths.push(result);
            }
            self.loads.insert(result, self.version(access.region));
        }
    }

    /// A load of bytes that were all loaded before, without a check.
    pub(super) fn load_again(&mut self, place: &Place, width: Width, ty: Type) -> Value {
        let (address, offset) = match place.address {
            Some(address) => (address, place.offset),
            None => (self.number(u64::from(place.offset), Type::I32), 0),
        };
        let access = Access { address, offset, region: place.region, bounds_check: false };
        let result = self.value(ty);
        self.load(result, width, false, access);
        self.aliases.find(result)
    }

    /// Whether what was loaded is still what memory holds.
    pub(super) fn is_still_there(&self, loaded: Value, region: Region) -> bool {
        self.loads.get(&loaded) == Some(&self.version(region))
    }

    /// What can be loaded there.
    fn loaded(&self, width: Width, signed: bool, access: &Access, ty: Type) -> Range {
        if signed {
            return Range::full(ty);
        }
        let high = ones(Type::I64) >> (64 - 8 * width.bytes());
        let place = self.constant(access.address).map(|base| base + u64::from(access.offset));
        let is_new = self.surroundings.is_entry && self.versions.is_metadata_new();
        let field = match (access.region, width) {
            (Region::Metadata, Width::Four) if is_new => place.map(|place| place - METADATA.0),
            _ => None,
        };
        match (field, self.surroundings.window) {
            (Some(PACKET_LENGTH), _) => {
                Range { low: 1, high: u64::from(abi::layout::PACKET_LENGTH_MAX) }
            }
            (Some(WINDOW_LENGTH), Some(window)) => Range::up_to(u64::from(window)),
            _ => Range::up_to(high.min(ones(ty))),
        }
    }

    /// The value as far as the store looks at it.
    fn stored(&mut self, value: Value, width: Width) -> Value {
        let ty = self.type_of(value);
        let mask = ones(Type::I64) >> (64 - 8 * width.bytes());
        let mut value = value;
        while let Some(&Op::Binary(BinaryOp::And, x, c)) = self.definition(value)
            && self.constant(c).is_some_and(|c| c & mask == mask)
        {
            value = x;
        }
        if let Some(op) = self.definition(value).cloned()
            && mask != ones(ty)
            && let Some(Simpler::Do(op)) = self.moved_bytes(&op, ty, width.bytes())
        {
            return self.compute(op, ty, None);
        }
        value
    }

    fn store(&mut self, width: Width, value: Value, access: Access) {
        let op = Op::Store { width, value, access };
        for class in writes(&op, self.premises.keeps_metadata) {
            self.versions.change(class);
        }
        let ty = self.type_of(value);
        let whole = matches!((ty, width), (Type::I32, Width::Four) | (Type::I64, Width::Eight));
        if whole && matches!(access.region, Region::Memory | Region::Behind) {
            let key = self.access_key(width, false, &access, ty);
            self.remember(key, value);
        }
        self.append(&[], op);
    }

    fn access_key(&self, width: Width, signed: bool, access: &Access, ty: Type) -> Key {
        let version = self.version(access.region);
        let region = class(access.region).map_or(9, |class| class as u64);
        let detail = width.bytes() as u8 | u8::from(signed) << 7;
        Key {
            what: (8, detail, ty),
            operands: [u64::from(access.address.0), u64::from(access.offset), region],
            version,
        }
    }

    fn version(&self, region: Region) -> u64 {
        match class(region) {
            Some(class) => self.versions.now[class],
            // The latest of the three: each change makes a larger one.
            None => self.versions.now[..3].iter().copied().max().unwrap_or_default(),
        }
    }

    fn memory_size(&mut self, result: Value) {
        match self.surroundings.memory {
            Some(memory) if memory.pages_min == memory.pages_max => {
                let pages = self.number(u64::from(memory.pages_min), Type::I32);
                self.aliases.set(result, pages);
            }
            memory => {
                let version = self.versions.now[SIZE];
                let key = Key { what: (10, 0, Type::I32), operands: [0; 3], version };
                self.reuse(result, Op::MemorySize, key);
                if let (Some(memory), true) = (memory, self.aliases.find(result) == result) {
                    let (low, high) = (u64::from(memory.pages_min), u64::from(memory.pages_max));
                    self.ranges[result.0 as usize] = Range { low, high };
                }
            }
        }
    }

    /// The value that was there before, or the operation.
    fn reuse(&mut self, result: Value, op: Op, key: Key) {
        match self.computed.get(&key) {
            Some(value) => {
                let value = *value;
                self.aliases.set(result, value);
            }
            None => {
                self.append(&[result], op.clone());
                self.definitions[result.0 as usize] = Some(op);
                self.remember(key, result);
            }
        }
    }
}
