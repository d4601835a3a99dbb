//! The main pass: one walk down the dominator tree that folds, simplifies,
//! finds what was computed before, and learns from branches and checks.
//!
//! ```text
//! for each block, dominators first:
//!   what the branch that leads here says      facts.rs, range.rs
//!   each operation: constant? simpler?        rules.rs, fold.rs, bytes.rs
//!                   computed before?          the table here
//!                   access: where, checked?   accesses.rs
//!   the terminator: decided?                  flow.rs
//! ```
//!
//! What it learns holds in the part of the tree below and is forgotten on the
//! way up. It makes no block and removes none: branches become jumps.

mod accesses;
mod bytes;
mod facts;
mod flow;
mod induction;
mod premises;
mod range;
mod rules;

use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};

use super::alias::Aliases;
use super::graph::Graph;
use crate::Entry;
use crate::ir::{
    Block, BlockId, Function, Global, Instruction, Memory, Op, Place, Terminator, Type, Value,
};
use accesses::Versions;
use induction::Inductions;
use premises::Premises;
use range::Range;
use rules::Simpler;

/// What holds for the whole module.
#[derive(Clone)]
pub(super) struct Surroundings {
    /// The declared window, if there is a packet.
    pub(super) window: Option<u32>,
    pub(super) memory: Option<Memory>,
    pub(super) globals: Vec<Global>,
    /// Whether it is the entry that is simplified: it meets a new packet.
    pub(super) is_entry: bool,
    /// Set when questions for the length of the window become questions for the packet's.
    pub(super) asks_packet: bool,
}

impl Surroundings {
    pub(super) fn new(entry: &Entry, memory: Option<Memory>, globals: &[Global]) -> Self {
        let window = match entry {
            Entry::Packet { window, .. } => Some(*window),
            Entry::Export(_) => None,
        };
        Self { window, memory, globals: globals.to_vec(), is_entry: false, asks_packet: false }
    }
}

/// Simplifies a function whose blocks are in order.
pub(super) fn run(function: &mut Function, surroundings: &Surroundings) {
    premises::with_best(function, surroundings);
}

/// Walks once. Returns for each loop header the ranges that came in from ways back.
fn walk(
    function: &mut Function,
    surroundings: &Surroundings,
    premises: &Premises,
) -> Vec<Option<Vec<Range>>> {
    let graph = Graph::of(function);
    let children = graph.dominated();
    let mut simplifier = Simplifier::new(function, surroundings, &graph, premises);
    let mut work = vec![Step::Enter(BlockId(0))];
    while let Some(step) = work.pop() {
        match step {
            Step::Enter(block) => {
                work.push(Step::Leave);
                simplifier.scopes.push(Vec::new());
                if simplifier.block(block) {
                    let below = &children[block.0 as usize];
                    work.extend(below.iter().rev().map(|block| Step::Enter(*block)));
                }
            }
            Step::Leave => simplifier.leave_scope(),
        }
    }
    // What came into a block before the walk did is taken; what is left came from ways back.
    let Simplifier { mut aliases, types, blocks, incoming, .. } = simplifier;
    function.types = types;
    function.blocks = blocks;
    aliases.apply(function);
    incoming
}

enum Step {
    Enter(BlockId),
    Leave,
}

/// What is undone when a part of the tree is left.
enum Undo {
    Computed(Key, Option<Value>),
    Range(Value, Range),
    Checked(Value, Option<u64>),
}

/// What an operation computes: equal keys, equal results.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    pub(super) what: (u8, u8, Type),
    pub(super) operands: [u64; 3],
    pub(super) version: u64,
}

/// On the walk.
struct Simplifier<'s> {
    surroundings: &'s Surroundings,
    graph: &'s Graph,
    premises: &'s Premises,
    types: Vec<Type>,
    blocks: Vec<Block>,
    aliases: Aliases,
    inductions: Inductions,
    /// Comparisons for equality of what never goes past the other operand.
    below: HashSet<Value>,
    /// The pure operation that defines a value.
    definitions: Vec<Option<Op>>,
    ranges: Vec<Range>,
    /// For each block whether a way to it was seen, and the ranges of what
    /// came in for its parameters.
    incoming: Vec<Option<Vec<Range>>>,
    computed: HashMap<Key, Value>,
    /// For a base address, how far beyond it the memory certainly reaches.
    checked: HashMap<Value, u64>,
    scopes: Vec<Vec<Undo>>,
    versions: Versions,
    /// The version of the places that each load read.
    loads: HashMap<Value, u64>,
    /// Loads of the window's length.
    lengths: Vec<Value>,
    /// The block that grows.
    out: Vec<Instruction>,
    place: Place,
}

