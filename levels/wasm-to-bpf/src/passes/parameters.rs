//! Removal of block parameters that always have one value, each by itself or several that pass it
//! to each other: such as the window's length, which LLVM loads again behind some stores.

use foldhash::HashMap;

use super::alias::Aliases;
use crate::ir::{Function, Value};

/// Parameter with its incoming arguments.
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
    for (index, one) in circulating(&parameters, &mut aliases) {
        parameters[index].gone = true;
        aliases.set(parameters[index].value, one);
    }
    if parameters.iter().any(|parameter| parameter.gone) {
        aliases.apply(function);
        remove(function, |block, index| parameters[first[block] + index].gone);
    }
}

/// Returns all parameters in order, and the index of the first one of each block.
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

/// Returns the only incoming value besides the parameter itself.
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

/// Most iterations over all parameters; those that still change then are left unchanged.
const VISITS_MAX: usize = 8;

/// Returns the parameters that pass each other one value and never get another one, with that
/// value: assumed to be the same until two values are seen.
fn circulating(parameters: &[Parameter], aliases: &mut Aliases) -> Vec<(usize, Value)> {
    let left = || parameters.iter().enumerate().filter(|(_, parameter)| !parameter.gone);
    // Nothing has come in yet, or one value; a parameter that gets several is a value of its own.
    let mut held: HashMap<Value, Option<Value>> =
        left().map(|(_, parameter)| (parameter.value, None)).collect();
    for _ in 0..VISITS_MAX {
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

/// Removes parameters, with their arguments.
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
