//! Checks of one file alone: its opening, unfinished work,
//! panics, and traces of the machine that it was written on.

use super::Finding;
use super::rust::Source;
use super::tree::Tree;

/// Words of unfinished work, spelt so that this file does not contain them.
const UNFINISHED: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
/// Macros of unfinished work.
const UNFINISHED_MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];
/// Paths of one machine, spelt so that this file does not contain them.
const MACHINE_PATHS: [&str; 3] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Runs the checks of single files.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files() {
        if !path.ends_with(".md") {
            findings.extend(words(
                path,
                text,
                "unfinished",
                &UNFINISHED,
                "finish it, or open an issue",
            ));
        }
        let advice = "no other machine has this path";
        findings.extend(words(path, text, "machine-path", &MACHINE_PATHS, advice));
    }
    for (path, source) in tree.sources() {
        if !tree.text(path).is_some_and(|text| text.trim_start().starts_with("//!")) {
            let message = "begin with //!: what this file is, and what it is not";
            findings.push(Finding::error("opening", path, 1, message));
        }
        findings.extend(unfinished_code(path, source));
        findings.extend(unwraps(path, source));
    }
    findings
}

fn words(
    path: &str,
    text: &str,
    check: &'static str,
    words: &[&str],
    advice: &str,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if let Some(word) = words.iter().find(|word| has_word(line, word)) {
            findings.push(Finding::error(check, path, at + 1, format!("{word}: {advice}")));
        }
    }
    findings
}

/// Returns true if `word` stands in the line and is no part of a longer word.
pub fn has_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(part_of_word)
            && (!after.is_some_and(part_of_word) || word.ends_with('/'))
    })
}

fn unfinished_code(path: &str, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in UNFINISHED_MACROS {
        for token in source.find(&[name, "!"]) {
            let message = format!("{name}!: finish it, or open an issue");
            findings.push(Finding::error("unfinished", path, token.line, message));
        }
    }
    for token in source.find(&["#", "[", "ignore"]) {
        let message = "an ignored test proves nothing: make it run, or remove it";
        findings.push(Finding::error("unfinished", path, token.line, message));
    }
    findings
}

/// `unwrap()` outside tests: input must not panic, and what cannot fail says why.
fn unwraps(path: &str, source: &Source) -> Vec<Finding> {
    if path.contains("/tests/") || path.starts_with("lab/system/") || path.starts_with("lab/fuzz/")
    {
        return Vec::new();
    }
    source
        .find(&[".", "unwrap", "(", ")"])
        .filter(|token| !token.test)
        .map(|token| {
            let message = "unwrap outside tests: return the error, or expect(\"why it holds\")";
            Finding::error("unwrap", path, token.line, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks_of(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        check(&Tree::of(&[(path, text)])).iter().map(|f| (f.check, f.line)).collect()
    }

    #[test]
    fn a_file_begins_with_what_it_is() {
        assert_eq!(checks_of("a/src/a.rs", "//! A.\nfn f() {}\n"), []);
        assert_eq!(checks_of("a/src/a.rs", "// A.\nfn f() {}\n"), [("opening", 1)]);
        assert_eq!(checks_of("a/src/a.rs", ""), [("opening", 1)]);
    }

    #[test]
    fn unfinished_work_is_found() {
        let words = UNFINISHED.map(|word| format!("// {word}: later"));
        let macros = UNFINISHED_MACROS.map(|name| format!("fn f() {{ {name}!() }}"));
        let ignored = ["#[ignore]".to_owned(), "#[ignore = \"slow\"]".to_owned()];
        for line in words.iter().chain(&macros).chain(&ignored) {
            let text = format!("//! A.\n{line}\nfn g() {{}}\n");
            assert_eq!(checks_of("a/src/a.rs", &text), [("unfinished", 2)], "{line}");
        }
        assert_eq!(checks_of("a/src/a.rs", "//! A.\nfn todo() { todo() }\n"), []);
    }

    #[test]
    fn unwrap_is_for_tests() {
        let text = "//! A.\nfn f() { g().unwrap() }\n";
        assert_eq!(checks_of("a/src/a.rs", text), [("unwrap", 2)]);
        assert_eq!(checks_of("a/tests/a.rs", text), []);
        let text = "//! A.\n#[cfg(test)]\nmod tests { fn f() { g().unwrap() } }\n";
        assert_eq!(checks_of("a/src/a.rs", text), []);
    }

    #[test]
    fn machine_paths_are_found_in_every_text() {
        let text = format!("see {}x and {}y\n", MACHINE_PATHS[0], MACHINE_PATHS[1]);
        for path in ["README.md", "tools/a.sh", "a/a.toml"] {
            assert_eq!(checks_of(path, &text), [("machine-path", 1)], "{path}");
        }
        assert_eq!(checks_of("README.md", concat!("frame/wo", "rk/on it, network/\n")), []);
    }

    #[test]
    fn a_word_is_no_part_of_another() {
        assert!(has_word("a plugin.", "plugin") && has_word("plugin", "plugin"));
        assert!(!has_word("plugins", "plugin") && !has_word("my_plugin", "plugin"));
    }
}
