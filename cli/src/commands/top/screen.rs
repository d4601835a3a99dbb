//! Sample drawn on a terminal: fits 80 columns and 24 lines, and uses more where there is more.
//!
//! New lines overwrite the old ones and clear the rest of the line: nothing flickers over a slow
//! connection, and `q` and Ctrl-C leave the last picture and restored terminal modes. A line that
//! does not fit ends with [`CUT`].

use super::sample::Sample;
use crate::amounts::bits;
use crate::output::escaped;
use std::fmt::Write as _;

/// Lines for ports, and for drops, when there are more of them; services get the rest.
const PORTS_MAX: usize = 6;
const DROPS_MAX: usize = 6;
/// Lines that are neither port, service nor drop: title, empty lines, headings, help.
const OTHER_LINES: usize = 9;
/// Moves the cursor to the upper left corner (ECMA-48, CUP).
const HOME: &str = "\u{1b}[H";
/// Clears to the end of the line (EL), and to the end of the screen (ED).
const CLEAR_LINE: &str = "\u{1b}[K";
const CLEAR_REST: &str = "\u{1b}[J";
/// Inverse video on (SGR).
const INVERSE: &str = "\u{1b}[7m";
const PLAIN: &str = "\u{1b}[0m";

/// Returns the bytes that draw the sample on a terminal of this size.
pub fn drawn(sample: &Sample, lines: usize, columns: usize) -> String {
    let mut text = HOME.to_owned();
    let picture = picture(sample, lines);
    let last = picture.len().saturating_sub(1);
    for (number, line) in picture.iter().enumerate() {
        let heading = line.strip_prefix('\0');
        let shown = fitted(heading.unwrap_or(line), columns);
        match heading {
            Some(_) => {
                // Writing to a string cannot fail.
                let _ = write!(text, "{INVERSE}{shown:columns$}{PLAIN}");
            }
            None => text.push_str(&shown),
        }
        text.push_str(CLEAR_LINE);
        // The cursor stays on the last line: one more would scroll.
        text.push_str(if number == last { "" } else { "\r\n" });
    }
    text.push_str(CLEAR_REST);
    text
}

/// Sign at the right edge of a line that was cut.
const CUT: char = '>';

/// Returns the line cut to `columns`, with [`CUT`] at its end if it was longer.
fn fitted(line: &str, columns: usize) -> String {
    let line = line.trim_end();
    if line.chars().count() <= columns {
        return line.to_owned();
    }
    line.chars().take(columns.saturating_sub(1)).chain([CUT]).take(columns).collect()
}

/// Returns the lines of the picture; headings begin with a NUL, which no escaped text has.
fn picture(sample: &Sample, lines: usize) -> Vec<String> {
    let mut picture = vec![sample.title(), String::new()];
    let ports = sample.ports.len().min(PORTS_MAX);
    let drops = sample.drops.len().min(DROPS_MAX);
    let services = lines.saturating_sub(ports + drops + OTHER_LINES).max(1);
    table(
        &mut picture,
        [14, 10, 9, 11, 10, 9, 9, 6],
        ["PORT", "IN/S", "BITS/S", "FORWARD/S", "SERVICE/S", "KERNEL/S", "DROP/S", ""],
        sample.ports.iter().map(|port| {
            [
                escaped(&port.port),
                port.packets_per_second.to_string(),
                bits(port.bits_per_second),
                port.forwarded_per_second.to_string(),
                port.to_service_per_second.to_string(),
                port.to_kernel_per_second.to_string(),
                port.dropped_per_second.to_string(),
                if port.slow_reasons.is_empty() { "" } else { "slow" }.to_owned(),
            ]
        }),
        PORTS_MAX,
    );
    picture.push(String::new());
    table(
        &mut picture,
        [14, 9, 11, 9, 12, 10, 9, 6],
        ["SERVICE", "LEVEL", "PACKETS/S", "BITS/S", "A CALL", "PASS/S", "DROP/S", "TRAPS"],
        sample.services.iter().map(|service| {
            [
                escaped(&service.service),
                service.level_and_state(),
                service.traffic(),
                bits(service.bits_per_second),
                service.cost(),
                service.passed_per_second.to_string(),
                service.dropped_per_second.to_string(),
                service.traps.to_string(),
            ]
        }),
        services,
    );
    picture.push(String::new());
    if !sample.drops.is_empty() {
        table(
            &mut picture,
            [10, 12, 28, 28],
            ["DROP/S", "PACKETS", "REASON", "WHERE"],
            sample.drops.iter().map(|drop| {
                let (rate, packets) = (drop.per_second.to_string(), drop.packets.to_string());
                [rate, packets, escaped(&drop.reason), escaped(&drop.place)]
            }),
            DROPS_MAX,
        );
        picture.push(String::new());
    }
    let help = "q ends   tam why: what drops mean   tam events: what happened";
    picture.push(help.to_owned());
    picture.truncate(lines.max(1));
    picture
}

