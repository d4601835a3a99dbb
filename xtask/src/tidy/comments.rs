//! Openings of doc comments: the first words name the item, or say what a function does.
//!
//! A comment that opens with a question word, a pronoun or a preposition ("What comes of …", "Its …",
//! "Of those that …"), or as "Has the client send …", hides its subject; so does a section such as
//! `# Errors`. Later paragraphs may open with a preposition, but not with a question word or a
//! pronoun.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::Finding;
use super::tree::Tree;

const CHECK: &str = "comments";
/// Sections that are judged as openings are; their heading stands on a line of its own.
const SECTIONS: [&str; 3] = ["# Errors", "# Panics", "# Safety"];

/// Question words and pronouns; no paragraph opens with one.
const PRONOUNS: [&str; 40] = [
    "how",
    "what",
    "when",
    "where",
    "whether",
    "which",
    "who",
    "whom",
    "whose",
    "why",
    "he",
    "her",
    "his",
    "i",
    "it",
    "its",
    "one",
    "ones",
    "our",
    "she",
    "such",
    "that",
    "their",
    "them",
    "there",
    "these",
    "they",
    "this",
    "those",
    "we",
    "you",
    "him",
    "whatever",
    "whoever",
    "wherever",
    "whichever",
    "whenever",
    "your",
    "us",
    "hers",
];

/// Prepositions, and conjunctions that open clauses; no comment and no section opens with one.
const PREPOSITIONS: [&str; 61] = [
    "about", "above", "across", "after", "against", "along", "among", "around", "as", "at",
    "before", "behind", "below", "beneath", "beside", "besides", "between", "beyond", "by", "down",
    "during", "for", "from", "if", "in", "inside", "into", "like", "near", "of", "off", "on",
    "onto", "out", "outside", "over", "per", "past", "round", "since", "so", "than", "through",
    "till", "to", "toward", "towards", "under", "until", "up", "upon", "via", "while", "with",
    "within", "without", "because", "although", "though", "except", "despite",
];

/// Words after "Has" that make it another's act: "Has the client send a packet."
const CAUSED: [&str; 11] =
    ["a", "an", "the", "all", "every", "each", "one", "everything", "whoever", "counters", "this"];

/// Doc comments of a crate by their opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Openings {
    /// Number of doc comments.
    pub all: usize,
    /// Number of those that hide their subject.
    pub hiding: usize,
}

impl fmt::Display for Openings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.hiding, self.all)
    }
}

/// Finds comments that open without their subject.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let hiding = comments(tree).filter(|(.., opening)| opening.hides());
    hiding
        .map(|(_, path, line, opening)| {
            let message = format!(
                "\"{}\" hides the subject: name the item first, or begin with a verb",
                first_word(opening.text)
            );
            Finding::error(CHECK, path, line, message)
        })
        .collect()
}

/// Counts the openings of doc comments, by crate.
pub fn by_crate(tree: &Tree) -> BTreeMap<&str, Openings> {
    let mut counts: BTreeMap<&str, Openings> = BTreeMap::new();
    for (krate, _, _, opening) in comments(tree) {
        let count = counts.entry(krate).or_default();
        count.all += 1;
        count.hiding += usize::from(opening.hides());
    }
    counts
}

/// Returns each opening of each crate: its crate, path and line.
fn comments(tree: &Tree) -> impl Iterator<Item = (&str, &str, usize, Opening<'_>)> {
    tree.rust_files().filter_map(|(path, _)| Some((path, tree.text(path)?))).flat_map(
        move |(path, text)| {
            let krate = crate_of(tree, path);
            openings(text).map(move |(line, opening)| (krate, path, line, opening))
        },
    )
}

fn crate_of<'a>(tree: &'a Tree, path: &'a str) -> &'a str {
    let holds = |folder: &str| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    let folders = tree.crates.iter().map(|krate| krate.folder.as_str());
    folders.filter(|folder| holds(folder)).max_by_key(|folder| folder.len()).unwrap_or("others")
}

/// First line of a comment, of one of its sections, or of a later paragraph.
#[derive(Clone, Copy)]
struct Opening<'a> {
    text: &'a str,
    /// True for a paragraph that opens neither a comment nor a section.
    is_later: bool,
}

