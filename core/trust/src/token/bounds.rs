//! What a token's blocks may contain, so that evaluating one ends within milliseconds.
//!
//! The library looks at the time between queries, not within one: a query over four predicates
//! of a thousand facts each would run for hours, and a rule that doubles a string would take all
//! memory. So blocks are looked at as they were decoded, before anything of them is evaluated.

use super::TokenError;
use biscuit_auth::UnverifiedBiscuit;
use biscuit_auth::format::schema::{
    Biscuit, Block, Expression, Op, Rule, SignedBlock, Term, op, op_binary, term,
};
use prost::Message;
use std::collections::BTreeMap;

/// Steps that all checks of a token may take. One takes some 30 ns, and all of them 10 ms.
const STEPS_MAX: u64 = 300_000;
/// Facts that a node adds: what a request asks for.
pub(super) const REQUEST_FACTS: u64 = 192;
/// Predicates that one query joins. Ours have one.
const JOINED_MAX: usize = 3;
/// Closures within closures.
const NESTED_MAX: u32 = 1;
/// A regular expression, in steps.
const REGEX_STEPS: u64 = 1000;

pub(super) fn check(token: &UnverifiedBiscuit) -> Result<(), TokenError> {
    let bytes = token.to_vec().map_err(|error| TokenError::NotAToken(error.to_string()))?;
    let decoded = Biscuit::decode(bytes.as_slice()).map_err(undecoded)?;
    let signed = std::iter::once(&decoded.authority).chain(&decoded.blocks);
    let blocks: Vec<Block> = signed.map(block).collect::<Result<_, _>>()?;
    // By the numbers of their names, which all blocks share.
    let mut facts: BTreeMap<u64, u64> = BTreeMap::new();
    for fact in blocks.iter().flat_map(|block| &block.facts) {
        *facts.entry(fact.predicate.name).or_insert(REQUEST_FACTS) += 1;
    }
    let elements = blocks.iter().map(elements).sum();
    let mut steps = 0_u64;
    for (number, block) in blocks.iter().enumerate() {
        let too = |what: String| TokenError::TooComplex { block: number, what };
        if number > 0 && !block.rules.is_empty() {
            return Err(too("it has rules, and only an administrator's block may".into()));
        }
        let queries = block.checks.iter().flat_map(|check| &check.queries).chain(&block.rules);
        for query in queries {
            steps = steps.saturating_add(steps_of(query, &facts, elements).map_err(too)?);
        }
        if steps > STEPS_MAX {
            return Err(too(format!("its checks could take {steps} steps, {STEPS_MAX} at most")));
        }
    }
    Ok(())
}

fn undecoded(error: prost::DecodeError) -> TokenError {
    TokenError::NotAToken(error.to_string())
}

fn block(signed: &SignedBlock) -> Result<Block, TokenError> {
    Block::decode(signed.block.as_slice()).map_err(undecoded)
}

fn steps_of(query: &Rule, facts: &BTreeMap<u64, u64>, elements: u64) -> Result<u64, String> {
    let joined = query.body.len();
    if joined > JOINED_MAX {
        return Err(format!("a query joins {joined} predicates, {JOINED_MAX} at most"));
    }
    let mut each = 1_u64;
    for Expression { ops } in &query.expressions {
        each = each.saturating_add(operations(ops, elements, 0)?);
    }
    let of = |name| facts.get(&name).copied().unwrap_or(REQUEST_FACTS);
    let each_of = query.body.iter().map(|predicate| of(predicate.name));
    Ok(each_of.fold(each, u64::saturating_mul))
}

fn operations(ops: &[Op], elements: u64, depth: u32) -> Result<u64, String> {
    let mut steps = 0_u64;
    for (at, operation) in ops.iter().enumerate() {
        let some = match &operation.content {
            Some(op::Content::Closure(closure)) => {
                // What it is for stands behind it. `||` and `&&` run it once at most.
                let times = if ops.get(at + 1).is_some_and(is_loop) { elements } else { 1 };
                let deeper = depth + u32::from(times > 1);
                if deeper > NESTED_MAX {
                    return Err(format!("closures within closures, {NESTED_MAX} at most"));
                }
                operations(&closure.ops, elements, deeper)?.saturating_mul(times)
            }
            Some(op::Content::Binary(binary)) if binary.kind == op_binary::Kind::Regex as i32 => {
                REGEX_STEPS
            }
            _ => 1,
        };
        steps = steps.saturating_add(some);
    }
    Ok(steps)
}

/// Runs its closure for each element of a set.
fn is_loop(operation: &Op) -> bool {
    let loops = [op_binary::Kind::All as i32, op_binary::Kind::Any as i32];
    matches!(&operation.content, Some(op::Content::Binary(it)) if loops.contains(&it.kind))
}

/// Values of sets, arrays and maps: no closure runs for more.
fn elements(block: &Block) -> u64 {
    fn of(term: &Term) -> u64 {
        match &term.content {
            Some(term::Content::Set(set)) => 1 + set.set.iter().map(of).sum::<u64>(),
            Some(term::Content::Array(array)) => 1 + array.array.iter().map(of).sum::<u64>(),
            Some(term::Content::Map(map)) => {
                1 + map.entries.iter().map(|entry| of(&entry.value)).sum::<u64>()
            }
            _ => 1,
        }
    }
    fn in_ops(ops: &[Op]) -> u64 {
        let each = ops.iter().map(|operation| match &operation.content {
            Some(op::Content::Value(value)) => of(value),
            Some(op::Content::Closure(closure)) => in_ops(&closure.ops),
            _ => 0,
        });
        each.sum()
    }
    let queries = block.checks.iter().flat_map(|check| &check.queries).chain(&block.rules);
    let in_queries: u64 =
        queries.flat_map(|query| &query.expressions).map(|it| in_ops(&it.ops)).sum();
    let in_facts = block.facts.iter().flat_map(|fact| &fact.predicate.terms).map(of);
    in_queries + in_facts.sum::<u64>()
}
