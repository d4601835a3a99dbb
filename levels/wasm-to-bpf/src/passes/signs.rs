//! Detection of values that the verifier may know to be -1 or 0, but not which of the two.
//!
//! The verifier's knowledge is true, so the value is a sign, or a condition on the path says so. A
//! sign comes from a shift (`x >> 31`), from arithmetic on numbers known to be small (`0 - (x <
//! y)`, `(x & 1) - 1`), or from comparisons of the value itself (`-1 <= x` and `x <= 0`) or of its
//! sum with a constant (`x + 1 < 2`: the verifier links the two).

use foldhash::HashMap;

use super::fold;
use super::range_ends::Ends;
use crate::ir::{BinaryOp, CompareOp, Function, Op, Type, UnaryOp, Value, Width};

/// Returns for each value true if it may be a sign; `small` are those whose range the verifier may
/// know.
pub(super) fn signs(function: &Function, small: &[bool]) -> Vec<bool> {
    let constants = fold::constants(function);
    let (ranges, ways) = ranges(function, small);
    let compared = compared(function, &constants, small);
    let even = even(function, &constants);
    let ends = Ends::of(function, &constants);
    let may_be = |value: usize| match ranges[value] {
        Some(Range { least: 0.., most }) if most <= i64::from(i32::MAX) => false,
        Some(Range { least: -1, most: 0 }) => true,
        // On one path it does not know half of its range.
        _ if !compared[value] && (!ways[value] || !small[value] || even[value]) => false,
        _ => ends.may_be_sign(value),
    };
    let mut signs: Vec<bool> = (0..function.types.len()).map(may_be).collect();
    // The verifier tracks the low half of a number, too.
    for instruction in function.blocks.iter().flat_map(|block| &block.instructions) {
        if let (Op::ExtendUnsigned(of) | Op::Wrap(of), [result]) =
            (&instruction.op, &instruction.results[..])
        {
            signs[result.0 as usize] |= signs[of.0 as usize];
        }
    }
    signs
}

/// Interval of signed numbers; both ends included.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Range {
    least: i64,
    most: i64,
}

/// Returns the interval of each value as the verifier computes it, `None` for any number; and the
/// values of which it may know a narrower one on some path.
fn ranges(function: &Function, small: &[bool]) -> (Vec<Option<Range>>, Vec<bool>) {
    let mut ranges = vec![None; function.types.len()];
    let mut ways = ordered_or_joined(function, small);
    // Without the back edges one walk in order sees every value before its uses.
    for block in &function.blocks {
        for instruction in &block.instructions {
            let [result] = instruction.results[..] else { continue };
            let at = result.0 as usize;
            let range = |value: Value| ranges[value.0 as usize];
            ranges[at] = range_of(&instruction.op, function, result, range);
            instruction.op.for_each_use(|value| ways[at] |= ways[value.0 as usize]);
        }
        for edge in block.terminator.edges() {
            let target = &function.blocks[edge.target.0 as usize];
            if !target.is_loop_header {
                for (parameter, argument) in target.parameters.iter().zip(&edge.arguments) {
                    ways[parameter.0 as usize] |= ways[argument.0 as usize];
                }
            }
        }
    }
    (ranges, ways)
}

