//! Upper bound of the cost of evaluating a token, computed before any of it is evaluated.
//!
//! The Datalog library checks its time limit between queries, not within one: a query over four
//! predicates of a thousand facts each would run for hours, a regular expression of thirty
//! characters compiles for 45 ms, and in a chain of unions or concatenations each operation costs
//! more than the one before it. Blocks are therefore decoded, and their expressions interpreted
//! over *sizes* in place of values:
//!
//! ```text
//!   check ─▶ facts joined × (cost of one combination + cost of each expression)
//!   expression ─▶ a stack of sizes: a value costs its copy, an operation the sizes it reads and
//!                 makes, a closure its operations times the elements that it is called for
//! ```
//!
//! Appended blocks come from token holders and are untrusted. Operations whose cost does not follow
//! from sizes (regular expressions, functions outside the language) are refused.

use super::TokenError;
use biscuit_auth::format::schema::{
    Block, Expression, Fact, Op, OpClosure, Predicate, Rule, Term, op, op_binary::Kind as Binary,
    op_unary::Kind as Unary, term,
};
use std::collections::BTreeMap;

/// Largest number of steps of all checks of a token. A step takes at most 30 ns, so all of them 10
/// ms.
pub(super) const STEPS_MAX: u64 = 300_000;
/// Largest number of facts that a node adds for a request.
pub(super) const REQUEST_FACTS: u64 = 192;
/// Longest text in a fact that a node adds, in bytes: names, prefixes and digests are shorter.
const REQUEST_TEXT_MAX: u64 = 128;
/// Largest number of predicates that one query joins. Narrowings in this crate's form join one.
const JOINED_MAX: usize = 3;
/// Largest number of variables that one query binds at a time; those of narrowings in this crate's
/// form fit.
const VARIABLES_MAX: u64 = 16;
/// Largest depth of nested loops (closures that run for each element of a set).
const NESTED_MAX: u32 = 1;
/// Bytes of a text or byte string that are read or copied within one step.
const BYTES_OF_STEP: u64 = 32;
/// Elements of a set, array or map that are copied or compared within one step.
const ELEMENTS_OF_STEP: u64 = 2;
/// Factor by which comparing texts from one end is faster than searching in them.
const COMPARED_FASTER: u64 = 8;
/// Symbols that are compared with a new text within one step: the library's symbol table has no
/// index.
const SYMBOLS_OF_STEP: u64 = 4;
/// Facts that a query scans within one step.
const FACTS_OF_STEP: u64 = 4;

/// Largest number of operations of one expression, those of closures included: a failed check is
/// printed, and its text is copied for each operation.
const OPERATIONS_MAX: u64 = 512;

/// Returns the steps that evaluating the token's checks takes at most.
///
/// # Errors
/// The bound exceeds [`STEPS_MAX`], a block contains what only an administrator's may contain, or
/// an operation has no bound.
pub(super) fn check(blocks: &[Block]) -> Result<u64, TokenError> {
    let world = World::of(blocks);
    let mut steps = 0_u64;
    for (number, block) in blocks.iter().enumerate() {
        let too = |what: String| TokenError::TooComplex { block: number, what };
        if number > 0 && !block.rules.is_empty() {
            return Err(too("it has rules, and only an administrator's block may".into()));
        }
        let queries = block.checks.iter().flat_map(|check| &check.queries).chain(&block.rules);
        for query in queries {
            steps = steps.saturating_add(world.query(query).map_err(too)?);
        }
        if steps > STEPS_MAX {
            return Err(too(format!("its checks could take {steps} steps, {STEPS_MAX} at most")));
        }
    }
    Ok(steps)
}

/// Upper bound of a value's size. Texts are symbol numbers: copying one does not read the text.
#[derive(Clone, Copy)]
struct Size {
    /// Number of values, itself included; byte strings count by the time that they take.
    elements: u64,
    /// Steps of reading its text once.
    text: u64,
}

impl Size {
    /// Returns the steps of copying, comparing or dropping it.
    const fn steps(self) -> u64 {
        self.elements.div_ceil(ELEMENTS_OF_STEP)
    }

    /// Returns the size of a value that may be either.
    fn or(self, other: Self) -> Self {
        Self { elements: self.elements.max(other.elements), text: self.text.max(other.text) }
    }

    /// Returns the size of what is made of both.
    const fn and(self, other: Self) -> Self {
        Self {
            elements: self.elements.saturating_add(other.elements),
            text: self.text.saturating_add(other.text),
        }
    }
}

/// Size of the Datalog world of a token: the facts and texts of all blocks. Every query can match
/// all of them, so they bound its cost.
struct World {
    /// Number of facts by the number of their predicate's name; the request's are in each.
    facts: BTreeMap<u64, u64>,
    /// Number of all facts.
    facts_total: u64,
    /// Number of all texts.
    symbols: u64,
    /// Steps of reading the longest text once.
    text: u64,
    /// Size of the largest term of a fact.
    largest: Size,
}

/// Variables that an expression may use.
struct Scope {
    /// Size of the largest value that one may have.
    variable: Size,
    /// Number of variables that are bound.
    variables: u64,
    /// Number of loops around the expression.
    loops: u32,
}

