//! SSA construction: blocks, edges and variables, after Braun et al., "Simple and Efficient
//! Construction of Static Single Assignment Form" (2013). Knows no WebAssembly.
//!
//! A variable that is read in a block without a definition becomes a parameter at joins; parameters
//! that turn out to be one value are removed later (passes/parameters.rs).

use foldhash::{HashMap, HashMapExt};

use crate::TrapCode;
use crate::ir::{Block, BlockId, Instruction, Op, Place, Terminator, Type, Value};

/// Most values of one function: beyond, the code would not load anyway, and compile time stays
/// bounded where many variables meet many joins.
pub(super) const VALUES_MAX: usize = 1_000_000;

/// Most arguments of all edges of one function, for the same reason: many edges may lead to a block
/// with many parameters.
const ARGUMENTS_MAX: usize = 4_000_000;

/// Variable: a local of WebAssembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Variable(pub(super) u32);

/// Edge, by the block that it leaves and its number there.
#[derive(Clone, Copy)]
struct Incoming {
    block: BlockId,
    edge: usize,
}

struct Growing {
    block: Block,
    incoming: Vec<Incoming>,
    sealed: bool,
    /// Variables that are parameters, while not all edges are known.
    open: Vec<(Variable, usize)>,
}

/// Function under construction.
pub(super) struct Ssa {
    blocks: Vec<Growing>,
    types: Vec<Type>,
    definitions: HashMap<(BlockId, Variable), Value>,
    /// Zeros of both types at the entry: the initial values of locals.
    zeros: [Value; 2],
    current: BlockId,
    arguments: usize,
}

/// Error: the function has more values than [`VALUES_MAX`].
pub(super) struct TooMany;

impl Ssa {
    /// Makes a function with an entry block whose parameters are the first variables.
    pub(super) fn new(parameters: &[Type]) -> Self {
        let mut ssa = Self {
            blocks: Vec::new(),
            types: Vec::new(),
            definitions: HashMap::new(),
            zeros: [Value(0); 2],
            current: BlockId(0),
            arguments: 0,
        };
        let (entry, values) = ssa.block(parameters);
        for (index, value) in (0..).zip(values) {
            ssa.define(Variable(index), value);
        }
        ssa.seal(entry);
        ssa.zeros = [Type::I32, Type::I64].map(|ty| ssa.constant(ty, 0, Place::default()));
        ssa
    }

    /// Returns a new block with explicit parameters.
    pub(super) fn block(&mut self, parameters: &[Type]) -> (BlockId, Vec<Value>) {
        let id = BlockId(u32::try_from(self.blocks.len()).unwrap_or(u32::MAX));
        let parameters: Vec<Value> = parameters.iter().map(|ty| self.value(*ty)).collect();
        self.blocks.push(Growing {
            block: Block {
                parameters: parameters.clone(),
                instructions: Vec::new(),
                terminator: Terminator::Trap(TrapCode::Unreachable, Place::default()),
                is_loop_header: false,
                loop_depth: 0,
                rounds_max: None,
            },
            incoming: Vec::new(),
            sealed: false,
            open: Vec::new(),
        });
        (id, parameters)
    }

    /// Makes a block the current one.
    pub(super) fn switch_to(&mut self, block: BlockId) {
        self.current = block;
    }

    pub(super) fn type_of(&self, value: Value) -> Type {
        self.types.get(value.0 as usize).copied().unwrap_or(Type::I32)
    }

    /// Appends an operation with its results.
    pub(super) fn push(&mut self, op: Op, results: &[Type], place: Place) -> Vec<Value> {
        let results: Vec<Value> = results.iter().map(|ty| self.value(*ty)).collect();
        let instruction = Instruction { results: results.clone(), op, place };
        self.here().block.instructions.push(instruction);
        results
    }

    /// Appends an operation with one result.
    pub(super) fn one(&mut self, op: Op, result: Type, place: Place) -> Value {
        let value = self.value(result);
        self.here().block.instructions.push(Instruction { results: vec![value], op, place });
        value
    }

    pub(super) fn constant(&mut self, ty: Type, value: u64, place: Place) -> Value {
        self.one(Op::Const(value), ty, place)
    }

    /// Sets the value of a constant that was appended before it was known.
    pub(super) fn set_constant(&mut self, block: BlockId, value: Value, number: u64) {
        let instructions = &mut self.blocks[block.0 as usize].block.instructions;
        if let Some(found) = instructions.iter_mut().find(|found| found.results == [value]) {
            found.op = Op::Const(number);
        }
    }

    pub(super) fn current(&self) -> BlockId {
        self.current
    }

