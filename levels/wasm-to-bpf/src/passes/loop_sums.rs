//! Loop sums computed after the loop. A value that a loop only accumulates for use behind it is
//! computed there from the iteration counter, such as the fuel of a counted loop without a check in
//! between: it would take a register, and an instruction per iteration.
//!
//! ```text
//! loop (i = 0, left = l):                      loop (i = 0):
//!   ...                                          ...
//!   if i != 9: repeat with (i + 1, left - 12)    if i != 9: repeat with (i + 1)
//! use left - 12                                use l - i * 12 - 12
//! ```
//!
//! Runs when each exit of a loop with values to pass on has a block of its own.

use foldhash::{HashMap, HashMapExt};

use super::graph::{Graph, Loops, enclosing_loops, id};
use super::{dead, fold};
use crate::ir::{BinaryOp, Edge, Function, Instruction, Op, Place, Type, Value};

/// Limit of iterations times step, below which the counter cannot wrap.
const DISTANCE_MAX: u64 = 1 << 31;
/// Most sums in a row that are combined.
const SUMS_MAX: usize = 8;

/// Average number of visits per block: above it, where loops are deeply nested, the rest is left
/// unchanged.
const VISITS_MAX: usize = 64;

/// Moves the sums out of each loop.
pub(super) fn run(function: &mut Function) {
    let code = Code::of(function);
    let mut changed = false;
    let mut looks = VISITS_MAX * function.blocks.len();
    for header in 0..function.blocks.len() {
        if function.blocks[header].rounds_max.is_none() {
            continue;
        }
        let Some(left) = looks.checked_sub(code.last[header] + 1 - header) else { break };
        looks = left;
        for found in find(function, &code, header).unwrap_or_default() {
            compute_behind(function, &code, header, &found);
            changed = true;
        }
    }
    if changed {
        dead::run(function);
    }
}

/// Function before any change: computations added behind one loop do not affect the analysis of
/// another.
struct Code {
    loops: Loops,
    graph: Graph,
    constants: HashMap<Value, u64>,
    sums: HashMap<Value, (Value, i64)>,
    /// Last block of each header's loop; the loop's blocks are consecutive.
    last: Vec<usize>,
    /// Blocks that use each value.
    users: Vec<Vec<usize>>,
}

impl Code {
    fn of(function: &Function) -> Self {
        let loops = enclosing_loops(&function.blocks);
        let constants = fold::constants(function);
        let sums = sums(function, &constants);
        let mut last: Vec<usize> = (0..function.blocks.len()).collect();
        for block in (0..function.blocks.len()).rev() {
            if let Some(header) = loops.enclosing[block] {
                let header = header.0 as usize;
                last[header] = last[header].max(last[block]);
            }
        }
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); function.types.len()];
        for (index, block) in function.blocks.iter().enumerate() {
            let mut note = |value: Value| {
                let users = &mut users[value.0 as usize];
                if users.last() != Some(&index) {
                    users.push(index);
                }
            };
            for instruction in &block.instructions {
                instruction.op.for_each_use(&mut note);
            }
            block.terminator.for_each_use(&mut note);
        }
        Self { loops, graph: Graph::of(function), constants, sums, last, users }
    }

    /// Returns the blocks of that header's loop.
    fn inside(&self, header: usize) -> impl Iterator<Item = usize> {
        (header..=self.last[header]).filter(move |&block| is_in(&self.loops, block, header))
    }
}

/// Parameter of a loop's header that changes by a constant in each iteration.
#[derive(Clone, Copy)]
struct Variable {
    value: Value,
    begin: Value,
    step: i64,
}

/// Variable that is only needed behind the loop, with one that counts the iterations.
struct Found {
    counter: Variable,
    /// Initial value of the counter, if it is a constant.
    begin: Option<u64>,
    /// Last sum with the counter that each block of the loop computes, with its distance from the
    /// counter.
    counted: HashMap<usize, (Value, i64)>,
    sum: Variable,
    /// Sums derived from the variable in the loop, with their distance from it.
    made: HashMap<Value, i64>,
}