/// Item on the stack of an expression.
enum Item<'a> {
    Value(Size),
    Closure(&'a OpClosure),
}

impl World {
    fn of(blocks: &[Block]) -> Self {
        let texts = blocks.iter().flat_map(|block| &block.symbols).map(|text| text.len() as u64);
        let longest = texts.clone().max().unwrap_or(0).max(REQUEST_TEXT_MAX);
        let mut world = Self {
            facts: BTreeMap::new(),
            facts_total: REQUEST_FACTS,
            symbols: texts.count() as u64 + REQUEST_FACTS,
            text: 1 + longest / BYTES_OF_STEP,
            largest: Size { elements: 1, text: 1 + longest / BYTES_OF_STEP },
        };
        let facts = || blocks.iter().flat_map(|block| &block.facts);
        let terms = facts().flat_map(|fact: &Fact| &fact.predicate.terms);
        world.largest = terms.map(|it| world.size(it)).fold(world.largest, Size::or);
        for fact in facts() {
            *world.facts.entry(fact.predicate.name).or_insert(REQUEST_FACTS) += 1;
            world.facts_total += 1;
        }
        world
    }

    /// Returns the steps of one query: the number of combinations of facts that match its
    /// predicates, times the cost of one combination.
    fn query(&self, query: &Rule) -> Result<u64, String> {
        let joined = query.body.len();
        if joined > JOINED_MAX {
            return Err(format!("a query joins {joined} predicates, {JOINED_MAX} at most"));
        }
        let variables =
            |it: &Predicate| it.terms.iter().filter(|it| is_variable(it)).count() as u64;
        let bound: u64 = query.body.iter().map(variables).sum();
        if bound > VARIABLES_MAX {
            return Err(format!("a query has {bound} variables, {VARIABLES_MAX} at most"));
        }
        let mut each = 1 + bound.saturating_mul(self.largest.steps());
        let scope = Scope { variable: self.largest, variables: bound, loops: 0 };
        for Expression { ops } in &query.expressions {
            let operations = length(ops);
            if operations > OPERATIONS_MAX {
                return Err(format!(
                    "an expression has {operations} operations, {OPERATIONS_MAX} at most"
                ));
            }
            each = each.saturating_add(self.expression(ops, &scope)?.0);
        }
        let of = |name| self.facts.get(&name).copied().unwrap_or(REQUEST_FACTS);
        let combinations = query.body.iter().map(|it| of(it.name)).fold(1_u64, u64::saturating_mul);
        let passed = combinations.saturating_mul(self.facts_total / FACTS_OF_STEP);
        let passed = if joined > 1 { passed } else { self.facts_total };
        Ok(combinations.saturating_mul(each).saturating_add(passed))
    }

    /// Returns the steps of running `ops` once, and the size of its result.
    fn expression(&self, ops: &[Op], scope: &Scope) -> Result<(u64, Size), String> {
        let mut stack: Vec<Item<'_>> = Vec::new();
        let mut steps = 0_u64;
        for operation in ops {
            let content = operation.content.as_ref().ok_or("an operation has no content")?;
            let (taken, result) = match content {
                op::Content::Value(term) => {
                    let size = if is_variable(term) { scope.variable } else { self.size(term) };
                    (size.steps(), Item::Value(size))
                }
                op::Content::Closure(closure) => (length(&closure.ops), Item::Closure(closure)),
                op::Content::Unary(unary) => {
                    let size = value(stack.pop())?;
                    let (taken, size) = self.unary(unary.kind, size)?;
                    (taken, Item::Value(size))
                }
                op::Content::Binary(binary) => {
                    let operands = (stack.pop(), stack.pop());
                    let (taken, size) = match operands {
                        (Some(Item::Closure(closure)), left) => {
                            self.closure(binary.kind, value(left)?, closure, scope)?
                        }
                        (right, Some(Item::Closure(closure))) => {
                            self.closure(binary.kind, value(right)?, closure, scope)?
                        }
                        (right, left) => self.binary(binary.kind, value(left)?, value(right)?)?,
                    };
                    (taken, Item::Value(size))
                }
            };
            steps = steps.saturating_add(taken).saturating_add(1);
            stack.push(result);
        }
        match (stack.pop(), stack.is_empty()) {
            (Some(Item::Value(size)), true) => Ok((steps, size)),
            _ => Err("an expression does not end with one value".into()),
        }
    }

    fn unary(&self, kind: i32, size: Size) -> Result<(u64, Size), String> {
        match Unary::from_i32(kind) {
            Some(Unary::Negate | Unary::Length) => Ok((size.steps(), self.one())),
            Some(Unary::Parens) => Ok((0, size)),
            // The result is a text, looked up in the symbol table.
            Some(Unary::TypeOf) => Ok((size.steps().saturating_add(self.new_text()), self.one())),
            Some(Unary::Ffi) => Err(NO_FUNCTIONS.into()),
            None => Err(format!("it has the unknown unary operation {kind}")),
        }
    }

