//! Report of `tam run`: each packet, then a summary.

use super::capture::Fault;
use super::lanes::{FrameOutcome, FrameResult};
use super::reader::Frame;
use crate::commands::{Context, short_digest};
use crate::failure::{DONE, Outcome};
use crate::output::{Rows, escaped};
use abi::{Checked, Manifest, Verdict};
use api::{ErrorCode, SCHEMA_VERSION};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Most packets listed one by one; further ones are run and counted. At some hundred bytes each the
/// document is one that programs still read as a whole.
const PACKETS_SHOWN_MAX: usize = 100_000;
/// Changed ranges of one packet that are listed.
const CHANGES_MAX: usize = 16;
/// Changed ranges shown in a line for people.
const CHANGES_IN_LINE: usize = 4;
/// Bytes of one range in a line for people.
const BYTES_IN_LINE: usize = 8;

/// Note for packets that were not run: the reason, and the advice.
const NOT_RUN: &str = "without a device the kernel runs programs of level kernel over 14 bytes to \
                       about 3,500 only, those of level nic over 14 bytes and more; --level user runs all";

/// Report of a run.
#[derive(Serialize)]
pub struct Report {
    schema_version: u32,
    module: ModuleShown,
    capture: String,
    packets: Vec<PacketShown>,
    /// Packets that were run and counted, but are not listed in `packets`.
    packets_omitted: u64,
    summary: BTreeMap<String, u64>,
    bytes_in: u64,
    bytes_out: u64,
    traps: BTreeMap<String, u64>,
    sent: u64,
    events: u64,
    counters: BTreeMap<String, u64>,
    /// Position and reason of the fault that ended the capture.
    capture_fault: Option<Fault>,
    /// Differences from the expectations; empty when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    differences: Option<Vec<String>>,
    /// Packets that the level did not run.
    #[serde(skip)]
    not_run: u64,
    #[serde(skip)]
    manifest: Manifest,
}

#[derive(Serialize)]
struct ModuleShown {
    name: String,
    version: String,
    digest: String,
}

#[derive(Serialize)]
struct PacketShown {
    number: u64,
    length_in: usize,
    /// Length on the wire in bytes, when the capture has fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    length_on_wire: Option<usize>,
    verdict: String,
    length_out: usize,
    changes: Vec<Change>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trap: Option<String>,
    /// Reason why the level did not run the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_run: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    sent: usize,
    #[serde(skip_serializing_if = "is_zero")]
    events: usize,
}