impl<'s> Simplifier<'s> {
    fn new(
        function: &mut Function,
        surroundings: &'s Surroundings,
        graph: &'s Graph,
        premises: &'s Premises,
    ) -> Self {
        let aliases = Aliases::none(function);
        let versions = Versions::new(function, premises.keeps_metadata);
        let inductions = Inductions::of(function, graph);
        let types = std::mem::take(&mut function.types);
        let blocks = std::mem::take(&mut function.blocks);
        let mut incoming = vec![None; blocks.len()];
        if let (Some(entry), Some(block)) = (incoming.first_mut(), blocks.first()) {
            let full = |value: &Value| Range::full(types[value.0 as usize]);
            *entry = Some(block.parameters.iter().map(full).collect());
        }
        Self {
            surroundings,
            graph,
            premises,
            definitions: vec![None; types.len()],
            ranges: types.iter().map(|ty| Range::full(*ty)).collect(),
            types,
            incoming,
            blocks,
            aliases,
            inductions,
            below: HashSet::new(),
            computed: HashMap::new(),
            checked: HashMap::new(),
            scopes: Vec::new(),
            versions,
            loads: HashMap::new(),
            lengths: Vec::new(),
            out: Vec::new(),
            place: Place::default(),
        }
    }

    /// Whether the block can be reached at all.
    fn block(&mut self, id: BlockId) -> bool {
        let index = id.0 as usize;
        let Some(ranges) = self.incoming[index].take() else { return false };
        let parameters = self.blocks[index].parameters.clone();
        let (rounds_max, ranges) = match self.blocks[index].is_loop_header {
            true => {
                let types: Vec<Type> =
                    parameters.iter().map(|value| self.type_of(*value)).collect();
                let (aliases, known) = (&mut self.aliases, &self.ranges);
                let mut range = |value| known[aliases.find(value).0 as usize];
                let (rounds, counted) = self.inductions.of_loop(id, &types, &ranges, &mut range);
                if self.surroundings.asks_packet {
                    self.below.extend(self.inductions.below(id, &ranges, range));
                }
                (rounds, self.premises.narrowed(id, &ranges, counted))
            }
            false => (None, ranges),
        };
        self.blocks[index].rounds_max = rounds_max;
        for (parameter, range) in parameters.into_iter().zip(ranges) {
            self.set_range(parameter, range);
        }
        self.learn_from_way_in(id);
        self.versions.enter(id, &self.graph.predecessors[index]);
        let instructions = std::mem::take(&mut self.blocks[index].instructions);
        let mut end = None;
        for instruction in instructions {
            end = self.instruction(instruction);
            if end.is_some() {
                break;
            }
        }
        let terminator = match end {
            Some(trap) => trap,
            None => {
                let next = Terminator::Return(Vec::new());
                let terminator = std::mem::replace(&mut self.blocks[index].terminator, next);
                self.terminator(terminator)
            }
        };
        self.send_ranges(&terminator);
        self.versions.leave(id);
        self.blocks[index].terminator = terminator;
        self.blocks[index].instructions = std::mem::take(&mut self.out);
        true
    }

    /// A trap that certainly happens, or nothing.
    fn instruction(&mut self, instruction: Instruction) -> Option<Terminator> {
        let Instruction { results, mut op, place } = instruction;
        self.place = place;
        op.for_each_use_mut(|value| *value = self.known(*value));
        match op {
            Op::TrapIf(condition, code) => {
                let condition = self.condition(condition);
                match self.constant(condition) {
                    Some(0) => {}
                    Some(_) => return Some(Terminator::Trap(code, place)),
                    None => {
                        self.append(&[], Op::TrapIf(condition, code));
                        self.assume(condition, false);
                    }
                }
                None
            }
            op if op.is_pure() => {
                if let [result] = results[..] {
                    let op = if self.below.contains(&result) { self.as_order(op) } else { op };
                    let value = self.compute(op, self.type_of(result), Some(result));
                    self.aliases.set(result, value);
                }
                None
            }
            op => {
                self.access(op, &results);
                None
            }
        }
    }

