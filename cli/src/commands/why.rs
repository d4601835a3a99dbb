//! `tam why`: reasons for drops and for leaving the fast path, and the path of a described packet.

use super::Context;
use super::run::capture::Capture;
use crate::failure::{Failure, Outcome};
use crate::output::{Rows, escaped};
use api::{ErrorCode, ExplainRequest, Explanation, WhyList, WhyReason};
use clap::Args;
use std::path::PathBuf;

/// Arguments of `tam why`.
#[derive(Debug, Args)]
pub struct Why {
    /// A packet in the words of a match: proto udp src 10.0.1.2 dst 10.0.2.2 dport 53 in left;
    /// without one, every reason that has counted packets
    packet: Vec<String>,
    /// The port that the packet enters by
    #[arg(long = "in", value_name = "PORT")]
    port: Option<String>,
    /// A whole frame in hexadecimal digits instead of a described packet
    #[arg(long, value_name = "HEX", conflicts_with = "packet")]
    frame: Option<String>,
    /// A capture whose first frame is used instead of a described packet
    #[arg(long, value_name = "FILE", conflicts_with_all = ["packet", "frame"])]
    pcap: Option<PathBuf>,
    /// The number of the capture's frame to use
    #[arg(long, value_name = "N", requires = "pcap", default_value_t = 1)]
    number: usize,
}

impl Why {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let client = context.client()?;
        let Some(request) = self.request()? else {
            let list = client.why()?;
            return context.output.result(&list, || list_text(&list));
        };
        let explanation = client.explain(&request)?;
        context.output.result(&explanation, || explanation_text(&explanation))
    }

    fn request(&self) -> Result<Option<ExplainRequest>, Failure> {
        let frame_hex = match (&self.frame, &self.pcap) {
            (Some(digits), _) => Some(digits.replace([':', ' '], "")),
            (None, Some(file)) => Some(self.frame_of(file)?),
            (None, None) => None,
        };
        let packet = (!self.packet.is_empty()).then(|| self.packet.join(" "));
        if packet.is_none() && frame_hex.is_none() {
            return match self.port {
                Some(_) => Err(Failure::new(ErrorCode::Usage, "--in needs a packet")
                    .help("name one: tam why proto icmp src ADDRESS dst ADDRESS in PORT")),
                None => Ok(None),
            };
        }
        Ok(Some(ExplainRequest { packet, frame_hex, port: self.port.clone() }))
    }

    fn frame_of(&self, file: &std::path::Path) -> Result<String, Failure> {
        let mut capture = Capture::open(file)?;
        let mut found = None;
        for _ in 0..self.number {
            found = capture.next_frame();
        }
        let missing = || {
            let message = format!("{} has no packet {}", file.display(), self.number);
            Failure::new(ErrorCode::NotFound, message)
        };
        let frame = found.ok_or_else(missing)?.map_err(Failure::failed)?;
        Ok(frame.bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Formats the reasons as a table, with advice on those that need action.
fn list_text(list: &WhyList) -> String {
    /// Notice for a caller who does not see the drops of ports.
    const OWN: &str = "only reasons of your own services and rules are shown: what ports drop, the \
                       operator sees";
    if list.reasons.is_empty() {
        let none =
            "every packet went the fast way: nothing was dropped, nothing left to the kernel";
        return if list.all { none } else { OWN }.to_owned();
    }
    let mut rows = Rows::new(["last minute", "packets", "reason", "where", "meaning"]);
    for reason in &list.reasons {
        rows.add([
            reason.packets_last_minute.to_string(),
            reason.packets.to_string(),
            reason.reason.clone(),
            place(reason),
            reason.meaning.clone(),
        ]);
    }
    let mut text = rows.to_string();
    let mut told: Vec<&str> = Vec::new();
    for reason in list.reasons.iter().filter(|reason| !reason.advice.is_empty()) {
        if told.contains(&reason.reason.as_str()) {
            continue;
        }
        told.push(&reason.reason);
        text.push_str(&format!("\n{}: {}", escaped(&reason.reason), escaped(&reason.advice)));
    }
    if !list.all {
        text.push_str(&format!("\n{OWN}"));
    }
    text
}

fn place(reason: &WhyReason) -> String {
    let rules = match &reason.rules[..] {
        [] => None,
        [rule] => Some(format!("rule #{rule}")),
        [first, .., last] => Some(format!("{} rules, #{first} to #{last}", reason.rules.len())),
    };
    let module = reason.module.as_deref();
    let parts = [
        reason.port.as_ref().map(|port| format!("port {port}")),
        reason.service.as_ref().map(|service| format!("service {service}")),
        rules,
        module.map(|module| format!("module {}", super::short_digest(module))),
        reason.session.as_ref().map(|session| format!("session {session}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "cell".to_owned() } else { parts.join(", ") }
}

fn explanation_text(explanation: &Explanation) -> String {
    let mut text = String::new();
    for (number, step) in explanation.steps.iter().enumerate() {
        text.push_str(&format!("{}. {}\n", number + 1, escaped(step)));
    }
    let end = if explanation.dropped { "dropped" } else { "counted" };
    text.push_str(&format!("\n{end} as {}", explanation.outcome));
    if !explanation.advice.is_empty() {
        text.push_str(&format!("\nto change that: {}", explanation.advice));
    }
    text.push_str("\n(asked of a copy of the front door's program: nothing was counted or sent)");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_come_with_their_place_and_advice_once() {
        let reason = |port: &str| WhyReason {
            reason: "drop_checksum".into(),
            dropped: true,
            packets: 7,
            packets_last_minute: 2,
            last_ms: 0,
            port: Some(port.into()),
            service: None,
            rules: vec![],
            module: None,
            session: None,
            meaning: "wrong IPv4 header checksum".into(),
            advice: "look at the frames".into(),
        };
        let reasons = vec![reason("left"), reason("right")];
        let text = list_text(&WhyList { schema_version: 1, node: "r1".into(), all: true, reasons });
        assert!(text.contains("2            7        drop_checksum  port left"), "{text}");
        assert_eq!(text.matches("look at the frames").count(), 1, "{text}");
    }

    #[test]
    fn a_frame_may_have_colons() {
        let why = Why {
            packet: vec![],
            port: Some("left".into()),
            frame: Some("02:00 0a".into()),
            pcap: None,
            number: 1,
        };
        assert_eq!(why.request().unwrap().unwrap().frame_hex.as_deref(), Some("02000a"));
    }
}
