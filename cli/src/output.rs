//! Standard output and standard error, for people and for programs.
//!
//! Results go to standard output: a text, or one JSON document. Everything else goes to standard
//! error. Text from modules, files and nodes is escaped, so that a terminal obeys nothing in it.

use crate::failure::{DONE, Failure, Outcome};
use crate::style::{Ink, Stream};
use comfy_table::{Cell as TableCell, ContentArrangement, Row, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Output of a command.
#[derive(Debug)]
pub struct Output {
    json: bool,
    progress: RefCell<Option<ProgressBar>>,
    closed: Cell<bool>,
}

impl Output {
    /// Returns the output for people, or with `json` for programs.
    pub const fn new(json: bool) -> Self {
        Self { json, progress: RefCell::new(None), closed: Cell::new(false) }
    }

    /// Returns true if the result is a JSON document for programs.
    pub const fn is_json(&self) -> bool {
        self.json
    }

    /// Prints the result: the document, or the text for people.
    pub fn result(&self, document: &impl Serialize, text: impl FnOnce() -> String) -> Outcome {
        self.progress_end();
        if self.json {
            let document = serde_json::to_string(document)
                .map_err(|error| Failure::failed(format!("writing the JSON document: {error}")))?;
            self.print(&document)
        } else {
            self.print(text().trim_end())
        }
    }

    /// Prints a text or a document and a line feed.
    pub fn print(&self, text: &str) -> Outcome {
        must_be_open()?;
        let mut out = io::stdout().lock();
        if !is_read(writeln!(out, "{text}").and_then(|()| out.flush()))? {
            self.closed.set(true);
        }
        Ok(DONE)
    }

    /// Returns true if the reader has closed standard output.
    pub const fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Prints a note for people to standard error.
    pub fn note(&self, text: &str) {
        self.progress_end();
        // Nobody reads the note if standard error is closed.
        let _ = writeln!(io::stderr().lock(), "{}", escaped_lines(text));
    }

    /// Shows progress: a spinner on a terminal, else plain lines.
    pub fn progress(&self, text: &str) {
        let text = escaped(text);
        if !io::stderr().is_terminal() {
            let _ = writeln!(io::stderr().lock(), "{text}");
            return;
        }
        let mut progress = self.progress.borrow_mut();
        let bar = progress.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        bar.set_message(text);
    }

    fn progress_end(&self) {
        if let Some(bar) = self.progress.borrow_mut().take() {
            bar.finish_and_clear();
        }
    }

    /// Prints the failure and returns its exit status.
    pub fn fail(&self, failure: &Failure) -> u8 {
        self.progress_end();
        if self.json {
            // Serialisation cannot fail: the fields are text and numbers.
            let document = serde_json::to_string(&failure.document()).unwrap_or_default();
            if self.print(&document).is_ok() {
                return failure.code.exit_status();
            }
        }
        let document = failure.document().error;
        note_as(Ink::Bad, "error", &document.message);
        if let Some(help) = &document.help {
            note_as(Ink::Kind, "help", help);
        }
        failure.code.exit_status()
    }
}

/// Writes a line to standard error, with its kind in front.
fn note_as(ink: Ink, kind: &str, text: &str) {
    let kind = Stream::Errors.paint(ink, &format!("{kind}:"));
    // Nobody reads the note if standard error is closed.
    let _ = writeln!(io::stderr().lock(), "{kind} {}", escaped_lines(text));
}

/// Returns an error if standard output is closed: Rust's runtime would discard the result.
pub fn must_be_open() -> Result<(), Failure> {
    if !sandbox::standard_streams::output_was_closed() {
        return Ok(());
    }
    Err(Failure::failed("writing to standard output: it is closed")
        .help("send it somewhere, as in `> FILE` or `> /dev/null`"))
}

/// Returns whether somebody still reads standard output, by how writing to it went.
pub fn is_read(written: io::Result<()>) -> Result<bool, Failure> {
    match written {
        Ok(()) => Ok(true),
        // A reader that has seen enough is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::io("writing to standard output", &error)),
    }
}

/// Compact table whose cells are escaped.
pub struct Rows {
    table: Table,
    /// Columns of states, whose words are coloured.
    states: Vec<usize>,
    has_headings: bool,
}

/// Headings of columns that hold a state.
const STATES: [&str; 2] = ["state", "fits"];

impl Rows {
    /// Returns a table with these headings.
    pub fn new<const N: usize>(headings: [&str; N]) -> Self {
        let states = (0..N).filter(|column| STATES.contains(&headings[*column])).collect();
        let mut table = empty();
        table.set_header(headings.map(str::to_uppercase));
        Self { table: spaced(table), states, has_headings: true }
    }

    /// Returns a table of names and values, without headings.
    pub fn pairs() -> Self {
        Self { table: empty(), states: Vec::new(), has_headings: false }
    }

    /// Adds a row.
    pub fn add<const N: usize>(&mut self, cells: [String; N]) {
        self.table.add_row(cells.map(|cell| escaped(&cell)));
        spaced_columns(&mut self.table);
    }

    /// Returns the number of rows.
    pub fn count(&self) -> usize {
        self.table.row_iter().count()
    }

    /// Returns a row's line with the words of its states in colour.
    fn painted(&self, row: &Row, line: &str, stream: Stream) -> String {
        let widths = self.table.column_max_content_widths();
        let mut line = line.to_owned();
        // From the right, since escape sequences shift the columns after them.
        for &column in self.states.iter().rev() {
            let word = row.cell_iter().nth(column).map(TableCell::content).unwrap_or_default();
            let Some(ink) = Ink::of_state(&word) else { continue };
            let before: usize =
                widths[..column].iter().map(|width| usize::from(*width) + GAP).sum();
            let place = line.match_indices(word.as_str()).map(|(at, _)| at);
            let mut place = place.filter(|at| console::measure_text_width(&line[..*at]) == before);
            if let Some(at) = place.next() {
                line.replace_range(at..at + word.len(), &stream.paint(ink, &word));
            }
        }
        line
    }
}

impl std::fmt::Display for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stream = Stream::Output;
        let mut lines = self.table.lines();
        if self.has_headings {
            let headings = lines.next().unwrap_or_default();
            writeln!(f, "{}", stream.paint(Ink::Heading, headings.trim_end()))?;
        }
        let is_painted = stream.is_styled() && !self.states.is_empty();
        for (line, row) in lines.zip(self.table.row_iter()) {
            match is_painted {
                true => writeln!(f, "{}", self.painted(row, line.trim_end(), stream))?,
                false => writeln!(f, "{}", line.trim_end())?,
            }
        }
        Ok(())
    }
}

