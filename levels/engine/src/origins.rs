//! Map from code that wasmtime compiled back to the module's own bytes: what
//! was compiled has more exports than the module, and Cranelift turns a branch
//! to an `unreachable` into a trap at the branch. The map gives a trap the same
//! position as at the levels below.
//!
//! Made together with the code and appended to it.
//!
//! ```text
//! code │ shift i32 │ end u32 │ functions u32 │ their beginnings │ (branch, its unreachable)… │ length u32
//! ```

use wasmparser::{BinaryReaderError, FunctionBody, Operator, Parser, Payload};

/// Bytes of the length at the end.
const TRAILER_LENGTH: usize = 4;
/// Numbers in front of the lists.
const HEADER: usize = 3;

/// Version of the format above: code with another one is refused.
pub(crate) const VERSION: u64 = 1;

/// Positions of functions and of branches that became traps, in the module's bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origins {
    /// Bytes by which the compiled module's code is shifted against the original's.
    shift: i32,
    /// Offset of the code section's end.
    end: u32,
    /// Offset of each function's body, in order.
    functions: Vec<u32>,
    /// Branches by their offset, with the `unreachable` that each leads to.
    branches: Vec<(u32, u32)>,
}

impl Origins {
    /// Builds the map from a module and the one compiled in its place.
    pub(crate) fn of(wasm: &[u8], compiled: &[u8]) -> Result<Self, BinaryReaderError> {
        let mut origins = Self::default();
        let mut start = 0;
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::CodeSectionStart { range, .. } => {
                    start = range.start;
                    origins.end = number(range.end);
                }
                Payload::CodeSectionEntry(body) => {
                    let start = number(body.range().start);
                    origins.functions.push(start);
                    let body = Body::read(&body)?;
                    // A trap at a function's first instruction has the offset of its locals.
                    origins
                        .branches
                        .extend(body.operators.first().map(|(first, _)| (start, *first)));
                    body.branches_to_traps(&mut origins.branches);
                }
                _ => {}
            }
        }
        let mut compiled_start = start;
        for payload in Parser::new(0).parse_all(compiled) {
            if let Payload::CodeSectionStart { range, .. } = payload? {
                compiled_start = range.start;
            }
        }
        origins.shift = number(compiled_start).wrapping_sub(number(start)).cast_signed();
        Ok(origins)
    }

    /// Returns the offset in the module for an offset in the compiled one.
    pub(crate) fn original(&self, compiled: usize) -> usize {
        let offset = number(compiled).wrapping_sub(self.shift.cast_unsigned());
        let branch = self.branches.binary_search_by_key(&offset, |(branch, _)| *branch);
        let unreachable = branch.ok().and_then(|at| self.branches.get(at));
        unreachable.map_or(offset, |(_, unreachable)| *unreachable) as usize
    }

    /// Returns the index, among the functions that the module defines, of the one that contains
    /// this byte.
    pub(crate) fn function(&self, offset: usize) -> Option<usize> {
        let offset = number(offset);
        let after = self.functions.partition_point(|start| *start <= offset);
        after.checked_sub(1).filter(|_| offset < self.end)
    }

    /// Appends the map to the code.
    pub(crate) fn append_to(&self, code: &mut Vec<u8>) {
        let lists = self.branches.iter().flat_map(|(branch, target)| [*branch, *target]);
        let header = [self.shift.cast_unsigned(), self.end, number(self.functions.len())];
        let before = code.len();
        for word in header.into_iter().chain(self.functions.iter().copied()).chain(lists) {
            code.extend(word.to_le_bytes());
        }
        let length = number(code.len() - before);
        code.extend(length.to_le_bytes());
    }

    /// Splits code and map. Returns `None` when there is no map.
    pub(crate) fn split(code: &[u8]) -> Option<(&[u8], Self)> {
        let (rest, length) = code.split_last_chunk::<TRAILER_LENGTH>()?;
        let at = rest.len().checked_sub(u32::from_le_bytes(*length) as usize)?;
        let (code, map) = rest.split_at_checked(at)?;
        let (words, []) = map.as_chunks::<4>() else { return None };
        let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let (&[shift, end, functions], lists) = words.split_first_chunk::<HEADER>()?;
        let (functions, branches) = lists.split_at_checked(functions as usize)?;
        let (branches, []) = branches.as_chunks::<2>() else { return None };
        let branches = branches.iter().map(|[branch, target]| (*branch, *target)).collect();
        let (shift, functions) = (shift.cast_signed(), functions.to_vec());
        Some((code, Self { shift, end, functions, branches }))
    }
}

/// Offsets in a module fit: its length is limited to far less.
fn number(offset: usize) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

