//! Builds and tests of the workspace resolve the same features of the same packages.
//!
//! Different features make Cargo build a library twice, and the system tests run another program
//! than the one that `make build` makes. Cargo alone knows what it resolves, so this rule reads the
//! output of two `cargo tree` commands; it does not run them.

use std::collections::BTreeSet;

use super::Finding;

const CHECK: &str = "features";

/// Arguments of the `cargo tree` that lists each package with its features; `--edges` and the
/// kinds of dependencies stand behind them.
pub const TREE: [&str; 6] =
    ["tree", "--workspace", "--locked", "--prefix=none", "--no-dedupe", "--format={p} [{f}]"];
/// Kinds of dependencies of a build.
pub const BUILT: &str = "--edges=normal,build";
/// Kinds of dependencies of a build with its tests.
pub const TESTED: &str = "--edges=normal,build,dev";

/// Output of `cargo tree` for the two kinds of builds.
#[derive(Debug, Default)]
pub struct Listings {
    /// Dependencies of a build with [`BUILT`].
    pub built: String,
    /// Dependencies of a build with [`TESTED`].
    pub tested: String,
}

/// Compares the two listings.
pub fn check(listings: &Listings) -> Vec<Finding> {
    let (built, tested) = (packages(&listings.built), packages(&listings.tested));
    let differs = |line: &&str, what: &str| {
        let message = format!(
            "{line} is resolved by {what} alone: give [workspace.dependencies] the feature, or a \
             package of the workspace the dependency, so that nothing is built twice"
        );
        Finding::error(CHECK, "Cargo.toml", 1, message)
    };
    let built_alone = built.difference(&tested).map(|line| differs(line, "builds"));
    let tested_alone = tested.difference(&built).map(|line| differs(line, "tests"));
    built_alone.chain(tested_alone).collect()
}

/// Returns the lines of a listing, each `name version [features]`, without Cargo's mark of
/// repetition.
fn packages(listing: &str) -> BTreeSet<&str> {
    listing
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|line| !line.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(built: &str, tested: &str) -> Vec<Finding> {
        check(&Listings { built: built.to_owned(), tested: tested.to_owned() })
    }

    #[test]
    fn a_feature_that_only_tests_have_is_found_on_both_sides() {
        let built = "tokio v1.0.0 [net]\nserde v1.0.0 [std]\n";
        let tested = "serde v1.0.0 [std] (*)\ntokio v1.0.0 [net,test-util]\n";
        let found: Vec<String> = compared(built, tested).into_iter().map(|it| it.message).collect();
        assert_eq!(found.len(), 2);
        assert!(
            found[0].starts_with("tokio v1.0.0 [net] is resolved by builds alone"),
            "{found:?}"
        );
        assert!(found[1].starts_with("tokio v1.0.0 [net,test-util] is resolved by tests alone"));
    }

    #[test]
    fn repetitions_and_order_are_no_difference() {
        assert_eq!(compared("a v1 [x]\nb v1 []\n", "b v1 []\na v1 [x] (*)\na v1 [x]\n"), []);
    }
}
