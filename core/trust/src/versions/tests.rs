//! Tests of marks, and of random histories of versions.

use super::*;
use crate::{SecretKey, Seed};
use proptest::prelude::*;

fn signer(byte: u8) -> Signer {
    SecretKey::from_seed(&Seed::from([byte; 32])).public().into()
}

fn accept(marks: &mut Versions, version: &str, by: &[Signer]) -> Result<bool, VersionError> {
    marks.accept("monitor", version, by, Older::Refused)
}

#[test]
fn an_older_signed_version_is_refused_until_an_administrator_allows_it() {
    let (mut marks, by) = (Versions::default(), [signer(1)]);
    assert_eq!(accept(&mut marks, "1.2.0", &by), Ok(true));
    assert_eq!(accept(&mut marks, "1.2.0", &by), Ok(false), "the same again");
    assert_eq!(accept(&mut marks, "1.10.0", &by), Ok(true), "numbers, not texts");
    let error = accept(&mut marks, "1.9.9", &by).unwrap_err();
    assert!(error.to_string().starts_with("monitor 1.9.9 is older than 1.10.0"), "{error}");
    assert_eq!(marks.highest("monitor", &by[0]).unwrap().to_string(), "1.10.0");

    assert_eq!(marks.accept("monitor", "1.9.9", &by, Older::Allowed), Ok(true));
    assert_eq!(accept(&mut marks, "1.9.9", &by), Ok(false), "also after a restart");
    assert!(accept(&mut marks, "1.9.8", &by).is_err(), "and nothing that is older still");
}

#[test]
fn a_release_candidate_is_older_than_its_release() {
    let (mut marks, by) = (Versions::default(), [signer(1)]);
    for version in ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0"] {
        assert_eq!(accept(&mut marks, version, &by), Ok(true), "{version}");
    }
    assert!(matches!(accept(&mut marks, "1.0.0-rc.1", &by), Err(VersionError::Older { .. })));
}

#[test]
fn omitting_or_adding_signatures_evades_no_mark() {
    let (alice, bob, carol) = (signer(1), signer(2), signer(3));
    let mut marks = Versions::default();
    accept(&mut marks, "2.0.0", &[alice, bob]).unwrap();
    for by in [&[alice][..], &[bob], &[alice, bob], &[alice, carol], &[carol, bob]] {
        let result = accept(&mut marks, "1.0.0", by);
        assert!(matches!(result, Err(VersionError::Older { .. })), "{by:?}");
    }
    assert_eq!(marks.len(), 2, "what is refused leaves no mark, not of carol either");
    assert_eq!(accept(&mut marks, "1.0.0", &[carol]), Ok(true), "her own module of that name");
    assert_eq!(marks.accept("nat", "1.0.0", &[alice], Older::Refused), Ok(true), "another name");
}

#[test]
fn an_invalid_version_is_named() {
    let mut marks = Versions::default();
    let long = format!("1.0.0-{}", "a".repeat(200));
    for bad in [
        "",
        "1",
        "1.2",
        "v1.2.3",
        "01.2.3",
        "1.0.0-01",
        "1.2.3 ",
        "99999999999999999999.0.0",
        &long,
    ] {
        let result = accept(&mut marks, bad, &[signer(1)]);
        assert!(matches!(result, Err(VersionError::Malformed(_))), "{bad}");
    }
    assert!(marks.is_empty());
}

#[test]
fn marks_have_a_limit_and_a_text_that_is_read_strictly() {
    let by = [signer(1)];
    let mut marks = Versions::default();
    for number in 0..MARKS_MAX {
        marks.accept(&format!("m{number}"), "1.0.0", &by, Older::Refused).unwrap();
    }
    let more = marks.accept("one-more", "1.0.0", &by, Older::Refused);
    assert_eq!(more, Err(VersionError::Full));
    assert_eq!(marks.accept("m7", "1.1.0", &by, Older::Refused), Ok(true));
    let text = marks.to_string();
    assert!(text.len() <= TEXT_LENGTH_MAX);
    assert_eq!(text.parse(), Ok(marks));

    let one = format!(r#"{{"signer":"{}","name":"m","version":"1.0.0"}}"#, by[0]);
    assert_eq!(format!("[{one}]").parse::<Versions>().unwrap().len(), 1);
    let more = one.replace('}', ",\"x\":1}");
    for bad in ["", "{}", &one, &format!("[{one},{one}]"), &format!("[{more}]"), "[{}]"] {
        assert!(bad.parse::<Versions>().is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn no_history_leads_to_an_older_version_without_permission(
        history in proptest::collection::vec((0..4u64, 0..4u64, 1..8u8), 1..60)
    ) {
        let mut marks = Versions::default();
        let mut ran: Vec<(Version, u8)> = Vec::new();
        for (major, minor, set) in history {
            let version = Version::new(major, minor, 0);
            let by: Vec<Signer> = (0..3u8).filter(|bit| set >> bit & 1 == 1).map(signer).collect();
            let is_older = ran.iter().any(|(other, by)| by & set != 0 && *other > version);
            let result = accept(&mut marks, &version.to_string(), &by);
            prop_assert_eq!(result.is_err(), is_older);
            if !is_older {
                ran.push((version, set));
            }
            prop_assert_eq!(marks.to_string().parse(), Ok(marks.clone()));
        }
    }
}