fn empty() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// Blanks between columns.
const GAP: usize = 2;

fn spaced(mut table: Table) -> Table {
    spaced_columns(&mut table);
    table
}

/// Sets the blanks between columns, none at the left.
fn spaced_columns(table: &mut Table) {
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP as u16));
    }
}

/// Returns true if the locale's characters are UTF-8 (POSIX.1-2017, chapter 8.2).
pub fn is_utf8() -> bool {
    locale_is_utf8(|name| std::env::var(name).ok())
}

/// Decides by the first of LC_ALL, LC_CTYPE and LANG that is set.
fn locale_is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let said = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable);
    let locale = said.into_iter().find(|value| !value.is_empty()).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Escapes control characters and marks that change the direction of writing (Unicode 15, section
/// 23.2).
pub fn escaped(text: &str) -> String {
    let shown = |c: char| {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || turns { c.escape_default().to_string() } else { c.to_string() }
    };
    text.chars().map(shown).collect()
}

/// Escapes like [`escaped`], but keeps line feeds.
pub fn escaped_lines(text: &str) -> String {
    text.lines().map(escaped).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_terminals_are_escaped() {
        assert_eq!(escaped("a\u{1b}[2Jb\n\u{202e}c\u{9b}"), "a\\u{1b}[2Jb\\n\\u{202e}c\\u{9b}");
        assert_eq!(escaped_lines("a\nb\u{7}"), "a\nb\\u{7}");
        assert_eq!(escaped("São Paulo"), "São Paulo");
    }

    #[test]
    fn the_first_of_the_locales_variables_that_says_anything_counts() {
        for (all, ctype, lang, utf8) in [
            ("", "", "en_US.UTF-8", true),
            ("", "de_DE.utf8", "C", true),
            ("POSIX", "", "en_US.UTF-8", false),
            ("C.UTF-8", "C", "C", true),
            ("", "", "", false),
        ] {
            let variables = [("LC_ALL", all), ("LC_CTYPE", ctype), ("LANG", lang)];
            let value = |name: &str| {
                variables.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(locale_is_utf8(value), utf8, "{variables:?}");
        }
        assert!(!locale_is_utf8(|_| None));
    }

    #[test]
    fn only_the_state_column_is_coloured() {
        let mut rows = Rows::new(["service", "state", "module"]);
        rows.add(["running".into(), "running".into(), "running 0.1.0".into()]);
        rows.add(["é".into(), "odd".into(), "m".into()]);
        let lines: Vec<String> = rows.table.lines().collect();
        let row = |number| rows.table.row(number).unwrap();
        let stream = Stream::Terminal;
        assert_eq!(
            rows.painted(row(0), lines[1].trim_end(), stream),
            "running  \u{1b}[32mrunning\u{1b}[0m  running 0.1.0"
        );
        assert_eq!(rows.painted(row(1), "é        odd      m", stream), "é        odd      m");
    }

    #[test]
    fn a_table_is_compact() {
        let mut rows = Rows::new(["name", "packets"]);
        rows.add(["monitor".into(), "12".into()]);
        assert_eq!(rows.to_string(), "NAME     PACKETS\nmonitor  12\n");
    }
}
