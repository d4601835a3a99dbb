//! Initial contents of tables, and their meaning for a call.

use wasmparser::FuncType;

use super::effects::Effects;
use super::module::{Element, ElementMode, Module};
use crate::refusal::Reason;

/// Most elements of all tables together, 8 bytes each while compiling.
const TABLE_ELEMENTS_MAX: u32 = 65_536;

/// Returns the elements of each table after the active segments.
pub(super) fn of(module: &Module<'_>) -> Result<Vec<Vec<Element>>, Reason> {
    let max = TABLE_ELEMENTS_MAX;
    let elements = module.tables.iter().fold(0_u64, |sum, (ty, _)| sum.saturating_add(ty.initial));
    if elements > u64::from(max) {
        return Err(Reason::TableSize { elements, max });
    }
    let fill = |(ty, first): &(wasmparser::TableType, Element)| {
        vec![*first; usize::try_from(ty.initial).unwrap_or_default()]
    };
    let mut tables: Vec<Vec<Element>> = module.tables.iter().map(fill).collect();
    for (index, segment) in (0..).zip(&module.elements) {
        let ElementMode::Active { table, offset } = &segment.mode else { continue };
        let place = module.constant(offset).and_then(|offset| {
            let begin = usize::try_from(offset).ok()?;
            let table = tables.get_mut(*table as usize)?;
            table.get_mut(begin..begin.checked_add(segment.elements.len())?)
        });
        match place {
            Some(place) => place.copy_from_slice(&segment.elements),
            None => {
                return Err(Reason::Segment { kind: "element".into(), segment: index });
            }
        }
    }
    Ok(tables)
}

/// Meaning of a table element for a `call_indirect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// Function of the right type.
    Call(u32),
    /// Null reference.
    Null,
    /// Function of another type.
    OtherType,
    /// Element known only at run time.
    Unknown,
}

/// Returns the possible targets of a call through that table: by the index in a table that never
/// changes, else by the numbers of references.
pub(super) fn met(
    tables: &[Vec<Element>],
    effects: &Effects,
    is_packet: bool,
    table: u32,
) -> Vec<Element> {
    match effects.tables.get(table as usize) {
        Some(habit) if habit.is_kept() && !is_packet => effects.references(),
        _ => tables.get(table as usize).cloned().unwrap_or_default(),
    }
}

/// Returns the meaning of each element for a call of that type.
pub(super) fn targets(module: &Module<'_>, elements: &[Element], ty: u32) -> Vec<Target> {
    let wanted: Option<&FuncType> = module.types.get(ty as usize).and_then(Option::as_ref);
    let target = |element: &Element| match element {
        Element::Null => Target::Null,
        Element::Unknown => Target::Unknown,
        Element::Function(function) => match module.function_types.get(*function as usize) {
            found if found == wanted => Target::Call(*function),
            _ => Target::OtherType,
        },
    };
    elements.iter().map(target).collect()
}
