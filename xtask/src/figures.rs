//! Tables of the benchmarks' pages, made from the documents of `tam bench NAME --json`.
//!
//! A page has `<!-- figures: NAME -->` and `<!-- end -->` on lines of their own. What stands
//! between them is made from NAME.json and from nothing else, so that a page and the result that
//! is kept beside it can be held to each other. Nothing here measures.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

/// Folder of the pages.
pub const PAGES: &str = "docs/benchmarks";
/// Folder of the results that the pages show.
pub const RESULTS: &str = "docs/benchmarks/results";
/// Version of the documents that are read; `lab/bench/src/report.rs` writes them.
const SCHEMA_VERSION: u32 = 1;
const OPEN: &str = "<!-- figures: ";
const OPEN_END: &str = " -->";
const CLOSE: &str = "<!-- end -->";
/// Shown where a document has no number.
const NOTHING: &str = "–";

/// Place in a page that shows a benchmark's figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Benchmark whose result is shown.
    pub name: String,
    /// Line of the opening, counted from 1.
    pub line: usize,
    /// Bytes between the lines of opening and end.
    pub inner: Range<usize>,
}

/// Line of a block that has no end, or of an end without a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpaired(pub usize);

/// Result of a benchmark, as far as a page shows it.
#[derive(Debug, Deserialize)]
struct Document {
    schema_version: u32,
    bench: String,
    results: Vec<Row>,
    machine: Machine,
    valid: bool,
    #[serde(default)]
    notes: Vec<String>,
}

/// Metric of a result; a number that is not finite is `None`.
#[derive(Debug, Deserialize)]
struct Row {
    metric: String,
    unit: String,
    ours: Option<f64>,
    baseline: Option<f64>,
    baseline_name: String,
    ratio: Option<f64>,
    goal: Option<f64>,
    #[serde(default)]
    goal_for: String,
    rounds: u32,
    spread: Option<f64>,
}

/// Machine of a run.
#[derive(Debug, Deserialize)]
struct Machine {
    kernel: String,
    cpu: String,
    cores: u32,
    driver: String,
}

/// Rewrites the blocks of the pages whose results are in `folder`, and keeps these results beside
/// the pages; returns the benchmarks' names.
///
/// # Errors
/// A page or a result cannot be read or written, a block is not closed, or no page shows a
/// result of the folder.
pub fn write(root: &Path, folder: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let pages = root.join(PAGES);
    let entries =
        std::fs::read_dir(&pages).with_context(|| format!("reading {}", pages.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != "md") {
            continue;
        }
        let page = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        let mut result_of = |name: &str| {
            let result = folder.join(format!("{name}.json"));
            if !result.exists() {
                return Ok(None);
            }
            names.insert(name.to_owned());
            let text = std::fs::read_to_string(&result);
            text.map(Some).with_context(|| format!("reading {}", result.display()))
        };
        let written = render(&page, &mut result_of)
            .with_context(|| format!("the figures of {}", path.display()))?;
        if written != page {
            std::fs::write(&path, written)
                .with_context(|| format!("writing {}", path.display()))?;
        }
    }
    ensure!(!names.is_empty(), "no page shows a result of {}", folder.display());
    let kept = root.join(RESULTS);
    std::fs::create_dir_all(&kept).with_context(|| format!("making {}", kept.display()))?;
    if kept.canonicalize()? != folder.canonicalize()? {
        for name in &names {
            let file = format!("{name}.json");
            std::fs::copy(folder.join(&file), kept.join(&file))
                .with_context(|| format!("keeping {file}"))?;
        }
    }
    Ok(names)
}

/// Returns a page with the blocks made anew for which `result_of` has a document.
///
/// # Errors
/// A block is not closed, or a document cannot be read.
fn render(
    page: &str,
    result_of: &mut dyn FnMut(&str) -> anyhow::Result<Option<String>>,
) -> anyhow::Result<String> {
    let blocks = match blocks(page) {
        Ok(blocks) => blocks,
        Err(Unpaired(line)) => bail!("line {line}: a block without its other end"),
    };
    let (mut text, mut at) = (String::new(), 0);
    for block in blocks {
        text.push_str(&page[at..block.inner.start]);
        match result_of(&block.name)? {
            Some(document) => text.push_str(&table(&block.name, &document)?),
            None => text.push_str(&page[block.inner.clone()]),
        }
        at = block.inner.end;
    }
    text.push_str(&page[at..]);
    Ok(text)
}

/// Returns the blocks of a page in their order.
///
/// # Errors
/// The line of a block that is not closed, or of an end without a block.
pub fn blocks(page: &str) -> Result<Vec<Block>, Unpaired> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    let mut at = 0;
    for (line, text) in page.split_inclusive('\n').enumerate() {
        let mark = text.trim();
        let name = mark.strip_prefix(OPEN).and_then(|rest| rest.strip_suffix(OPEN_END));
        match (name, open.take()) {
            (Some(name), None) => {
                let start = at + text.len();
                open = Some(Block { name: name.to_owned(), line: line + 1, inner: start..start });
            }
            (Some(_), Some(before)) => return Err(Unpaired(before.line)),
            (None, Some(block)) if mark == CLOSE => {
                blocks.push(Block { inner: block.inner.start..at, ..block });
            }
            (None, None) if mark == CLOSE => return Err(Unpaired(line + 1)),
            (None, before) => open = before,
        }
        at += text.len();
    }
    open.map_or(Ok(blocks), |block| Err(Unpaired(block.line)))
}

