//! Bound on the instructions of a call on a packet: a bounded call is too short to need preemption.
//!
//! ```text
//!  on_packet ─▶ its instructions, and those of each function that it calls, once for each call
//!                    │ a loop, an indirect call, or recursion
//!                    ▼
//!               no bound: it may be long
//! ```
//!
//! Code without a loop runs each of its instructions at most once. So the bound is a property of
//! the module, not of its packets, and holds for every packet.

use wasmparser::{FunctionBody, Operator};

/// Most instructions of a bounded call: some microseconds.
pub const BOUNDED_INSTRUCTIONS_MAX: u32 = 4_096;
/// Cost of a host function in instructions: at most it copies a packet.
const HOST_FUNCTION: u32 = 512;

/// Summary of a function, made before the whole module is known.
#[derive(Debug)]
pub(super) struct Body {
    /// Number of its own instructions; `None` if it may run longer than they say.
    own: Option<u32>,
    calls: Vec<u32>,
}

impl Body {
    /// Summarises a valid function.
    pub(super) fn of(body: &FunctionBody<'_>) -> Self {
        let mut found = Self { own: Some(0), calls: Vec::new() };
        let Ok(operators) = body.get_operators_reader() else {
            return Self { own: None, ..found };
        };
        for operator in operators {
            match operator {
                Ok(operator) if is_unbounded(&operator) => found.own = None,
                Ok(Operator::Call { function_index }) => found.calls.push(function_index),
                Ok(_) => {}
                Err(_) => found.own = None,
            }
            found.own = found.own.map(|own| own.saturating_add(1));
            // The calls of a function that is long are irrelevant.
            if found.own.is_none_or(|own| own > BOUNDED_INSTRUCTIONS_MAX) {
                return Self { own: None, calls: Vec::new() };
            }
        }
        found
    }
}

/// Returns true if an instruction may take longer than others, or has an unknown target.
const fn is_unbounded(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::Loop { .. }
            | Operator::CallIndirect { .. }
            | Operator::ReturnCall { .. }
            | Operator::ReturnCallIndirect { .. }
            | Operator::MemoryGrow { .. }
            | Operator::MemoryCopy { .. }
            | Operator::MemoryFill { .. }
            | Operator::MemoryInit { .. }
            | Operator::TableGrow { .. }
            | Operator::TableCopy { .. }
            | Operator::TableFill { .. }
            | Operator::TableInit { .. }
    )
}

/// Returns the most instructions that a function runs, or `None` above
/// [`BOUNDED_INSTRUCTIONS_MAX`]. The module imports `imported` functions and defines `bodies`.
pub(super) fn bound(function: u32, imported: u32, bodies: &[Body]) -> Option<u32> {
    // A recursive function exhausts this number before it ends.
    let mut left = BOUNDED_INSTRUCTIONS_MAX;
    let mut to_do = vec![function];
    while let Some(function) = to_do.pop() {
        let cost = match function.checked_sub(imported) {
            None => HOST_FUNCTION,
            Some(own) => {
                let body = bodies.get(own as usize)?;
                to_do.extend(&body.calls);
                body.own?
            }
        };
        left = left.checked_sub(cost.max(1))?;
    }
    Some(BOUNDED_INSTRUCTIONS_MAX - left)
}

#[cfg(test)]
mod tests {
    use crate::Unverified;

    fn brief(functions: &str) -> Option<u32> {
        let text = format!(
            r#"(module
                (@custom "tamandua" "abi = 1\nname = \"brief\"\nversion = \"0.1.0\"\nwindow = 64\n")
                (import "tam" "now_ms" (func $now (result i64)))
                (memory (export "memory") 1)
                (table 1 funcref)
                {functions})"#
        );
        Unverified(&wat::parse_str(text).unwrap()).check().unwrap().brief
    }

    #[test]
    fn every_instruction_counts_once_for_each_call_of_its_function() {
        let three = "(func $three (result i32) (i32.add (i32.const 1) (i32.const 2)))";
        let once = format!(r#"{three} (func (export "on_packet") (result i32) (call $three))"#);
        // Including the `end` of each.
        assert_eq!(brief(&once), Some(4 + 2));
        let twice = format!(
            r#"{three} (func (export "on_packet") (result i32) (drop (call $three)) (call $three))"#
        );
        assert_eq!(brief(&twice), Some(2 * 4 + 4));
        let host = r#"(func (export "on_packet") (result i32) (drop (call $now)) (i32.const 0))"#;
        assert_eq!(brief(host), Some(super::HOST_FUNCTION + 4));
    }

    #[test]
    fn loops_recursion_indirect_calls_and_bulk_memory_have_no_cost_bound() {
        let bodies = [
            "(loop) (i32.const 0)",
            "(call $f)",
            "(drop (call_indirect (result i32) (i32.const 0))) (i32.const 0)",
            "(drop (memory.grow (i32.const 1))) (i32.const 0)",
            "(memory.fill (i32.const 0) (i32.const 0) (i32.const 9)) (i32.const 0)",
            "(memory.copy (i32.const 0) (i32.const 0) (i32.const 9)) (i32.const 0)",
        ];
        for body in bodies {
            let text = format!(r#"(func $f (export "on_packet") (result i32) {body})"#);
            assert_eq!(brief(&text), None, "{body}");
        }
        // Not reachable from `on_packet`.
        let timer = r#"(func $f (loop (br 0)))
            (func (export "on_packet") (result i32) (i32.const 0))"#;
        assert_eq!(brief(timer), Some(2));
    }

    #[test]
    fn exponentially_many_calls_of_short_functions_have_no_cost_bound() {
        let chain = |depth: u32| {
            let mut text = "(func $f0)".to_owned();
            for level in 1..=depth {
                let below = level - 1;
                text += &format!("(func $f{level} (call $f{below}) (call $f{below}))");
            }
            text + &format!(
                r#"(func (export "on_packet") (result i32) (call $f{depth}) (i32.const 0))"#
            )
        };
        assert!(brief(&chain(5)).is_some());
        assert_eq!(brief(&chain(64)), None);
    }
}
