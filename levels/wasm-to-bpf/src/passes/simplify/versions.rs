//! Versions of classes of memory: a number that changes with each write. A load is equal to an
//! earlier one if nothing was written to its class in between; a join gets a new version, unless
//! the function never writes that class at all.

use foldhash::{HashMap, HashMapExt};

use abi::HostFunction;

use crate::ir::{BlockId, Function, Op, Region, Value};

/// Number of classes: memory, window, metadata, the memory's size, data behind it.
const CLASSES: usize = 5;
const METADATA_CLASS: usize = 2;
const SIZE: usize = 3;
const BEHIND: usize = 4;

/// Current version of each class, and those at the ends of blocks.
pub(super) struct Versions {
    now: Vec<u64>,
    ends: HashMap<BlockId, Vec<u64>>,
    written: Vec<bool>,
    /// Blocks after which a block, in some loop, writes metadata.
    disturbed: Vec<bool>,
    next: u64,
    /// Version of the class that each load read.
    loads: HashMap<Value, u64>,
}

impl Versions {
    /// Analyses a function. `keeps_metadata`: no store at a run-time address writes metadata.
    pub(super) fn new(function: &Function, keeps_metadata: bool) -> Self {
        let mut written = vec![false; CLASSES];
        let mut disturbed = vec![false; function.blocks.len()];
        for (index, block) in function.blocks.iter().enumerate() {
            for instruction in &block.instructions {
                for class in writes(&instruction.op, keeps_metadata) {
                    written[class] = true;
                    if class == METADATA_CLASS && block.loop_depth > 0 {
                        // The header of a loop that contains it comes before it.
                        disturbed[..=index].fill(true);
                    }
                }
            }
        }
        Self {
            now: vec![0; CLASSES],
            ends: HashMap::new(),
            written,
            disturbed,
            next: 1,
            loads: HashMap::new(),
        }
    }

    /// Returns true when nothing was written to metadata since the packet arrived: then it has the
    /// node's values.
    pub(super) fn is_metadata_new(&self) -> bool {
        self.now[METADATA_CLASS] == 0
    }

    /// Returns true when nothing in the function writes metadata.
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
                    // Not walked yet: a back edge, or an unreachable block.
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

    /// Returns the version of a region.
    pub(super) fn version(&self, region: Region) -> u64 {
        match class(region) {
            Some(class) => self.now[class],
            // The latest of the three: each change makes a larger one.
            None => self.now[..3].iter().copied().max().unwrap_or_default(),
        }
    }

    /// Returns the version of the memory's size.
    pub(super) fn of_size(&self) -> u64 {
        self.now[SIZE]
    }

    /// Records the writes of an operation.
    pub(super) fn write(&mut self, op: &Op, keeps_metadata: bool) {
        for class in writes(op, keeps_metadata) {
            self.change(class);
        }
    }

    /// Records that a value was loaded from a region.
    pub(super) fn handle_load(&mut self, loaded: Value, region: Region) {
        self.loads.insert(loaded, self.version(region));
    }

    /// Returns true when memory still holds the loaded value.
    pub(super) fn is_still_there(&self, loaded: Value, region: Region) -> bool {
        self.loads.get(&loaded) == Some(&self.version(region))
    }

    fn change(&mut self, class: usize) {
        self.now[class] = self.next;
        self.next += 1;
    }
}

/// Returns the classes that an operation may write.
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

/// Returns the class of a region, `None` for one known only at run time.
pub(super) fn class(region: Region) -> Option<usize> {
    match region {
        Region::Memory => Some(0),
        Region::Window => Some(1),
        Region::Metadata => Some(2),
        Region::Behind => Some(BEHIND),
        Region::Unknown { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Access, Block, FunctionIndex, Instruction, Place, Terminator, Width};

    fn store(region: Region) -> Op {
        let access = Access { address: Value(0), offset: 0, region, bounds_check: false };
        Op::Store { width: Width::Four, value: Value(0), access }
    }

    fn block(ops: Vec<Op>) -> Block {
        let instruction = |op| Instruction { results: Vec::new(), op, place: Place(0) };
        Block {
            parameters: Vec::new(),
            instructions: ops.into_iter().map(instruction).collect(),
            terminator: Terminator::Return(Vec::new()),
            is_loop_header: false,
            loop_depth: 0,
            rounds_max: None,
        }
    }

    fn versions(blocks: Vec<Block>) -> Versions {
        let function = Function {
            index: FunctionIndex(0),
            name: None,
            parameters: Vec::new(),
            results: Vec::new(),
            types: Vec::new(),
            blocks,
            can_trap: false,
        };
        Versions::new(&function, false)
    }

    #[test]
    fn a_loaded_value_is_valid_until_its_region_may_be_written() {
        let unknown = Region::Unknown { below: false };
        let mut versions = versions(vec![block(vec![store(Region::Window), store(unknown)])]);
        versions.enter(BlockId(0), &[]);
        versions.handle_load(Value(1), Region::Memory);
        versions.write(&store(Region::Window), false);
        assert!(versions.is_still_there(Value(1), Region::Memory));
        versions.write(&store(unknown), false);
        assert!(!versions.is_still_there(Value(1), Region::Memory));
        assert!(!versions.is_metadata_new(), "it may have been written, too");
    }

    #[test]
    fn at_a_join_only_regions_written_on_some_path_get_a_new_version() {
        let blocks = vec![block(Vec::new()), block(vec![store(Region::Memory)]), block(Vec::new())];
        let mut versions = versions(blocks);
        versions.enter(BlockId(0), &[]);
        let window = versions.version(Region::Window);
        let memory = versions.version(Region::Memory);
        versions.leave(BlockId(0));
        versions.enter(BlockId(1), &[BlockId(0)]);
        assert_eq!(versions.version(Region::Memory), memory);
        versions.leave(BlockId(1));
        versions.enter(BlockId(2), &[BlockId(0), BlockId(1)]);
        assert_eq!(versions.version(Region::Window), window);
        assert!(versions.version(Region::Memory) > memory);
        assert!(versions.is_metadata_new() && versions.keeps_metadata());
    }
}