/// Returns all variables that a loop only accumulates for use behind it.
fn find(function: &Function, code: &Code, header: usize) -> Option<Vec<Found>> {
    let Code { loops, graph, constants, sums, .. } = code;
    let block = &function.blocks[header];
    let rounds = block.rounds_max?;
    let mut predecessors_in: Vec<&Edge> = Vec::new();
    let mut ways_back: Vec<&Edge> = Vec::new();
    let mut predecessors = graph.predecessors[header].clone();
    predecessors.dedup();
    for from in predecessors {
        let block = &function.blocks[from.0 as usize];
        let edges = block.terminator.edges().filter(|edge| edge.target == id(header));
        let is_back = is_in(loops, from.0 as usize, header);
        if is_back { ways_back.extend(edges) } else { predecessors_in.extend(edges) }
    }
    let [way_in] = predecessors_in[..] else { return None };
    let variable = |(at, &value): (usize, &Value)| {
        let moved = |edge: &&Edge| moved(sums, *edge.arguments.get(at)?, value);
        let step = ways_back.first().and_then(moved)?;
        let agree = ways_back.iter().all(|way| moved(way) == Some(step));
        let begin = *way_in.arguments.get(at)?;
        (agree && step != 0).then_some(Variable { value, begin, step })
    };
    let variables: Vec<Variable> =
        block.parameters.iter().enumerate().filter_map(variable).collect();
    let found = variables.iter().filter_map(|&sum| {
        let is_wide = function.types[sum.value.0 as usize] == Type::I64;
        let made = only_behind(function, code, header, sum.value).filter(|_| is_wide)?;
        let counts = |counter: &&Variable| {
            let way = counter.step.unsigned_abs().checked_mul(rounds);
            counter.value != sum.value && way.is_some_and(|way| way < DISTANCE_MAX)
        };
        let counters = variables.iter().filter(counts);
        let &counter = counters.min_by_key(|counter| !constants.contains_key(&counter.begin))?;
        let counted = counted(function, code, header, counter);
        let begin = constants.get(&counter.begin).copied();
        Some(Found { counter, begin, counted, sum, made })
    });
    Some(found.collect())
}

/// Returns true if a block is in the loop of that header.
fn is_in(loops: &Loops, mut block: usize, header: usize) -> bool {
    while block != header {
        match loops.enclosing[block] {
            Some(outer) => block = outer.0 as usize,
            None => return false,
        }
    }
    true
}

/// Returns the values that are the sum of another one and a constant.
fn sums(function: &Function, constants: &HashMap<Value, u64>) -> HashMap<Value, (Value, i64)> {
    let mut sums = HashMap::new();
    for instruction in function.blocks.iter().flat_map(|block| &block.instructions) {
        let (Op::Binary(op, a, b), [result]) = (&instruction.op, &instruction.results[..]) else {
            continue;
        };
        let Some(&number) = constants.get(b) else { continue };
        let number = fold::signed(function.types[result.0 as usize], number);
        match op {
            BinaryOp::Add => sums.insert(*result, (*a, number)),
            BinaryOp::Sub => sums.insert(*result, (*a, number.wrapping_neg())),
            _ => None,
        };
    }
    sums
}

/// Returns the distance of the value from `from`, if it is a sum with it.
fn moved(sums: &HashMap<Value, (Value, i64)>, value: Value, from: Value) -> Option<i64> {
    let (mut at, mut by) = (value, 0_i64);
    for _ in 0..SUMS_MAX {
        if at == from {
            return Some(by);
        }
        let (next, number) = sums.get(&at)?;
        (at, by) = (*next, by.checked_add(*number)?);
    }
    None
}

/// Returns the last sum with the counter that each block of the loop computes.
fn counted(
    function: &Function,
    code: &Code,
    header: usize,
    counter: Variable,
) -> HashMap<usize, (Value, i64)> {
    let mut counted = HashMap::from_iter([(header, (counter.value, 0_i64))]);
    // Other sums serve another purpose, and may be removed in the end.
    let is_on_the_way = |by: i64| {
        by.signum() == counter.step.signum() && by.unsigned_abs() <= counter.step.unsigned_abs()
    };
    for index in code.inside(header) {
        let instructions = &function.blocks[index].instructions;
        let results = instructions.iter().flat_map(|instruction| &instruction.results);
        let moved = |value: Value| moved(&code.sums, value, counter.value);
        let made = results.filter_map(|&value| Some((value, moved(value)?)));
        let mut made = made.filter(|(_, by)| is_on_the_way(*by));
        if let Some(last) = made.next_back() {
            counted.insert(index, last);
        }
    }
    counted
}

/// Returns the parameter and its sums in the loop, if the loop only passes them to its next
/// iteration.
fn only_behind(
    function: &Function,
    code: &Code,
    header: usize,
    parameter: Value,
) -> Option<HashMap<Value, i64>> {
    let at = function.blocks[header].parameters.iter().position(|value| *value == parameter)?;
    let mut made = HashMap::from_iter([(parameter, 0_i64)]);
    for index in code.inside(header) {
        let block = &function.blocks[index];
        for instruction in &block.instructions {
            let sum = instruction.results.first().and_then(|result| code.sums.get(result));
            if let (Some((of, by)), [result]) = (sum, &instruction.results[..])
                && let Some(before) = made.get(of)
            {
                let more = before.checked_add(*by)?;
                made.insert(*result, more);
                continue;
            }
            let mut is_used = false;
            instruction.op.for_each_use(|value| is_used |= made.contains_key(&value));
            if is_used {
                return None;
            }
        }
        let mut is_used = false;
        block.terminator.for_each_own_use(|value| is_used |= made.contains_key(&value));
        for edge in block.terminator.edges() {
            for (place, value) in edge.arguments.iter().enumerate() {
                let goes_round = edge.target == id(header) && place == at;
                is_used |= !goes_round && made.contains_key(value);
            }
        }
        if is_used {
            return None;
        }
    }
    Some(made)
}

