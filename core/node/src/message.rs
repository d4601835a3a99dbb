//! Formatting of untrusted text and long lists in messages.

use core::fmt;

/// Returns words separated by commas, or "none": the end of a message that lists the choices.
pub(crate) fn listed<T: fmt::Display>(words: impl IntoIterator<Item = T>) -> String {
    /// A longer list would push the main point of the sentence off the screen.
    const SHOWN_MAX: usize = 12;
    let mut words = words.into_iter();
    let shown: Vec<String> = words.by_ref().take(SHOWN_MAX).map(|word| word.to_string()).collect();
    match (shown.is_empty(), words.count()) {
        (true, _) => "none".to_owned(),
        (false, 0) => shown.join(", "),
        (false, more) => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns untrusted text fit for a message: control characters escaped, cut after 64 characters.
pub(crate) fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 64;
    let mut shown: String = text.chars().take(SHOWN_MAX).flat_map(|c| c.escape_debug()).collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(listed(Vec::<u8>::new()), "none");
        assert_eq!(listed(0..2), "0, 1");
        assert!(listed(0..20).ends_with("11 and 8 more"));
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert!(!shown("\u{1b}[2J").contains('\u{1b}'));
        assert!(shown(&"é".repeat(100)).ends_with('…'));
    }
}
