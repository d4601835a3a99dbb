//! Induction variables: variables that a loop changes by a constant in each iteration, and the
//! largest number of iterations. Both are read from the code before
//! the walk; initial values are known when the walk comes to the loop.
//!
//! ```text
//! loop (i = 0, p = 0x8138):
//!   ...
//!   if i != 63: repeat with (i + 1, p + 1)        at most 64 times, p <= 0x8177
//! ```

use foldhash::HashMap;

use super::range::Range;
use crate::ir::{BinaryOp, BlockId, CompareOp, Edge, Function, Op, Terminator, Type, Value};
use crate::passes::fold::{self, negated, ones, signed};
use crate::passes::graph::Graph;

/// Most blocks that are searched upwards from the end of a loop for conditions.
const CONDITIONS_MAX: usize = 64;

/// Most sums in a row that are combined.
const SUMS_MAX: usize = 4;

/// Loops of a function.
pub(super) struct Inductions {
    /// Loops, by their headers.
    loops: HashMap<BlockId, Loop>,
    dominators: Vec<BlockId>,
}

/// Loop, with the changes and conditions of each back edge.
struct Loop {
    /// Step of each header parameter, if all back edges agree.
    steps: Vec<Option<i64>>,
    /// Comparisons with numbers that hold on each back edge.
    asked: Vec<Vec<Asked>>,
}

/// Comparison of a parameter, after the addition of a constant, with a number.
#[derive(Clone, Copy)]
struct Asked {
    parameter: usize,
    /// Constant that was added to the parameter before the comparison.
    moved: i64,
    op: CompareOp,
    bound: Bound,
    /// Result of the comparison, with its block.
    comparison: Value,
    made_in: usize,
    /// First block in which the result is known, unless the back edge itself implies it.
    known_from: Option<usize>,
}

/// Number that a parameter is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    Constant(u64),
    /// Loop-invariant value, with its known number of trailing zeros.
    Value(Value, u32),
}

/// Last value with which a parameter stays in the loop, by one condition.
#[derive(Clone, Copy)]
struct Limit {
    last: u64,
    /// Number that alone ends the loop, and only by being met exactly.
    exact: Option<Exact>,
}

/// Number that must be met exactly.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Exact {
    /// Value of the number, if it is known only at run time.
    bound: Option<Value>,
    /// True if the parameter certainly begins in front of it.
    is_ahead: bool,
    /// True if no value up to the number wraps, since the number is the end of the type's range.
    is_end: bool,
}

impl Inductions {
    pub(super) fn of(function: &Function, graph: &Graph) -> Self {
        let reader = Reader::new(function, graph);
        let headers = function.blocks.iter().enumerate().filter(|(_, block)| block.is_loop_header);
        let loops = headers.filter_map(|(index, _)| reader.read(index)).collect();
        Self { loops, dominators: graph.dominator.clone() }
    }

    /// Returns the comparisons for equality of loop variables with values that they never pass:
    /// each then tells whether the variable is below.
    pub(super) fn below(
        &self,
        header: BlockId,
        begin: &[Range],
        mut range: impl FnMut(Value) -> Range,
    ) -> Vec<Value> {
        let Some(found) = self.loops.get(&header) else { return Vec::new() };
        let parameters = 0..found.steps.len();
        parameters.flat_map(|at| found.below(at, begin[at], &self.dominators, &mut range)).collect()
    }

