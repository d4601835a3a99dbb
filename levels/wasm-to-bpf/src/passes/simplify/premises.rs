//! Premises of a walk, established by an earlier walk: the values that come into a loop by
//! its back edges, and that nothing writes metadata. One walk cannot know either when
//! it comes to the loop.
//!
//! ```text
//! walk a copy ─▶ ranges of the back edges ─▶ walk with them
//! ```
//!
//! The ranges hold for any initial values: the walk that found them assumed
//! nothing about the back edges. That no store at a run-time address writes
//! metadata is assumed by both walks, and valid if in the end each store is
//! certainly elsewhere: before a first violating store everything the walk
//! found would hold, and so would that the store writes elsewhere.

use super::range::Range;
use super::{ModuleFacts, walk};
use crate::ir::{BlockId, Function, Op, Region};
use crate::passes::inline;

/// Most instructions of a function that is walked more than once.
const WALKED_AGAIN_MAX: usize = 20_000;

/// Premises that a walk may rely on.
#[derive(Default)]
pub(super) struct Premises {
    /// True if no store at a run-time address writes metadata.
    pub(super) keeps_metadata: bool,
    /// Ranges that the back edges bring to each loop header; `None` where nothing is known.
    back: Vec<Option<Vec<Range>>>,
}

impl Premises {
    /// Narrows the ranges of a loop header's parameters, from their initial ranges and those that
    /// counting has given.
    pub(super) fn narrowed(
        &self,
        header: BlockId,
        begin: &[Range],
        counted: Vec<Range>,
    ) -> Vec<Range> {
        let Some(Some(back)) = self.back.get(header.0 as usize) else { return counted };
        let all = begin.iter().zip(back).map(|(begin, back)| begin.union(*back));
        counted.into_iter().zip(all).map(|(counted, all)| counted.and(all)).collect()
    }
}

/// Walks the function with the strongest premises that hold.
pub(super) fn with_best(function: &mut Function, surroundings: &ModuleFacts) {
    if inline::size(function) > WALKED_AGAIN_MAX {
        walk(function, surroundings, &Premises::default());
        return;
    }
    let reads_metadata = surroundings.is_entry && surroundings.window.is_some();
    if reads_metadata && stores(function).any(is_unknown) {
        let mut trial = function.clone();
        with_back_edges(&mut trial, surroundings, true);
        if !stores(&trial).any(|region| is_unknown(region) || region == Region::Metadata) {
            *function = trial;
            return;
        }
    }
    with_back_edges(function, surroundings, false);
}

/// Walks the function; where there are loops a copy first.
fn with_back_edges(function: &mut Function, surroundings: &ModuleFacts, keeps_metadata: bool) {
    let mut premises = Premises { keeps_metadata, back: Vec::new() };
    if function.blocks.iter().any(|block| block.is_loop_header) {
        let mut found = walk(&mut function.clone(), surroundings, &premises);
        for (back, block) in found.iter_mut().zip(&function.blocks) {
            back.take_if(|_| !block.is_loop_header);
        }
        premises.back = found;
    }
    walk(function, surroundings, &premises);
}

/// Returns the region of each store.
fn stores(function: &Function) -> impl Iterator<Item = Region> {
    let instructions = function.blocks.iter().flat_map(|block| &block.instructions);
    instructions.filter_map(|instruction| match &instruction.op {
        Op::Store { access, .. } => Some(access.region),
        _ => None,
    })
}

const fn is_unknown(region: Region) -> bool {
    matches!(region, Region::Unknown { .. })
}
