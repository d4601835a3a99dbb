//! Source of the documents' site, for mdBook.
//!
//! The pages keep their paths from the project's root, so that links between them stay as they
//! are; a link to a file that is no page becomes its text. docs/README.md, the index that tidy
//! holds complete, is the table of contents. Nothing here renders.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context;

use crate::index;
use crate::tidy::documents::{INDEX, PROMISES, START, beside};
use crate::tidy::tree::Tree;

/// Pages that the table of contents names first, before the parts of the index.
const FRONT: [&str; 2] = [START, INDEX];
/// Page that is generated: the index of tests.
const TESTS: &str = "docs/reference/tests.md";
/// Settings of mdBook.
const SETTINGS: &str = include_str!("../book/book.toml");
/// Styles beside those of mdBook's theme.
const STYLE: &str = include_str!("../book/tamandua.css");

/// Files of a book's folder by their paths in it.
pub type Book = BTreeMap<String, String>;

/// Writes the book of the project at `root` to the folder `to`; returns the number of its pages.
///
/// # Errors
/// The tree cannot be read, the index links no page, or the folder cannot be written.
pub fn write(root: &Path, to: &Path) -> anyhow::Result<usize> {
    let tree = Tree::read(root).with_context(|| format!("reading {}", root.display()))?;
    let book = assemble(&tree)?;
    if to.exists() {
        std::fs::remove_dir_all(to).with_context(|| format!("emptying {}", to.display()))?;
    }
    for (path, text) in &book {
        let file = to.join(path);
        let folder = file.parent().unwrap_or(to);
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(book.keys().filter(|path| path.ends_with(".md")).count() - 1)
}

/// Returns the files of the book: its settings, style, table of contents, pages and drawings.
///
/// # Errors
/// The index is missing, or links a page that has no title.
pub fn assemble(tree: &Tree) -> anyhow::Result<Book> {
    let parts = parts(tree)?;
    let pages: BTreeSet<&str> = FRONT
        .iter()
        .copied()
        .chain(parts.iter().flat_map(|part| part.pages.iter().map(String::as_str)))
        .collect();
    let mut contents = String::from("# Summary\n\n");
    for page in FRONT {
        contents.push_str(&format!("[{}]({page})\n", title(tree, page)?));
    }
    for part in &parts {
        contents.push_str(&format!("\n# {}\n\n", part.heading));
        for page in &part.pages {
            contents.push_str(&format!("- [{}]({page})\n", title(tree, page)?));
            if page == PROMISES {
                contents.push_str(&format!("- [Index of tests]({TESTS})\n"));
            }
        }
    }
    let mut book = Book::from([
        ("book.toml".to_owned(), SETTINGS.to_owned()),
        ("tamandua.css".to_owned(), STYLE.to_owned()),
        ("src/SUMMARY.md".to_owned(), contents),
    ]);
    for &page in &pages {
        let text = tree.text(page).with_context(|| format!("{page} is missing"))?;
        book.insert(format!("src/{page}"), without_dead_links(text, page, &pages));
    }
    book.insert(format!("src/{TESTS}"), index::page(tree, None));
    for (path, text) in tree.files().filter(|(path, _)| is_drawing(path)) {
        book.insert(format!("src/{path}"), text.to_owned());
    }
    Ok(book)
}

/// Part of the table of contents: a heading of the index and the pages linked below it.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    heading: String,
    pages: Vec<String>,
}

/// Returns the parts of the index that link pages, in its order; a page stands once.
fn parts(tree: &Tree) -> anyhow::Result<Vec<Part>> {
    let index = tree.text(INDEX).with_context(|| format!("{INDEX} is missing"))?;
    let folder = INDEX.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut seen: BTreeSet<String> = FRONT.iter().map(|&page| page.to_owned()).collect();
    let mut parts: Vec<Part> = Vec::new();
    for line in index.lines() {
        if let Some(heading) = line.strip_prefix("### ").or_else(|| line.strip_prefix("## ")) {
            parts.push(Part { heading: heading.to_owned(), pages: Vec::new() });
        }
        let Some(part) = parts.last_mut() else { continue };
        for link in split_links(line).filter_map(|piece| piece.link()) {
            let page = beside(folder, link);
            if page.ends_with(".md") && seen.insert(page.clone()) {
                part.pages.push(page);
            }
        }
    }
    parts.retain(|part| !part.pages.is_empty());
    Ok(parts)
}

/// Returns the text of a page's first heading.
fn title(tree: &Tree, page: &str) -> anyhow::Result<String> {
    let text = tree.text(page).with_context(|| format!("{page} is missing"))?;
    let heading = text.lines().find_map(|line| line.strip_prefix("# "));
    Ok(heading.with_context(|| format!("{page} has no heading"))?.replace('`', ""))
}

