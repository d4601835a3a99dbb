//! Structured control flow as blocks and edges, with the operand stack.

use std::collections::BTreeMap;

use wasmparser::{BlockType, BrTable, ValType};

use super::module::Module;
use super::ssa::{Ssa, VALUES_MAX};
use crate::TrapCode;
use crate::ir::{BlockId, Edge, Op, Place, Terminator, Type, Value};
use crate::refusal::Reason;

/// Open block, loop, if or function.
struct Frame {
    kind: Kind,
    /// Target of a branch to it.
    target: BlockId,
    /// Block after its end.
    end: BlockId,
    parameters: Vec<Type>,
    results: Vec<Type>,
    /// Height of the stack below its own values.
    height: usize,
    /// Charge of fuel, if it has one of its own; the amount is set at its end.
    charge: Option<Charge>,
    /// State of a loop that is unrolled by two.
    unrolling: Option<Unrolling>,
}

/// Loop body emitted twice in a row, so that the per-iteration overhead beside the module's code
/// is paid every second time.
///
/// ```text
/// header ─▶ body ─ again ─▶ second ─▶ body ─ again ─▶ header
///             └─────────────▶ end ◀─────┘
/// ```
#[derive(Clone, Copy)]
enum Unrolling {
    /// First copy being emitted.
    First {
        header: BlockId,
        second: BlockId,
        at: Unroll,
    },
    Second,
}

/// Position at which reading resumes for the second copy.
#[derive(Clone, Copy)]
pub(super) struct Unroll {
    /// Number of the operator after `loop`.
    pub(super) operator: usize,
    pub(super) place: Place,
}

enum Kind {
    /// Frame in unreachable code: only counted.
    Dead,
    Block,
    Loop,
    /// Open `if`, with the block of the other branch while that is to come, and its parameters.
    If {
        other: Option<BlockId>,
        arguments: Vec<Value>,
    },
}

/// Constant whose value is set at the end.
#[derive(Clone, Copy)]
struct Charge {
    block: BlockId,
    constant: Value,
    cost: u64,
}

/// Returns parameters and results of a block type.
pub(super) fn types_of(module: &Module<'_>, ty: BlockType) -> (Vec<ValType>, Vec<ValType>) {
    match ty {
        BlockType::Empty => (Vec::new(), Vec::new()),
        BlockType::Type(ty) => (Vec::new(), vec![ty]),
        BlockType::FuncType(index) => match module.types.get(index as usize) {
            Some(Some(ty)) => (ty.params().to_vec(), ty.results().to_vec()),
            _ => (Vec::new(), Vec::new()),
        },
    }
}

/// Early end of a translation.
pub(super) enum Stop {
    /// Operator that reach.rs should have refused, at that byte.
    Operator(Reason, usize),
    /// More values than are compiled.
    TooLarge,
    /// Code other than the validator saw.
    Malformed,
}

impl Stop {
    pub(super) fn place(&self) -> Option<u32> {
        match self {
            Self::Operator(_, place) => u32::try_from(*place).ok(),
            Self::TooLarge | Self::Malformed => None,
        }
    }

    pub(super) fn reason(self) -> Reason {
        match self {
            Self::Operator(reason, _) => reason,
            Self::TooLarge => {
                let max = VALUES_MAX as u64;
                Reason::TooLarge { what: "values".into(), count: max + 1, max }
            }
            Self::Malformed => Reason::Invalid { message: "the code of a function".into() },
        }
    }
}

/// Code of a function under construction: its blocks in SSA form, the operand stack, and the open
/// blocks, loops and ifs.
pub(super) struct Builder<'m, 'a> {
    module: &'m Module<'a>,
    pub(super) ssa: Ssa,
    stack: Vec<Value>,
    frames: Vec<Frame>,
    /// True when the code that follows is reachable.
    live: bool,
}

impl<'m, 'a> Builder<'m, 'a> {
    /// Begins a function with these parameters.
    pub(super) fn new(module: &'m Module<'a>, parameters: &[Type]) -> Self {
        let ssa = Ssa::new(parameters);
        Self { module, ssa, stack: Vec::new(), frames: Vec::new(), live: true }
    }

    /// Returns true when the code that follows is reachable.
    pub(super) const fn is_live(&self) -> bool {
        self.live
    }