    /// The value of a pure operation: one that is there, or a new one.
    pub(super) fn compute(&mut self, op: Op, ty: Type, result: Option<Value>) -> Value {
        let mut op = op;
        loop {
            op.for_each_use_mut(|value| *value = self.known(*value));
            match self.simpler(&op, ty) {
                Some(Simpler::Is(value)) => return value,
                Some(Simpler::Do(other)) => op = other,
                None => break,
            }
        }
        let key = key(&op, ty);
        if let Some(key) = &key
            && let Some(value) = self.computed.get(key)
        {
            return *value;
        }
        let value = result.unwrap_or_else(|| self.value(ty));
        let range = self.range_of(&op, ty);
        self.ranges[value.0 as usize] = range;
        self.append(&[value], op.clone());
        self.definitions[value.0 as usize] = Some(op);
        if let Some(key) = key {
            self.remember(key, value);
        }
        value
    }

    /// The value as it is known here: what stands for it, or its number.
    fn known(&mut self, value: Value) -> Value {
        let value = self.aliases.find(value);
        match self.range(value).constant() {
            Some(number) if !self.is_constant(value) => self.number(number, self.type_of(value)),
            _ => value,
        }
    }

    /// A value that is this number.
    pub(super) fn number(&mut self, number: u64, ty: Type) -> Value {
        self.compute(Op::Const(number), ty, None)
    }

    pub(super) fn definition(&self, value: Value) -> Option<&Op> {
        self.definitions.get(value.0 as usize).and_then(Option::as_ref)
    }

    pub(super) fn type_of(&self, value: Value) -> Type {
        self.types[value.0 as usize]
    }

    pub(super) fn range(&self, value: Value) -> Range {
        self.ranges[value.0 as usize]
    }

    pub(super) fn constant(&self, value: Value) -> Option<u64> {
        self.range(value).constant()
    }

    fn is_constant(&self, value: Value) -> bool {
        matches!(self.definition(value), Some(Op::Const(_)))
    }

    fn value(&mut self, ty: Type) -> Value {
        let value = Value(u32::try_from(self.types.len()).unwrap_or(u32::MAX));
        self.types.push(ty);
        self.definitions.push(None);
        self.ranges.push(Range::full(ty));
        value
    }

    fn append(&mut self, results: &[Value], op: Op) {
        self.out.push(Instruction { results: results.to_vec(), op, place: self.place });
    }

    fn remember(&mut self, key: Key, value: Value) {
        let before = self.computed.insert(key.clone(), value);
        self.undo_later(Undo::Computed(key, before));
    }

    fn set_range(&mut self, value: Value, range: Range) {
        let before = std::mem::replace(&mut self.ranges[value.0 as usize], range);
        if before != range {
            self.undo_later(Undo::Range(value, before));
        }
    }

    fn undo_later(&mut self, undo: Undo) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.push(undo);
        }
    }

    fn leave_scope(&mut self) {
        for undo in self.scopes.pop().into_iter().flatten().rev() {
            match undo {
                Undo::Computed(key, Some(value)) => {
                    self.computed.insert(key, value);
                }
                Undo::Computed(key, None) => {
                    self.computed.remove(&key);
                }
                Undo::Range(value, range) => self.ranges[value.0 as usize] = range,
                Undo::Checked(value, Some(end)) => {
                    self.checked.insert(value, end);
                }
                Undo::Checked(value, None) => {
                    self.checked.remove(&value);
                }
            }
        }
    }
}

/// Pure operations that compute the same have one key.
fn key(op: &Op, ty: Type) -> Option<Key> {
    let operand = |value: &Value| u64::from(value.0);
    let (kind, detail, operands) = match op {
        Op::Const(number) => (0, 0, [*number, 0, 0]),
        Op::Unary(op, a) => (1, *op as u8, [operand(a), 0, 0]),
        Op::Binary(op, a, b) => (2, *op as u8, [operand(a), operand(b), 0]),
        Op::Compare(op, a, b) => (3, *op as u8, [operand(a), operand(b), 0]),
        Op::ExtendUnsigned(a) => (4, 0, [operand(a), 0, 0]),
        Op::ExtendSigned(a) => (5, 0, [operand(a), 0, 0]),
        Op::Wrap(a) => (6, 0, [operand(a), 0, 0]),
        Op::Select(a, b, c) => (7, 0, [operand(a), operand(b), operand(c)]),
        Op::PacketLength => (8, 0, [0; 3]),
        // Each hides its value where it stands.
        _ => return None,
    };
    Some(Key { what: (kind, detail, ty), operands, version: 0 })
}
