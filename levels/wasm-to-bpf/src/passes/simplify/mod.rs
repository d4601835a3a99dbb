//! Main pass: one walk down the dominator tree that folds, simplifies,
//! reuses earlier results, and learns from branches and checks.
//!
//! ```text
//! for each block, dominators first:
//!   conclusions from the branch that leads here  facts.rs, range.rs
//!   each operation: constant? simpler?        rules.rs, fold.rs, bytes.rs
//!                   computed before?          facts.rs
//!                   access: region, check?    accesses.rs
//!                           loaded before?    loads.rs, versions.rs
//!   the terminator: decided?                  flow.rs
//! ```
//!
//! Facts hold in the part of the tree below and are discarded on the
//! way up. The pass makes no block and removes none: branches become jumps.

mod accesses;
mod bytes;
mod facts;
mod flow;
mod induction;
mod loads;
mod premises;
mod range;
mod rules;
mod versions;

use foldhash::{HashSet, HashSetExt};

use super::fold::ones;
use super::graph::Graph;
use crate::Entry;
use crate::ir::{
    Block, BlockId, Edge, Function, Global, Instruction, Memory, Op, Place, Terminator, Type, Value,
};
use facts::{Facts, key};
use induction::Inductions;
use premises::Premises;
use range::Range;
use rules::Simpler;
use versions::Versions;

/// Facts that hold for the whole module.
#[derive(Clone)]
pub(super) struct ModuleFacts {
    /// Declared window, if there is a packet.
    pub(super) window: Option<u32>,
    pub(super) memory: Option<Memory>,
    pub(super) globals: Vec<Global>,
    /// True if the function is the entry, which gets a new packet.
    pub(super) is_entry: bool,
    /// True when checks of the window's length are rewritten to checks of the packet's.
    pub(super) asks_packet: bool,
}

impl ModuleFacts {
    pub(super) fn new(entry: &Entry, memory: Option<Memory>, globals: &[Global]) -> Self {
        let window = match entry {
            Entry::Packet { window, .. } => Some(*window),
            Entry::Export(_) => None,
        };
        Self { window, memory, globals: globals.to_vec(), is_entry: false, asks_packet: false }
    }
}

/// Simplifies a function whose blocks are in order.
pub(super) fn run(function: &mut Function, surroundings: &ModuleFacts) {
    premises::with_best(function, surroundings);
}

/// Walks once. Returns for each loop header the ranges that came in by back edges.
fn walk(
    function: &mut Function,
    surroundings: &ModuleFacts,
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
                simplifier.facts.enter_scope();
                if simplifier.block(block) {
                    let below = &children[block.0 as usize];
                    work.extend(below.iter().rev().map(|block| Step::Enter(*block)));
                }
            }
            Step::Leave => simplifier.facts.leave_scope(),
        }
    }
    // Ranges that came into a block before its walk are used up; the rest came by back edges.
    let Simplifier { facts, blocks, incoming, .. } = simplifier;
    function.blocks = blocks;
    facts.finish(function);
    incoming
}

enum Step {
    Enter(BlockId),
    Leave,
}

/// State of the walk.
struct Simplifier<'s> {
    surroundings: &'s ModuleFacts,
    graph: &'s Graph,
    premises: &'s Premises,
    facts: Facts,
    blocks: Vec<Block>,
    inductions: Inductions,
    /// Comparisons for equality of a value that never passes the other operand.
    below: HashSet<Value>,
    /// Blocks with a known predecessor, with the ranges of their parameters' arguments so far.
    incoming: Vec<Option<Vec<Range>>>,
    versions: Versions,
    /// Loads of the window's length.
    lengths: Vec<Value>,
    /// Instructions of the current block.
    out: Vec<Instruction>,
    place: Place,
}

impl<'s> Simplifier<'s> {
    fn new(
        function: &mut Function,
        surroundings: &'s ModuleFacts,
        graph: &'s Graph,
        premises: &'s Premises,
    ) -> Self {
        let versions = Versions::new(function, premises.keeps_metadata);
        let inductions = Inductions::of(function, graph);
        let facts = Facts::new(function);
        let blocks = std::mem::take(&mut function.blocks);
        let mut incoming = vec![None; blocks.len()];
        if let (Some(entry), Some(block)) = (incoming.first_mut(), blocks.first()) {
            let full = |value: &Value| Range::full(facts.type_of(*value));
            *entry = Some(block.parameters.iter().map(full).collect());
        }
        Self {
            surroundings,
            graph,
            premises,
            facts,
            incoming,
            blocks,
            inductions,
            below: HashSet::new(),
            versions,
            lengths: Vec::new(),
            out: Vec::new(),
            place: Place::default(),
        }
    }

