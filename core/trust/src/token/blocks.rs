//! Blocks of a token as decoded, before any of it is evaluated or printed.
//!
//! Narrowings are read from the encoded facts: printing a block and parsing the text again would
//! run the library's parser over untrusted expressions.

use super::{TokenError, date_of, grant_of};
use crate::grant::Grant;
use biscuit_auth::builder;
use biscuit_auth::datalog::SymbolTable;
use biscuit_auth::format::schema::{Biscuit, Block, Fact, SignedBlock, Term, term};
use prost::Message;

/// First symbol number that does not belong to the language itself (Biscuit specification, "Symbol
/// table").
const OWN_SYMBOLS: u64 = 1024;

/// Decodes the blocks of a token, the administrator's first.
///
/// # Errors
/// A block cannot be decoded, or is signed by a third party: such blocks have a symbol table of
/// their own, and a capability has no use for them.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<Block>, TokenError> {
    let undecoded = |error: prost::DecodeError| TokenError::NotAToken(error.to_string());
    let token = Biscuit::decode(bytes).map_err(undecoded)?;
    let signed = std::iter::once(&token.authority).chain(&token.blocks);
    let decode = |(number, signed): (usize, &SignedBlock)| {
        if signed.external_signature.is_some() {
            let what = "a third party signed it, and only holders narrow a capability".to_owned();
            return Err(TokenError::TooComplex { block: number, what });
        }
        Block::decode(signed.block.as_slice()).map_err(undecoded)
    };
    signed.enumerate().map(decode).collect()
}

/// Returns the narrowing of each block from its facts; `None` for blocks in another form. Only used
/// to name missing rights: the checks decide.
pub(super) fn narrowings(blocks: &[Block]) -> Vec<Option<Grant>> {
    let mut symbols: Vec<&str> = Vec::new();
    let language = SymbolTable::new();
    let mut narrowings = Vec::with_capacity(blocks.len());
    for block in blocks {
        symbols.extend(block.symbols.iter().map(String::as_str));
        let text = |number: u64| match number.checked_sub(OWN_SYMBOLS) {
            Some(at) => symbols.get(usize::try_from(at).ok()?).copied(),
            None => language.get_symbol(number),
        };
        narrowings.push(narrowing(&block.facts, text));
    }
    narrowings
}

/// Returns the narrowing of one block's facts; `text` maps a symbol number to its text.
fn narrowing<'a>(facts: &[Fact], text: impl Fn(u64) -> Option<&'a str>) -> Option<Grant> {
    let string = |term: &Term| match term.content {
        Some(term::Content::String(number)) => text(number).map(str::to_owned),
        _ => None,
    };
    let (mut only, mut all, mut ceilings) = (Vec::new(), Vec::new(), Vec::new());
    let mut until = None;
    for Fact { predicate } in facts {
        match (text(predicate.name)?, predicate.terms.as_slice()) {
            ("grant", [of, value]) => only.push((string(of)?, string(value)?)),
            ("all", [of]) => all.push(string(of)?),
            ("ceiling", [of, most]) => {
                let Some(term::Content::Integer(most)) = most.content else { continue };
                ceilings.push((string(of)?, most));
            }
            ("until", [end]) => {
                let Some(term::Content::Date(end)) = end.content else { continue };
                until = date_of(&builder::Term::Date(end));
            }
            _ => {}
        }
    }
    let is_ours = !(only.is_empty() && all.is_empty() && ceilings.is_empty());
    let grant = is_ours.then(|| grant_of(only, all.into_iter(), ceilings).ok()).flatten()?;
    Some(Grant { until, ..grant })
}
