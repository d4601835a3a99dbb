//! Gaps of a grant: rights that are missing, without which a node refuses every request of an
//! operation that the grant allows.
//!
//! docs/guides/trust.md, "What a request needs", is the table that this module and a node
//! (`node/daemon/src/authorize.rs`) follow. Facts that only a node knows, such as owners and a
//! module's imports, are left out: these gaps exist on every node.

use abi::Level;
use trust::{Extent, Grant, Kind, Operation, UnixTime};

/// The session of infrastructure (docs/guides/sessions.md).
const SYSTEM: &str = "system";

/// Returns the unusable rights of a grant, each as a sentence with what to add.
pub(super) fn gaps(grant: &Grant, now: UnixTime) -> Vec<String> {
    if *grant == Grant::none() {
        return vec!["the token grants nothing; see `tam token new --help`".to_owned()];
    }
    if let Some(until) = grant.until.filter(|until| *until <= now) {
        let ago = now.0 - until.0;
        return vec![format!("the token can never be used: it ended {ago} s ago; see --until")];
    }
    if is_none(&grant.operations) {
        return vec!["the token can never be used: it grants no operation; add --may".to_owned()];
    }
    let may = |operation: &&Operation| has(&grant.operations, operation);
    Operation::ALL.iter().filter(may).filter_map(|operation| gap(grant, *operation)).collect()
}

fn gap(grant: &Grant, operation: Operation) -> Option<String> {
    let lacks: Vec<&str> = needs(grant, operation)
        .into_iter()
        .filter(|(is_granted, _)| !is_granted)
        .map(|(_, option)| option)
        .collect();
    let add = (!lacks.is_empty()).then(|| lacks.join(" "))?;
    let what = format!("`{operation}` can never be used");
    Some(format!("{what}: the token lacks what that needs; add {add}"))
}

/// Returns the further rights that every request of an operation needs: whether each is granted,
/// and the option that grants it.
fn needs(grant: &Grant, operation: Operation) -> Vec<(bool, &'static str)> {
    let session = (!is_none(&grant.sessions), "--session NAME");
    let module = (!is_none(&grant.modules), "--module PATTERN");
    let kind = (!is_none(&grant.kinds), "--kind application");
    match operation {
        // A module that is read has no kind, and the other rights are useful without modules.
        Operation::Read => Vec::new(),
        Operation::Store => vec![module, (has(&grant.kinds, &Kind::Application), kind.1)],
        Operation::Deploy => vec![
            session,
            module,
            kind_in_session(grant),
            // A service may be moved to user level from any other.
            (has(&grant.levels, &Level::User), "--level user"),
            (grant.ceilings.0[0] != Some(0), "--most services=N above 0"),
        ],
        Operation::Remove | Operation::Message | Operation::Capture | Operation::Session => {
            vec![session]
        }
        Operation::Move => vec![session, (!is_none(&grant.levels), "--level LEVEL")],
        Operation::Rule => vec![session, (!is_none(&grant.traffic), "--traffic PREFIX")],
        Operation::Administer => Vec::new(),
    }
}

/// Returns whether a service of some granted kind may be in some granted session, and the option
/// that would allow it.
fn kind_in_session(grant: &Grant) -> (bool, &'static str) {
    let is_system = |name: &String| name == SYSTEM;
    let (in_system, elsewhere) = match &grant.sessions {
        Extent::All => (true, true),
        Extent::Only(names) => (names.iter().any(is_system), !names.iter().all(is_system)),
    };
    let fits = (in_system && has(&grant.kinds, &Kind::Infrastructure))
        || (elsewhere && has(&grant.kinds, &Kind::Application));
    let only_system = in_system && !elsewhere;
    let option = if only_system { "--kind infrastructure" } else { "--kind application" };
    (fits || (is_none(&grant.sessions) && !is_none(&grant.kinds)), option)
}

fn is_none<T>(extent: &Extent<T>) -> bool {
    matches!(extent, Extent::Only(values) if values.is_empty())
}

fn has<T: Ord>(extent: &Extent<T>, value: &T) -> bool {
    match extent {
        Extent::All => true,
        Extent::Only(values) => values.contains(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime(1_000);

    fn grant(operations: &[Operation]) -> Grant {
        Grant { operations: Extent::only(operations.iter().copied()), ..Grant::none() }
    }

    fn pulls() -> Grant {
        let modules = Extent::only(["name:monitor".parse().unwrap()]);
        Grant { modules, ..grant(&[Operation::Read]) }
    }

    fn deploys() -> Grant {
        Grant {
            sessions: Extent::only(["alice".to_owned()]),
            kinds: Extent::only([Kind::Application]),
            levels: Extent::only([Level::User]),
            operations: Extent::only([Operation::Deploy]),
            ..pulls()
        }
    }

    fn says(grant: &Grant) -> String {
        gaps(grant, NOW).join("\n")
    }

    #[test]
    fn a_grant_that_lacks_nothing_has_no_gaps() {
        let system = Grant {
            sessions: Extent::only([SYSTEM.to_owned()]),
            kinds: Extent::only([Kind::Infrastructure]),
            ..deploys()
        };
        let stores = Grant {
            operations: Extent::only([Operation::Store]),
            kinds: Extent::only([Kind::Application]),
            ..pulls()
        };
        for good in [
            Grant::all(),
            pulls(),
            stores,
            deploys(),
            system,
            grant(&[Operation::Read, Operation::Administer]),
            Grant { until: Some(UnixTime(1_001)), ..Grant::all() },
        ] {
            assert_eq!(gaps(&good, NOW), Vec::<String>::new(), "{good:?}");
        }
    }

    #[test]
    fn rights_that_can_never_be_used_are_reported_with_what_to_add() {
        assert!(says(&Grant::none()).contains("grants nothing"));
        assert!(says(&Grant { until: Some(NOW), ..Grant::all() }).contains("it ended 0 s ago"));
        assert!(says(&Grant { operations: Extent::none(), ..deploys() }).contains("add --may"));
        let needs_all = says(&grant(&[Operation::Deploy]));
        let adds = "add --session NAME --module PATTERN --kind application --level user";
        assert!(needs_all.ends_with(adds), "{needs_all}");
        let rules = says(&grant(&[Operation::Rule, Operation::Move]));
        assert!(rules.contains("`move` can never be used"), "{rules}");
        assert!(rules.contains("--session NAME --traffic PREFIX"), "{rules}");
        let at_nic = Grant { levels: Extent::only([Level::Nic]), ..deploys() };
        assert!(says(&at_nic).ends_with("add --level user"));
        let none = Grant { kinds: Extent::only([Kind::Infrastructure]), ..deploys() };
        assert!(says(&none).ends_with("add --kind application"));
        let system = Grant { sessions: Extent::only([SYSTEM.to_owned()]), ..deploys() };
        assert!(says(&system).ends_with("add --kind infrastructure"));
        let mut nothing = deploys();
        nothing.ceilings.0[0] = Some(0);
        assert!(says(&nothing).contains("services=N above 0"));
        let infrastructure = Extent::only([Kind::Infrastructure]);
        let stores = Extent::only([Operation::Store]);
        let stores = Grant { operations: stores, kinds: infrastructure, ..pulls() };
        assert!(says(&stores).ends_with("add --kind application"));
    }
}