    /// Pushes a value on the stack.
    pub(super) fn push(&mut self, value: Value) {
        self.stack.push(value);
    }

    /// Pushes values on the stack, the last one on top.
    pub(super) fn extend(&mut self, values: Vec<Value>) {
        self.stack.extend(values);
    }

    /// Ends the code here with a trap.
    pub(super) fn trap(&mut self, code: TrapCode, place: Place) {
        self.ssa.end(Terminator::Trap(code, place));
        self.live = false;
    }

    /// Opens the function's frame: its end returns.
    pub(super) fn open_function(&mut self, results: &[Type], place: Place) {
        let (end, _) = self.ssa.block(results);
        let charge = Some(self.charge(place));
        self.frames.push(Frame {
            kind: Kind::Block,
            target: end,
            end,
            parameters: Vec::new(),
            results: results.to_vec(),
            height: 0,
            charge,
            unrolling: None,
        });
    }

    pub(super) fn open_block(&mut self, ty: BlockType) -> Result<(), Stop> {
        self.open(ty, |builder, frame| {
            frame.end = builder.ssa.block(&frame.results).0;
            frame.target = frame.end;
            Ok(())
        })
    }

    /// Opens a loop, which is unrolled by two if `again` is given.
    pub(super) fn open_loop(
        &mut self,
        ty: BlockType,
        place: Place,
        again: Option<Unroll>,
    ) -> Result<(), Stop> {
        self.open(ty, |builder, frame| {
            let (header, parameters) = builder.ssa.block(&frame.parameters);
            let arguments = builder.stack.split_off(frame.height);
            builder.ssa.end(Terminator::Jump(Edge { target: header, arguments }));
            builder.ssa.switch_to(header);
            builder.stack.extend(parameters);
            frame.kind = Kind::Loop;
            frame.target = header;
            frame.charge = Some(builder.charge(place));
            if let Some(at) = again {
                let second = builder.ssa.block(&frame.parameters).0;
                frame.target = second;
                frame.end = builder.ssa.block(&frame.results).0;
                frame.unrolling = Some(Unrolling::First { header, second, at });
            }
            Ok(())
        })
    }

    pub(super) fn open_if(&mut self, ty: BlockType) -> Result<(), Stop> {
        if !self.live {
            return self.open(ty, |_, _| Ok(()));
        }
        let condition = self.pop()?;
        self.open(ty, |builder, frame| {
            let ssa = &mut builder.ssa;
            let (then, other) = (ssa.block(&[]).0, ssa.block(&[]).0);
            frame.end = ssa.block(&frame.results).0;
            frame.target = frame.end;
            ssa.end(Terminator::Branch(condition, plain(then), plain(other)));
            ssa.seal(then);
            ssa.seal(other);
            ssa.switch_to(then);
            let arguments = builder.stack.get(frame.height..).unwrap_or_default().to_vec();
            frame.kind = Kind::If { other: Some(other), arguments };
            Ok(())
        })
    }

    pub(super) fn other_way(&mut self) -> Result<(), Stop> {
        let Some(mut frame) = self.frames.pop() else { return Err(Stop::Malformed) };
        if let Kind::If { other, arguments } = &mut frame.kind
            && let Some(other) = other.take()
        {
            if self.live {
                self.leave(frame.end, frame.results.len())?;
            }
            self.stack.truncate(frame.height);
            self.stack.append(arguments);
            self.ssa.switch_to(other);
            self.live = true;
        }
        self.frames.push(frame);
        Ok(())
    }

    /// Closes a frame, or returns the operator at which reading resumes for the second copy.
    pub(super) fn close(&mut self) -> Result<Option<usize>, Stop> {
        let Some(mut frame) = self.frames.pop() else { return Err(Stop::Malformed) };
        if let Some(Charge { block, constant, cost }) = frame.charge {
            self.ssa.set_constant(block, constant, cost);
        }
        match &mut frame.kind {
            Kind::Dead => return Ok(None),
            Kind::Loop => match frame.unrolling {
                None => {
                    self.ssa.seal(frame.target);
                    return Ok(None);
                }
                Some(Unrolling::First { header, second, at }) => {
                    return self.second_time(frame, [header, second], at);
                }
                Some(Unrolling::Second) => self.ssa.seal(frame.target),
            },
            Kind::Block => {}
            Kind::If { other, arguments } => {
                if let Some(other) = other.take() {
                    if self.live {
                        self.leave(frame.end, frame.results.len())?;
                    }
                    let arguments = std::mem::take(arguments);
                    self.ssa.switch_to(other);
                    self.ssa.end(Terminator::Jump(Edge { target: frame.end, arguments }));
                    self.live = false;
                }
            }
        }
        self.go_on_behind(&frame)?;
        Ok(None)
    }

