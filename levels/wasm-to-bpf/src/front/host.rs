//! Imports that are host functions of the ABI.

use abi::{HOST_FUNCTIONS, HostFunction, ValueType};
use wasmparser::{FuncType, ValType};

use super::module::ImportedFunction;

/// Returns the imported host function, if it is one and has the right type.
pub(super) fn function(import: &ImportedFunction<'_>, ty: &FuncType) -> Option<HostFunction> {
    let spec = HOST_FUNCTIONS.iter().find(|spec| spec.name == import.name)?;
    let same = |found: &ValType, wanted: &ValueType| match wanted {
        ValueType::I32 => *found == ValType::I32,
        ValueType::I64 => *found == ValType::I64,
    };
    let fits = import.module == abi::layout::IMPORT_MODULE
        && ty.params().len() == spec.parameters.len()
        && ty.params().iter().zip(spec.parameters).all(|(found, wanted)| same(found, wanted))
        && matches!(ty.results(), [result] if same(result, &spec.result));
    fits.then_some(spec.function)
}
