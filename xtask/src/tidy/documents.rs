//! Documents that a machine can hold against the tree.
//!
//! * ARCHITECTURE.md names every crate by its folder in backticks; neither it nor a page of
//!   docs/design/ names a crate or file that is not there.
//! * ARCHITECTURE.md stays short, and so do the paragraphs, list items and table cells of it and
//!   of the pages of docs/design/.
//! * docs/reference/promises.md is a table of promise, test, status: a promise names tests
//!   that exist, or says "not yet".
//! * docs/README.md is an index: it links every document of docs/; README.md links it.
//! * A relative link leads to a file of the tree.
//! * A page of docs/, README.md and CONTRIBUTING.md link another page of docs/, with words, and do
//!   not name its path.
//! * A link of a page of docs/design/ whose text is a name in backticks leads to a file that has
//!   that name.
//! * docs/reference/glossary.md is a table of term, meaning, and words that are not used
//!   for it. Words in backticks stand nowhere else; words in italics not in the prose of documents
//!   and doc comments, where code in backticks and names may have them.

use std::collections::BTreeSet;

use super::Finding;
use super::text::has_word;
use super::tree::Tree;

const MAP: &str = "ARCHITECTURE.md";
/// Table of the promises in detail, each with its tests.
pub const PROMISES: &str = "docs/reference/promises.md";
pub const START: &str = "README.md";
pub const INDEX: &str = "docs/README.md";
const HOW_TO_CHANGE: &str = "CONTRIBUTING.md";
/// The folder of what the index lists.
const INDEXED: &str = "docs/";
/// Folder of the walks through the code.
const WALKS: &str = "docs/design/";
/// Length of ARCHITECTURE.md: what can be read in one sitting.
const MAP_LENGTH_MAX: usize = 25 << 10;
/// Length of a paragraph, list item or table cell: a screen has several.
const BLOCK_LENGTH_MAX: usize = 600;
const GLOSSARY: &str = "docs/reference/glossary.md";
/// The root folders that hold crates.
const TOPS: [&str; 11] = [
    "base/",
    "core/",
    "levels/",
    "l7/",
    "host/",
    "store/",
    "node/",
    "cli/",
    "lab/",
    "services/",
    "sdk/",
];
/// Status of a promise without a test.
const NOT_YET: &str = "not yet";

/// Runs the checks of documents.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = map(tree);
    findings.extend(promises(tree));
    findings.extend(glossary(tree));
    findings.extend(index(tree));
    findings.extend(dead_links(tree));
    findings.extend(bare_paths(tree));
    findings.extend(walks(tree));
    findings.extend(dead_paths(tree));
    findings.extend(walls(tree));
    findings
}

/// Rows of Markdown tables with their line; heads and rules are rows as well.
pub fn rows(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    text.lines().enumerate().filter_map(|(at, line)| {
        let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
        Some((at + 1, inner.split('|').map(str::trim).collect()))
    })
}

/// Returns the parts of a text in backticks.
pub fn backticked(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn map(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(MAP) else {
        return vec![Finding::error("map", MAP, 1, "this document is missing")];
    };
    let mut findings = Vec::new();
    let named: BTreeSet<&str> = text.lines().flat_map(backticked).collect();
    for krate in &tree.crates {
        if !named.contains(krate.folder.as_str()) {
            let message = format!("`{}` is missing in the code map", krate.folder);
            findings.push(Finding::error("map", MAP, 1, message));
        }
    }
    if text.len() > MAP_LENGTH_MAX {
        let message = format!("{} bytes; move details to {WALKS}", text.len());
        findings.push(Finding::error("map", MAP, 1, message));
    }
    findings
}

/// Returns ARCHITECTURE.md and the pages of docs/design/.
fn design(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    tree.files()
        .filter(|(path, _)| *path == MAP || (path.starts_with(WALKS) && path.ends_with(".md")))
}

/// Finds paths in backticks that are not in the tree.
fn dead_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (page, text) in design(tree) {
        for (at, line) in text.lines().enumerate() {
            for name in backticked(line) {
                let is_path = TOPS.iter().any(|top| name.starts_with(top))
                    && !name.contains(['*', '{', ' ', '<']);
                if is_path && !tree.has(name) {
                    let message = format!("`{name}` is not in the tree");
                    findings.push(Finding::error("map", page, at + 1, message));
                }
            }
        }
    }
    findings
}

