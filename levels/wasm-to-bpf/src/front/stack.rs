//! Detection of the stack pointer: a global that every function of the module
//! restores, as LLVM's code does.
//!
//! ```text
//! global.get 0   i32.const 32   i32.sub   local.tee 3   global.set 0     entry - 32
//!   ...                                                                  on every path
//! local.get 3    i32.const 32   i32.add   global.set 0                   entry
//! ```
//!
//! Each function is proved by itself, with the others as its premise: by
//! induction over the depth of calls all restore it. Then it holds its initial
//! value whenever the node calls a hook, and addresses on the stack are
//! constants.

use std::collections::BTreeMap;

use wasmparser::{FunctionBody, Operator, ValType};

use super::module::Module;

/// Returns the first global that all functions restore, if some function writes it.
pub(super) fn kept(module: &Module<'_>) -> Option<u32> {
    let is_candidate = |(_, global): &(u32, &super::module::DefinedGlobal)| {
        global.ty.mutable && global.ty.content_type == ValType::I32 && !global.exported
    };
    (0..)
        .zip(&module.globals)
        .filter(is_candidate)
        .map(|(index, _)| index)
        .find(|global| module.bodies.iter().all(|body| keeps(body, *global)))
}

fn keeps(body: &FunctionBody<'_>, global: u32) -> bool {
    let Ok(operators) = body.get_operators_reader() else { return false };
    let Ok(operators) = operators.into_iter().collect::<Result<Vec<_>, _>>() else { return false };
    let writes = |operator: &Operator<'_>| matches!(operator, Operator::GlobalSet { global_index } if *global_index == global);
    if !operators.iter().any(writes) {
        return true;
    }
    let mut proof = Proof {
        global,
        assignments: assignments(&operators),
        locals: BTreeMap::new(),
        pushed: Vec::new(),
        frames: vec![Frame { target: Target::Agreed(0), at_else: None, out: None }],
        here: Some(0),
        straight: true,
    };
    operators.iter().all(|operator| proof.step(operator).is_some())
}

/// Counts the assignments of each local.
fn assignments(operators: &[Operator<'_>]) -> BTreeMap<u32, u32> {
    let mut assignments = BTreeMap::new();
    for operator in operators {
        if let Operator::LocalSet { local_index } | Operator::LocalTee { local_index } = operator {
            *assignments.entry(*local_index).or_default() += 1;
        }
    }
    assignments
}

/// Number as far as it is tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    /// Value of the global at the entry, plus this.
    FromEntry(u32),
    Constant(u32),
    Other,
}

#[derive(Clone, Copy, Debug)]
enum Target {
    /// Value that the global must have: at a loop's beginning, or the function's end.
    Agreed(u32),
    /// Value that the first branch brings to the end of a block.
    End,
}

struct Frame {
    target: Target,
    /// Value at the beginning of an `if`, while its other branch is to come.
    at_else: Option<Option<u32>>,
    /// Value that branches brought to its end.
    out: Option<u32>,
}

/// State of the walk through a function.
struct Proof {
    global: u32,
    assignments: BTreeMap<u32, u32>,
    /// Locals that hold one number throughout: assigned once, before any branch.
    locals: BTreeMap<u32, Number>,
    /// Operands pushed by the last operators; those below are unknown.
    pushed: Vec<Number>,
    frames: Vec<Frame>,
    /// Distance of the global from its value at the entry; `None` in unreachable code.
    here: Option<u32>,
    /// True while no branch was met.
    straight: bool,
}

impl Proof {
    /// Checks one operator; returns `None` if the proof fails there.
    fn step(&mut self, operator: &Operator<'_>) -> Option<()> {
        if self.is_structure(operator) {
            self.straight = false;
            self.pushed.clear();
            return self.structure(operator);
        }
        if self.here.is_some() {
            self.number(operator)?;
        }
        Some(())
    }

    fn is_structure(&self, operator: &Operator<'_>) -> bool {
        use Operator as O;
        matches!(
            operator,
            O::Block { .. }
                | O::Loop { .. }
                | O::If { .. }
                | O::Else
                | O::End
                | O::Br { .. }
                | O::BrIf { .. }
                | O::BrTable { .. }
                | O::Return
                | O::Unreachable
        )
    }