    /// Ends the current block. The targets of a switch have no other predecessor, so that its edges
    /// never need arguments.
    pub(super) fn end(&mut self, terminator: Terminator) {
        let block = self.current;
        self.arguments += terminator.edges().map(|edge| edge.arguments.len()).sum::<usize>();
        let is_switch = matches!(terminator, Terminator::Switch(..));
        for (edge, target) in terminator.edges().map(|edge| edge.target).enumerate() {
            let incoming = &mut self.blocks[target.0 as usize].incoming;
            if !is_switch || incoming.is_empty() {
                incoming.push(Incoming { block, edge });
            }
        }
        self.here().block.terminator = terminator;
    }

    /// Declares that all edges to that block are known.
    pub(super) fn seal(&mut self, block: BlockId) {
        let growing = &mut self.blocks[block.0 as usize];
        growing.sealed = true;
        let mut work: Vec<Work> = std::mem::take(&mut growing.open)
            .into_iter()
            .map(|(variable, index)| Work { block, variable, index })
            .collect();
        self.fill(&mut work);
    }

    /// Returns true if an edge leads to the block.
    pub(super) fn is_entered(&self, block: BlockId) -> bool {
        !self.blocks[block.0 as usize].incoming.is_empty()
    }

    /// Returns the parameters that the block was made with.
    pub(super) fn explicit_parameters(&self, block: BlockId, count: usize) -> Vec<Value> {
        self.blocks[block.0 as usize].block.parameters.iter().take(count).copied().collect()
    }

    pub(super) fn define(&mut self, variable: Variable, value: Value) {
        self.definitions.insert((self.current, variable), value);
    }

    /// Returns the value of a variable in the current block.
    pub(super) fn read(&mut self, variable: Variable, ty: Type) -> Value {
        let mut work = Vec::new();
        let value = self.look_up(self.current, variable, ty, &mut work);
        self.fill(&mut work);
        value
    }

    /// Returns blocks and types of values, or an error for too many of them.
    pub(super) fn finish(self) -> Result<(Vec<Block>, Vec<Type>), TooMany> {
        if self.is_too_large() {
            return Err(TooMany);
        }
        Ok((self.blocks.into_iter().map(|growing| growing.block).collect(), self.types))
    }

    pub(super) fn is_too_large(&self) -> bool {
        self.types.len() > VALUES_MAX || self.arguments > ARGUMENTS_MAX
    }

    fn value(&mut self, ty: Type) -> Value {
        let value = Value(u32::try_from(self.types.len()).unwrap_or(u32::MAX));
        self.types.push(ty);
        value
    }

    fn here(&mut self) -> &mut Growing {
        &mut self.blocks[self.current.0 as usize]
    }

    /// Searches upwards for a definition, or a join, where a parameter is made.
    fn look_up(
        &mut self,
        from: BlockId,
        variable: Variable,
        ty: Type,
        work: &mut Vec<Work>,
    ) -> Value {
        let mut block = from;
        let value = loop {
            if let Some(value) = self.definitions.get(&(block, variable)) {
                break *value;
            }
            if block == BlockId(0) {
                break self.zeros[usize::from(ty == Type::I64)];
            }
            let growing = &self.blocks[block.0 as usize];
            match growing.incoming.as_slice() {
                [one] if growing.sealed => block = one.block,
                _ => break self.join(block, variable, ty, work),
            }
        };
        self.definitions.insert((from, variable), value);
        value
    }

    fn join(
        &mut self,
        block: BlockId,
        variable: Variable,
        ty: Type,
        work: &mut Vec<Work>,
    ) -> Value {
        let value = self.value(ty);
        self.definitions.insert((block, variable), value);
        let growing = &mut self.blocks[block.0 as usize];
        let index = growing.block.parameters.len();
        growing.block.parameters.push(value);
        if growing.sealed {
            work.push(Work { block, variable, index });
        } else {
            growing.open.push((variable, index));
        }
        value
    }

    /// Gives new parameters an argument on each edge, which may make further ones.
    fn fill(&mut self, work: &mut Vec<Work>) {
        while let Some(Work { block, variable, index }) = work.pop() {
            if self.is_too_large() {
                return;
            }
            let growing = &self.blocks[block.0 as usize];
            let ty = self.type_of(growing.block.parameters[index]);
            self.arguments += growing.incoming.len();
            for edge in 0..growing.incoming.len() {
                let Incoming { block: from, edge } = self.blocks[block.0 as usize].incoming[edge];
                let value = self.look_up(from, variable, ty, work);
                let terminator = &mut self.blocks[from.0 as usize].block.terminator;
                if let Some(edge) = terminator.edges_mut().nth(edge) {
                    if edge.arguments.len() <= index {
                        edge.arguments.resize(index + 1, value);
                    }
                    edge.arguments[index] = value;
                }
            }
        }
    }
}

/// Parameter that has no arguments yet.
struct Work {
    block: BlockId,
    variable: Variable,
    index: usize,
}