/// Changed bytes, in hexadecimal.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Change {
    offset: usize,
    old: String,
    new: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Report {
    /// Returns an empty report.
    pub fn new(checked: &Checked, bytes: &[u8], capture: &Path) -> Self {
        let manifest = checked.manifest.clone();
        Self {
            schema_version: SCHEMA_VERSION,
            module: ModuleShown {
                name: manifest.name.to_string(),
                version: manifest.version.clone(),
                digest: module_store::Digest::of(bytes).to_string(),
            },
            capture: capture.display().to_string(),
            packets: Vec::new(),
            packets_omitted: 0,
            summary: BTreeMap::new(),
            bytes_in: 0,
            bytes_out: 0,
            traps: BTreeMap::new(),
            sent: 0,
            events: 0,
            counters: BTreeMap::new(),
            capture_fault: None,
            differences: None,
            not_run: 0,
            manifest,
        }
    }

    /// Adds one packet; returns its outcome in words.
    pub fn add(&mut self, frame: &Frame, done: &FrameResult) -> String {
        let verdict = outcome_text(&done.outcome, &self.manifest);
        *self.summary.entry(verdict.clone()).or_default() += 1;
        self.bytes_in += frame.bytes.len() as u64;
        self.not_run += u64::from(matches!(done.outcome, FrameOutcome::NotRun(_)));
        if matches!(
            done.outcome,
            FrameOutcome::Verdict(
                Verdict::Pass { .. } | Verdict::Bounce | Verdict::Redirect { .. }
            )
        ) {
            self.bytes_out += done.bytes.len() as u64;
        }
        self.sent += done.sent.len() as u64;
        self.events += done.events.len() as u64;
        let trap = match &done.outcome {
            FrameOutcome::Trapped(trap) => {
                *self.traps.entry(trap.kind.name().to_owned()).or_default() += 1;
                Some(trap.to_string())
            }
            _ => None,
        };
        if self.packets.len() == PACKETS_SHOWN_MAX {
            self.packets_omitted += 1;
            return verdict;
        }
        let cut = frame.length_on_wire > frame.bytes.len();
        self.packets.push(PacketShown {
            number: self.packets.len() as u64 + 1,
            length_in: frame.bytes.len(),
            length_on_wire: cut.then_some(frame.length_on_wire),
            verdict: verdict.clone(),
            length_out: done.bytes.len(),
            changes: changes(&frame.bytes, &done.bytes),
            trap,
            not_run: match &done.outcome {
                FrameOutcome::NotRun(why) => Some(why.clone()),
                _ => None,
            },
            sent: done.sent.len(),
            events: done.events.len(),
        });
        verdict
    }

    /// Records the fault that ended the capture.
    pub fn end_with(&mut self, fault: Fault) {
        self.capture_fault = Some(fault);
    }

    /// Adds the module's counters.
    pub fn finish(&mut self, counters: BTreeMap<String, u64>) {
        self.counters = counters;
    }

    /// Adds the differences from the expectations.
    pub fn compare(&mut self, differences: Vec<String>) {
        self.differences = Some(differences);
    }

    /// Returns the differences from the expectations; `None` when nothing was expected.
    pub fn differences(&self) -> Option<&[String]> {
        self.differences.as_deref()
    }

    /// Returns the number of packets.
    pub fn packets(&self) -> u64 {
        self.summary.values().sum()
    }

    /// Returns the fault that ended the capture, with its position.
    pub fn fault(&self) -> Option<&str> {
        self.capture_fault.as_deref()
    }

    /// Prints the report. The command fails when results differ from the expectations, and is
    /// partly done when the capture could not be read to its end or a packet could not be run.
    pub fn print(&self, context: &Context<'_>) -> Outcome {
        context.output.result(self, || self.text())?;
        if let Some(fault) = &self.capture_fault {
            context.output.note(&format!("error: {fault}"));
        }
        if self.not_run > 0 {
            let count = self.not_run;
            let note = format!("error: {count} packets were not run at this level: {NOT_RUN}");
            context.output.note(&note);
        }
        if let Some(differences) = self.differences().filter(|found| !found.is_empty()) {
            for difference in differences {
                context.output.note(&format!("error: {difference}"));
            }
            return Ok(ErrorCode::Failed.exit_status());
        }
        let whole = self.capture_fault.is_none() && self.not_run == 0;
        Ok(if whole { DONE } else { ErrorCode::Partial.exit_status() })
    }

    fn text(&self) -> String {
        let mut rows = Rows::new(["packet", "in", "verdict", "out", "changes"]);
        for packet in &self.packets {
            rows.add([
                packet.number.to_string(),
                packet.length_in.to_string(),
                packet.verdict.clone(),
                packet.length_out.to_string(),
                packet_notes(packet),
            ]);
        }
        let mut text = rows.to_string();
        if self.packets_omitted > 0 {
            let more = self.packets_omitted;
            text.push_str(&format!("and {more} packets more, in the summary only\n"));
        }
        text.push_str(&format!("\n{}", self.summary_text()));
        text
    }

    fn summary_text(&self) -> Rows {
        let mut rows = Rows::pairs();
        let mut add = |name: &str, value: String| rows.add([name.to_owned(), value]);
        let module = &self.module;
        let digest = short_digest(&module.digest);
        add("module", format!("{} {} {digest}", module.name, module.version));
        let packets = self.packets();
        let bytes = format!("{} bytes in, {} out", self.bytes_in, self.bytes_out);
        add("packets", format!("{packets}, {bytes}"));
        for (verdict, count) in &self.summary {
            add(verdict, count.to_string());
        }
        for (kind, count) in &self.traps {
            add(&format!("trap {kind}"), count.to_string());
        }
        for (what, count) in [("sent by itself", self.sent), ("events", self.events)] {
            if count > 0 {
                add(what, count.to_string());
            }
        }
        for (name, value) in self.counters.iter().filter(|(_, value)| **value > 0) {
            add(&format!("counter {name}"), value.to_string());
        }
        match self.differences() {
            Some([]) => add("expected", "all of it".to_owned()),
            Some(_) => add("expected", "something else".to_owned()),
            None => {}
        }
        rows
    }
}