/// Finds paragraphs, list items and table cells that are too long to be read.
fn walls(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (page, text) in design(tree) {
        for (line, block) in blocks(text) {
            let length = block.chars().count();
            if length > BLOCK_LENGTH_MAX {
                let message =
                    format!("{length} characters in one piece; at most {BLOCK_LENGTH_MAX}");
                findings.push(Finding::error("wall", page, line, message));
            }
        }
    }
    findings
}

/// Returns paragraphs, list items and table cells, each with its first line; no code blocks.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let (mut is_code, mut continues) = (false, false);
    for (at, line) in text.lines().map(str::trim).enumerate() {
        let item = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let begins = ["- ", "* ", "#", ". "].iter().any(|mark| item.starts_with(mark));
        if line.starts_with("```") {
            (is_code, continues) = (!is_code, false);
        } else if is_code || line.is_empty() {
            continues = false;
        } else if line.starts_with('|') {
            blocks.extend(line.split('|').map(|cell| (at + 1, cell.trim().to_owned())));
            continues = false;
        } else if let (true, false, Some((_, block))) = (continues, begins, blocks.last_mut()) {
            block.push(' ');
            block.push_str(line);
        } else {
            blocks.push((at + 1, line.to_owned()));
            continues = true;
        }
    }
    blocks
}

fn index(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(INDEX) else {
        return vec![Finding::error("index", INDEX, 1, "this document is missing")];
    };
    let mut findings = Vec::new();
    let linked: BTreeSet<String> = links(text).map(|(_, link)| beside(INDEXED, link)).collect();
    for (path, _) in tree.files() {
        let is_document = path.starts_with(INDEXED) && path.ends_with(".md") && path != INDEX;
        if is_document && !linked.contains(path) {
            let message = format!("{path} is not linked; say in one line what it is for");
            findings.push(Finding::error("index", INDEX, 1, message));
        }
    }
    let starts = tree.text(START).unwrap_or_default();
    if !links(starts).any(|(_, link)| link == INDEX) {
        findings.push(Finding::error("index", START, 1, "it does not link docs/README.md"));
    }
    findings
}

/// Finds relative links of documents to files that are not in the tree.
fn dead_links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".md")) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (line, link) in links(text) {
            if !link.is_empty() && !tree.has(&beside(folder, link)) {
                let message = format!("the link to {link} leads nowhere");
                findings.push(Finding::error("link", path, line, message));
            }
        }
    }
    findings
}

/// Finds pages that name another page of docs/ by its path, outside code, in place of a link.
fn bare_paths(tree: &Tree) -> Vec<Finding> {
    let is_read = |path: &str| {
        (path.starts_with(INDEXED) && path.ends_with(".md"))
            || path == START
            || path == HOW_TO_CHANGE
    };
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| is_read(path)) {
        let mut in_fence = false;
        for (at, line) in text.lines().enumerate() {
            if line.starts_with("```") {
                in_fence = !in_fence;
            }
            if in_fence || line.starts_with("    ") {
                continue;
            }
            for named in line.split('`').step_by(2).flat_map(paths_of_pages) {
                let message = format!("{named} is named by its path; link it, with words");
                findings.push(Finding::error("link", path, at + 1, message));
            }
        }
    }
    findings
}

/// Paths of pages of docs/ in a text that are no target of a link.
fn paths_of_pages(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(INDEXED).filter_map(|(at, _)| {
        let before = &text[..at];
        let is_inside = before.ends_with("](") || before.ends_with(['/', '-', '_']);
        let is_path = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
        let length = text[at..].find(|c| !is_path(c)).unwrap_or(text.len() - at);
        let (page, _) = text[at..at + length].rsplit_once(".md")?;
        (!is_inside).then(|| &text[at..at + page.len() + ".md".len()])
    })
}

