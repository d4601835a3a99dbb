//! Translation of the TOML and JSON readers' errors into terms of the node file.
//!
//! The readers speak of Rust's types: "invalid type: map, expected a sequence".

use abi::manifest::Meant;
use std::ops::Range;

/// Longest piece of a file that a message quotes, in characters.
const QUOTED_MAX: usize = 40;

/// Returns what is wrong at the place of the error; `top` are the fields of the file's top level.
pub(super) fn problem(text: &str, error: &toml::de::Error, top: &[String]) -> String {
    let span = error.span().unwrap_or_default();
    let here = text.get(span.clone()).unwrap_or_default();
    let message = error.message();
    if message.starts_with("unknown field") {
        return unknown_field(message, table_of(text, &span), top);
    }
    if let Some(odd) = odd_character(text, &span, message) {
        return odd;
    }
    match mismatch(message) {
        Some((found, "a sequence")) if found == "map" && here.starts_with('[') => {
            let name = here.trim_matches(['[', ']']);
            format!("there may be several, so write it with two brackets: [[{name}]]")
        }
        Some((found, "a sequence")) if found.starts_with("string") => {
            format!("expected a list, as in [{}], found one text", shortened(here))
        }
        Some(("map", expected)) if here.starts_with(|c: char| c.is_ascii_digit()) => {
            format!("expected {}, found the date {}", expected_words(expected), shortened(here))
        }
        _ => plain(message),
    }
}

/// Returns the message of a reader without the names of Rust's types.
#[must_use]
pub fn plain(message: &str) -> String {
    if let Some((found, expected)) = mismatch(message) {
        let (expected, behind) = match expected.split_once(" at line ") {
            Some((expected, place)) => (expected, format!(" at line {place}")),
            None => (expected, String::new()),
        };
        let (expected, found) = (expected_words(expected), found_words(found));
        return format!("expected {expected}, found {found}{behind}");
    }
    if message == "duplicate key" {
        return "this key stands in the same table already; leave one of them".to_owned();
    }
    if message.starts_with("unknown ") {
        return format!("{}{}", unquoted(first_clause(message)), meant(message));
    }
    unquoted(message)
}

/// Splits "invalid type: FOUND, expected EXPECTED".
fn mismatch(message: &str) -> Option<(&str, &str)> {
    let rest = message.strip_prefix("invalid type: ").or(message.strip_prefix("invalid value: "))?;
    rest.rsplit_once(", expected ")
}

fn expected_words(expected: &str) -> String {
    let words = match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" | "u128" => "a whole number that is not negative",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "a borrowed string" => "text in quotes",
        "path string" => "a path in quotes",
        "a sequence" => "a list",
        "a map" => "a table",
        _ if expected.starts_with("struct ") => "a table",
        _ if expected.starts_with("enum ") => "a word in quotes",
        _ => return unquoted(expected),
    };
    words.to_owned()
}

fn found_words(found: &str) -> String {
    let number = found.strip_prefix("integer ").or(found.strip_prefix("floating point "));
    let number = number.or(found.strip_prefix("boolean "));
    if let Some(number) = number {
        return number.replace('`', "").replace(" as i128", "").replace(" as u128", "");
    }
    if let Some(text) = found.strip_prefix("string ") {
        return format!("the text {}", shortened(text));
    }
    match found {
        "map" => "a table".to_owned(),
        "sequence" => "a list".to_owned(),
        _ => unquoted(found),
    }
}

fn unknown_field(message: &str, table: &str, top: &[String]) -> String {
    let field = message.split('`').nth(1).unwrap_or_default();
    let at = if table.is_empty() { "the file's top".to_owned() } else { table.to_owned() };
    let is_the_nodes = !table.is_empty() && top.iter().any(|known| known == field);
    if is_the_nodes {
        let advice = "at the top of the file, in front of the first table, it is the node's";
        return format!("'{field}' is no field of {at}; {advice}");
    }
    format!("unknown field '{field}' in {at}{}", meant(message))
}

/// Returns the heading of the table that the place is in: `[[port]]`, or nothing at the top.
fn table_of<'a>(text: &'a str, span: &Range<usize>) -> &'a str {
    let before = text.get(..span.start).unwrap_or_default();
    let headings = before.lines().map(str::trim).filter(|line| line.starts_with('['));
    // A list over several lines may have lines that begin so.
    let mut headings = headings.filter(|line| !line.contains(['"', ',']));
    headings.next_back().and_then(|line| line.split('#').next()).unwrap_or_default().trim()
}