    /// Returns the largest number of iterations, and the ranges of the header's parameters, from
    /// their initial ranges.
    pub(super) fn of_loop(
        &self,
        header: BlockId,
        types: &[Type],
        begin: &[Range],
        mut range: impl FnMut(Value) -> Range,
    ) -> (Option<u64>, Vec<Range>) {
        let full: Vec<Range> = types.iter().map(|ty| Range::full(*ty)).collect();
        let Some(found) = self.loops.get(&header) else { return (None, full) };
        let mut bound = |bound| match bound {
            Bound::Constant(number) => Range::only(number),
            Bound::Value(value, _) => range(value),
        };
        let rounds = (0..types.len())
            .filter_map(|at| found.rounds(at, types[at], begin[at], &mut bound))
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

/// Returns the range that a variable reaches in that many iterations, if it does not wrap.
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
    /// Returns the most times that a back edge is taken, by that parameter.
    fn rounds(
        &self,
        parameter: usize,
        ty: Type,
        begin: Range,
        range: &mut impl FnMut(Bound) -> Range,
    ) -> Option<u64> {
        let step = self.steps.get(parameter).copied().flatten().filter(|step| *step != 0)?;
        let mut ways: Vec<Vec<Limit>> = Vec::with_capacity(self.asked.len());
        for way in &self.asked {
            let of_it: Vec<Asked> =
                way.iter().filter(|asked| asked.parameter == parameter).copied().collect();
            let limit = |asked: &Asked| limit(asked, step, ty, begin, range(asked.bound), &of_it);
            ways.push(of_it.iter().filter_map(limit).collect());
        }
        // A number that must be met exactly may be nearer than a limit that nothing passes, and be
        // missed.
        let all = |_: &Limit| true;
        let sure = |limit: &Limit| limit.exact.is_none();
        let counts = [
            counted(step, ty, begin, &ways, sure),
            counted(step, ty, begin, &ways, all),
            self.met(parameter, step, ty, begin),
        ];
        counts.into_iter().flatten().min()
    }

    /// Returns the comparisons with a value that the parameter never passes: each back edge tests
    /// as many consecutive numbers as the step is long, and the first is not beyond the value when
    /// the loop is entered.
    fn below(
        &self,
        parameter: usize,
        begin: Range,
        dominators: &[BlockId],
        range: &mut impl FnMut(Value) -> Range,
    ) -> Vec<Value> {
        let Some(step @ 1..=STEPS_MAX_SIGNED) = self.steps[parameter] else { return Vec::new() };
        let of_it = |way: &[Asked]| -> Vec<Asked> {
            let is = |asked: &&Asked| {
                let is_value = matches!(asked.bound, Bound::Value(..));
                asked.parameter == parameter && asked.op == CompareOp::Ne && is_value
            };
            way.iter().filter(is).copied().collect()
        };
        let ways: Vec<Vec<Asked>> = self.asked.iter().map(|way| of_it(way)).collect();
        let Some(first) = ways.first() else { return Vec::new() };
        let mut found = Vec::new();
        for begins in first.iter().filter(|asked| (0..=1).contains(&asked.moved)) {
            let Bound::Value(value, _) = begins.bound else { continue };
            let by = begins.moved;
            let asks = |way: &Vec<Asked>, moved: i64| {
                way.iter()
                    .find(|asked| asked.moved == moved && asked.bound == begins.bound)
                    .copied()
            };
            let is_met = ways.iter().all(|way| (by..by + step).all(|by| asks(way, by).is_some()));
            let is_ahead = begin.high.checked_add(by.cast_unsigned());
            if !is_met || is_ahead.is_none_or(|first| first > range(value).low) {
                continue;
            }
            for way in &ways {
                let mut above: Option<Asked> = None;
                for asked in (by..by + step).map_while(|moved| asks(way, moved)) {
                    // The preceding test implies it only where its result is known.
                    let is_known = above.is_none_or(|above| {
                        above
                            .known_from
                            .is_some_and(|from| dominates(dominators, from, asked.made_in))
                    });
                    if !is_known {
                        break;
                    }
                    found.push(asked.comparison);
                    above = Some(asked);
                }
            }
        }
        found
    }

    /// Counts how often a back edge is taken until the parameter meets a number that ends the loop
    /// on each of them, modulo two to the power of its width: `0, -1, ... -8` meets -8 in the ninth
    /// iteration.
    fn met(&self, parameter: usize, step: i64, ty: Type, begin: Range) -> Option<u64> {
        let begin = begin.constant()?;
        let size = step.unsigned_abs();
        let rounds = |asked: &Asked| {
            let Bound::Constant(number) = asked.bound else { return None };
            if asked.parameter != parameter || asked.op != CompareOp::Ne {
                return None;
            }
            let far = number.wrapping_sub(asked.moved.cast_unsigned()).wrapping_sub(begin);
            let far = if step > 0 { far } else { far.wrapping_neg() } & ones(ty);
            far.is_multiple_of(size).then(|| far / size)
        };
        let (first, others) = self.asked.split_first()?;
        let on_each = |rounds_of: &u64| {
            others.iter().all(|way| way.iter().any(|asked| rounds(asked) == Some(*rounds_of)))
        };
        first.iter().filter_map(rounds).filter(on_each).min()
    }
}

/// Returns the most iterations of a parameter with that step, if on each back edge the smallest of
/// the limits selected by `is_used` holds.
fn counted(
    step: i64,
    ty: Type,
    begin: Range,
    ways: &[Vec<Limit>],
    is_used: impl Fn(&Limit) -> bool,
) -> Option<u64> {
    let mut last: Option<u64> = None;
    let mut exact = Vec::new();
    for limits in ways {
        let limits = limits.iter().filter(|limit| is_used(limit));
        let limit = match step > 0 {
            true => limits.min_by_key(|limit| limit.last)?,
            false => limits.max_by_key(|limit| limit.last)?,
        };
        exact.extend(limit.exact.map(|exact| (limit.last, exact)));
        last = Some(match last {
            Some(last) if step > 0 => last.max(limit.last),
            Some(last) => last.min(limit.last),
            None => limit.last,
        });
    }
    let last = last?;
    let size = step.unsigned_abs();
    let is_met = |&(limit, number): &(u64, Exact)| {
        // A number known only at run time must be tested on every back edge.
        let is_everywhere = number.bound.is_none()
            || exact.len() == ways.len() && exact.iter().all(|(_, other)| *other == number);
        limit == last && number.is_ahead && is_everywhere
    };
    if !exact.iter().all(is_met) {
        return None;
    }
    let is_end = exact.iter().any(|(_, number)| number.is_end);
    let way = match step > 0 {
        // Neither the first nor the last of the compared numbers wraps when it moves.
        true if !is_end && begin.high.max(last).checked_add(size.checked_mul(2)?)? > ones(ty) => {
            return None;
        }
        true => last.checked_sub(begin.low),
        false if last < size => return None,
        false => begin.high.checked_sub(last),
    };
    // Both ends are passed; a distance of all 64 bits has no number.
    way.map_or(Some(0), |way| (way / size).checked_add(1))
}

/// Returns the last value with which a parameter passes a test against a number in `range`; `all`
/// are the tests on the same back edge.
fn limit(
    asked: &Asked,
    step: i64,
    ty: Type,
    begin: Range,
    range: Range,
    all: &[Asked],
) -> Option<Limit> {
    let size = step.unsigned_abs();
    let by = asked.moved.unsigned_abs();
    // The test is of the variable, or of a value on the way to its next one: none of these wraps.
    if by != 0 && asked.moved.signum() != step.signum() || by > size {
        return None;
    }
    let sure = |last: Option<u64>| Some(Limit { last: last?, exact: None });
    // The last number below that one, at distance `by`.
    let below = |number: u64| number.checked_sub(by)?.checked_sub(1);
    let is_positive = || {
        let room = (ones(ty) >> 1).checked_sub(2_u64.saturating_mul(size));
        room.is_some_and(|most| begin.high <= most && range.high <= most)
    };
    match asked.op {
        CompareOp::LtU if step > 0 => sure(below(range.high)),
        CompareOp::LeU if step > 0 => sure(below(range.high.checked_add(1)?)),
        CompareOp::LtS if step > 0 && is_positive() => sure(below(range.high)),
        CompareOp::LeS if step > 0 && is_positive() => sure(below(range.high + 1)),
        CompareOp::GtU if step < 0 && by == 0 => sure(range.low.checked_add(1)),
        CompareOp::GeU if step < 0 && by == 0 => sure(Some(range.low)),
        CompareOp::Ne => unlike(asked, step, ty, begin, range, all),
        _ => None,
    }
}

/// Returns the limit of a number that ends the loop only if it is met exactly.
fn unlike(
    asked: &Asked,
    step: i64,
    ty: Type,
    begin: Range,
    range: Range,
    all: &[Asked],
) -> Option<Limit> {
    let (size, by) = (step.unsigned_abs(), asked.moved.unsigned_abs());
    let is_asked = |by| is_asked(all, asked.bound, by, step.signum());
    let number = match asked.bound {
        Bound::Constant(number) => number,
        Bound::Value(value, zeros) => {
            // Parameter and number are multiples of the same power of two: nothing is met in
            // between.
            let of_begin = begin.constant().map_or(0, |begin| (begin | size).trailing_zeros());
            let grain = 1_u64 << of_begin.min(zeros).min(size.trailing_zeros()).min(GRAIN_MAX);
            let is_last = by.is_multiple_of(grain)
                && is_last_of(size / grain, by / grain, |steps| is_asked(steps * grain));
            (is_last && step > 0).then_some(())?;
            let least = range.low.checked_next_multiple_of(grain)?;
            let is_ahead = begin.high.saturating_add(by + grain) <= least.saturating_add(size);
            let exact = Exact { bound: Some(value), is_ahead, is_end: false };
            let last = (range.high & !(grain - 1)).checked_sub(by + grain)?;
            return Some(Limit { last, exact: Some(exact) });
        }
    };
    // The last of as many consecutive tests as the step is long: nothing passes them.
    let is_last = is_last_of(size, by, is_asked);
    // Counting up to 0 is counting to the end of the type's range.
    let is_end = step > 0 && number == 0 && by == size;
    // The tested numbers end here, at distance `by` from the parameter's.
    let stop = match step > 0 {
        _ if is_end => Some(ones(ty) - (by - 1)),
        true => number.checked_sub(by),
        false => number.checked_add(by),
    }?;
    let before = |step_by: u64| match step > 0 {
        true => stop.checked_sub(step_by),
        false => stop.checked_add(step_by),
    };
    let last = if is_last {
        before(1)?
    } else {
        // The parameter begins at a multiple of the step from the number.
        let first = (begin.low == begin.high).then_some(begin.low)?;
        let far = if step > 0 { stop.checked_sub(first) } else { first.checked_sub(stop) };
        far.filter(|far| far.is_multiple_of(size))?;
        before(size)?
    };
    let is_ahead = match step > 0 {
        true => begin.high <= last.saturating_add(size),
        false => begin.low.saturating_add(size) >= last,
    };
    Some(Limit { last, exact: Some(Exact { bound: None, is_ahead, is_end }) })
}

/// Most steps that are examined one by one.
const STEPS_MAX: u64 = 8;
const STEPS_MAX_SIGNED: i64 = STEPS_MAX.cast_signed();
/// Most factors of two that are considered in steps and numbers.
const GRAIN_MAX: u32 = 16;

fn is_last_of(size: u64, last: u64, is_asked: impl Fn(u64) -> bool) -> bool {
    size <= STEPS_MAX && last + 1 >= size && (last + 1 - size..last).all(is_asked)
}

/// Returns true if a test compares the parameter, moved by that much, with that number.
fn is_asked(all: &[Asked], bound: Bound, by: u64, sign: i64) -> bool {
    all.iter().any(|asked| {
        asked.op == CompareOp::Ne
            && asked.bound == bound
            && asked.moved.unsigned_abs() == by
            && (by == 0 || asked.moved.signum() == sign)
    })
}

/// Returns true if all paths to `block` pass `above`.
fn dominates(dominators: &[BlockId], above: usize, mut block: usize) -> bool {
    while block > above {
        block = dominators[block].0 as usize;
    }
    block == above
}

/// Back edge, with the last condition on it.
struct BackEdge<'f> {
    from: usize,
    edge: &'f Edge,
    condition: Option<(Value, bool)>,
}

