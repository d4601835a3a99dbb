//! Premises of a walk that a walk before it has shown: what comes into a loop from
//! its ways back, and that nothing writes metadata. One walk cannot know either when
//! it comes to the loop.
//!
//! ```text
//! walk a copy ─▶ ranges of what goes back ─▶ walk with them
//! ```
//!
//! The ranges hold whatever the loop begins with: the walk that found them knew
//! nothing of what comes back. That no store at an address which only the run knows is of
//! metadata is assumed by both walks, and counts if in the end each store is
//! certainly elsewhere. Had one been the first to write metadata, all that the walk
//! says of the time before would hold, and so would that it writes elsewhere.

use super::range::Range;
use super::{Surroundings, walk};
use crate::ir::{BlockId, Function, Op, Region};
use crate::passes::inline;

/// Instructions of a function that is walked more than once.
const WALKED_AGAIN_MAX: usize = 20_000;

/// Premises that a walk may rely on.
#[derive(Default)]
pub(super) struct Premises {
    /// No store at an address that only the run knows is of metadata.
    pub(super) keeps_metadata: bool,
    /// For each loop header the ranges of what its ways back bring; none where nothing is known.
    back: Vec<Option<Vec<Range>>>,
}

impl Premises {
    /// The ranges of a loop header's parameters, from those that it begins with and those that
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

/// Walks the function with the best premises that hold.
pub(super) fn with_best(function: &mut Function, surroundings: &Surroundings) {
    if inline::size(function) > WALKED_AGAIN_MAX {
        walk(function, surroundings, &Premises::default());
        return;
    }
    let reads_metadata = surroundings.is_entry && surroundings.window.is_some();
    if reads_metadata && stores(function).any(is_unknown) {
        let mut trial = function.clone();
        with_ways_back(&mut trial, surroundings, true);
        if !stores(&trial).any(|region| is_unknown(region) || region == Region::Metadata) {
            *function = trial;
            return;
        }
    }
    with_ways_back(function, surroundings, false);
}

/// Walks, where there are loops a copy first.
fn with_ways_back(function: &mut Function, surroundings: &Surroundings, keeps_metadata: bool) {
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

/// Place of each store.
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