    /// Walks a block; returns false when it is unreachable.
    fn block(&mut self, id: BlockId) -> bool {
        let index = id.0 as usize;
        let Some(ranges) = self.incoming[index].take() else { return false };
        let parameters = self.blocks[index].parameters.clone();
        let (rounds_max, ranges) = match self.blocks[index].is_loop_header {
            true => {
                let types: Vec<Type> =
                    parameters.iter().map(|value| self.facts.type_of(*value)).collect();
                let mut range = |value| self.facts.range_found(value);
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
            self.facts.set_range(parameter, range);
        }
        self.learn_from_predecessor(id);
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
                flow::terminator(self, terminator)
            }
        };
        self.send_ranges(&terminator);
        self.versions.leave(id);
        self.blocks[index].terminator = terminator;
        self.blocks[index].instructions = std::mem::take(&mut self.out);
        true
    }

    /// Simplifies an instruction; returns a trap that certainly happens.
    fn instruction(&mut self, instruction: Instruction) -> Option<Terminator> {
        let Instruction { results, mut op, place } = instruction;
        self.place = place;
        op.for_each_use_mut(|value| *value = self.known(*value));
        match op {
            Op::TrapIf(condition, code) => {
                let condition = flow::plain(self, condition);
                match self.facts.constant(condition) {
                    Some(0) => {}
                    Some(_) => return Some(Terminator::Trap(code, place)),
                    None => {
                        self.append(&[], Op::TrapIf(condition, code));
                        self.facts.assume(condition, false);
                    }
                }
                None
            }
            op if op.is_pure() => {
                if let [result] = results[..] {
                    let op =
                        if self.below.contains(&result) { flow::as_order(self, op) } else { op };
                    let value = self.compute(op, self.facts.type_of(result), Some(result));
                    self.facts.set_alias(result, value);
                }
                None
            }
            op => {
                accesses::access(self, op, &results);
                None
            }
        }
    }

    /// Returns the value of a pure operation: an existing one, or a new one.
    pub(super) fn compute(&mut self, op: Op, ty: Type, result: Option<Value>) -> Value {
        let mut op = op;
        loop {
            op.for_each_use_mut(|value| *value = self.known(*value));
            match rules::simpler(self, &op, ty) {
                Some(Simpler::Is(value)) => return value,
                Some(Simpler::Do(other)) => op = other,
                None => break,
            }
        }
        let key = key(&op, ty);
        if let Some(key) = &key
            && let Some(value) = self.facts.computed(key)
        {
            return value;
        }
        let value = result.unwrap_or_else(|| self.facts.value(ty));
        let range = self.facts.range_of(&op, ty);
        self.facts.define_range(value, range);
        self.append(&[value], op.clone());
        self.facts.define(value, op);
        if let Some(key) = key {
            self.facts.remember(key, value);
        }
        value
    }

    /// Returns the value as it is known here: its replacement, or its constant.
    fn known(&mut self, value: Value) -> Value {
        let value = self.facts.find(value);
        match self.facts.range(value).constant() {
            Some(number) if !self.facts.is_constant(value) => {
                self.number(number, self.facts.type_of(value))
            }
            _ => value,
        }
    }

    /// Returns a value for this constant.
    pub(super) fn number(&mut self, number: u64, ty: Type) -> Value {
        self.compute(Op::Const(number), ty, None)
    }

    fn append(&mut self, results: &[Value], op: Op) {
        self.out.push(Instruction { results: results.to_vec(), op, place: self.place });
    }

    /// Learns from the branch that leads here, if only one edge does.
    pub(super) fn learn_from_predecessor(&mut self, block: BlockId) {
        let [from] = self.graph.predecessors[block.0 as usize][..] else { return };
        match &self.blocks[from.0 as usize].terminator {
            Terminator::Branch(condition, taken, _) => {
                let (condition, truth) = (*condition, taken.target == block);
                self.facts.assume(condition, truth);
            }
            Terminator::Switch(index, list, default) if default.target == block => {
                let (index, beyond) = (*index, list.len() as u64);
                self.facts.narrow(index, Range { low: beyond, high: ones(Type::I32) });
            }
            Terminator::Switch(index, list, _) => {
                let index = *index;
                if let Some(place) = list.iter().position(|edge| edge.target == block) {
                    self.facts.narrow(index, Range::only(place as u64));
                }
            }
            _ => {}
        }
    }

    /// Records the ranges of the arguments for the successors' parameters.
    pub(super) fn send_ranges(&mut self, terminator: &Terminator) {
        for (number, edge) in terminator.edges().enumerate() {
            let ranges = self.sent(terminator, number, edge);
            let known = &mut self.incoming[edge.target.0 as usize];
            match known {
                Some(known) => {
                    for (known, range) in known.iter_mut().zip(ranges) {
                        *known = known.union(range);
                    }
                }
                None => *known = Some(ranges),
            }
        }
    }

    /// Returns the ranges of an edge's arguments: the branch narrows them.
    fn sent(&mut self, terminator: &Terminator, number: usize, edge: &Edge) -> Vec<Range> {
        let condition = match terminator {
            Terminator::Branch(condition, ..) if !edge.arguments.is_empty() => Some(*condition),
            _ => None,
        };
        if let Some(condition) = condition {
            self.facts.enter_scope();
            self.facts.assume(condition, number == 0);
        }
        let ranges = edge.arguments.iter().map(|value| self.facts.range(*value)).collect();
        if condition.is_some() {
            self.facts.leave_scope();
        }
        ranges
    }
}