fn range_of(
    op: &Op,
    function: &Function,
    result: Value,
    range: impl Fn(Value) -> Option<Range>,
) -> Option<Range> {
    use BinaryOp::{Add, And, DivU, Mul, Or, RemU, Shl, ShrS, ShrU, Sub, Xor};
    let ty = function.types[result.0 as usize];
    let bits = fold::bits(ty);
    let all = Range { least: i64::MIN >> (64 - bits), most: i64::MAX >> (64 - bits) };
    let fits = |range: Range| (range.least >= all.least && range.most <= all.most).then_some(range);
    let to = |most: u64| i64::try_from(most).ok().and_then(|most| fits(Range { least: 0, most }));
    // The upper limit, if the value is not negative.
    let most = |value| range(value).filter(|range| range.least >= 0).map(|range| range.most as u64);
    let constant = |value| range(value).filter(|r| r.least == r.most).map(|r| r.most);
    let ends = |a, b, of: fn(i64, i64) -> Option<i64>| {
        let (a, b) = (range(a)?, range(b)?);
        let ends =
            [of(a.least, b.least), of(a.least, b.most), of(a.most, b.least), of(a.most, b.most)];
        let [first, others @ ..] = ends;
        others.into_iter().try_fold(Range { least: first?, most: first? }, |range, end| {
            Some(Range { least: range.least.min(end?), most: range.most.max(end?) })
        })
    };
    match *op {
        Op::Const(number) => {
            let number = fold::signed(ty, number);
            Some(Range { least: number, most: number })
        }
        Op::Compare(..) => to(1),
        Op::MemorySize => to(1 << 16),
        Op::Load { width: Width::One, signed: false, .. } => to(0xff),
        Op::Load { width: Width::Two, signed: false, .. } => to(0xffff),
        Op::Load { width: Width::Four, signed: false, .. } => to(0xffff_ffff),
        Op::Unary(UnaryOp::Clz | UnaryOp::Ctz | UnaryOp::Popcnt, _) => to(64),
        Op::Unary(UnaryOp::ByteSwap16, _) => to(0xffff),
        Op::Binary(And, a, b) => most(a).into_iter().chain(most(b)).min().and_then(to),
        Op::Binary(Or | Xor, a, b) => most(a)
            .zip(most(b))
            .and_then(|(a, b)| to((a | b).checked_add(1)?.next_power_of_two() - 1)),
        Op::Binary(Add, a, b) => ends(a, b, i64::checked_add).and_then(fits),
        Op::Binary(Sub, a, b) => ends(a, b, i64::checked_sub).and_then(fits),
        Op::Binary(Mul, a, b) => ends(a, b, i64::checked_mul).and_then(fits),
        Op::Binary(Shl, a, count) => {
            let count = constant(count)? as u32 % bits;
            let (least, most) = (range(a)?.least, range(a)?.most);
            let shifted = |end: i64| end.checked_mul(1i64.checked_shl(count).filter(|by| *by > 0)?);
            fits(Range { least: shifted(least)?, most: shifted(most)? })
        }
        Op::Binary(ShrU, a, count) => match constant(count) {
            Some(count) => to(most(a).unwrap_or(fold::ones(ty)) >> (count as u32 % bits)),
            None => most(a).and_then(to),
        },
        Op::Binary(ShrS, a, count) => {
            let (of, count) = (range(a).unwrap_or(all), constant(count)? as u32 % bits);
            Some(Range { least: of.least >> count, most: of.most >> count })
        }
        Op::Binary(DivU, a, _) => most(a).and_then(to),
        Op::Binary(RemU, a, b) => most(a).into_iter().chain(most(b)).min().and_then(to),
        Op::ExtendUnsigned(a) => to(most(a).unwrap_or(fold::ones(Type::I32))),
        Op::ExtendSigned(a) => range(a),
        Op::Wrap(a) => range(a).and_then(fits),
        _ => None,
    }
}

/// Returns the values of which the verifier knows more on one path than on another, at their
/// definition.
fn ordered_or_joined(function: &Function, small: &[bool]) -> Vec<bool> {
    let mut ways = vec![false; function.types.len()];
    for block in &function.blocks {
        for instruction in &block.instructions {
            match (&instruction.op, &instruction.results[..]) {
                (Op::Select(..), [result]) => ways[result.0 as usize] = small[result.0 as usize],
                (Op::Compare(op, a, b), _) if !matches!(op, CompareOp::Eq | CompareOp::Ne) => {
                    ways[a.0 as usize] |= small[b.0 as usize];
                    ways[b.0 as usize] |= small[a.0 as usize];
                }
                _ => {}
            }
        }
        if !block.is_loop_header {
            for parameter in &block.parameters {
                ways[parameter.0 as usize] = small[parameter.0 as usize];
            }
        }
    }
    ways
}