/// Returns the Markdown of one result: its table, its machine, and its notes.
///
/// # Errors
/// The text is no document of this benchmark.
pub fn table(name: &str, document: &str) -> anyhow::Result<String> {
    let document: Document =
        serde_json::from_str(document).with_context(|| format!("reading the result of {name}"))?;
    let version = document.schema_version;
    ensure!(version == SCHEMA_VERSION, "schema_version {version}: {SCHEMA_VERSION} is read here");
    ensure!(document.bench == name, "the result of {} in place of {name}'s", document.bench);
    let rounds = document.results.iter().map(|row| row.rounds).max().unwrap_or(0);
    let columns =
        Columns { goal: document.results.iter().any(|row| row.goal.is_some()), spread: rounds > 1 };
    let mut text = columns.head();
    for row in &document.results {
        text.push_str(&columns.row(row));
    }
    let Machine { kernel, cpu, cores, driver } = &document.machine;
    let driver = if driver == "none" { String::new() } else { format!(", {driver}") };
    let rounds = if rounds == 1 { "1 round".to_owned() } else { format!("{rounds} rounds") };
    text.push_str(&format!("\n{cores} cores of {cpu}, Linux {kernel}{driver}; {rounds}.\n"));
    if !document.valid {
        text.push_str("\nA baseline was too slow: this run is not valid.\n");
    }
    for (at, note) in document.notes.iter().enumerate() {
        text.push_str(&format!("{}- {note}\n", if at == 0 { "\n" } else { "" }));
    }
    Ok(text)
}

/// Columns of a table that not every result has.
struct Columns {
    goal: bool,
    /// Spread column; a single round has none.
    spread: bool,
}

impl Columns {
    fn head(&self) -> String {
        let mut names = vec!["case", "value", "unit", "baseline", "ratio"];
        names.extend(self.spread.then_some("spread"));
        names.extend(self.goal.then_some("goal"));
        format!("| {} |\n|{}\n", names.join(" | "), "---|".repeat(names.len()))
    }

    fn row(&self, row: &Row) -> String {
        let mut cells = vec![
            format!("`{}`", row.metric),
            number(row.ours),
            row.unit.clone(),
            format!("{} ({})", number(row.baseline), row.baseline_name),
            row.ratio.map_or(NOTHING.to_owned(), |ratio| format!("{ratio:.2}")),
        ];
        if self.spread {
            let percent = |spread| format!("{:.0} %", spread * 100.0);
            cells.push(row.spread.map_or(NOTHING.to_owned(), percent));
        }
        if self.goal {
            cells.push(row.goal.map_or(String::new(), |goal| goal_text(goal, row)));
        }
        format!("| {} |\n", cells.join(" | "))
    }
}

fn goal_text(goal: f64, row: &Row) -> String {
    match row.goal_for.as_str() {
        "ours" => format!("{} {}", number(Some(goal)), row.unit),
        "difference" => format!("+{} {}", number(Some(goal)), row.unit),
        _ => goal.to_string(),
    }
}

/// Returns a number with three significant digits; from a million on with a suffix.
fn number(value: Option<f64>) -> String {
    let Some(value) = value else { return NOTHING.to_owned() };
    for (unit, suffix) in [(1e9, " G"), (1e6, " M")] {
        if value.abs() >= unit {
            return format!("{}{suffix}", digits(value / unit));
        }
    }
    digits(value)
}