/// Finds links of walks to files that have not the name that the link is for.
fn walks(tree: &Tree) -> Vec<Finding> {
    let pages = tree.files().filter(|(path, _)| path.starts_with(WALKS) && path.ends_with(".md"));
    let mut findings = Vec::new();
    for (page, text) in pages {
        for (at, line) in text.lines().enumerate() {
            let mut error = |message| findings.push(Finding::error("walk", page, at + 1, message));
            // "… [`Type::function`" and "path) …" around each "](".
            let parts: Vec<&str> = line.split("](").collect();
            for pair in parts.windows(2) {
                let target = pair[1].split([')', '#']).next().unwrap_or_default();
                if target.is_empty() || target.contains("://") {
                    continue;
                }
                let path = beside(WALKS, target);
                let Some(linked) = tree.text(&path) else { continue };
                let named = pair[0].rsplit_once('[').map_or("", |(_, label)| label);
                let named = named.strip_prefix('`').and_then(|it| it.strip_suffix('`'));
                let name = named.and_then(|it| it.split('(').next()?.rsplit("::").next());
                if let Some(name) = name.filter(|name| !has_word(linked, name)) {
                    error(format!("{path} has no `{name}`"));
                }
            }
        }
    }
    findings
}

/// Returns the path from the project's root of a link that stands in a page of a folder.
pub fn beside(folder: &str, link: &str) -> String {
    let mut path: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "." => {}
            ".." => drop(path.pop()),
            part => path.push(part),
        }
    }
    path.join("/")
}

/// Links of a Markdown text to files of the tree, each with its line.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(at, line)| {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let files = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
        files.map(move |target| (at + 1, target.split('#').next().unwrap_or(target)))
    })
}

fn promises(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(PROMISES) else {
        return vec![Finding::error("promise", PROMISES, 1, "this document is missing")];
    };
    let tests: Vec<(&str, &str)> = tree
        .sources()
        .flat_map(|(path, source)| source.tests().into_iter().map(move |test| (path, test)))
        .collect();
    let is_proof = |name: &str| match name.rsplit_once("::") {
        Some((below, test)) => {
            tests.iter().any(|(path, found)| path.starts_with(below) && *found == test)
        }
        None => {
            tests.iter().any(|(_, test)| *test == name) || (name.contains('/') && tree.has(name))
        }
    };
    let mut findings = Vec::new();
    let mut error = |line, message: String| {
        findings.push(Finding::error("promise", PROMISES, line, message));
    };
    for (line, cells) in rows(text) {
        let [_, proof, status] = cells.as_slice() else {
            error(line, "a row is: promise, test, status".to_owned());
            continue;
        };
        if *proof == "test" || proof.starts_with("---") {
            continue;
        }
        let mut named = backticked(proof).peekable();
        if named.peek().is_none() && !(proof.contains(NOT_YET) || status.contains(NOT_YET)) {
            error(line, "name a test in backticks, or say \"not yet\"".to_owned());
        }
        for name in named {
            if !is_proof(name) {
                error(line, format!("`{name}` is no test or file of this tree"));
            }
        }
    }
    findings
}

fn glossary(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(GLOSSARY) else {
        return vec![Finding::error("glossary", GLOSSARY, 1, "this document is missing")];
    };
    let mut synonyms = Vec::new();
    for (_, cells) in rows(text) {
        let [term, _, not] = cells.as_slice() else { continue };
        synonyms.extend(backticked(not).map(|word| (*term, word, false)));
        synonyms.extend(not.split('*').skip(1).step_by(2).map(|word| (*term, word, true)));
    }
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| *path != GLOSSARY && is_prose(path)) {
        for ((at, line), prose) in text.lines().enumerate().zip(prose(path, text)) {
            let line = line.to_lowercase();
            for (term, synonym, is_of_prose) in &synonyms {
                let is_there = if *is_of_prose {
                    has_word(&prose, synonym)
                } else {
                    // The name of somebody else's file is what it is.
                    has_word(&line.replace(&format!("{synonym}.wasm"), ""), synonym)
                };
                if is_there {
                    let message = format!("the word here is {term}, not {synonym} ({GLOSSARY})");
                    findings.push(Finding::error("glossary", path, at + 1, message));
                }
            }
        }
    }
    findings
}

/// Returns the prose of each line in lower case: of Rust its doc comments, of all without code.
fn prose(path: &str, text: &str) -> Vec<String> {
    let (is_rust, mut in_fence) = (path.ends_with(".rs"), false);
    let prose_of = |line: &str| {
        let comment = ["///", "//!"].iter().find_map(|mark| line.trim_start().strip_prefix(mark));
        let words = if is_rust { comment.unwrap_or_default() } else { line };
        let is_border = words.trim_start().starts_with("```");
        in_fence = (in_fence != is_border) && !(is_rust && comment.is_none());
        let is_code = in_fence || is_border;
        if is_code { String::new() } else { words.split('`').step_by(2).collect() }
    };
    text.lines().map(prose_of).map(|words| words.to_lowercase()).collect()
}

