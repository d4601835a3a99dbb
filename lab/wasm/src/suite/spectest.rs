//! Suite's own host (listed in the interpreter's README) as a module. It has only the exports that
//! are imported, since most modules have a memory of their own.

/// Name and definition of each export.
const DEFINITIONS: [(&str, &str); 13] = [
    ("global_i32", "(global (export \"global_i32\") i32 (i32.const 666))"),
    ("global_i64", "(global (export \"global_i64\") i64 (i64.const 666))"),
    ("global_f32", "(global (export \"global_f32\") f32 (f32.const 666.6))"),
    ("global_f64", "(global (export \"global_f64\") f64 (f64.const 666.6))"),
    ("table", "(table (export \"table\") 10 20 funcref)"),
    ("memory", "(memory (export \"memory\") 1 2)"),
    ("print", "(func (export \"print\"))"),
    ("print_i32", "(func (export \"print_i32\") (param i32))"),
    ("print_i64", "(func (export \"print_i64\") (param i64))"),
    ("print_f32", "(func (export \"print_f32\") (param f32))"),
    ("print_f64", "(func (export \"print_f64\") (param f64))"),
    ("print_i32_f32", "(func (export \"print_i32_f32\") (param i32 f32))"),
    ("print_f64_f64", "(func (export \"print_f64_f64\") (param f64 f64))"),
];

/// Returns the module with these of its exports; `None` when one does not exist.
pub(super) fn module(names: &[&str]) -> Option<Vec<u8>> {
    let is_wanted = |(name, _): &&(&str, &str)| names.contains(name);
    let definitions: String =
        DEFINITIONS.iter().filter(is_wanted).map(|(_, definition)| *definition).collect();
    let exists = |name: &&str| DEFINITIONS.iter().any(|(found, _)| found == name);
    let text = format!("(module {definitions})");
    names.iter().all(exists).then(|| wat::parse_str(text).ok()).flatten()
}