/// Returns three significant digits, with commas between thousands.
fn digits(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let before_point = value.abs().log10().floor() as i32 + 1;
    let decimals = usize::try_from(3 - before_point).unwrap_or(0);
    if decimals > 0 {
        return format!("{value:.decimals$}");
    }
    let scale = 10f64.powi(before_point - 3);
    let whole = format!("{:.0}", (value / scale).round() * scale);
    let (sign, whole) = whole.strip_prefix('-').map_or(("", &*whole), |rest| ("-", rest));
    let mut text = String::from(sign);
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = r#"{"bench":"user","schema_version":1,"valid":true,
        "machine":{"cores":2,"cpu":"AMD EPYC","cpu_family":"x/1","driver":"veth","kernel":"6.18","load":0.1},
        "notes":["the machine was busy"],
        "results":[
        {"metric":"user.forward.64","unit":"packets/s","ours":769520.4,"baseline":1902200.2,
         "baseline_name":"plain_xsk","better":"higher","goal":0.9,"goal_for":"ratio","ratio":0.8528,
         "rounds":2,"spread":0.0301},
        {"metric":"user.api","unit":"us","ours":5558.34,"baseline":null,"baseline_name":"no load",
         "better":"lower","goal":200000.0,"goal_for":"ours","ratio":null,"rounds":2,"spread":0.0}]}"#;

    fn rendered(page: &str, document: Option<&str>) -> anyhow::Result<String> {
        render(page, &mut |name| Ok(document.filter(|_| name == "user").map(str::to_owned)))
    }

    #[test]
    fn a_result_becomes_a_table_with_its_machine_and_notes() {
        assert_eq!(
            table("user", DOCUMENT).unwrap(),
            "\
| case | value | unit | baseline | ratio | spread | goal |
|---|---|---|---|---|---|---|
| `user.forward.64` | 770,000 | packets/s | 1.90 M (plain_xsk) | 0.85 | 3 % | 0.9 |
| `user.api` | 5,560 | us | – (no load) | – | 0 % | 200,000 us |

2 cores of AMD EPYC, Linux 6.18, veth; 2 rounds.

- the machine was busy
"
        );
    }

    #[test]
    fn columns_without_content_are_left_out() {
        let once = DOCUMENT.replace("\"rounds\":2", "\"rounds\":1").replace("0.9,", "null,");
        let text = table("user", &once.replace("200000.0", "null")).unwrap();
        assert!(text.starts_with("| case | value | unit | baseline | ratio |\n"), "{text}");
        assert!(text.contains("; 1 round."), "{text}");
    }

    #[test]
    fn an_invalid_run_is_said_to_be_invalid() {
        let slow = DOCUMENT.replace("\"valid\":true", "\"valid\":false");
        assert!(table("user", &slow).unwrap().contains("not valid"));
    }

    #[test]
    fn a_document_of_another_benchmark_or_version_is_refused() {
        assert!(table("forward", DOCUMENT).is_err());
        assert!(table("user", &DOCUMENT.replace("_version\":1", "_version\":2")).is_err());
        assert!(table("user", "{}").is_err());
    }

    #[test]
    fn everything_outside_the_blocks_stays() {
        let page = "# Title\n\n<!-- figures: user -->\nold\n<!-- end -->\n\nbehind\n\
                    <!-- figures: move -->\nkept\n<!-- end -->\n";
        let text = rendered(page, Some(DOCUMENT)).unwrap();
        assert!(text.starts_with("# Title\n\n<!-- figures: user -->\n| case |"), "{text}");
        assert!(
            !text.contains("old") && text.contains("- the machine was busy\n<!-- end -->\n\nb")
        );
        assert!(text.ends_with("<!-- figures: move -->\nkept\n<!-- end -->\n"), "{text}");
        assert_eq!(rendered(&text, Some(DOCUMENT)).unwrap(), text, "again changes nothing");
        assert_eq!(rendered(page, None).unwrap(), page);
    }

    #[test]
    fn a_block_without_its_other_end_is_found() {
        let (open, end) = ("<!-- figures: user -->\n", "<!-- end -->\n");
        assert_eq!(blocks(&format!("a\n{open}")), Err(Unpaired(2)));
        assert_eq!(blocks(&format!("{open}{open}{end}")), Err(Unpaired(1)));
        assert_eq!(blocks(&format!("a\n\n{end}")), Err(Unpaired(3)));
        let named: Vec<String> =
            blocks(&format!("{open}{end}")).unwrap().into_iter().map(|it| it.name).collect();
        assert_eq!(named, ["user"]);
        assert!(rendered(open, None).is_err());
    }

    #[test]
    fn numbers_have_three_digits() {
        let shown = |value: f64| number(Some(value));
        assert_eq!(shown(3_831_555.3), "3.83 M");
        assert_eq!(shown(2.5e9), "2.50 G");
        assert_eq!(shown(961_961.9), "962,000");
        assert_eq!(shown(1_959.2), "1,960");
        assert_eq!(shown(144.4), "144");
        assert_eq!(shown(48.644), "48.6");
        assert_eq!(shown(0.99346), "0.993");
        assert_eq!(shown(0.0), "0");
        assert_eq!(shown(-1_234.0), "-1,230");
        assert_eq!(number(None), "–");
    }

    #[test]
    fn pages_are_rewritten_and_their_results_kept() {
        let root = std::env::temp_dir().join(format!("tam-figures-{}", std::process::id()));
        let (pages, folder) = (root.join(PAGES), root.join("new"));
        std::fs::create_dir_all(&pages).unwrap();
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(pages.join("user.md"), "<!-- figures: user -->\n<!-- end -->\n").unwrap();
        assert!(write(&root, &folder).is_err(), "there is no result");
        std::fs::write(folder.join("user.json"), DOCUMENT).unwrap();
        let names = write(&root, &folder).unwrap();
        let page = std::fs::read_to_string(pages.join("user.md")).unwrap();
        let again = write(&root, &root.join(RESULTS)).unwrap();
        let page_again = std::fs::read_to_string(pages.join("user.md")).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(names, BTreeSet::from(["user".to_owned()]));
        assert!(page.contains("user.forward.64"), "{page}");
        assert_eq!((again, page_again), (names, page));
    }
}
