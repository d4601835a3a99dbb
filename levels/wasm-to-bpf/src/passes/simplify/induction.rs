//! Variables that a loop changes by the same number each time round, and how
//! often it goes round at most. Both are read from the code as it is before
//! the walk; where they begin is known when the walk comes to the loop.
//!
//! ```text
//! loop (i = 0, p = 0x8138):
//!   ...
//!   if i != 63: go round with (i + 1, p + 1)      at most 64 times, p <= 0x8177
//! ```

use foldhash::HashMap;

use super::range::Range;
use crate::ir::{BinaryOp, BlockId, CompareOp, Edge, Function, Op, Terminator, Type, Value};
use crate::passes::fold::{self, negated, ones, signed};
use crate::passes::graph::Graph;

/// How far up from the end of a loop conditions are looked for.
const CONDITIONS_MAX: usize = 64;

/// Sums in a row that are taken as one.
const SUMS_MAX: usize = 4;

/// All loops of a function, by their headers.
pub(super) struct Inductions(HashMap<BlockId, Loop>);

/// A loop: what each way back changes and asks.
struct Loop {
    /// For each parameter of the header the step, if all ways back agree.
    steps: Vec<Option<i64>>,
    /// For each way back the comparisons with numbers that hold on it.
    asked: Vec<Vec<Asked>>,
}

/// A parameter, moved by some number, compares so with a number.
#[derive(Clone, Copy)]
struct Asked {
    parameter: usize,
    /// What was added to the parameter before it was compared.
    moved: i64,
    op: CompareOp,
    number: u64,
}

impl Inductions {
    pub(super) fn of(function: &Function, graph: &Graph) -> Self {
        let reader = Reader::new(function, graph);
        let headers = function.blocks.iter().enumerate().filter(|(_, block)| block.is_loop_header);
        Self(headers.filter_map(|(index, _)| reader.read(index)).collect())
    }

    /// How often a loop goes round at most, and the ranges of its header's parameters, from
    /// what they begin with.
    pub(super) fn of_loop(
        &self,
        header: BlockId,
        types: &[Type],
        begin: &[Range],
    ) -> (Option<u64>, Vec<Range>) {
        let full: Vec<Range> = types.iter().map(|ty| Range::full(*ty)).collect();
        let Some(found) = self.0.get(&header) else { return (None, full) };
        let rounds = (0..types.len())
            .filter_map(|parameter| found.rounds(parameter, types[parameter], begin[parameter]))
            .min();
        let Some(rounds) = rounds else { return (None, full) };
        let range = |parameter: usize| {
            let step = found.steps[parameter]?;
            reached(step, rounds, types[parameter], begin[parameter])
        };
        let ranges = (0..types.len()).map(|parameter| range(parameter).unwrap_or(full[parameter]));
        (Some(rounds), ranges.collect())
    }
}

/// Where a variable gets in so many rounds, if it does not wrap.
fn reached(step: i64, rounds: u64, ty: Type, begin: Range) -> Option<Range> {
    let way = step.unsigned_abs().checked_mul(rounds)?;
    if step >= 0 {
        let high = begin.high.checked_add(way).filter(|high| *high <= ones(ty))?;
        Some(Range { low: begin.low, high })
    } else {
        Some(Range { low: begin.low.checked_sub(way)?, high: begin.high })
    }
}