/// Replaces the sums, in each block behind the loop that uses them, by the same number computed
/// from the counter.
fn compute_behind(function: &mut Function, code: &Code, header: usize, found: &Found) {
    let mut behind: Vec<usize> = Vec::new();
    for made in found.made.keys() {
        behind.extend(&code.users[made.0 as usize]);
    }
    behind.sort_unstable();
    behind.dedup();
    behind.retain(|&block| !is_in(&code.loops, block, header));
    for index in behind {
        let block = &function.blocks[index];
        let mut used: Vec<Value> = Vec::new();
        let mut note = |value: Value| {
            if found.made.contains_key(&value) && !used.contains(&value) {
                used.push(value);
            }
        };
        for instruction in &block.instructions {
            instruction.op.for_each_use(&mut note);
        }
        block.terminator.for_each_use(&mut note);
        if used.is_empty() {
            continue;
        }
        let place = block.instructions.first().map_or(Place::default(), |first| first.place);
        let mut computing = Computing { types: &mut function.types, out: Vec::new(), place };
        // The last sum on the way to here: earlier ones may not be live any more.
        let mut above = index;
        let counted = loop {
            match found.counted.get(&above) {
                Some(counted) => break *counted,
                None => above = code.graph.dominator[above].0 as usize,
            }
        };
        let (sum, less) = computing.sum(found, counted);
        let instead: HashMap<Value, Value> = used
            .into_iter()
            .map(|value| {
                let more = found.made[&value].wrapping_sub(less);
                (value, computing.more(sum, more))
            })
            .collect();
        let computed = computing.out;
        let block = &mut function.blocks[index];
        let replace = |value: &mut Value| {
            if let Some(other) = instead.get(value) {
                *value = *other;
            }
        };
        for instruction in &mut block.instructions {
            instruction.op.for_each_use_mut(replace);
        }
        block.terminator.for_each_use_mut(replace);
        block.instructions.splice(0..0, computed);
    }
    // The loop's own uses of the sum are dead now.
}

/// Instructions under construction.
struct Computing<'f> {
    types: &'f mut Vec<Type>,
    out: Vec<Instruction>,
    place: Place,
}

impl Computing<'_> {
    /// Returns the sum in the iteration of the counter's value as a value and a constant to add.
    fn sum(&mut self, found: &Found, (counted, more): (Value, i64)) -> (Value, i64) {
        let Found { counter, sum, .. } = found;
        let ty = self.types[counter.value.0 as usize];
        let size = counter.step.unsigned_abs().cast_signed();
        let is_even = sum.step.checked_rem(size) == Some(0);
        let by = if is_even { sum.step / size } else { sum.step };
        // Steps and iterations are so few that the counter wraps at most where numbers do.
        let first = found.begin.map(|begin| begin.cast_signed().wrapping_add(more));
        let is_plain = first.filter(|first| (0..DISTANCE_MAX.cast_signed()).contains(first));
        let (mut way, less) = match is_plain.filter(|_| is_even && counter.step > 0) {
            Some(first) => (counted, first.wrapping_mul(by)),
            None => {
                let now = if more == 0 {
                    counted
                } else {
                    let more = self.number_of(ty, more.cast_unsigned() & fold::ones(ty));
                    self.make(ty, Op::Binary(BinaryOp::Sub, counted, more))
                };
                let (from, to) = match counter.step > 0 {
                    true => (counter.begin, now),
                    false => (now, counter.begin),
                };
                (self.make(ty, Op::Binary(BinaryOp::Sub, to, from)), 0)
            }
        };
        if ty == Type::I32 {
            way = self.make(Type::I64, Op::ExtendUnsigned(way));
        }
        if !is_even {
            let size = self.number(size.cast_unsigned());
            way = self.make(Type::I64, Op::Binary(BinaryOp::DivU, way, size));
        }
        let by = self.number(by.cast_unsigned());
        let change = self.make(Type::I64, Op::Binary(BinaryOp::Mul, way, by));
        (self.make(Type::I64, Op::Binary(BinaryOp::Add, sum.begin, change)), less)
    }

    fn more(&mut self, value: Value, by: i64) -> Value {
        if by == 0 {
            return value;
        }
        let by = self.number(by.cast_unsigned());
        self.make(Type::I64, Op::Binary(BinaryOp::Add, value, by))
    }

    fn number(&mut self, number: u64) -> Value {
        self.number_of(Type::I64, number)
    }

    fn number_of(&mut self, ty: Type, number: u64) -> Value {
        self.make(ty, Op::Const(number))
    }

    fn make(&mut self, ty: Type, op: Op) -> Value {
        let value = Value(u32::try_from(self.types.len()).unwrap_or(u32::MAX));
        self.types.push(ty);
        self.out.push(Instruction { results: vec![value], op, place: self.place });
        value
    }
}
