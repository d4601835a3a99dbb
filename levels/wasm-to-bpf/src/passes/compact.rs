//! Renumbering of values without gaps: removed values leave none behind, so that a chain of inlined
//! functions does not accumulate them.

use crate::ir::{Function, Value};

/// Renumbers the values in the order of their definitions.
pub(super) fn run(function: &mut Function) {
    let mut places: Vec<Option<Value>> = vec![None; function.types.len()];
    let mut types = Vec::new();
    for block in &function.blocks {
        let results = block.instructions.iter().flat_map(|instruction| &instruction.results);
        for value in block.parameters.iter().chain(results) {
            let place = Value(u32::try_from(types.len()).unwrap_or(u32::MAX));
            places[value.0 as usize] = Some(place);
            types.push(function.types[value.0 as usize]);
        }
    }
    let rename = |value: &mut Value| {
        if let Some(place) = places[value.0 as usize] {
            *value = place;
        }
    };
    for block in &mut function.blocks {
        block.parameters.iter_mut().for_each(rename);
        for instruction in &mut block.instructions {
            instruction.results.iter_mut().for_each(rename);
            instruction.op.for_each_use_mut(rename);
        }
        block.terminator.for_each_use_mut(rename);
    }
    function.types = types;
}
