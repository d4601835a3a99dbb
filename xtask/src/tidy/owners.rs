//! Limits of what one type owns: its fields, its methods, where they are; and no circles of files.

use super::Finding;
use super::tree::Tree;
use crate::house::{FIELDS_MAX, House, METHODS_MAX, Owner};

const CHECK: &str = "owners";

/// Types above a limit, as `file::Type`, each with the reason. The list can only shrink: an entry
/// that is not needed is an error.
const EXCEPTIONS: [(&str, &str); 0] = [];

/// Finds types above a limit, circles of files, and exceptions that are not needed.
pub fn check(tree: &Tree) -> Vec<Finding> {
    judge(&House::of(tree), &EXCEPTIONS)
}

fn judge(house: &House, exceptions: &[(&str, &str)]) -> Vec<Finding> {
    let is_excepted = |path: &str| exceptions.iter().any(|(excepted, _)| *excepted == path);
    let mut findings = Vec::new();
    let mut above = Vec::new();
    for owner in &house.owners {
        let path = format!("{}::{}", owner.file, owner.name);
        let found = beyond(owner);
        if !found.is_empty() {
            above.push(path.clone());
        }
        if is_excepted(&path) {
            continue;
        }
        let finding = |message| Finding::error(CHECK, &owner.file, owner.line, message);
        findings.extend(found.into_iter().map(finding));
    }
    for circle in &house.circles {
        let message = format!("{} files use each other: {}", circle.len(), circle.join(" "));
        findings.push(Finding::error(CHECK, &circle[0], 1, message));
    }
    for (path, _) in exceptions.iter().filter(|(path, _)| !above.iter().any(|it| it == path)) {
        let message = format!("{path} is below all limits: take it off xtask's EXCEPTIONS");
        findings.push(Finding::error(CHECK, path.split("::").next().unwrap_or(path), 1, message));
    }
    findings
}

/// Returns the limits that a type is above of, in words.
fn beyond(owner: &Owner) -> Vec<String> {
    let Owner { name, fields, methods, elsewhere, .. } = owner;
    let mut found = Vec::new();
    if *fields > FIELDS_MAX && !owner.is_record {
        found.push(format!("{name} has {fields} fields, at most {FIELDS_MAX}: find its owners"));
    }
    if *methods > METHODS_MAX {
        found.push(format!("{name} has {methods} methods, at most {METHODS_MAX}: find its owners"));
    }
    if !elsewhere.is_empty() {
        let files: Vec<&str> = elsewhere.iter().map(String::as_str).collect();
        found.push(format!("{name} has methods in other files: {}", files.join(" ")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(files: &[(&str, &str)], exceptions: &[(&str, &str)]) -> Vec<String> {
        let crates = [
            ("Cargo.toml", "[workspace]\nmembers = [\"base/a\"]\n"),
            ("base/a/Cargo.toml", "[package]\nname = \"a\"\n"),
        ];
        let files: Vec<_> = crates.iter().chain(files).copied().collect();
        let found = judge(&House::of(&Tree::of(&files)), exceptions);
        found.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_type_above_a_limit_is_found_unless_it_is_excepted() {
        let fields: String = (0..21).map(|at| format!("f{at}: u8, ")).collect();
        let large = format!("struct A {{ {fields} }}\nimpl A {{ fn f() {{}} }}\n");
        let files = [("base/a/src/lib.rs", large.as_str())];
        let found = messages(&files, &[]);
        assert!(found.len() == 1 && found[0].contains("21 fields"), "{found:?}");
        assert_eq!(messages(&files, &[("base/a/src/lib.rs::A", "why")]), [""; 0]);
        let methods: String = (0..61).map(|at| format!("fn f{at}() {{}}\n")).collect();
        let many = format!("struct A;\nimpl A {{ {methods} }}\n");
        let found = messages(&[("base/a/src/lib.rs", &many)], &[]);
        assert!(found.len() == 1 && found[0].contains("61 methods"), "{found:?}");
        let record = format!("#[derive(Serialize)]\n{large}");
        assert_eq!(messages(&[("base/a/src/lib.rs", &record)], &[]), [""; 0]);
        let data = format!("struct A {{ {fields} }}\n");
        assert_eq!(messages(&[("base/a/src/lib.rs", &data)], &[]), [""; 0], "it owns nothing");
    }

    #[test]
    fn an_exception_that_is_not_needed_is_found() {
        let files = [("base/a/src/lib.rs", "struct A;\nimpl A { fn f() {} }\n")];
        let found = messages(&files, &[("base/a/src/lib.rs::A", "once it was large")]);
        assert!(found.len() == 1 && found[0].contains("take it off"), "{found:?}");
    }

    #[test]
    fn methods_in_other_files_and_circles_are_found() {
        let found = messages(
            &[
                ("base/a/src/lib.rs", "mod b;\nmod c;\n"),
                ("base/a/src/b.rs", "use crate::c::C;\npub struct B(C);\nimpl B { fn f() {} }\n"),
                ("base/a/src/c.rs", "use crate::b::B;\npub struct C;\nimpl B { fn g() {} }\n"),
            ],
            &[],
        );
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].contains("base/a/src/c.rs") && found[1].starts_with("2 files"),
            "{found:?}"
        );
    }
}
