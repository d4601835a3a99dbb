//! The whole table at user level.

#![forbid(unsafe_code)]

use conformance::{Level, LevelError, Module, User, cases, differences};
use std::collections::BTreeSet;

#[test]
fn every_case_ends_as_the_table_says() {
    let mut user = User::new().unwrap();
    let mut failures = Vec::new();
    let mut not_built = BTreeSet::new();
    for case in cases() {
        let (place, name) = (format!("{}:{}", case.file, case.line), &case.name);
        match (user.run(&case), &case.module) {
            (Err(LevelError::Module(error)), Module::Service(_)) => {
                not_built.insert(error.to_string());
            }
            (Err(error), _) => failures.push(format!("{place}: {name}: not run: {error}")),
            (Ok(found), _) => {
                let differences = differences(&case.expected, &found);
                failures.extend(differences.iter().map(|what| format!("{place}: {name}: {what}")));
            }
        }
    }
    assert!(failures.is_empty(), "at level {}:\n{}", user.name(), failures.join("\n"));
    not_built.iter().for_each(|why| testkit::skip("every_case_ends_as_the_table_says", why));
}