/// Returns a page with each link to a file that the book does not have replaced by its text.
fn without_dead_links(text: &str, page: &str, pages: &BTreeSet<&str>) -> String {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut written = String::with_capacity(text.len());
    let mut in_code = false;
    for line in text.split_inclusive('\n') {
        in_code ^= line.trim_start().starts_with("```");
        if in_code {
            written.push_str(line);
            continue;
        }
        for piece in split_links(line) {
            let kept = piece.link().is_none_or(|link| {
                let path = beside(folder, link);
                pages.contains(path.as_str()) || is_drawing(&path)
            });
            written.push_str(if kept { piece.text } else { piece.label });
        }
    }
    written
}

/// Returns true if the path is of a drawing that pages show.
fn is_drawing(path: &str) -> bool {
    path.starts_with("docs/") && path.ends_with(".svg")
}

/// Piece of a line of Markdown: a link, or what stands between two.
#[derive(Debug, PartialEq, Eq)]
struct Piece<'a> {
    /// The piece as it is written.
    text: &'a str,
    /// The text of the link, or the same as `text`.
    label: &'a str,
    /// The target of the link, empty if the piece is none.
    target: &'a str,
}

impl<'a> Piece<'a> {
    /// Returns the link's file without its fragment; `None` if it leads to this page or another
    /// site.
    fn link(&self) -> Option<&'a str> {
        let file = self.target.split('#').next().unwrap_or_default();
        (!file.is_empty() && !self.target.contains("://")).then_some(file)
    }
}

/// Splits a line at its links, `[label](target)`; an image keeps its "!" in the piece before it.
fn split_links(line: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = line;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let plain = |text| Piece { text, label: text, target: "" };
        let Some(link) = next_link(rest) else {
            return Some(plain(std::mem::take(&mut rest)));
        };
        if link.start > 0 {
            let (before, after) = rest.split_at(link.start);
            rest = after;
            return Some(plain(before));
        }
        let piece = Piece {
            text: &rest[..link.end],
            label: &rest[1..link.middle],
            target: &rest[link.middle + 2..link.end - 1],
        };
        rest = &rest[link.end..];
        Some(piece)
    })
}

/// Byte offsets of a link in a line.
struct Offsets {
    /// Offset of its "[".
    start: usize,
    /// Offset of its "](".
    middle: usize,
    /// The byte after its ")".
    end: usize,
}

fn next_link(line: &str) -> Option<Offsets> {
    let middle = line.find("](")?;
    let end = middle + line[middle..].find(')')? + 1;
    // The label's own bracket: `[`0x0[4]`](…)` has one inside.
    let mut depth = 0;
    let start = line[..middle].char_indices().rev().find_map(|(at, letter)| match letter {
        ']' => {
            depth += 1;
            None
        }
        '[' if depth == 0 => Some(at),
        '[' => {
            depth -= 1;
            None
        }
        _ => None,
    })?;
    Some(Offsets { start, middle, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        Tree::of(&[
            ("README.md", "# Top\nsee [all](docs/README.md), [code](base/a/src/lib.rs)\n"),
            (
                "docs/README.md",
                "# Documents\n## Start\n[one](start/one.md)\n## Empty\n### Design\n| [map](../MAP.md) | [one](start/one.md) |\n",
            ),
            ("docs/start/one.md", "# First `steps`\n![drawing](a.svg) [none](../../b.svg)\n"),
            ("docs/start/a.svg", "<svg/>"),
            (
                "MAP.md",
                "# Map\n[`f[0]`](base/a/src/lib.rs#L1) and [site](https://example.org)\n```\n[x](y.rs)\n```\n",
            ),
            ("base/a/src/lib.rs", "fn f() {}\n"),
        ])
    }

    #[test]
    fn the_table_of_contents_follows_the_index_and_names_a_page_once() {
        let book = assemble(&tree()).unwrap();
        assert_eq!(
            book["src/SUMMARY.md"],
            "# Summary\n\n[Top](README.md)\n[Documents](docs/README.md)\n\n# Start\n\n\
             - [First steps](docs/start/one.md)\n\n# Design\n\n- [Map](MAP.md)\n"
        );
    }

    #[test]
    fn links_between_pages_and_to_drawings_stay_and_others_become_their_text() {
        let book = assemble(&tree()).unwrap();
        assert_eq!(book["src/README.md"], "# Top\nsee [all](docs/README.md), code\n");
        assert_eq!(book["src/docs/start/one.md"], "# First `steps`\n![drawing](a.svg) none\n");
        assert_eq!(book["src/docs/start/a.svg"], "<svg/>");
        assert_eq!(
            book["src/MAP.md"],
            "# Map\n`f[0]` and [site](https://example.org)\n```\n[x](y.rs)\n```\n"
        );
    }

    #[test]
    fn an_index_that_links_a_page_that_is_not_there_is_refused_by_name() {
        let tree = Tree::of(&[
            ("README.md", "# Top\n"),
            ("docs/README.md", "# Documents\n## Start\n[one](start/one.md)\n"),
        ]);
        assert_eq!(assemble(&tree).unwrap_err().to_string(), "docs/start/one.md is missing");
    }
}
