//! Limits of what one type owns: fields, methods, where they are; and no circles of files.
//!
//! What is above a limit today is counted by crate and can only become less: a crate that has more
//! fails, and so does an entry of [`TODAY`] that is larger than what there is.

use std::collections::BTreeMap;

use super::Finding;
use super::tree::Tree;
use crate::house::{FIELDS_MAX, House, METHODS_MAX, Owner};

const CHECK: &str = "owners";

/// Counts of what a crate has above each limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Above {
    /// Structs with methods and more than [`FIELDS_MAX`] fields, records aside.
    fields: usize,
    /// Types with more than [`METHODS_MAX`] inherent methods.
    methods: usize,
    /// Types with inherent methods in other files than their own.
    elsewhere: usize,
    /// Files in circles.
    circles: usize,
}

/// Crates that are above limits: fields, methods, elsewhere, circles. `Daemon`, `Cell` and what
/// hangs on them are to become owners with private fields.
const TODAY: [(&str, [usize; 4]); 1] = [("node/daemon", [0, 1, 2, 36])];

/// Finds what is above a limit beyond what was, and entries that are too large.
pub fn check(tree: &Tree) -> Vec<Finding> {
    judge(tree, &House::of(tree), &TODAY)
}

fn judge(tree: &Tree, house: &House, today: &[(&str, [usize; 4])]) -> Vec<Finding> {
    let mut found: BTreeMap<&str, Above> = BTreeMap::new();
    for owner in &house.owners {
        let above = found.entry(&owner.krate).or_default();
        above.fields += usize::from(is_large(owner));
        above.methods += usize::from(owner.methods > METHODS_MAX);
        above.elsewhere += usize::from(!owner.elsewhere.is_empty());
    }
    for circle in &house.circles {
        let of = |krate: &&str| circle[0].starts_with(&format!("{krate}/src/"));
        let krate = house.lines.keys().map(String::as_str).find(of);
        found.entry(krate.unwrap_or_default()).or_default().circles += circle.len();
    }
    let krates = tree.crates.iter().map(|krate| krate.folder.as_str());
    krates.flat_map(|krate| judge_crate(krate, found.get(krate), today)).collect()
}

fn is_large(owner: &Owner) -> bool {
    owner.fields > FIELDS_MAX && !owner.is_record
}

fn judge_crate(krate: &str, found: Option<&Above>, today: &[(&str, [usize; 4])]) -> Vec<Finding> {
    let Above { fields, methods, elsewhere, circles } = found.copied().unwrap_or_default();
    let allowed = today.iter().find(|(name, _)| *name == krate).map_or([0; 4], |(_, it)| *it);
    let measures = [
        (fields, format!("structs with methods and more than {FIELDS_MAX} fields")),
        (methods, format!("types with more than {METHODS_MAX} methods")),
        (elsewhere, "types with methods in other files".to_owned()),
        (circles, "files in circles".to_owned()),
    ];
    let judged = measures.into_iter().zip(allowed).filter_map(|((found, what), allowed)| {
        let message = match found.cmp(&allowed) {
            std::cmp::Ordering::Equal => return None,
            std::cmp::Ordering::Greater => {
                format!("{found} {what}, at most {allowed}: `cargo xtask house` says which")
            }
            std::cmp::Ordering::Less => {
                format!("{found} {what} now: lower its entry in xtask's TODAY from {allowed}")
            }
        };
        Some(Finding::error(CHECK, &format!("{krate}/Cargo.toml"), 1, message))
    });
    judged.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(source: &str, today: [usize; 4]) -> Vec<String> {
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace]\nmembers = [\"base/a\"]\n"),
            ("base/a/Cargo.toml", "[package]\nname = \"a\"\n"),
            ("base/a/src/lib.rs", source),
        ]);
        let found = judge(&tree, &House::of(&tree), &[("base/a", today)]);
        found.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn more_than_there_was_is_found_and_so_is_an_entry_that_is_too_large() {
        let fields: String = (0..21).map(|at| format!("f{at}: u8, ")).collect();
        let large = format!("struct A {{ {fields} }}\nimpl A {{ fn f() {{}} }}\n");
        assert_eq!(messages(&large, [1, 0, 0, 0]), [""; 0]);
        let found = messages(&large, [0; 4]);
        assert!(found.len() == 1 && found[0].contains("at most 0"), "{found:?}");
        let found = messages(&large, [2, 0, 1, 0]);
        assert!(found.len() == 2 && found.iter().all(|it| it.contains("lower")), "{found:?}");
        let record = format!("#[derive(Serialize)]\n{large}");
        assert_eq!(messages(&record, [0; 4]), [""; 0]);
        let data = format!("struct A {{ {fields} }}\n");
        assert_eq!(messages(&data, [0; 4]), [""; 0], "without methods it is no owner");
    }
}
