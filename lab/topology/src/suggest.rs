//! Suggestions for misspelt words.

/// Returns the candidate nearest to the word, as the end of a sentence: `; did you mean 'link'?`.
/// Empty when none is near: a far-fetched guess misleads more than none.
pub(crate) fn did_you_mean<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> String {
    // One mistake in short words, one per three letters in longer ones.
    let distance_max = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|&(distance, _)| distance <= distance_max)
        .min()
        .map(|(_, candidate)| format!("; did you mean '{candidate}'?"))
        .unwrap_or_default()
}

/// Returns such a suggestion, or the list of all candidates when none is near.
pub(crate) fn did_you_mean_or_list<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str> + Clone,
) -> String {
    let guess = did_you_mean(word, candidates.clone());
    if !guess.is_empty() {
        return guess;
    }
    match candidates.into_iter().collect::<Vec<_>>() {
        names if names.is_empty() => "; there is none".to_owned(),
        names => format!("; there are {}", names.join(", ")),
    }
}
