//! "Did you mean": suggestions at the end of a message about an unknown word.

use core::fmt;

/// Similarity from which a known word is suggested: 0 is nothing in common, 1 is equal
/// (Jaro-Winkler; "dcsp" and "dscp" have 0.95).
const SIMILAR_ENOUGH: f64 = 0.75;

/// Suggestions for an unknown word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meant {
    /// Most similar known word, if one is similar enough.
    pub nearest: Option<String>,
    /// All known words, in the given order.
    pub known: Vec<String>,
}

impl Meant {
    /// Compares `word` with the known words.
    pub fn new<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let known: Vec<String> = known.into_iter().map(String::from).collect();
        let likeness = |known: &String| strsim::jaro_winkler(word, known);
        let nearest = known
            .iter()
            .map(|known| (likeness(known), known))
            .filter(|(likeness, _)| *likeness >= SIMILAR_ENOUGH)
            .max_by(|(left, _), (right, _)| left.total_cmp(right))
            .map(|(_, known)| known.clone());
        Self { nearest, known }
    }
}

impl fmt::Display for Meant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.nearest {
            Some(nearest) => write!(f, "; did you mean '{nearest}'?"),
            None if self.known.is_empty() => f.write_str("; there is none"),
            None => write!(f, "; known: {}", self.known.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_gets_the_nearest_known_one() {
        let known = ["window", "version", "levels"];
        assert_eq!(Meant::new("windwo", known).to_string(), "; did you mean 'window'?");
        assert_eq!(Meant::new("level", known).nearest.as_deref(), Some("levels"));
    }

    #[test]
    fn an_unknown_word_without_a_near_one_gets_all_known_ones() {
        assert_eq!(Meant::new("zzz", ["a", "b"]).to_string(), "; known: a, b");
        assert_eq!(Meant::new("zzz", []).to_string(), "; there is none");
    }
}
