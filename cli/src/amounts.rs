//! Amounts for people: sizes, rates and numbers of rules, each in one form everywhere.

use session::Size;
use units::Bytes;

/// Formats a size with two decimals, in the form in which sizes are also given: `1.79MiB`.
pub fn size(bytes: u64) -> String {
    Size(Bytes(bytes)).rounded()
}

/// Formats bits per second with three digits and a unit: `12.3Mbit/s`.
pub fn rate(bits_per_second: u64) -> String {
    let (value, prefix) = three_digits(bits_per_second);
    format!("{value}{prefix}bit/s")
}

/// Formats bytes within some milliseconds as a rate; `None` if no time has passed.
pub fn rate_of(bytes: u64, milliseconds: u64) -> Option<String> {
    let bits = u128::from(bytes) * 8_000;
    let bits = bits.checked_div(u128::from(milliseconds))?;
    Some(rate(u64::try_from(bits).unwrap_or(u64::MAX)))
}

/// Formats bits per second for a column whose heading has the unit: `12.3 M`.
pub fn bits(bits_per_second: u64) -> String {
    match three_digits(bits_per_second) {
        (value, "") => value,
        (value, prefix) => format!("{value} {prefix}"),
    }
}

/// Returns a number with three digits, and the decimal prefix of its unit.
fn three_digits(number: u64) -> (String, &'static str) {
    let prefixes = ["", "k", "M", "G", "T"];
    let (mut value, mut at) = (number as f64, 0);
    while value >= 999.5 && at + 1 < prefixes.len() {
        value /= 1000.0;
        at += 1;
    }
    let text = match at {
        0 => number.to_string(),
        _ if value < 9.995 => format!("{value:.2}"),
        _ if value < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    };
    (text, prefixes[at])
}

/// Formats the numbers of rules, each with `#` so that none is read as a count: `#0, #4 to #9`, or
/// `none`.
pub fn rules(rules: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &rule in rules {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rule) => *last = rule,
            _ => runs.push((rule, rule)),
        }
    }
    let shown: Vec<String> = runs.into_iter().map(|(first, last)| run(first, last)).collect();
    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
}

fn run(first: u32, last: u32) -> String {
    match last - first {
        0 => format!("#{first}"),
        1 => format!("#{first}, #{last}"),
        _ => format!("#{first} to #{last}"),
    }
}

/// Parses the number of a rule, with or without its `#`.
///
/// # Errors
/// The text is no such number.
pub fn rule(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix('#').unwrap_or(text);
    number.parse().map_err(|_| "a rule is named by its number: `tam rule list` has them".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_three_digits_and_a_unit() {
        for (bits_per_second, in_column, alone) in [
            (0, "0", "0bit/s"),
            (999, "999", "999bit/s"),
            (1000, "1.00 k", "1.00kbit/s"),
            (12_345_678, "12.3 M", "12.3Mbit/s"),
            (999_600_000, "1.00 G", "1.00Gbit/s"),
        ] {
            assert_eq!(bits(bits_per_second), in_column);
            assert_eq!(rate(bits_per_second), alone);
        }
        assert_eq!(rate_of(1_500_000, 1_000).as_deref(), Some("12.0Mbit/s"));
        assert_eq!(rate_of(250, 2_000).as_deref(), Some("1.00kbit/s"));
        assert_eq!(rate_of(7, 0), None);
        assert!(rate_of(u64::MAX, 1).is_some());
    }

    #[test]
    fn a_size_has_the_largest_unit() {
        assert_eq!(size(980), "980B");
        assert_eq!(size(1_876_977), "1.79MiB");
    }

    #[test]
    fn a_rules_number_is_no_count() {
        assert_eq!(rules(&[]), "none");
        assert_eq!(rules(&[0]), "#0");
        assert_eq!(rules(&[0, 1, 4, 5, 6, 9]), "#0, #1, #4 to #6, #9");
        assert_eq!(rules(&[7, 3, u32::MAX]), "#7, #3, #4294967295");
    }

    #[test]
    fn a_rule_is_named_with_or_without_its_sign() {
        assert_eq!((rule("3"), rule("#3")), (Ok(3), Ok(3)));
        for wrong in ["", "#", "##3", "-1", "any", "4294967296"] {
            assert!(rule(wrong).unwrap_err().contains("tam rule list"), "{wrong}");
        }
    }
}
