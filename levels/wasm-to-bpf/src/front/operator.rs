//! Supported operators, and the reason why another is refused.

use wasmparser::{HeapType, Operator, ValType};

use crate::refusal::Reason;

/// Returns the reason why an operator cannot become eBPF, or `None`.
pub(super) fn refused(operator: &Operator<'_>) -> Option<Reason> {
    let (proposal, visit) = described(operator);
    let text = || text_of(visit);
    match proposal {
        _ if is_float(visit) => Some(Reason::Float { operator: text() }),
        "mvp" | "sign_extension" => None,
        "bulk_memory" => None,
        "reference_types" => match operator {
            Operator::TypedSelect { ty } => refused_type(*ty),
            Operator::RefNull { hty } => {
                refused_heap(*hty).then(|| Reason::Reference { operator: text() })
            }
            _ => None,
        },
        "simd" | "relaxed_simd" => Some(Reason::Simd { operator: text() }),
        "threads" | "shared_everything_threads" => Some(Reason::Threads { operator: text() }),
        "function_references" | "gc" => Some(Reason::Reference { operator: text() }),
        other => Some(Reason::Proposal { operator: text(), proposal: other.replace('_', " ") }),
    }
}

/// Returns the reason why a value of this type cannot become eBPF, or `None`.
pub(super) fn refused_type(ty: ValType) -> Option<Reason> {
    let operator = ty.to_string();
    match ty {
        ValType::I32 | ValType::I64 => None,
        ValType::F32 | ValType::F64 => Some(Reason::Float { operator }),
        ValType::V128 => Some(Reason::Simd { operator }),
        ValType::FUNCREF | ValType::EXTERNREF => None,
        ValType::Ref(_) => Some(Reason::Reference { operator }),
    }
}

const fn refused_heap(ty: HeapType) -> bool {
    !matches!(ty, HeapType::FUNC | HeapType::EXTERN)
}

/// Returns the text of an operator, for messages.
pub(super) fn text(operator: &Operator<'_>) -> String {
    text_of(described(operator).1)
}

/// Returns the text of a visitor's name: `visit_i32_div_s` is `i32.div_s`.
fn text_of(visit: &str) -> String {
    let name = visit.strip_prefix("visit_").unwrap_or(visit);
    const FAMILIES: [&str; 24] = [
        "i32", "i64", "f32", "f64", "v128", "i8x16", "i16x8", "i32x4", "i64x2", "f32x4", "f64x2",
        "memory", "data", "table", "elem", "local", "global", "ref", "struct", "array", "any",
        "extern", "i31", "atomic",
    ];
    match name.split_once('_') {
        Some((family, rest)) if FAMILIES.contains(&family) => format!("{family}.{rest}"),
        _ => name.to_owned(),
    }
}

/// Returns true for scalar floats; vectors of them are SIMD (`f32x4`).
fn is_float(visit: &str) -> bool {
    visit.split('_').any(|part| part == "f32" || part == "f64")
}

macro_rules! describe {
    ($( @$proposal:ident $op:ident $({ $($arg:ident: $ty:ty),* })? => $visit:ident ($($annotation:tt)*) )*) => {
        /// Returns the proposal of an operator, and its name in the parser.
        fn described(operator: &Operator<'_>) -> (&'static str, &'static str) {
            match operator {
                $( Operator::$op { .. } => (stringify!($proposal), stringify!($visit)), )*
                _ => ("later than this compiler", "visit_unknown"),
            }
        }
    };
}
wasmparser::for_each_operator!(describe);
