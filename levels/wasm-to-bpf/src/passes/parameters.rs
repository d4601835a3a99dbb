//! Takes out block parameters that are always one and the same value, each by itself or several
//! that hand it to each other: as the window's length, which LLVM loads again behind some stores.

use foldhash::HashMap;

use super::alias::Aliases;
use crate::ir::{Function, Value};

/// A parameter with the arguments that come in.
struct Parameter {
    value: Value,
    arguments: Vec<Value>,
    gone: bool,
}

/// Runs over all parameters but the entry's.
pub(super) fn run(function: &mut Function) {
    let (mut parameters, first) = collect(function);
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); function.types.len()];
    for (index, parameter) in parameters.iter().enumerate() {
        for argument in &parameter.arguments {
            users[argument.0 as usize].push(index);
        }
    }
    let mut aliases = Aliases::none(function);
    let mut work: Vec<usize> = (0..parameters.len()).rev().collect();
    while let Some(index) = work.pop() {
        let parameter = &mut parameters[index];
        if parameter.gone {
            continue;
        }
        let Some(one) = the_one(parameter, &mut aliases) else { continue };
        parameter.gone = true;
        let value = parameter.value;
        aliases.set(value, one);
        let of_it = std::mem::take(&mut users[value.0 as usize]);
        work.extend(&of_it);
        users[one.0 as usize].extend(of_it);
    }
    for (index, one) in handed_round(&parameters, &mut aliases) {
        parameters[index].gone = true;
        aliases.set(parameters[index].value, one);
    }
    if parameters.iter().any(|parameter| parameter.gone) {
        aliases.apply(function);
        remove(function, |block, index| parameters[first[block] + index].gone);
    }
}

/// All parameters in order, and where those of each block begin.
fn collect(function: &Function) -> (Vec<Parameter>, Vec<usize>) {
    let mut parameters = Vec::new();
    let mut first = Vec::new();
    for (index, block) in function.blocks.iter().enumerate() {
        first.push(parameters.len());
        let values = if index == 0 { &[][..] } else { &block.parameters };
        for value in values {
            parameters.push(Parameter { value: *value, arguments: Vec::new(), gone: false });
        }
    }
    for block in &function.blocks {
        for edge in block.terminator.edges() {
            let begin = first[edge.target.0 as usize];
            for (index, argument) in edge.arguments.iter().enumerate() {
                parameters[begin + index].arguments.push(*argument);
            }
        }
    }
    (parameters, first)
}

/// The only value that comes in beside the parameter itself.
fn the_one(parameter: &Parameter, aliases: &mut Aliases) -> Option<Value> {
    let mut one = None;
    for argument in &parameter.arguments {
        let argument = aliases.find(*argument);
        if argument == parameter.value || one == Some(argument) {
            continue;
        }
        if one.replace(argument).is_some() {
            return None;
        }
    }
    one
}

/// Times that all parameters are looked at; what changes still is left as it is.
const LOOKS_MAX: usize = 8;

/// Parameters that hand each other one value and never get another one, with that value: they are
/// taken to be the same until two are seen to come in.
fn handed_round(parameters: &[Parameter], aliases: &mut Aliases) -> Vec<(usize, Value)> {
    let left = || parameters.iter().enumerate().filter(|(_, parameter)| !parameter.gone);
    // Nothing has come in yet, or that value; one that gets several is a value of its own.
    let mut held: HashMap<Value, Option<Value>> =
        left().map(|(_, parameter)| (parameter.value, None)).collect();
    for _ in 0..LOOKS_MAX {
        let mut changed = false;
        for (_, Parameter { value, arguments, .. }) in left() {
            if held[value] == Some(*value) {
                continue;
            }
            let mut one = None;
            for argument in arguments {
                let argument = aliases.find(*argument);
                let Some(argument) = held.get(&argument).copied().unwrap_or(Some(argument)) else {
                    continue;
                };
                one = match one {
                    Some(other) if other != argument => Some(*value),
                    _ => Some(argument),
                };
                if one == Some(*value) {
                    break;
                }
            }
            changed |= held.insert(*value, one) != Some(one);
        }
        if !changed {
            let same = left().filter_map(|(index, parameter)| {
                let one = held[&parameter.value].filter(|one| *one != parameter.value)?;
                Some((index, one))
            });
            return same.collect();
        }
    }
    Vec::new()
}

/// Removes parameters, and the arguments for them.
pub(super) fn remove(function: &mut Function, is_gone: impl Fn(usize, usize) -> bool) {
    for (index, block) in function.blocks.iter_mut().enumerate() {
        if index != 0 {
            keep(&mut block.parameters, |parameter| !is_gone(index, parameter));
        }
        for edge in block.terminator.edges_mut() {
            let target = edge.target.0 as usize;
            keep(&mut edge.arguments, |argument| !is_gone(target, argument));
        }
    }
}

fn keep(values: &mut Vec<Value>, stays: impl Fn(usize) -> bool) {
    let mut index = 0;
    values.retain(|_| {
        index += 1;
        stays(index - 1)
    });
}
