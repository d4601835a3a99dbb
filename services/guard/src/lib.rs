//! `guard`: counts packets by source prefix, and passes those of a prefix over the threshold to the
//! service after it, `guard-limit`.
//!
//! ```text
//!  packet ─▶ prefix ─▶ table: over the threshold? ──no──▶ pass by edge 1, which leads nowhere
//!                                                 └─yes─▶ pass by edge 0, with the prefix in
//!                                                         the mark
//! ```
//!
//! The service drops nothing and changes no packet: alone it only counts.

#![forbid(unsafe_code)]
#![cfg_attr(target_arch = "wasm32", no_std)]

mod prefixes;
mod settings;

use prefixes::{Finding, Prefix, Table};
use settings::Settings;
use tam::{Packet, Verdict};

tam::module! {
    on_packet: on_packet,
    on_start: on_start,
}

tam::keep!(TABLE);

tam::counters! {
    /// Packets that came.
    static PACKETS = "packets";
    /// Packets of prefixes over the threshold, which went to the next service.
    static SUSPECTS = "suspects";
    /// Times that a prefix exceeded the threshold.
    static OVER = "over";
    /// Packets that were not counted because the table had no slot for their prefix.
    static CROWDED = "crowded";
}

/// Edge of packets of a prefix over the threshold: the first service of `--then`.
const SUSPECT: u8 = 0;
/// Edge of all others: leads nowhere, so they leave the graph.
const HARMLESS: u8 = 1;

static SETTINGS: tam::State<Settings> = tam::State::new(Settings::DEFAULT);
static TABLE: tam::State<Table> = tam::State::new(Table::ZERO);

fn on_start() -> Result<(), u16> {
    let settings = Settings::from_parameters()?;
    let seed = tam::hash::seed("seed");
    SETTINGS.with(|kept| *kept = settings);
    // State of the previous version is taken over after this, with its own factors.
    TABLE.with(|table| table.begin(seed));
    Ok(())
}

fn on_packet(packet: &mut Packet<'_>) -> Verdict {
    PACKETS.add(1);
    let settings = SETTINGS.with(|settings| *settings);
    let Some(prefix) = Prefix::of(packet, &settings) else {
        return Verdict::pass_by(HARMLESS);
    };
    let second = (packet.now_ms() / 1000) as u32;
    let finding = TABLE.with(|table| table.count(&prefix, second, &settings));
    match finding {
        Finding::Harmless => Verdict::pass_by(HARMLESS),
        Finding::Crowded => {
            CROWDED.add(1);
            Verdict::pass_by(HARMLESS)
        }
        Finding::Suspect { slot, seconds, is_new } => {
            SUSPECTS.add(1);
            OVER.add(u64::from(is_new));
            packet.set_mark(mark(&prefix, slot, seconds));
            Verdict::pass_by(SUSPECT)
        }
    }
}

/// Returns the mark for `guard-limit`; docs/guides/guard.md has the layout.
fn mark(prefix: &Prefix, slot: u16, seconds: u16) -> [u8; 16] {
    let mut mark = [0; 16];
    mark[..8].copy_from_slice(&prefix.bits.to_be_bytes());
    (mark[8], mark[9]) = (prefix.version, prefix.length);
    mark[10..12].copy_from_slice(&slot.to_le_bytes());
    mark[12..14].copy_from_slice(&seconds.to_le_bytes());
    mark
}

#[cfg(test)]
mod tests;