/// Kind of an operator, as far as it affects where a branch leads.
#[derive(Clone, Copy)]
enum Kind {
    Unreachable,
    /// Operator without effect: control goes on to the next one.
    Silent,
    /// `end`, without effect; closes what the operator at that position opened.
    End(Option<usize>),
    /// `else`: control that comes here goes on after the `end` of that `if`.
    Else(usize),
    /// `br_if` that leads behind the `end` of the operator at that position, if it is not a loop.
    BranchIf(Option<usize>),
    If,
    Other,
}

/// Operators of a function.
struct Body {
    /// Offset and kind of each operator.
    operators: Vec<(u32, Kind)>,
    /// Positions of `end` and `else` for each operator that opens a block.
    ends: Vec<(usize, Option<usize>)>,
}

impl Body {
    fn read(body: &FunctionBody<'_>) -> Result<Self, BinaryReaderError> {
        let (mut operators, mut ends): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
        // The function itself, then the open blocks; `None` for those that a branch does not leave.
        let mut open: Vec<(Option<usize>, bool)> = vec![(None, false)];
        for operator in body.get_operators_reader()?.into_iter_with_offsets() {
            let (operator, offset) = operator?;
            let at = operators.len();
            ends.push((usize::MAX, None));
            let kind = match operator {
                Operator::Unreachable => Kind::Unreachable,
                Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => {
                    open.push((Some(at), matches!(operator, Operator::Loop { .. })));
                    match operator {
                        Operator::If { .. } => Kind::If,
                        Operator::Block { .. } => Kind::Silent,
                        _ => Kind::Other,
                    }
                }
                Operator::Else => {
                    let opener = open.last().and_then(|(opener, _)| *opener);
                    opener.map_or(Kind::Other, |opener| {
                        ends[opener].1 = Some(at);
                        Kind::Else(opener)
                    })
                }
                Operator::End => {
                    let opener = open.pop().and_then(|(opener, _)| opener);
                    if let Some(opener) = opener {
                        ends[opener].0 = at;
                    }
                    Kind::End(opener)
                }
                Operator::BrIf { relative_depth } => {
                    let target = open.len().checked_sub(1 + relative_depth as usize);
                    let target = target.and_then(|target| open.get(target));
                    Kind::BranchIf(
                        target.filter(|(_, is_loop)| !is_loop).and_then(|(opener, _)| *opener),
                    )
                }
                Operator::Nop
                | Operator::Drop
                | Operator::I32Const { .. }
                | Operator::I64Const { .. }
                | Operator::LocalGet { .. }
                | Operator::LocalSet { .. }
                | Operator::LocalTee { .. } => Kind::Silent,
                _ => Kind::Other,
            };
            operators.push((number(offset), kind));
        }
        Ok(Self { operators, ends })
    }

    /// Adds the conditional branches that lead to nothing but an `unreachable`, with it. Where both
    /// sides do, Cranelift makes either of them a trap, by how it computes the condition; the side
    /// that is taken when the condition holds is recorded, which can be the wrong one of the two.
    fn branches_to_traps(&self, found: &mut Vec<(u32, u32)>) {
        let first = found.len();
        // Backwards: the `unreachable` that control reaches from each operator, if any.
        let mut reaches: Vec<Option<u32>> = vec![None; self.operators.len() + 1];
        let behind = |opener: usize, reaches: &[Option<u32>]| {
            let (end, _) = self.ends.get(opener)?;
            *reaches.get(end.checked_add(1)?)?
        };
        for (at, &(offset, kind)) in self.operators.iter().enumerate().rev() {
            let next = reaches[at + 1];
            let trap = match kind {
                Kind::BranchIf(target) => {
                    target.and_then(|target| behind(target, &reaches)).or(next)
                }
                Kind::If => next.or_else(|| match self.ends.get(at) {
                    Some((_, Some(other))) => *reaches.get(other + 1)?,
                    _ => behind(at, &reaches),
                }),
                _ => None,
            };
            found.extend(trap.map(|trap| (offset, trap)));
            reaches[at] = match kind {
                Kind::Unreachable => Some(offset),
                Kind::Silent | Kind::End(Some(_)) => next,
                Kind::Else(opener) => behind(opener, &reaches),
                _ => None,
            };
        }
        found[first..].reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_origins_round_trip_and_truncated_ones_are_none() {
        let origins =
            Origins { shift: -3, end: 90, functions: vec![10, 40], branches: vec![(12, 20)] };
        let mut code = b"code".to_vec();
        origins.append_to(&mut code);
        assert_eq!(Origins::split(&code), Some((b"code".as_slice(), origins)));
        for length in 0..code.len() {
            assert_eq!(Origins::split(&code[..length]), None, "{length}");
        }
    }

    #[test]
    fn each_byte_of_the_code_is_of_one_function() {
        let origins = Origins { end: 90, functions: vec![10, 40], ..Origins::default() };
        let of = [9, 10, 39, 40, 89, 90].map(|offset| origins.function(offset));
        assert_eq!(of, [None, Some(0), Some(0), Some(1), Some(1), None]);
    }
}
