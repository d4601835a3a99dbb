//! Expectations for a run: a TOML file with the expected results of the packets.
//!
//! ```toml
//! # What becomes of each packet, in the words of `tam run`.
//! verdicts = ["pass", "drop few hops left"]
//! # Frames that go on, in a capture beside this file; may be left out.
//! out = "hops.out.pcap"
//!
//! # The module's parameters; may be left out. Those of the command line come first.
//! [parameters]
//! hops = "5"
//!
//! # What the module has counted; those that are not named may be anything.
//! [counters]
//! dropped = 1
//! ```

use super::capture::Capture;
use crate::failure::Failure;
use crate::user_files::{read_file, toml_problem};
use api::ErrorCode;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use units::Name;

/// Largest file of expectations, in bytes: some 100,000 verdicts.
const LENGTH_MAX: u64 = 4 << 20;
/// Most differences that are listed; the first ones cause the others.
const DIFFERENCES_MAX: usize = 20;

/// Expected results of a capture.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    verdicts: Vec<String>,
    out: Option<PathBuf>,
    /// The module's parameters.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// Names of the ports that the module can look up.
    #[serde(default)]
    pub ports: Vec<Name>,
    #[serde(default)]
    counters: BTreeMap<String, u64>,
}

/// Actual results of a capture.
#[derive(Debug, Default)]
pub struct Actual {
    /// Verdict of each packet, in the words of `tam run`.
    pub verdicts: Vec<String>,
    /// Frames that left the module.
    pub out: Vec<Vec<u8>>,
    /// Counters of the module.
    pub counters: BTreeMap<String, u64>,
}

impl Expectation {
    /// Reads a file of expectations.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let bytes = read_file(path, LENGTH_MAX)?;
        let wrong = |reason: String| {
            let message = format!("the expectations in {}: {reason}", path.display());
            Failure::new(ErrorCode::Usage, message)
                .help("it is TOML with `verdicts = [\"pass\", …]`, and may have `out`, [parameters], `ports`, [counters]")
        };
        let text =
            String::from_utf8(bytes).map_err(|_| wrong("it is not UTF-8 text".to_owned()))?;
        let mut expected: Self =
            toml::from_str(&text).map_err(|error| wrong(toml_problem(&text, &error)))?;
        if let Some(out) = &mut expected.out {
            *out = path.parent().unwrap_or(Path::new("")).join(&*out);
        }
        Ok(expected)
    }

    /// Returns the differences between expected and actual results as sentences; empty when there
    /// are none.
    pub fn differences(&self, found: &Actual) -> Result<Vec<String>, Failure> {
        let mut differences = Vec::new();
        let pairs = self.verdicts.iter().zip(&found.verdicts).enumerate();
        for (at, (expected, verdict)) in pairs.filter(|(_, (one, other))| one != other) {
            differences.push(format!("packet {}: {verdict}, expected {expected}", at + 1));
        }
        let counts = (self.verdicts.len(), found.verdicts.len());
        if counts.0 != counts.1 {
            let more = found.verdicts.get(counts.0..).unwrap_or_default();
            let more = if more.is_empty() { String::new() } else { format!(": {more:?}") };
            differences.push(format!("{} packets, expected {}{more}", counts.1, counts.0));
        }
        self.compare_out(found, &mut differences)?;
        for (name, expected) in &self.counters {
            match found.counters.get(name) {
                Some(count) if count == expected => {}
                Some(count) => {
                    differences.push(format!("counter {name}: {count}, expected {expected}"));
                }
                None => differences.push(format!("the module has no counter {name}")),
            }
        }
        let left_out = differences.len().saturating_sub(DIFFERENCES_MAX);
        differences.truncate(DIFFERENCES_MAX);
        if left_out > 0 {
            differences.push(format!("and {left_out} more"));
        }
        Ok(differences)
    }

    fn compare_out(&self, found: &Actual, differences: &mut Vec<String>) -> Result<(), Failure> {
        let Some(path) = &self.out else { return Ok(()) };
        let mut capture = Capture::open(path)?;
        let mut expected = Vec::new();
        while let Some(frame) = capture.next_frame() {
            let frame = frame.map_err(|fault| Failure::new(ErrorCode::Usage, fault))?;
            expected.push(frame.bytes);
        }
        for (at, (wanted, came)) in expected.iter().zip(&found.out).enumerate() {
            if let Some(difference) = difference(wanted, came) {
                differences.push(format!("frame {} that goes on: {difference}", at + 1));
            }
        }
        if expected.len() != found.out.len() {
            let (came, wanted) = (found.out.len(), expected.len());
            differences.push(format!("{came} frames go on, expected {wanted}"));
        }
        Ok(())
    }
}

/// Describes the first difference between two frames; `None` when they are equal.
fn difference(wanted: &[u8], came: &[u8]) -> Option<String> {
    if wanted.len() != came.len() {
        return Some(format!("{} bytes, expected {}", came.len(), wanted.len()));
    }
    let at = wanted.iter().zip(came).position(|(one, other)| one != other)?;
    Some(format!("byte {at} is {:02x}, expected {:02x}", came[at], wanted[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expectation(text: &str) -> Result<Expectation, Failure> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("e.toml");
        std::fs::write(&path, text).unwrap();
        Expectation::read(&path)
    }

    fn found(verdicts: &[&str]) -> Actual {
        Actual {
            verdicts: verdicts.iter().map(|&verdict| verdict.to_owned()).collect(),
            out: Vec::new(),
            counters: [("dropped".to_owned(), 1)].into(),
        }
    }

    #[test]
    fn each_difference_from_the_expectation_is_reported() {
        let text = "verdicts = [\"pass\", \"drop 1\"]\n[counters]\ndropped = 2\nlost = 0\n";
        let expected = expectation(text).unwrap();
        let differences = expected.differences(&found(&["pass", "pass", "bounce"])).unwrap();
        let said = [
            "packet 2: pass, expected drop 1",
            "3 packets, expected 2: [\"bounce\"]",
            "counter dropped: 1, expected 2",
            "the module has no counter lost",
        ];
        assert_eq!(differences, said);
        let met = expectation("verdicts = [\"pass\"]").unwrap();
        assert_eq!(met.differences(&found(&["pass"])).unwrap(), [""; 0]);
    }

    #[test]
    fn a_long_list_is_cut() {
        let expected = expectation("verdicts = []").unwrap();
        let expected = Expectation { verdicts: vec!["drop 1".into(); 30], ..expected };
        let differences = expected.differences(&found(&["pass"; 30])).unwrap();
        assert_eq!((differences.len(), &differences[20][..]), (21, "and 10 more"));
    }

    #[test]
    fn an_unknown_field_of_an_expectation_is_a_usage_error() {
        let error = expectation("verdict = []").unwrap_err();
        assert!(error.message.contains("verdict"), "{}", error.message);
        assert_eq!(error.code, ErrorCode::Usage);
    }

    #[test]
    fn a_difference_of_frames_is_reported_by_its_first_byte() {
        assert_eq!(difference(&[1, 2], &[1, 2]), None);
        assert_eq!(difference(&[1, 2], &[1, 3]).unwrap(), "byte 1 is 03, expected 02");
        assert_eq!(difference(&[1], &[1, 3]).unwrap(), "2 bytes, expected 1");
    }
}