    /// Continues in the block where the exits of the frame meet.
    fn go_on_behind(&mut self, frame: &Frame) -> Result<(), Stop> {
        if self.live {
            self.leave(frame.end, frame.results.len())?;
        }
        self.ssa.seal(frame.end);
        self.stack.truncate(frame.height);
        self.live = self.ssa.is_entered(frame.end);
        if self.live {
            self.ssa.switch_to(frame.end);
            self.stack.extend(self.ssa.explicit_parameters(frame.end, frame.results.len()));
        }
        Ok(())
    }

    /// Begins the second copy of a loop; a branch to the loop from there goes to the header.
    fn second_time(
        &mut self,
        mut frame: Frame,
        [header, second]: [BlockId; 2],
        at: Unroll,
    ) -> Result<Option<usize>, Stop> {
        self.ssa.seal(second);
        if !self.ssa.is_entered(second) {
            self.ssa.seal(header);
            self.go_on_behind(&frame)?;
            return Ok(None);
        }
        if self.live {
            self.leave(frame.end, frame.results.len())?;
        }
        self.stack.truncate(frame.height);
        self.ssa.switch_to(second);
        self.live = true;
        self.stack.extend(self.ssa.explicit_parameters(second, frame.parameters.len()));
        frame.target = header;
        frame.charge = Some(self.charge(at.place));
        frame.unrolling = Some(Unrolling::Second);
        self.frames.push(frame);
        Ok(Some(at.operator))
    }

    pub(super) fn branch(&mut self, depth: u32) -> Result<(), Stop> {
        let edge = self.edge_to(depth)?;
        self.ssa.end(Terminator::Jump(edge));
        self.live = false;
        Ok(())
    }

    pub(super) fn branch_if(&mut self, depth: u32) -> Result<(), Stop> {
        let condition = self.pop()?;
        let taken = self.edge_to(depth)?;
        let (next, _) = self.ssa.block(&[]);
        self.ssa.end(Terminator::Branch(condition, taken, plain(next)));
        self.ssa.seal(next);
        self.ssa.switch_to(next);
        Ok(())
    }

    /// Ends the block with a `br_table`. Each target gets a block of its own for the arguments, so
    /// that a table of a thousand entries with one target has them once.
    pub(super) fn branch_table(&mut self, targets: &BrTable<'_>) -> Result<(), Stop> {
        let index = self.pop()?;
        let mut ways: BTreeMap<u32, BlockId> = BTreeMap::new();
        let mut way = |builder: &mut Self, depth: u32| {
            plain(*ways.entry(depth).or_insert_with(|| builder.ssa.block(&[]).0))
        };
        let mut list = Vec::new();
        for depth in targets.targets() {
            list.push(way(self, depth.map_err(|_| Stop::Malformed)?));
        }
        let default = way(self, targets.default());
        self.ssa.end(Terminator::Switch(index, list, default));
        for (depth, block) in ways {
            self.ssa.seal(block);
            self.ssa.switch_to(block);
            let edge = self.edge_to(depth)?;
            self.ssa.end(Terminator::Jump(edge));
        }
        self.live = false;
        Ok(())
    }

    /// Branches to the outermost frame, the function.
    pub(super) fn leave_function(&mut self) -> Result<(), Stop> {
        let depth = u32::try_from(self.frames.len().saturating_sub(1)).unwrap_or(u32::MAX);
        self.branch(depth)
    }

    /// Counts an operator in the innermost loop, or in the function.
    pub(super) fn count(&mut self) {
        if let Some(charge) = self.frames.iter_mut().rev().find_map(|frame| frame.charge.as_mut()) {
            charge.cost += 1;
        }
    }