/// Adds a heading and at most `lines` rows; the last row says how many were left out.
fn table<const N: usize>(
    picture: &mut Vec<String>,
    widths: [usize; N],
    headings: [&str; N],
    rows: impl ExactSizeIterator<Item = [String; N]>,
    most: usize,
) {
    let line = |cells: [String; N]| -> String {
        let padded = cells.iter().zip(widths).map(|(cell, width)| {
            let cell = fitted(cell, width - 1);
            format!("{cell:width$}")
        });
        padded.collect()
    };
    picture.push(format!("\0{}", line(headings.map(str::to_owned))));
    let all = rows.len();
    let shown = if all > most { most.saturating_sub(1) } else { all };
    picture.extend(rows.take(shown).map(line));
    if shown < all {
        picture.push(format!("and {} more", all - shown));
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::reading;
    use super::*;
    use std::time::{Duration, Instant};

    fn sample() -> Sample {
        let at = Instant::now();
        let later = reading(at + Duration::from_secs(1), 2_000_000);
        Sample::between(&reading(at, 1_000_000), &later)
    }

    #[test]
    fn everything_fits_a_small_terminal() {
        let picture = picture(&sample(), 24);
        assert!(picture.len() <= 24, "{picture:#?}");
        assert!(picture.iter().all(|line| line.trim_end().chars().count() <= 80), "{picture:#?}");
        let text = picture.join("\n");
        let wanted = ["node r1  up 1 h 6 min", "right", "8.00 G", "monitor", "300 ns", "drop_rule"];
        for words in wanted.into_iter().chain(["service monitor", "q ends"]) {
            assert!(text.contains(words), "no '{words}' in\n{text}");
        }
    }

    #[test]
    fn rows_that_do_not_fit_the_screen_are_counted() {
        let mut sample = sample();
        sample.services = vec![sample.services[0].clone(); 40];
        sample.ports = vec![sample.ports[0].clone(); 9];
        let picture = picture(&sample, 24);
        let more: Vec<_> = picture.iter().filter(|line| line.ends_with(" more")).collect();
        assert_eq!(more.len(), 2, "{picture:#?}");
        assert_eq!(picture.len(), 24, "{picture:#?}");
        assert!(picture[23].starts_with("q ends"), "{picture:#?}");
    }

    #[test]
    fn columns_that_do_not_fit_are_marked() {
        let text = drawn(&sample(), 24, 60);
        let lines: Vec<&str> = text.split("\r\n").collect();
        let with = |word: &str| *lines.iter().find(|line| line.contains(word)).unwrap();
        assert!(with("PORT").contains("KERNE>"), "{text:?}");
        assert!(with("A CALL").contains('>'), "{text:?}");
        assert_eq!(fitted("name  ", 4), "name");
        assert_eq!(fitted("names", 4), "nam>");
        assert_eq!(fitted("names", 0), "");
    }

    #[test]
    fn the_screen_never_scrolls_at_any_terminal_size() {
        for columns in [1, 20, 200] {
            for lines in [1, 2, 5, 60] {
                let text = drawn(&sample(), lines, columns);
                assert!(text.matches("\r\n").count() < lines, "{columns}x{lines}: {text:?}");
            }
        }
    }
}