/// Returns the values whose lowest bit is certainly 0, so that none is -1.
fn even(function: &Function, constants: &HashMap<Value, u64>) -> Vec<bool> {
    let mut even = vec![false; function.types.len()];
    for instruction in function.blocks.iter().flat_map(|block| &block.instructions) {
        if let (Op::Binary(BinaryOp::Shl, _, count), [result]) =
            (&instruction.op, &instruction.results[..])
        {
            let bits = u64::from(fold::bits(function.types[result.0 as usize]));
            even[result.0 as usize] = constants.get(count).is_some_and(|count| count % bits != 0);
        }
    }
    even
}

/// Returns the values that comparisons may show to be signs.
fn compared(function: &Function, constants: &HashMap<Value, u64>, small: &[bool]) -> Vec<bool> {
    let mut families = Families::new(function.types.len());
    let instructions = || function.blocks.iter().flat_map(|block| &block.instructions);
    for instruction in instructions() {
        if let (Op::Binary(BinaryOp::Add | BinaryOp::Sub, a, b), [result]) =
            (&instruction.op, &instruction.results[..])
        {
            match (constants.contains_key(a), constants.contains_key(b)) {
                (false, true) => families.join(*result, *a),
                (true, false) => families.join(*result, *b),
                _ => {}
            }
        }
    }
    for instruction in instructions() {
        if let Op::Compare(op, a, b) = instruction.op {
            for (op, value, other) in [(op, a, b), (op.swapped(), b, a)] {
                let ty = function.types[other.0 as usize];
                let than = constants.get(&other).map(|&number| fold::signed(ty, number));
                if small[other.0 as usize] {
                    families.compare(value, how(op, than));
                }
            }
        }
    }
    (0..).map(Value).take(function.types.len()).map(|value| families.may_be_sign(value)).collect()
}

/// Returns the conclusion about signs from a comparison with a number, if that is a constant.
fn how(op: CompareOp, than: Option<i64>) -> Compared {
    use CompareOp::{Eq, GeS, GtS, LeS, LtS, Ne};
    match (op, than) {
        // Then the verifier knows the number, or nothing; or a lower limit other than -1.
        (Eq | Ne, _) => Compared::Never,
        (GtS | LeS, Some(than)) if than != -2 => Compared::Never,
        (GeS | LtS, Some(than)) if than != -1 => Compared::Never,
        (LtS | GtS | LeS | GeS, _) => Compared::Signed,
        _ => Compared::Unsigned,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Compared {
    Never,
    Unsigned,
    Signed,
}

/// Groups of values that differ by constants.
struct Families {
    /// Representative that the distances of the group are counted from.
    of: Vec<Value>,
    /// Conclusion from comparisons, by representative.
    compared: Vec<Compared>,
    sums: Vec<bool>,
}

impl Families {
    fn new(values: usize) -> Self {
        let of = (0..).map(Value).take(values).collect();
        Self { of, compared: vec![Compared::Never; values], sums: vec![false; values] }
    }

    /// Adds a sum to the group of its operand, in the order of definitions.
    fn join(&mut self, sum: Value, of: Value) {
        let root = self.of[of.0 as usize];
        self.of[sum.0 as usize] = root;
        self.sums[root.0 as usize] = true;
    }

    fn compare(&mut self, value: Value, how: Compared) {
        let compared = &mut self.compared[self.of[value.0 as usize].0 as usize];
        *compared = how.max(*compared);
    }

    fn may_be_sign(&self, value: Value) -> bool {
        let root = self.of[value.0 as usize].0 as usize;
        match self.compared[root] {
            Compared::Never => false,
            Compared::Unsigned => self.sums[root],
            Compared::Signed => true,
        }
    }
}