/// Describes the outcome of a packet in the words of verdicts and counters.
fn outcome_text(outcome: &FrameOutcome, manifest: &Manifest) -> String {
    match outcome {
        FrameOutcome::Verdict(Verdict::Pass { edge, reroute }) => {
            let edge = if *edge == 0 { String::new() } else { format!(" by {edge}") };
            format!("pass{edge}{}", if *reroute { " reroute" } else { "" })
        }
        FrameOutcome::Verdict(Verdict::Drop { reason }) => match manifest.reasons.get(reason) {
            Some(name) => format!("drop {name}"),
            None => format!("drop {reason}"),
        },
        FrameOutcome::Verdict(Verdict::Bounce) => "bounce".to_owned(),
        FrameOutcome::Verdict(Verdict::Redirect { port }) => format!("redirect {port}"),
        FrameOutcome::Verdict(Verdict::Raise) => "raise".to_owned(),
        FrameOutcome::Trapped(_) => "trap".to_owned(),
        FrameOutcome::FrontDoor(outcome) => (*outcome).to_owned(),
        FrameOutcome::NoPacket => "no packet".to_owned(),
        FrameOutcome::Down => "down".to_owned(),
        FrameOutcome::NotRun(_) => "not run".to_owned(),
    }
}

/// Returns the ranges that differ; none for a packet whose length changed, since its bytes moved.
fn changes(old: &[u8], new: &[u8]) -> Vec<Change> {
    let mut changes = Vec::new();
    if old.len() != new.len() {
        return changes;
    }
    let mut at = 0;
    while at < old.len() && changes.len() < CHANGES_MAX {
        let begin = at;
        while at < old.len() && old[at] != new[at] {
            at += 1;
        }
        if at > begin {
            let (old, new) = (hex(&old[begin..at]), hex(&new[begin..at]));
            changes.push(Change { offset: begin, old, new });
        }
        at += 1;
    }
    changes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the last column of the table for people.
fn packet_notes(packet: &PacketShown) -> String {
    let mut notes = Vec::new();
    if let Some(trap) = &packet.trap {
        notes.push(trap.clone());
    }
    notes.extend(packet.not_run.clone());
    if packet.length_in != packet.length_out {
        notes.push("resized".to_owned());
    }
    for change in packet.changes.iter().take(CHANGES_IN_LINE) {
        let (old, new) = (in_line(&change.old), in_line(&change.new));
        notes.push(format!("{}: {old} -> {new}", change.offset));
    }
    if packet.changes.len() > CHANGES_IN_LINE {
        notes.push("...".to_owned());
    }
    if let Some(length) = packet.length_on_wire {
        notes.push(format!("cut by the capture, {length} bytes on the wire"));
    }
    if packet.sent > 0 {
        notes.push(format!("sent {}", packet.sent));
    }
    escaped(&notes.join(", "))
}

fn in_line(hex: &str) -> String {
    match hex.get(..2 * BYTES_IN_LINE) {
        Some(begin) if hex.len() > begin.len() => format!("{begin}.."),
        _ => hex.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_ranges_are_listed_once() {
        let change =
            |offset, old: &str, new: &str| Change { offset, old: old.into(), new: new.into() };
        let expected = [change(1, "02", "ff"), change(3, "0405", "0e0f")];
        assert_eq!(changes(&[1, 2, 3, 4, 5], &[1, 255, 3, 14, 15]), expected);
        assert!(changes(&[1, 2], &[1, 2]).is_empty());
    }

    #[test]
    fn a_resized_packet_has_no_offsets() {
        assert!(changes(&[1, 2], &[0, 1, 2]).is_empty());
    }

    #[test]
    fn a_long_range_is_shortened_for_people() {
        assert_eq!(in_line("00112233"), "00112233");
        assert_eq!(in_line(&"ab".repeat(9)), format!("{}..", "ab".repeat(8)));
    }
}
