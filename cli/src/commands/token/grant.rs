//! Options of a grant, shared by `tam token new` and `attenuate`.

use crate::failure::Failure;
use api::ErrorCode;
use clap::Args;
use jiff::{Span, Timestamp, tz::TimeZone};
use std::collections::BTreeSet;
use trust::request::RESOURCES;
use trust::{Extent, Grant, Kind, Operation, UnixTime};

/// Options of `tam token new` and `tam token attenuate`.
#[derive(Debug, Args)]
#[command(next_help_heading = "What may be done; `all` stands for every value")]
pub struct GrantArgs {
    /// Operations: read, store, deploy, remove, move, message, rule, capture, session, administer
    #[arg(long, value_name = "OPERATION", value_delimiter = ',')]
    may: Option<Vec<String>>,
    /// Sessions whose services and rules may be used
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    session: Option<Vec<String>>,
    /// Modules: sha256:…, name:NAME, name:START*, signer:ed25519/…
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    module: Option<Vec<String>>,
    /// Kinds of services: application, infrastructure
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Option<Vec<String>>,
    /// Levels that services may run at: nic, kernel, user, cluster
    #[arg(long, value_name = "LEVEL", value_delimiter = ',')]
    level: Option<Vec<String>>,
    /// Host functions that modules may import
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    function: Option<Vec<String>>,
    /// Packets that rules may match, by source or destination
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    traffic: Option<Vec<String>>,
    /// Ceilings: services=N, cpu=N%, memory=NMi, bandwidth=NM
    #[arg(long, value_name = "RESOURCE=N", value_delimiter = ',')]
    most: Vec<String>,
    /// End of validity: 2027-01-01T00:00:00Z, or a time from now as in 30d, 12h
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

impl GrantArgs {
    /// Returns the grant that the options make of `base`.
    pub(super) fn of(&self, base: Grant) -> Result<Grant, Failure> {
        let mut grant = base;
        let level = |text: &str| abi::Level::ALL.iter().copied().find(|it| it.name() == text);
        let kind = |text: &str| Kind::ALL.into_iter().find(|it| it.name() == text);
        let word = |text: &str| Some(text.to_owned());
        set(&mut grant.operations, &self.may, "--may", Operation::of)?;
        set(&mut grant.sessions, &self.session, "--session", word)?;
        set(&mut grant.modules, &self.module, "--module", |text| text.parse().ok())?;
        set(&mut grant.kinds, &self.kind, "--kind", kind)?;
        set(&mut grant.levels, &self.level, "--level", level)?;
        set(&mut grant.functions, &self.function, "--function", word)?;
        set(&mut grant.traffic, &self.traffic, "--traffic", |text| text.parse().ok())?;
        for text in &self.most {
            let (at, most) = ceiling(text).ok_or_else(|| {
                usage("--most", text, "services=4, cpu=25%, memory=64Mi or bandwidth=100M")
            })?;
            grant.ceilings.0[at] = Some(most);
        }
        if let Some(text) = &self.until {
            let until = until(text, Timestamp::now());
            grant.until = Some(until.ok_or_else(|| {
                usage("--until", text, "a time as 2027-01-01T00:00:00Z, or from now as 30d or 12h")
            })?);
        }
        Ok(grant)
    }
}

fn set<T: Ord>(
    extent: &mut Extent<T>,
    values: &Option<Vec<String>>,
    option: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<(), Failure> {
    let Some(values) = values else { return Ok(()) };
    if values.iter().any(|value| value == "all") {
        *extent = Extent::All;
        return Ok(());
    }
    let parse = |value: &String| {
        parse(value).ok_or_else(|| usage(option, value, "what `tam token new --help` says, or all"))
    };
    *extent = Extent::Only(values.iter().map(parse).collect::<Result<BTreeSet<T>, _>>()?);
    Ok(())
}

fn usage(option: &str, value: &str, wanted: &str) -> Failure {
    Failure::new(ErrorCode::Usage, format!("'{value}' is no value of {option}; it takes {wanted}"))
}

/// Parses a ceiling; returns the resource's index and its limit.
fn ceiling(text: &str) -> Option<(usize, u64)> {
    let (name, value) = text.split_once('=')?;
    let at = RESOURCES.iter().position(|(resource, _)| *resource == name)?;
    let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let number: u64 = value[..digits].parse().ok()?;
    let unit = match (name, &value[digits..]) {
        // Of one core, in parts of a million.
        ("cpu", "%") => 10_000,
        (_, "") => 1,
        ("memory" | "bandwidth", "k") => 1_000,
        ("memory" | "bandwidth", "M") => 1_000_000,
        ("memory" | "bandwidth", "G") => 1_000_000_000,
        ("memory", "Ki") => 1 << 10,
        ("memory", "Mi") => 1 << 20,
        ("memory", "Gi") => 1 << 30,
        _ => return None,
    };
    Some((at, number.checked_mul(unit)?))
}

fn until(text: &str, now: Timestamp) -> Option<UnixTime> {
    let time = match text.parse::<Timestamp>() {
        Ok(time) => time,
        Err(_) => {
            let span: Span = text.parse().ok()?;
            let then = now.to_zoned(TimeZone::UTC).checked_add(span).ok()?.timestamp();
            if then <= now {
                return None;
            }
            then
        }
    };
    u64::try_from(time.as_second()).ok().map(UnixTime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_have_units_that_fit_their_resource() {
        assert_eq!(ceiling("services=4"), Some((0, 4)));
        assert_eq!(ceiling("cpu=25%"), Some((1, 250_000)));
        assert_eq!(ceiling("memory=64Mi"), Some((2, 64 << 20)));
        assert_eq!(ceiling("bandwidth=100M"), Some((3, 100_000_000)));
        let wrong = ["services", "services=", "services=4k", "cpu=1Gi", "disk=1", "memory=-1"];
        for text in wrong.into_iter().chain(["memory=99999999999999Gi"]) {
            assert_eq!(ceiling(text), None, "{text}");
        }
    }

    #[test]
    fn an_end_is_a_time_or_a_time_from_now() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let at = |text: &str| Some(UnixTime(text.parse::<Timestamp>().unwrap().as_second() as u64));
        assert_eq!(until("2027-01-01T00:00:00Z", now), at("2027-01-01T00:00:00Z"));
        assert_eq!(until("30d", now), at("2026-12-21T12:00:00Z"));
        assert_eq!(until("90s", now), at("2026-11-21T12:01:30Z"));
        for wrong in ["", "x", "-1h", "0s", "1900-01-01T00:00:00Z"] {
            assert_eq!(until(wrong, now), None, "{wrong}");
        }
    }
}