    fn binary(&self, kind: i32, left: Size, right: Size) -> Result<(u64, Size), String> {
        let both = left.and(right);
        let read = both.steps().saturating_add(both.text);
        match Binary::from_i32(kind) {
            Some(Binary::Regex) => {
                Err("it has a regular expression (`matches`), which can take long \
                 to compile: use `starts_with`, `ends_with`, `contains` or a set"
                    .into())
            }
            Some(Binary::Ffi) => Err(NO_FUNCTIONS.into()),
            // The sum of texts is a new text.
            Some(Binary::Add) => Ok((read.saturating_add(self.new_text()), both)),
            Some(Binary::Union) => Ok((both.steps().saturating_mul(2), both)),
            Some(Binary::Intersection) => Ok((both.steps().saturating_mul(2), left)),
            Some(Binary::Get) => Ok((both.steps(), left)),
            Some(Binary::Contains) => Ok((read, self.one())),
            // Memory comparison, many bytes at a time.
            Some(Binary::Prefix | Binary::Suffix) => {
                Ok((both.steps().saturating_add(both.text / COMPARED_FASTER), self.one()))
            }
            Some(
                Binary::LessThan
                | Binary::GreaterThan
                | Binary::LessOrEqual
                | Binary::GreaterOrEqual
                | Binary::Equal
                | Binary::Sub
                | Binary::Mul
                | Binary::Div
                | Binary::And
                | Binary::Or
                | Binary::BitwiseAnd
                | Binary::BitwiseOr
                | Binary::BitwiseXor
                | Binary::NotEqual
                | Binary::HeterogeneousEqual
                | Binary::HeterogeneousNotEqual,
            ) => Ok((both.steps(), self.one())),
            Some(Binary::LazyAnd | Binary::LazyOr | Binary::All | Binary::Any | Binary::TryOr) => {
                Err("an operation that wants a closure has none".into())
            }
            None => Err(format!("it has the unknown binary operation {kind}")),
        }
    }

    /// Returns the steps of an operation that calls a closure, with the size of its result.
    fn closure(
        &self,
        kind: i32,
        left: Size,
        closure: &OpClosure,
        scope: &Scope,
    ) -> Result<(u64, Size), String> {
        let body = length(&closure.ops);
        // All variables' values are copied, and the closure for each call.
        let copied = scope.variable.steps().saturating_mul(scope.variables).saturating_add(body);
        let copied = copied.saturating_add(left.steps());
        match Binary::from_i32(kind) {
            Some(Binary::LazyAnd | Binary::LazyOr | Binary::TryOr) => {
                let (steps, size) = self.expression(&closure.ops, scope)?;
                Ok((steps.saturating_add(copied), size.or(left)))
            }
            Some(Binary::All | Binary::Any) => {
                if scope.loops >= NESTED_MAX {
                    return Err(format!("loops within loops, {NESTED_MAX} at most"));
                }
                let inner = Scope {
                    variable: scope.variable.or(left),
                    variables: scope.variables + 1,
                    loops: scope.loops + 1,
                };
                let (steps, _) = self.expression(&closure.ops, &inner)?;
                let calls = steps.saturating_add(body).saturating_mul(left.elements);
                Ok((calls.saturating_add(copied), self.one()))
            }
            _ => Err("an operation has a closure that it cannot call".into()),
        }
    }

    /// Returns the size of a number, or of a text of a block.
    const fn one(&self) -> Size {
        Size { elements: 1, text: self.text }
    }

    /// Returns the steps of looking up a text that no block contains.
    const fn new_text(&self) -> u64 {
        1 + self.symbols / SYMBOLS_OF_STEP
    }

    /// Returns the size of a term with all that is in it.
    fn size(&self, term: &Term) -> Size {
        let of = |terms: &[Term]| terms.iter().fold(self.one(), |all, it| all.and(self.size(it)));
        let elements = match &term.content {
            Some(term::Content::Bytes(bytes)) => 1 + bytes.len() as u64 / BYTES_OF_STEP,
            Some(term::Content::Set(set)) => of(&set.set).elements,
            Some(term::Content::Array(array)) => of(&array.array).elements,
            Some(term::Content::Map(map)) => {
                // Entries count with their keys.
                let values = map.entries.iter().map(|entry| 1 + self.size(&entry.value).elements);
                1 + values.sum::<u64>()
            }
            _ => 1,
        };
        Size { elements, text: self.text }
    }
}

const NO_FUNCTIONS: &str = "it calls a function outside the language, and a node has none";

const fn is_variable(term: &Term) -> bool {
    matches!(term.content, Some(term::Content::Variable(_)))
}

/// Returns the size of an operand.
fn value(item: Option<Item<'_>>) -> Result<Size, String> {
    match item {
        Some(Item::Value(size)) => Ok(size),
        Some(Item::Closure(_)) => Err("a closure stands where a value is wanted".into()),
        None => Err("an operation has too few operands".into()),
    }
}

/// Returns the number of operations, those of closures included.
fn length(ops: &[Op]) -> u64 {
    let each = ops.iter().map(|operation| match &operation.content {
        Some(op::Content::Closure(closure)) => 1 + length(&closure.ops),
        _ => 1,
    });
    each.sum()
}