    fn number(&mut self, operator: &Operator<'_>) -> Option<()> {
        match operator {
            Operator::GlobalGet { global_index } if *global_index == self.global => {
                self.pushed.push(Number::FromEntry(self.here?));
            }
            Operator::I32Const { value } => {
                self.pushed.push(Number::Constant(value.cast_unsigned()));
            }
            Operator::I32Add | Operator::I32Sub => {
                let (right, left) = (self.pop(), self.pop());
                self.pushed.push(combined(operator, left, right));
            }
            Operator::LocalGet { local_index } => {
                let number = self.locals.get(local_index).copied().unwrap_or(Number::Other);
                self.pushed.push(number);
            }
            Operator::LocalSet { local_index } | Operator::LocalTee { local_index } => {
                let number = self.pop();
                if self.straight && self.assignments.get(local_index) == Some(&1) {
                    self.locals.insert(*local_index, number);
                }
                if matches!(operator, Operator::LocalTee { .. }) {
                    self.pushed.push(number);
                }
            }
            Operator::GlobalSet { global_index } if *global_index == self.global => {
                let Number::FromEntry(distance) = self.pop() else { return None };
                self.here = Some(distance);
            }
            _ if leaves_unseen(operator) => return None,
            _ => self.pushed.clear(),
        }
        Some(())
    }

    fn pop(&mut self) -> Number {
        self.pushed.pop().unwrap_or(Number::Other)
    }

    fn structure(&mut self, operator: &Operator<'_>) -> Option<()> {
        match operator {
            Operator::Block { .. } => self.open(Target::End, None),
            Operator::Loop { .. } => self.open(self.here.map_or(Target::End, Target::Agreed), None),
            Operator::If { .. } => self.open(Target::End, Some(self.here)),
            Operator::Else => {
                let begin = self.frames.last_mut()?.at_else.take()?;
                self.fall_out()?;
                self.here = begin;
            }
            Operator::End => {
                self.fall_out()?;
                let frame = self.frames.pop()?;
                self.here = frame.out;
                // Without an else the other branch does nothing.
                if let Some(Some(begin)) = frame.at_else
                    && self.here.replace(begin).is_some_and(|here| here != begin)
                {
                    return None;
                }
            }
            Operator::Br { relative_depth } => {
                self.branch(*relative_depth)?;
                self.here = None;
            }
            Operator::BrIf { relative_depth } => self.branch(*relative_depth)?,
            Operator::BrTable { targets } => {
                for depth in targets.targets() {
                    self.branch(depth.ok()?)?;
                }
                self.branch(targets.default())?;
                self.here = None;
            }
            Operator::Return => {
                self.branch(u32::try_from(self.frames.len()).ok()?.checked_sub(1)?)?;
                self.here = None;
            }
            _ => self.here = None,
        }
        Some(())
    }

    fn open(&mut self, target: Target, at_else: Option<Option<u32>>) {
        self.frames.push(Frame { target, at_else, out: None });
    }

    /// Leaves the innermost frame by its end. A loop is left unchanged; the function must have
    /// restored the global.
    fn fall_out(&mut self) -> Option<()> {
        let is_function = self.frames.len() == 1;
        let frame = self.frames.last_mut()?;
        match (self.here, frame.target) {
            (None, _) => Some(()),
            (Some(here), Target::Agreed(agreed)) if is_function && here != agreed => None,
            (Some(here), _) => agree(&mut frame.out, here),
        }
    }

    fn branch(&mut self, depth: u32) -> Option<()> {
        let Some(here) = self.here else { return Some(()) };
        let index = self.frames.len().checked_sub(1 + depth as usize)?;
        let frame = self.frames.get_mut(index)?;
        match frame.target {
            Target::Agreed(agreed) => (here == agreed).then_some(()),
            Target::End => agree(&mut frame.out, here),
        }
    }
}

fn agree(out: &mut Option<u32>, here: u32) -> Option<()> {
    (*out.get_or_insert(here) == here).then_some(())
}

fn combined(operator: &Operator<'_>, left: Number, right: Number) -> Number {
    let is_sum = matches!(operator, Operator::I32Add);
    match (left, right) {
        (Number::FromEntry(at), Number::Constant(by)) if is_sum => {
            Number::FromEntry(at.wrapping_add(by))
        }
        (Number::Constant(by), Number::FromEntry(at)) if is_sum => {
            Number::FromEntry(at.wrapping_add(by))
        }
        (Number::FromEntry(at), Number::Constant(by)) => Number::FromEntry(at.wrapping_sub(by)),
        _ => Number::Other,
    }
}

/// Returns true for operators that may leave the function or a block in ways not tracked here.
fn leaves_unseen(operator: &Operator<'_>) -> bool {
    use Operator as O;
    matches!(
        operator,
        O::ReturnCall { .. }
            | O::ReturnCallIndirect { .. }
            | O::ReturnCallRef { .. }
            | O::Throw { .. }
            | O::ThrowRef
            | O::TryTable { .. }
            | O::BrOnNull { .. }
            | O::BrOnNonNull { .. }
            | O::BrOnCast { .. }
            | O::BrOnCastFail { .. }
    )
}
