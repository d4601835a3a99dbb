//! Openings of doc comments: the first words name the item, or say what a function does.
//!
//! A comment that opens with a question word, a pronoun or a preposition ("What comes of …", "Its …",
//! "Of those that …") hides its subject. Some are right nevertheless, so the limit is a share of
//! each crate's comments, not zero. Crates above the limit are in [`ABOVE`] with their count, which
//! can only fall.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::Finding;
use super::tree::Tree;

const CHECK: &str = "comments";
/// Percentage of a crate's doc comments that may open without their subject.
const SHARE_MAX: usize = 5;

/// Crates above [`SHARE_MAX`], with the comments that open without their subject today.
const ABOVE: [(&str, usize); 0] = [];

/// Words that open a comment without its subject.
const HIDING: [&str; 92] = [
    // Question words.
    "how", "what", "when", "where", "whether", "which", "who", "whom", "whose", "why",
    // Pronouns.
    "he", "her", "his", "i", "it", "its", "one", "ones", "our", "she", "such", "that", "their",
    "them", "there", "these", "they", "this", "those", "we", "you",
    // Prepositions, and conjunctions that open clauses.
    "about", "above", "across", "after", "against", "along", "among", "around", "as", "at",
    "before", "behind", "below", "beneath", "beside", "besides", "between", "beyond", "by", "down",
    "during", "for", "from", "if", "in", "inside", "into", "like", "near", "of", "off", "on",
    "onto", "out", "outside", "over", "per", "past", "round", "since", "so", "than", "through",
    "till", "to", "toward", "towards", "under", "until", "up", "upon", "via", "while", "with",
    "within", "without", "because", "although", "though", "except", "despite",
];

/// Doc comments of a crate by their opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Openings {
    /// Number of doc comments.
    pub all: usize,
    /// Number of those that open with a question word, a pronoun or a preposition.
    pub hiding: usize,
}

impl Openings {
    fn is_above(self) -> bool {
        100 * self.hiding > SHARE_MAX * self.all
    }
}

impl fmt::Display for Openings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.hiding, self.all)
    }
}

/// Finds comments that open without their subject, in crates that have more of them than they may.
pub fn check(tree: &Tree) -> Vec<Finding> {
    judge(tree, &ABOVE)
}

/// Counts the openings of doc comments, by crate.
pub fn by_crate(tree: &Tree) -> BTreeMap<&str, Openings> {
    let mut counts: BTreeMap<&str, Openings> = BTreeMap::new();
    for (krate, _, _, text) in comments(tree) {
        let count = counts.entry(krate).or_default();
        count.all += 1;
        count.hiding += usize::from(hides(text));
    }
    counts
}

fn judge(tree: &Tree, above: &[(&str, usize)]) -> Vec<Finding> {
    let counts = by_crate(tree);
    let limit_of = |krate: &str| above.iter().find(|(it, _)| *it == krate).map(|(_, most)| *most);
    let is_found = |krate: &str| match limit_of(krate) {
        Some(most) => counts[krate].hiding > most,
        None => counts[krate].is_above(),
    };
    let mut findings = Vec::new();
    for (krate, path, line, text) in comments(tree).filter(|(_, _, _, text)| hides(text)) {
        if is_found(krate) {
            let word = first_word(text);
            let message = format!(
                "\"{word}\" hides the subject ({} of {krate}): name the item first",
                counts[krate]
            );
            findings.push(Finding::error(CHECK, path, line, message));
        }
    }
    for (krate, most) in above {
        let count = counts.get(krate).copied().unwrap_or_default();
        let message = match (count.is_above(), count.hiding.cmp(most)) {
            (false, _) => format!("{krate} is below the limit: take it off xtask's ABOVE"),
            (true, std::cmp::Ordering::Less) => {
                format!("{krate} has {} now: write that in xtask's ABOVE", count.hiding)
            }
            (true, _) => continue,
        };
        findings.push(Finding::error(CHECK, &format!("{krate}/Cargo.toml"), 1, message));
    }
    findings
}

/// Returns each doc comment of each crate: its crate, path, line and first line of text.
fn comments(tree: &Tree) -> impl Iterator<Item = (&str, &str, usize, &str)> {
    tree.rust_files().filter_map(|(path, _)| Some((path, tree.text(path)?))).flat_map(
        move |(path, text)| {
            let krate = crate_of(tree, path);
            openings(text).map(move |(line, text)| (krate, path, line, text))
        },
    )
}

fn crate_of<'a>(tree: &'a Tree, path: &'a str) -> &'a str {
    let holds = |folder: &str| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    let folders = tree.crates.iter().map(|krate| krate.folder.as_str());
    folders.filter(|folder| holds(folder)).max_by_key(|folder| folder.len()).unwrap_or("others")
}

/// Returns the first line of each block of `///` or `//!`, with its line number from 1.
fn openings(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut before = None;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let doc = doc(line);
        let kind = doc.map(|(kind, _)| kind);
        let opens = kind.is_some() && kind != before;
        before = kind;
        doc.filter(|(_, text)| opens && !text.is_empty()).map(|(_, text)| (at + 1, text))
    })
}

/// Splits a line of a doc comment into its third character and its text.
fn doc(line: &str) -> Option<(char, &str)> {
    let rest = line.trim_start().strip_prefix("//")?;
    let kind = rest.chars().next().filter(|kind| matches!(kind, '/' | '!'))?;
    let text = &rest[1..];
    (!text.starts_with('/')).then(|| (kind, text.trim()))
}

fn hides(text: &str) -> bool {
    HIDING.contains(&first_word(text).to_lowercase().as_str())
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

    fn lines(comments: &[&str], above: &[(&str, usize)]) -> Vec<usize> {
        judge(&tree(comments), above).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn the_first_line_of_a_block_counts_and_no_other() {
        let tree = tree(&["Deadline queue.", "*What* comes.", "`Of` is a name."]);
        assert_eq!(by_crate(&tree)["base/a"], Openings { all: 4, hiding: 1 });
    }

    #[test]
    fn a_share_of_them_is_free_and_above_it_all_are_found() {
        let mut comments = vec!["Queue."; 18];
        comments.push("Whose slice comes late.");
        assert_eq!(lines(&comments, &[]), [0; 0], "one of twenty");
        comments.push("Its end.");
        assert_eq!(lines(&comments, &[]), [56, 59], "two of twenty-one");
    }

    #[test]
    fn the_count_of_a_crate_above_the_limit_can_only_fall() {
        let comments = ["Its end.", "In it."];
        assert_eq!(lines(&comments, &[("base/a", 2)]), [0; 0]);
        assert_eq!(lines(&comments, &[("base/a", 1)]), [2, 5], "it has grown");
        assert_eq!(lines(&comments, &[("base/a", 3)]), [1], "it has fallen: the table says so");
        assert_eq!(lines(&["End."], &[("base/a", 1)]), [1], "it needs no entry any more");
    }
}
