//! Takes out block parameters that are always one and the same value.

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
