//! `tam top`: rates of a node, refreshed repeatedly.
//!
//! ```text
//!  two readings of the API ─▶ sample.rs: rates ─▶ screen.rs (a terminal), tables, or NDJSON
//! ```

mod keys;
mod sample;
mod screen;

use super::Context;
use crate::amounts::bits;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Rows;
use clap::Args;
use keys::Keys;
use sample::{Reading, Sample};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Arguments of `tam top`.
#[derive(Debug, Args)]
pub struct Top {
    /// Print one sample as plain tables, and end
    #[arg(long)]
    once: bool,
    /// Seconds between two samples
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

impl Top {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let client = context.client()?;
        let interval = Duration::from_secs(self.interval);
        let mut before = Reading::take(&client)?;
        // Notes on standard error would disturb the screen from here on.
        let client = client.with_on_delay(None);
        let plain = self.once || context.output.is_json() || !std::io::stdout().is_terminal();
        let keys = if plain { None } else { Some(Keys::open()?) };
        loop {
            match &keys {
                None => std::thread::sleep(interval),
                Some(keys) if keys.ended_within(interval) => return leave(),
                Some(_) => {}
            }
            let now = Reading::take(&client)?;
            let sample = Sample::between(&before, &now);
            if plain {
                context.output.result(&sample, || text(&sample))?;
            } else {
                let (lines, columns) = console::Term::stdout().size();
                let picture = screen::drawn(&sample, lines.into(), columns.into());
                draw(&picture)?;
            }
            if self.once || context.output.is_closed() {
                return Ok(DONE);
            }
            before = now;
        }
    }
}

/// Leaves the last picture on the screen and ends its line.
fn leave() -> Outcome {
    draw("\r\n")?;
    Ok(DONE)
}

/// Writes the picture without a final line feed, which would scroll.
fn draw(picture: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let drawn = out.write_all(picture.as_bytes()).and_then(|()| out.flush());
    drawn.map_err(|error| Failure::io("drawing on the terminal", &error))
}

/// Formats the sample as tables.
fn text(sample: &Sample) -> String {
    let mut text = format!("{}\n\n", sample.title());
    let headings = ["port", "in/s", "bits/s", "forwarded/s", "service/s", "kernel/s", "dropped/s"];
    let mut rows = Rows::new(headings);
    for port in &sample.ports {
        rows.add([
            port.port.clone(),
            port.packets_per_second.to_string(),
            bits(port.bits_per_second),
            port.forwarded_per_second.to_string(),
            port.to_service_per_second.to_string(),
            port.to_kernel_per_second.to_string(),
            port.dropped_per_second.to_string(),
        ]);
    }
    text.push_str(&rows.to_string());
    let headings =
        ["service", "level", "packets/s", "bits/s", "cost/call", "passed/s", "dropped/s", "traps"];
    let mut rows = Rows::new(headings);
    for service in &sample.services {
        rows.add([
            service.service.clone(),
            service.level_and_state(),
            service.packets_per_second.to_string(),
            bits(service.bits_per_second),
            service.cost(),
            service.passed_per_second.to_string(),
            service.dropped_per_second.to_string(),
            service.traps.to_string(),
        ]);
    }
    if rows.count() > 0 {
        text.push_str(&format!("\n{rows}"));
    }
    let mut rows = Rows::new(["dropped/s", "packets", "reason", "where"]);
    for drop in &sample.drops {
        let (rate, packets) = (drop.per_second.to_string(), drop.packets.to_string());
        rows.add([rate, packets, drop.reason.clone(), drop.place.clone()]);
    }
    if rows.count() > 0 {
        text.push_str(&format!("\n{rows}"));
    }
    text
}