    fn open(
        &mut self,
        ty: BlockType,
        enter: impl FnOnce(&mut Self, &mut Frame) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let (parameters, results) = types_of(self.module, ty);
        let types = |types: Vec<ValType>| types.into_iter().map(type_of).collect::<Vec<_>>();
        let (parameters, results) = (types(parameters), types(results));
        let height = self.stack.len().saturating_sub(parameters.len());
        let nowhere = BlockId(0);
        let mut frame = Frame {
            kind: Kind::Dead,
            target: nowhere,
            end: nowhere,
            parameters,
            results,
            height,
            charge: None,
            unrolling: None,
        };
        if self.live {
            frame.kind = Kind::Block;
            enter(self, &mut frame)?;
        }
        self.frames.push(frame);
        Ok(())
    }

    /// Leaves a frame by its end, with its results.
    fn leave(&mut self, target: BlockId, results: usize) -> Result<(), Stop> {
        let arguments = self.top(results)?;
        self.ssa.end(Terminator::Jump(Edge { target, arguments }));
        Ok(())
    }

    fn edge_to(&mut self, depth: u32) -> Result<Edge, Stop> {
        let index = self.frames.len().checked_sub(1 + depth as usize).ok_or(Stop::Malformed)?;
        let frame = self.frames.get(index).ok_or(Stop::Malformed)?;
        let (target, count) = match frame.kind {
            Kind::Loop => (frame.target, frame.parameters.len()),
            _ => (frame.target, frame.results.len()),
        };
        Ok(Edge { target, arguments: self.top(count)? })
    }

    fn charge(&mut self, place: Place) -> Charge {
        let constant = self.charge_fuel(place);
        Charge { block: self.ssa.current(), constant, cost: 0 }
    }

    /// Charges fuel: until passes/fuel.rs that is a store of the cost, a constant that is set when
    /// it is known.
    fn charge_fuel(&mut self, place: Place) -> Value {
        let cost = self.ssa.constant(Type::I64, 0, place);
        self.ssa.push(Op::FuelStore(cost), &[], place);
        cost
    }

    pub(super) fn constant(&mut self, ty: Type, value: u64, place: Place) {
        let value = self.ssa.constant(ty, value, place);
        self.stack.push(value);
    }

    pub(super) fn give(&mut self, op: Op, ty: Type, place: Place) {
        let value = self.ssa.one(op, ty, place);
        self.stack.push(value);
    }

    pub(super) fn pop(&mut self) -> Result<Value, Stop> {
        self.stack.pop().ok_or(Stop::Malformed)
    }

    /// Returns the top values of the stack, without removing them.
    pub(super) fn top(&self, count: usize) -> Result<Vec<Value>, Stop> {
        let begin = self.stack.len().checked_sub(count).ok_or(Stop::Malformed)?;
        Ok(self.stack.get(begin..).unwrap_or_default().to_vec())
    }

    pub(super) fn take(&mut self, count: usize) -> Result<Vec<Value>, Stop> {
        let begin = self.stack.len().checked_sub(count).ok_or(Stop::Malformed)?;
        Ok(self.stack.split_off(begin))
    }

    /// Ends the block with a switch and returns one block for each different target; indices beyond
    /// the list end by `beyond`.
    pub(super) fn switch<T: Ord>(
        &mut self,
        number: Value,
        targets: Vec<T>,
        beyond: Terminator,
    ) -> BTreeMap<T, BlockId> {
        let mut ways = BTreeMap::new();
        let mut list = Vec::with_capacity(targets.len());
        for target in targets {
            let way = *ways.entry(target).or_insert_with(|| self.ssa.block(&[]).0);
            list.push(plain(way));
        }
        let (other, _) = self.ssa.block(&[]);
        self.ssa.end(Terminator::Switch(number, list, plain(other)));
        for way in ways.values().chain([&other]) {
            self.ssa.seal(*way);
        }
        self.ssa.switch_to(other);
        self.ssa.end(beyond);
        ways
    }

    /// Continues in a join block, if it has predecessors.
    pub(super) fn join(&mut self, join: BlockId, joined: Vec<Value>) {
        self.ssa.seal(join);
        self.live = self.ssa.is_entered(join);
        self.ssa.switch_to(join);
        self.stack.extend(joined);
    }
}

/// Returns the IR type of a value; types other than integers are refused before.
pub(super) const fn type_of(ty: ValType) -> Type {
    match ty {
        ValType::I64 => Type::I64,
        _ => Type::I32,
    }
}

/// Makes an edge without arguments.
pub(super) const fn plain(target: BlockId) -> Edge {
    Edge { target, arguments: Vec::new() }
}
