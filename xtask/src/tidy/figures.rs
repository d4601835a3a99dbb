//! The benchmarks' pages and the results that are kept beside them agree.
//!
//! * A block of figures has its end, and names a benchmark of `lab/bench`.
//! * Its result is kept, and what the page shows is what is made from it.
//! * A result that is kept is shown.
//!
//! Figures that people wrote into a page are not looked at.

use std::collections::BTreeSet;

use super::Finding;
use super::tree::Tree;
use crate::figures::{self, PAGES, RESULTS, Unpaired};

/// File that lists the benchmarks.
const BENCHES: &str = "lab/bench/src/lib.rs";
/// Remedy for a page and a result that differ.
const ADVICE: &str = "run `cargo xtask figures docs/benchmarks/results`";

/// Runs the checks of figures.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let benches = tree.text(BENCHES).unwrap_or_default();
    let mut findings = Vec::new();
    let mut shown = BTreeSet::new();
    let pages = tree.files().filter(|(path, _)| path.starts_with(PAGES) && path.ends_with(".md"));
    for (page, text) in pages {
        let mut error =
            |line, message| findings.push(Finding::error("figures", page, line, message));
        let blocks = match figures::blocks(text) {
            Ok(blocks) => blocks,
            Err(Unpaired(line)) => {
                error(line, "a block of figures without its other end".to_owned());
                continue;
            }
        };
        for block in blocks {
            let (name, line) = (&block.name, block.line);
            let kept = format!("{RESULTS}/{name}.json");
            if !benches.contains(&format!("name: \"{name}\"")) {
                error(line, format!("`{name}` is no benchmark of {BENCHES}"));
            }
            match tree.text(&kept).map(|result| figures::table(name, result)) {
                None => {
                    error(line, format!("{kept} is missing; `cargo xtask figures FOLDER` keeps it"))
                }
                Some(Err(reason)) => error(line, format!("{kept}: {reason:#}")),
                Some(Ok(table)) if table != text[block.inner] => {
                    error(line, format!("other figures than those of {kept}; {ADVICE}"));
                }
                Some(Ok(_)) => {}
            }
            shown.insert(kept);
        }
    }
    for (path, _) in tree.files().filter(|(path, _)| path.starts_with(RESULTS)) {
        if path.ends_with(".json") && !shown.contains(path) {
            findings.push(Finding::error("figures", path, 1, "no page shows this result"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &str = r#"{"bench":"move","schema_version":1,"valid":true,"results":[],
        "machine":{"cores":2,"cpu":"x","driver":"none","kernel":"6.18"}}"#;

    fn found(page: &str, result: Option<&str>) -> Vec<(String, usize)> {
        let (path, kept) = (format!("{PAGES}/move.md"), format!("{RESULTS}/move.json"));
        let mut files = vec![(BENCHES, "    name: \"move\",\n"), (path.as_str(), page)];
        files.extend(result.map(|result| (kept.as_str(), result)));
        let findings = check(&Tree::of(&files));
        findings.into_iter().map(|finding| (finding.path, finding.line)).collect()
    }

    #[test]
    fn a_page_shows_what_its_result_says() {
        let page = "docs/benchmarks/move.md".to_owned();
        let table = figures::table("move", RESULT).unwrap();
        let good = format!("# Moves\n<!-- figures: move -->\n{table}<!-- end -->\n");
        assert_eq!(found(&good, Some(RESULT)), []);
        assert_eq!(found(&good, None), [(page.clone(), 2)], "no result");
        assert_eq!(found(&good, Some("{}")), [(page.clone(), 2)], "no document");
        let other = good.replace("2 cores", "4 cores");
        assert_eq!(found(&other, Some(RESULT)), [(page.clone(), 2)]);
        let open = good.replace("<!-- end -->\n", "");
        assert_eq!(found(&open, None), [(page, 2)]);
    }

    #[test]
    fn a_block_names_a_benchmark_that_exists() {
        let findings = found("<!-- figures: mover -->\n<!-- end -->\n", None);
        assert_eq!(findings.len(), 2, "no benchmark, no result: {findings:?}");
    }

    #[test]
    fn a_result_that_is_kept_is_shown() {
        let findings = found("# Moves\n", Some(RESULT));
        assert_eq!(findings, [("docs/benchmarks/results/move.json".to_owned(), 1)]);
    }
}
