//! Tables and passive segments of the largest size: whole ranges of them move in the kernel as in
//! the other engines.

use wasm_lab::random::{Engines, Verdict};

/// Elements and bytes of the segments.
const LENGTH: usize = 60_000;

#[test]
fn large_tables_and_segments_move_in_the_kernel_as_elsewhere() {
    if !testbase::root_or_skip("large tables in the kernel") {
        return;
    }
    let bytes: String = (0..LENGTH).map(|at| format!("\\{:02x}", at * 7 % 256)).collect();
    let elements: String = (0..LENGTH)
        .map(|at| if at % 3 == 0 { "(ref.null func)" } else { "(ref.func $five)" })
        .collect();
    let last = LENGTH - 1;
    let text = format!(
        r#"(module (memory (export "memory") 1 1)
        (table $grows 10 65536 funcref) (table $filled {LENGTH} funcref)
        (data $bytes "{bytes}") (elem $elements funcref {elements})
        (func $five (result i32) (i32.const 5))
        (func (export "moved") (result i32)
            (memory.init $bytes (i32.const 100) (i32.const 0) (i32.const {LENGTH}))
            (table.init $filled $elements (i32.const 0) (i32.const 0) (i32.const {LENGTH}))
            (drop (table.grow $grows (ref.func $five) (i32.const 65526)))
            (table.copy $grows $filled (i32.const 1000) (i32.const 0) (i32.const {LENGTH}))
            (table.copy $grows $grows (i32.const 1001) (i32.const 1000) (i32.const {LENGTH}))
            (table.fill $filled (i32.const 1) (ref.func $five) (i32.const {last}))
            (i32.add
                (i32.add (table.size $grows) (i32.load (i32.const 50000)))
                (call_indirect $grows (result i32) (i32.const 61000))))
        (func (export "nowhere") (result i32)
            (call_indirect $grows (result i32) (i32.const 65536)))
        (func (export "null") (result i32)
            (call_indirect $filled (result i32) (i32.const 0)))
        (func (export "last") (result i32)
            (call_indirect $filled (result i32) (i32.const {last}))))"#
    );
    let module = wat::parse_str(text).unwrap();
    let verdict = Engines::new().unwrap().compare_bytes(3, module).unwrap();
    // Each export and its neighbour on an instance of their own, twice: what traps is beyond
    // the table, an empty place, and the last place while nothing has moved.
    assert_eq!(verdict, Verdict::Equal { calls: 16, traps: 11 });
}