/// Returns true for documents, and for Rust with its comments and messages.
fn is_prose(path: &str) -> bool {
    (path.ends_with(".md") || path.ends_with(".rs")) && !path.starts_with("xtask/")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn the_map_names_every_crate_and_no_dead_one() {
        let with = |map: &str| {
            let tree = Tree::of(&[
                ("base/units/Cargo.toml", ""),
                ("levels/bpf/c/front_door.bpf.c", ""),
                (MAP, map),
            ]);
            lines(&[super::map(&tree), dead_paths(&tree)].concat())
        };
        assert_eq!(with("`base/units` and `levels/bpf/c/front_door.bpf.c`\n"), NONE);
        assert_eq!(with("nothing\n"), [1]);
        assert_eq!(with("`base/units`\n`core/gone`\n"), [2]);
        assert_eq!(with("`base/units`\n\n`levels/bpf/c/gone.c`\n"), [3]);
        let long = format!("`base/units`\n{}", "a b\n\n".repeat(MAP_LENGTH_MAX / 5));
        assert_eq!(with(&long), [1]);
    }

    #[test]
    fn a_page_of_the_design_names_no_file_that_is_gone() {
        let page = format!("{WALKS}ports.md");
        let tree = Tree::of(&[("core/a/Cargo.toml", ""), (&page, "`core/a`\n`core/b`\n")]);
        assert_eq!(lines(&dead_paths(&tree)), [2]);
    }

    #[test]
    fn a_long_paragraph_item_or_cell_of_the_design_is_found() {
        let page = format!("{WALKS}ports.md");
        let with = |text: &str| lines(&walls(&Tree::of(&[(page.as_str(), text)])));
        let (half, long) = ("a".repeat(BLOCK_LENGTH_MAX - 100), "a".repeat(BLOCK_LENGTH_MAX + 1));
        assert_eq!(with(&format!("{half}\n\n{half}\n- {half}\n12. {half}\n")), NONE);
        assert_eq!(with(&format!("| {half} | {half} |\n```\n{long}\n```\n")), NONE);
        assert_eq!(with(&format!("# Title\n\n{half}\n{half}\n")), [3]);
        assert_eq!(with(&format!("a\n- {long}\n\n| a | {long} |\n")), [2, 4]);
    }

    #[test]
    fn a_walk_links_files_that_are_there_with_the_names_that_it_gives() {
        let with = |line: &str| {
            let page = format!("{WALKS}walk.md");
            let tree = Tree::of(&[
                ("core/a/src/lib.rs", "impl A { fn step(&self) {} }\n"),
                (page.as_str(), line),
            ]);
            lines(&walks(&tree))
        };
        assert_eq!(with("[`A::step`](../../core/a/src/lib.rs), [it](walk.md)"), NONE);
        assert_eq!(with("[`A::stop`](../../core/a/src/lib.rs)"), [1]);
        assert_eq!(
            with("\n[`A::stop`](../../core/a/src/lib.rs) [x](https://a.b/c) [`B`](w.md)"),
            [2]
        );
    }

    #[test]
    fn a_promise_names_a_test_that_exists_or_says_not_yet() {
        let with = |row: &str| {
            let text = format!("| promise | test | status |\n|---|---|---|\n{row}\n");
            lines(&promises(&Tree::of(&[
                ("base/a/src/lib.rs", "#[test]\nfn it_holds() {}\nfn helper() {}\n"),
                ("lab/system/tests/ping.rs", "//! Ping.\n"),
                (PROMISES, &text),
            ])))
        };
        assert_eq!(with("| it holds | `it_holds` | shown |"), NONE);
        assert_eq!(with("| it holds | `base/a::it_holds` | shown |"), NONE);
        assert_eq!(with("| it holds | `lab/system/tests/ping.rs` | shown |"), NONE);
        assert_eq!(with("| it holds | not yet | not yet |"), NONE);
        assert_eq!(with("| it holds |  | shown |"), [3]);
        assert_eq!(with("| it holds | `core/a::it_holds` | shown |"), [3]);
        assert_eq!(with("| it holds | `helper` | shown |"), [3], "a helper is no test");
        assert_eq!(with("| it holds | `gone` | not yet |"), [3]);
        assert_eq!(with("| it holds | `it_holds` |"), [3]);
    }

    #[test]
    fn a_synonym_is_found_in_documents_and_code() {
        let glossary_text =
            "| term | meaning | not |\n|---|---|---|\n| module | code | `plugin` |\n";
        let with = |path: &str, text: &str| {
            lines(&glossary(&Tree::of(&[(GLOSSARY, glossary_text), (path, text)])))
        };
        assert_eq!(with("README.md", "a module\n"), NONE);
        assert_eq!(with("README.md", "a\nPlugin here\n"), [2]);
        assert_eq!(with("base/a/src/lib.rs", "// a plugin\n"), [1]);
        assert_eq!(with("tools/a.sh", "# a plugin\n"), NONE);
        assert_eq!(with("README.md", "`plugin.wasm`\n"), NONE);
        assert_eq!(with("README.md", "`plugin.wasm`, a plugin\n"), [1]);
    }

    #[test]
    fn a_synonym_in_italics_is_found_in_prose_alone() {
        let glossary_text =
            "| term | meaning | not |\n|---|---|---|\n| credit | bytes | `slot`, *port room* |\n";
        let with = |path: &str, text: &str| {
            lines(&glossary(&Tree::of(&[(GLOSSARY, glossary_text), (path, text)])))
        };
        assert_eq!(with("README.md", "port rooms\n`port room`\n```\nport room\n```\n"), NONE);
        assert_eq!(with("README.md", "```\nslot\n```\nA port room.\n"), [2, 4]);
        let source = "//! ```text\n//! port room\n//! ```\nlet port room; // port room\n";
        assert_eq!(with("base/a/src/lib.rs", source), NONE);
        assert_eq!(with("base/a/src/lib.rs", "/// ```\nfn a() {}\n    /// Its port room.\n"), [3]);
    }

    #[test]
    fn the_index_links_every_document() {
        let with = |text: &str| {
            lines(&index(&Tree::of(&[
                ("docs/guides/rules.md", "# Rules\n"),
                ("docs/adr/0001-a.md", "# 0001\n"),
                ("services/nat/README.md", "# nat\n"),
                (START, "[all](docs/README.md)\n"),
                (INDEX, text),
            ])))
        };
        let all = "[r](guides/rules.md) [a](adr/0001-a.md#why)\n[n](../services/nat/README.md)\n";
        assert_eq!(with(all), NONE);
        assert_eq!(with("[r](guides/rules.md)\n"), [1]);
        let unlinked = Tree::of(&[(START, "# Tam\n"), (INDEX, "# Documents\n")]);
        assert_eq!(lines(&index(&unlinked)), [1]);
    }

    #[test]
    fn a_relative_link_leads_to_a_file_of_the_tree() {
        let with = |text: &str| {
            let files = [("docs/guides/a.md", text), ("docs/b.md", "# B\n"), (START, "# Tam\n")];
            lines(&dead_links(&Tree::of(&files)))
        };
        assert_eq!(with("[b](../b.md#why) [it](#here) [y](https://example.org)\n"), NONE);
        assert_eq!(with("[root](../../README.md)\n[x](b.md)\n[y](../gone.md)\n"), [2, 3]);
    }

    #[test]
    fn a_page_is_linked_and_not_named_by_its_path() {
        let with = |path: &str, text: &str| lines(&bare_paths(&Tree::of(&[(path, text)])));
        let guide = "docs/guides/a.md";
        assert_eq!(with(guide, "[b](../b.md), `docs/b.md`\n```\ndocs/b.md\n```\n"), NONE);
        assert_eq!(with(guide, "see docs/b.md.\n\n(docs/guides/c.md, \"On it\") `x`\n"), [1, 3]);
        assert_eq!(with(guide, "`x` docs/b.md `y`\n    docs/b.md\n../docs/b.txt\n"), [1]);
        assert_eq!(with(START, "[b](docs/b.md)\n| x | docs/b.md |\n"), [2]);
        assert_eq!(with("services/nat/README.md", "docs/b.md\n"), NONE);
    }

    #[test]
    fn a_missing_document_is_found() {
        assert_eq!(check(&Tree::of(&[])).len(), 4);
    }
}
