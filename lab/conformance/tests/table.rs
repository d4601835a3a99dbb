//! Tests of the whole table at every level: each case ends as it says, or is refused as it says.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use engine::MemoryKind;

use conformance::{Below, Case, Level, LevelError, Module, User, cases, differences};

/// Number of cases that `nic` refuses: exactly those that the table declares.
const REFUSED_AT_NIC: usize = 7;
/// Number of cases that `kernel` refuses; it also lacks `packet_resize_head` by a number known only
/// at run time.
const REFUSED_AT_KERNEL: usize = 21;

#[test]
fn every_case_ends_as_the_table_says() {
    for kind in [MemoryKind::Own, MemoryKind::OwnPacked] {
        run_table(&mut User::with(kind).unwrap(), 0);
    }
}

#[test]
fn every_case_ends_at_nic_as_the_table_says_or_is_refused_as_declared() {
    if testbase::root_or_skip("the conformance table at nic") {
        run_table(&mut Below::nic().unwrap(), REFUSED_AT_NIC);
    }
}

#[test]
fn every_case_ends_at_kernel_as_the_table_says_or_is_refused_as_declared() {
    if testbase::root_or_skip("the conformance table at kernel") {
        run_table(&mut Below::kernel().unwrap(), REFUSED_AT_KERNEL);
    }
}

/// Runs all cases; `refused` of them must be refused there.
fn run_table(level: &mut dyn Level, refused: usize) {
    let word = level.level();
    let (mut failures, mut not_built) = (Vec::new(), BTreeSet::new());
    let (mut conform, mut refusals) = (0, 0);
    for case in cases() {
        match check(level, &case) {
            Checked::Conforms => conform += 1,
            Checked::Refused => refusals += 1,
            Checked::NotBuilt(why) => {
                // Counted as the table declares it; services that are not built are reported below.
                refusals += usize::from(case.refused.contains_key(&word));
                not_built.insert(why);
            }
            Checked::Fails(why) => {
                let (file, line, name) = (&case.file, case.line, &case.name);
                failures.extend(why.iter().map(|why| format!("{file}:{line}: {name}: {why}")));
            }
        }
    }
    println!("at level {word}: {conform} conform, {refusals} refused as declared");
    assert!(failures.is_empty(), "at level {word}:\n{}", failures.join("\n"));
    assert_eq!(refusals, refused, "cases refused at {word}: lower the number if it is less");
    not_built.iter().for_each(|why| testbase::skip_this(why));
}

enum Checked {
    Conforms,
    Refused,
    NotBuilt(String),
    Fails(Vec<String>),
}

fn check(level: &mut dyn Level, case: &Case) -> Checked {
    let declared = case.refused.get(&level.level()).map(String::as_str);
    match level.run(case) {
        Err(LevelError::Module(error)) if matches!(case.module, Module::Service(_)) => {
            Checked::NotBuilt(error.to_string())
        }
        Err(error) if error.refusal().is_some() && error.refusal() == declared => Checked::Refused,
        Err(error) => Checked::Fails(vec![format!(
            "not run ({}, declared {declared:?}): {error}",
            error.refusal().unwrap_or("no refusal")
        )]),
        Ok(_) if declared.is_some() => {
            Checked::Fails(vec![format!("runs, though declared as refused: {declared:?}")])
        }
        Ok(found) => match differences(&case.expected, &found) {
            differences if differences.is_empty() => Checked::Conforms,
            differences => Checked::Fails(differences),
        },
    }
}