/// Names a character that cannot stand where it does and is easily overlooked.
fn odd_character(text: &str, span: &Range<usize>, message: &str) -> Option<String> {
    let is_of_syntax = message.contains("expected") && mismatch(message).is_none();
    let is_control = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r');
    let here = text.get(span.start..).filter(|_| is_of_syntax)?.chars().next();
    let odd = here.filter(|c| !c.is_ascii() || is_control(*c))?;
    let code = format!("U+{:04X}", u32::from(odd));
    Some(match odd {
        '\u{2018}'..='\u{201f}' | '\u{ab}' | '\u{bb}' => {
            format!("the character {odd} ({code}) is no quotation mark of TOML; write \"")
        }
        '\u{370}'..='\u{3ff}' => format!("the character {odd} ({code}) is a Greek letter"),
        '\u{400}'..='\u{52f}' => format!("the character {odd} ({code}) is a Cyrillic letter"),
        _ if odd.is_control() => format!("the control character {code} cannot stand here"),
        _ => format!("the character {} ({code}) cannot stand here", odd.escape_debug()),
    })
}

/// Returns a suggestion out of serde's "unknown field `x`, expected one of `a`, `b`".
fn meant(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    match quoted.next() {
        Some(found) => Meant::new(found, quoted).to_string(),
        None => String::new(),
    }
}

fn first_clause(message: &str) -> &str {
    message.split_once(", ").map_or(message, |(first, _)| first)
}

fn unquoted(text: &str) -> String {
    text.replace('`', "'")
}

fn shortened(text: &str) -> String {
    let text = text.lines().next().unwrap_or_default();
    match text.char_indices().nth(QUOTED_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeFile;

    fn refused(lines: &str) -> String {
        let text = format!("name = \"edge\"\n{lines}");
        NodeFile::parse(&text, "t.toml").unwrap_err().to_string()
    }

    const RULE: &str = "[[rule]]\nmatch = \"any\"\naction = \"drop\"\n";

    #[test]
    fn common_mistakes_in_a_node_file_are_explained_in_words() {
        let rule = |line: &str| format!("{RULE}{line}\n");
        for (lines, says) in [
            (
                "[port]\nname = \"a\"\n".to_owned(),
                "line 2, column 1: there may be several, so write it with two brackets: [[port]]",
            ),
            (
                "[[port]]\nname = \"a\"\ndevice = \"b\"\nfast_path = \"never\"\n".to_owned(),
                "line 5, column 1: 'fast_path' is no field of [[port]]; at the top of the file",
            ),
            (
                rule("priority = 1\npriority = 2"),
                "line 6, column 1: this key stands in the same table already",
            ),
            (
                rule("priority = \"200\""),
                "expected a whole number from 0 to 65535, found the text \"200\"",
            ),
            (
                "[[port]]\nname = 1\n".to_owned(),
                "line 3, column 8: expected text in quotes, found 1",
            ),
            (
                "[[session]]\nname = \"gold\"\ncpu = \"25ms/100ms\"\n".to_owned(),
                "expected a list, as in [\"25ms/100ms\"], found one text",
            ),
            (rule("priority = -1"), "expected a whole number from 0 to 65535, found -1"),
            (rule("priority = 99999999999999999999"), "found 99999999999999999999"),
            (rule("priority = 1e2"), "found 100.0"),
            (rule("priority = 2024-01-01"), "found the date 2024-01-01"),
            (
                "[[port]]\nname = “left”\n".to_owned(),
                "line 3, column 8: the character “ (U+201C) is no quotation mark",
            ),
            (
                "[[rule]]\nаction = \"drop\"\n".to_owned(),
                "line 3, column 1: the character а (U+0430) is a Cyrillic letter",
            ),
            ("[[rule]]\naction = \"dr\0op\"\n".to_owned(), "the control character U+0000"),
            (
                "metrics.lisen = \"x\"\n".to_owned(),
                "unknown field 'lisen' in the file's top; did you mean 'listen'?",
            ),
        ] {
            let message = refused(&lines);
            assert!(message.contains(says), "{lines}: {message}");
            assert!(!message.contains('\n') && !message.contains('`'), "{message}");
        }
    }

    #[test]
    fn a_byte_order_mark_and_line_ends_of_windows_are_taken() {
        let text =
            "\u{feff}name = \"edge\"\r\n[[rule]]\r\nmatch = \"any\"\r\naction = \"drop\"\r\n";
        assert_eq!(NodeFile::parse(text, "t.toml").unwrap().wanted.rules.len(), 1);
    }

    #[test]
    fn deep_nesting_is_refused() {
        let deep = format!("a = {}{}\n", "[".repeat(100_000), "]".repeat(100_000));
        assert!(refused(&deep).starts_with("t.toml, line 2"));
    }

    #[test]
    fn complaints_of_the_json_reader_keep_their_place() {
        let error = serde_json::from_str::<Vec<u16>>("[1, \"a\"]").unwrap_err().to_string();
        let said =
            "expected a whole number from 0 to 65535, found the text \"a\" at line 1 column 7";
        assert_eq!(plain(&error), said);
        assert_eq!(
            plain("EOF while parsing a list at line 1 column 1"),
            "EOF while parsing a list at line 1 column 1"
        );
    }
}