impl Loop {
    /// How often a way back is taken at most, as that parameter says.
    fn rounds(&self, parameter: usize, ty: Type, begin: Range) -> Option<u64> {
        let step = self.steps.get(parameter).copied().flatten().filter(|step| *step != 0)?;
        // The last number that the parameter has when it goes round.
        let mut last: Option<u64> = None;
        let mut exact = Vec::new();
        for way in &self.asked {
            let of_it: Vec<Asked> =
                way.iter().filter(|asked| asked.parameter == parameter).copied().collect();
            let limits = of_it.iter().filter_map(|asked| limit(asked, step, begin, &of_it));
            let (limit, is_exact) = match step > 0 {
                true => limits.min_by_key(|(limit, _)| *limit)?,
                false => limits.max_by_key(|(limit, _)| *limit)?,
            };
            if is_exact {
                exact.push(limit);
            }
            last = Some(match last {
                Some(last) if step > 0 => last.max(limit),
                Some(last) => last.min(limit),
                None => limit,
            });
        }
        let last = last?;
        let size = step.unsigned_abs();
        // A number that must be met is met only if it is not behind the first ones.
        let near = match step > 0 {
            true => begin.high <= last.saturating_add(size),
            false => begin.low.saturating_add(size) >= last,
        };
        let is_met = exact.iter().all(|exact| *exact == last) && near;
        if !exact.is_empty() && !is_met {
            return None;
        }
        let way = match step > 0 {
            // Neither the first nor the last of its numbers wraps when it moves.
            true if begin.high.max(last).checked_add(size.checked_mul(2)?)? > ones(ty) => {
                return None;
            }
            true => (last + 1).saturating_sub(begin.low),
            false if last < size => return None,
            false => begin.high.saturating_add(1).saturating_sub(last),
        };
        Some(way.div_ceil(size))
    }
}

/// The last number with which a parameter passes a question, and whether it is a single
/// number that stops it; `all` are the questions on the same way.
fn limit(asked: &Asked, step: i64, begin: Range, all: &[Asked]) -> Option<(u64, bool)> {
    let size = step.unsigned_abs();
    let by = asked.moved.unsigned_abs();
    // The variable is asked, or what it becomes until it goes round: nothing of it wraps.
    if by != 0 && asked.moved.signum() != step.signum() || by > size {
        return None;
    }
    let n = asked.number;
    // The numbers that are asked for end here, `by` away from the parameter's.
    let stop = if step > 0 { n.checked_sub(by) } else { n.checked_add(by) };
    let before = |stop: u64, step_by: u64| match step > 0 {
        true => stop.checked_sub(step_by),
        false => stop.checked_add(step_by),
    };
    match asked.op {
        CompareOp::LtU if step > 0 => Some((before(stop?, 1)?, false)),
        CompareOp::GtU if step < 0 && by == 0 => Some((before(stop?, 1)?, false)),
        // It is the last of as many questions as the step is long: nothing goes past them.
        CompareOp::Ne if is_last_of(size, by, |by| is_asked(all, n, by, step.signum())) => {
            Some((before(stop?, 1)?, true))
        }
        // It begins a multiple of the step away.
        CompareOp::Ne if begin.low == begin.high => {
            let far =
                if step > 0 { stop?.checked_sub(begin.low) } else { begin.low.checked_sub(stop?) };
            far?.is_multiple_of(size).then_some((before(stop?, size)?, true))
        }
        _ => None,
    }
}

/// Steps that are looked at one by one.
const STEPS_MAX: u64 = 8;

fn is_last_of(size: u64, last: u64, is_asked: impl Fn(u64) -> bool) -> bool {
    size <= STEPS_MAX && last + 1 >= size && (last + 1 - size..last).all(is_asked)
}

/// Whether some question is whether the parameter, moved so far, is that number.
fn is_asked(all: &[Asked], number: u64, by: u64, sign: i64) -> bool {
    all.iter().any(|asked| {
        asked.op == CompareOp::Ne
            && asked.number == number
            && asked.moved.unsigned_abs() == by
            && (by == 0 || asked.moved.signum() == sign)
    })
}

/// An edge back to a header, and what decides on it last.
struct WayBack<'f> {
    from: usize,
    edge: &'f Edge,
    condition: Option<(Value, bool)>,
}

/// Reads loops out of a function.
struct Reader<'f> {
    function: &'f Function,
    graph: &'f Graph,
    constants: HashMap<Value, u64>,
    definitions: HashMap<Value, &'f Op>,
}