/// Extracts loops from a function.
struct Reader<'f> {
    function: &'f Function,
    graph: &'f Graph,
    constants: HashMap<Value, u64>,
    definitions: HashMap<Value, &'f Op>,
    /// Block in which each value is defined.
    made_in: Vec<usize>,
}

impl<'f> Reader<'f> {
    fn new(function: &'f Function, graph: &'f Graph) -> Self {
        let instructions = function.blocks.iter().flat_map(|block| &block.instructions);
        let definitions = instructions
            .filter_map(|instruction| match (&instruction.op, &instruction.results[..]) {
                (
                    Op::Binary(BinaryOp::Add | BinaryOp::And | BinaryOp::Shl, ..) | Op::Compare(..),
                    [result],
                ) => Some((*result, &instruction.op)),
                _ => None,
            })
            .collect();
        let mut made_in = vec![usize::MAX; function.types.len()];
        for (index, block) in function.blocks.iter().enumerate() {
            let results = block.instructions.iter().flat_map(|instruction| &instruction.results);
            for value in block.parameters.iter().chain(results) {
                made_in[value.0 as usize] = index;
            }
        }
        Self { function, graph, constants: fold::constants(function), definitions, made_in }
    }

    fn read(&self, header: usize) -> Option<(BlockId, Loop)> {
        let id = crate::passes::graph::id(header);
        let parameters = &self.function.blocks[header].parameters;
        let mut back: Vec<BackEdge<'_>> = Vec::new();
        for from in &self.graph.predecessors[header] {
            let from = from.0 as usize;
            if from < header {
                continue;
            }
            for (edge, condition) in ways(&self.function.blocks[from].terminator) {
                if edge.target == id {
                    back.push(BackEdge { from, edge, condition });
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
        let asked = back.iter().map(|way| self.asked(id, way.from, way.condition)).collect();
        Some((id, Loop { steps, asked }))
    }

    /// Returns a value as another one plus a constant.
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

    /// Returns the number of lowest bits that are certainly zero.
    fn zeros(&self, value: Value) -> u32 {
        match self.definitions.get(&value) {
            Some(Op::Binary(BinaryOp::And, a, b)) => {
                let mask = self.constants.get(b).or_else(|| self.constants.get(a));
                mask.map_or(0, |mask| mask.trailing_zeros())
            }
            Some(Op::Binary(BinaryOp::Shl, _, by)) => match self.constants.get(by) {
                Some(&by) if by < 32 => by as u32,
                _ => 0,
            },
            _ => 0,
        }
    }

    /// Returns the comparisons that hold where a back edge is taken.
    fn asked(&self, header: BlockId, from: usize, last: Option<(Value, bool)>) -> Vec<Asked> {
        let at_last = last.map(|(condition, truth)| (condition, truth, None));
        let mut conditions: Vec<(Value, bool, Option<usize>)> = at_last.into_iter().collect();
        let mut block = from;
        for _ in 0..CONDITIONS_MAX {
            if block == header.0 as usize {
                break;
            }
            if let [before] = self.graph.predecessors[block][..] {
                let terminator = &self.function.blocks[before.0 as usize].terminator;
                let here = crate::passes::graph::id(block);
                let way = ways(terminator).find(|(edge, _)| edge.target == here);
                let condition = way.and_then(|(_, condition)| condition);
                conditions.extend(condition.map(|(value, truth)| (value, truth, Some(block))));
            }
            block = self.graph.dominator[block].0 as usize;
        }
        conditions
            .into_iter()
            .filter_map(|(condition, truth, from)| {
                let asked = self.question(header, condition, truth)?;
                Some(Asked { known_from: from, ..asked })
            })
            .collect()
    }

    fn question(&self, header: BlockId, condition: Value, truth: bool) -> Option<Asked> {
        let asked = |op: CompareOp, left: Value, bound: Bound| {
            let op = if truth { op } else { negated(op) };
            let (of, moved) = self.moved(left)?;
            let parameters = &self.function.blocks[header.0 as usize].parameters;
            let parameter = parameters.iter().position(|parameter| *parameter == of)?;
            let made_in = self.made_in[condition.0 as usize];
            let (comparison, known_from) = (condition, None);
            Some(Asked { parameter, moved, op, bound, comparison, made_in, known_from })
        };
        // A value defined in front of a loop, in block order, is not defined in it.
        let bound = |value: Value| match self.constants.get(&value) {
            Some(&number) => Some(Bound::Constant(number)),
            None => (self.made_in[value.0 as usize] < header.0 as usize)
                .then_some(Bound::Value(value, self.zeros(value))),
        };
        match self.definitions.get(&condition) {
            Some(Op::Compare(op, left, right)) => {
                let sides = [(*op, *left, *right), (op.swapped(), *right, *left)];
                sides.into_iter().find_map(|(op, left, right)| asked(op, left, bound(right)?))
            }
            _ => asked(CompareOp::Ne, condition, Bound::Constant(0)),
        }
    }
}

/// Returns the edges of a terminator with the condition on each.
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