impl Opening<'_> {
    fn hides(self) -> bool {
        let word = first_word(self.text).to_lowercase();
        let second = self.text.split(' ').nth(1).unwrap_or_default();
        let has_joined_heading = SECTIONS.iter().any(|it| self.text.starts_with(&format!("{it} ")));
        PRONOUNS.contains(&word.as_str())
            || has_joined_heading
            || !self.is_later && PREPOSITIONS.contains(&word.as_str())
            || word == "has" && CAUSED.contains(&second)
    }
}

/// Returns the openings of each block of `///` or `//!`, with their line numbers from 1. Code,
/// lists, tables and headings are none.
fn openings(text: &str) -> impl Iterator<Item = (usize, Opening<'_>)> {
    let mut before: Option<(char, &str)> = None;
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let doc = doc(line);
        let last = std::mem::replace(&mut before, doc);
        let (kind, text) = doc?;
        let is_first = last.is_none_or(|(other, _)| other != kind);
        is_code = (is_code && !is_first) ^ text.starts_with("```");
        let is_section = last.is_some_and(|(_, heading)| SECTIONS.contains(&heading));
        let is_later = !is_first && !is_section;
        let opens = is_first || is_section || last.is_some_and(|(_, text)| text.is_empty());
        let is_text = !text.is_empty() && !is_code && !SECTIONS.contains(&text);
        (opens && is_text).then_some((at + 1, Opening { text, is_later }))
    })
}

/// Splits a line of a doc comment into its third character and its text.
fn doc(line: &str) -> Option<(char, &str)> {
    let rest = line.trim_start().strip_prefix("//")?;
    let kind = rest.chars().next().filter(|kind| matches!(kind, '/' | '!'))?;
    let text = &rest[1..];
    (!text.starts_with('/')).then(|| (kind, text.trim()))
}

/// Returns the first word, without brackets and emphasis before it; code has none.
fn first_word(text: &str) -> &str {
    let text = text.trim_start_matches(['*', '_', '(', '"', '\'']);
    let end = text.find(|c: char| !c.is_alphabetic()).unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRATE: [(&str, &str); 2] = [
        ("Cargo.toml", "[workspace]\nmembers = [\"base/a\"]\n"),
        ("base/a/Cargo.toml", "[package]\nname = \"a\"\n"),
    ];

    fn tree(comments: &[&str]) -> Tree {
        let lines = comments.iter().enumerate();
        let items: String = lines
            .map(|(at, comment)| format!("/// {comment}\n/// Of it.\nfn f{at}() {{}}\n"))
            .collect();
        let text = format!("//! Names of things.\n{items}");
        Tree::of(&[&CRATE[..], &[("base/a/src/lib.rs", &text)]].concat())
    }

    fn lines(comments: &[&str]) -> Vec<usize> {
        check(&tree(comments)).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn the_first_line_of_a_block_counts_and_code_is_no_word() {
        let tree = tree(&["Deadline queue.", "*What* comes.", "`Of` is a name."]);
        assert_eq!(by_crate(&tree)["base/a"], Openings { all: 4, hiding: 1 });
        assert_eq!(lines(&["Queue.", "Whose slice comes late.", "In it."]), [5, 8]);
    }

    #[test]
    fn sections_are_openings_and_their_headings_stand_alone() {
        let section = |text: &str| lines(&[&format!("Reads.\n///\n/// # Errors{text}")]);
        assert_eq!(section("\n/// The file is missing."), [0; 0]);
        assert_eq!(section("\n/// When it is missing."), [5]);
        assert_eq!(section("\n/// As reported."), [5]);
        assert_eq!(section(" The file is missing."), [4]);
    }

    #[test]
    fn a_later_paragraph_opens_with_no_pronoun_and_may_with_a_preposition() {
        let later = |text: &str| lines(&[&format!("Queue.\n///\n/// {text}")]);
        assert_eq!(later("In copy mode it is empty."), [0; 0]);
        assert_eq!(later("It reads no clock."), [4]);
        assert_eq!(lines(&["Queue.\n///\n/// ```text\n/// ```\n/// It goes on."]), [0; 0]);
    }

    #[test]
    fn an_act_of_somebody_else_hides_the_verb() {
        assert_eq!(lines(&["Has the client send.", "Has no room.", "Sends a packet."]), [2]);
    }
}