impl<'f> Reader<'f> {
    fn new(function: &'f Function, graph: &'f Graph) -> Self {
        let instructions = function.blocks.iter().flat_map(|block| &block.instructions);
        let definitions = instructions
            .filter_map(|instruction| match (&instruction.op, &instruction.results[..]) {
                (Op::Binary(BinaryOp::Add, ..) | Op::Compare(..), [result]) => {
                    Some((*result, &instruction.op))
                }
                _ => None,
            })
            .collect();
        Self { function, graph, constants: fold::constants(function), definitions }
    }

    fn read(&self, header: usize) -> Option<(BlockId, Loop)> {
        let id = crate::passes::graph::id(header);
        let parameters = &self.function.blocks[header].parameters;
        let mut back: Vec<WayBack<'_>> = Vec::new();
        for from in &self.graph.predecessors[header] {
            let from = from.0 as usize;
            if from < header {
                continue;
            }
            for (edge, condition) in ways(&self.function.blocks[from].terminator) {
                if edge.target == id {
                    back.push(WayBack { from, edge, condition });
                }
            }
        }
        let step = |index: usize, parameter: &Value| {
            let mut steps = back.iter().map(|way| {
                let argument = way.edge.arguments.get(index)?;
                self.moved(*argument).filter(|(of, _)| of == parameter).map(|(_, by)| by)
            });
            let first = steps.next()??;
            steps.all(|step| step == Some(first)).then_some(first)
        };
        let steps: Vec<Option<i64>> =
            parameters.iter().enumerate().map(|(index, value)| step(index, value)).collect();
        steps.iter().any(Option::is_some).then_some(())?;
        let asked =
            back.iter().map(|way| self.asked(id, way.from, way.condition, parameters)).collect();
        Some((id, Loop { steps, asked }))
    }

    /// A value as another one plus a number.
    fn moved(&self, value: Value) -> Option<(Value, i64)> {
        let (mut of, mut by) = (value, 0_i64);
        for _ in 0..SUMS_MAX {
            let Some(Op::Binary(BinaryOp::Add, from, number)) = self.definitions.get(&of) else {
                break;
            };
            let Some(&number) = self.constants.get(number) else { break };
            by = by.checked_add(signed(self.function.types[value.0 as usize], number))?;
            of = *from;
        }
        Some((of, by))
    }

    /// The comparisons that hold where a way back is taken.
    fn asked(
        &self,
        header: BlockId,
        from: usize,
        last: Option<(Value, bool)>,
        parameters: &[Value],
    ) -> Vec<Asked> {
        let mut conditions: Vec<(Value, bool)> = last.into_iter().collect();
        let mut block = from;
        for _ in 0..CONDITIONS_MAX {
            if block == header.0 as usize {
                break;
            }
            if let [before] = self.graph.predecessors[block][..] {
                let terminator = &self.function.blocks[before.0 as usize].terminator;
                let here = crate::passes::graph::id(block);
                let way = ways(terminator).find(|(edge, _)| edge.target == here);
                conditions.extend(way.and_then(|(_, condition)| condition));
            }
            block = self.graph.dominator[block].0 as usize;
        }
        conditions
            .into_iter()
            .filter_map(|(condition, truth)| self.question(condition, truth, parameters))
            .collect()
    }

    fn question(&self, condition: Value, truth: bool, parameters: &[Value]) -> Option<Asked> {
        let (op, left, number) = match self.definitions.get(&condition) {
            Some(Op::Compare(op, left, right)) => (*op, *left, *self.constants.get(right)?),
            _ => (CompareOp::Ne, condition, 0),
        };
        let op = if truth { op } else { negated(op) };
        let (of, moved) = self.moved(left)?;
        let parameter = parameters.iter().position(|parameter| *parameter == of)?;
        Some(Asked { parameter, moved, op, number })
    }
}

/// The edges of a terminator with what decided on them.
fn ways(terminator: &Terminator) -> impl Iterator<Item = (&Edge, Option<(Value, bool)>)> {
    let condition = match terminator {
        Terminator::Branch(condition, ..) => Some(*condition),
        _ => None,
    };
    terminator
        .edges()
        .enumerate()
        .map(move |(number, edge)| (edge, condition.map(|condition| (condition, number == 0))))
}
