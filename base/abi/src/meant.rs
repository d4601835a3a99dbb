//! "Did you mean": what stands at the end of a message about an unknown word.

use core::fmt;

/// Similarity from which a known word is offered as the meant one: 0 is
/// nothing in common, 1 is equal (Jaro-Winkler; "dcsp" and "dscp" have 0.95).
const SIMILAR_ENOUGH: f64 = 0.75;

/// What the writer of an unknown word may have meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meant {
    /// The known word that is most like it, if one is like it at all.
    pub nearest: Option<String>,
    /// Every known word, in the given order.
    pub known: Vec<String>,
}

impl Meant {
    /// Compares `word` with what is known.
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
    fn a_slip_of_the_keyboard_finds_its_word() {
        let known = ["window", "version", "levels"];
        assert_eq!(Meant::new("windwo", known).to_string(), "; did you mean 'window'?");
        assert_eq!(Meant::new("level", known).nearest.as_deref(), Some("levels"));
    }

    #[test]
    fn an_unlike_word_is_answered_with_all_known() {
        assert_eq!(Meant::new("zzz", ["a", "b"]).to_string(), "; known: a, b");
        assert_eq!(Meant::new("zzz", []).to_string(), "; there is none");
    }
}
