//! Endings of a call, in the words of the table.

use std::fmt;
use std::str::FromStr;

/// Ending of a call: the verdict, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Verdict `pass`, or `pass EDGE`.
    Pass(u8),
    /// Verdict `reroute`: pass, after a new look-up of the route.
    Reroute(u8),
    /// Verdict `drop REASON`.
    Drop(u16),
    /// Verdict `bounce`.
    Bounce,
    /// Verdict `redirect PORT`, by the port's name.
    Redirect(String),
    /// Verdict `raise`.
    Raise,
    /// Trap `trap KIND`, with the name under which the node counts it.
    Trap(String),
    /// Refusal `start refused CODE`: `on_start` returned this number.
    StartRefused(i32),
    /// Trap `start trapped KIND`: `on_start` did not return.
    StartTrapped(String),
}

/// Error of text that names no ending.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no ending; write pass, pass EDGE, reroute, reroute EDGE, drop REASON, bounce, redirect PORT, raise, trap KIND, \
     start refused CODE or start trapped KIND"
)]
pub struct EndingError(String);

impl Ending {
    /// Returns true if a packet remains after the call.
    #[must_use]
    pub const fn keeps_packet(&self) -> bool {
        matches!(
            self,
            Self::Pass(_) | Self::Reroute(_) | Self::Bounce | Self::Redirect(_) | Self::Raise
        )
    }
}

impl FromStr for Ending {
    type Err = EndingError;

    fn from_str(text: &str) -> Result<Self, EndingError> {
        let wrong = || EndingError(text.to_owned());
        let words: Vec<_> = text.split_whitespace().collect();
        Ok(match words.as_slice() {
            ["pass"] => Self::Pass(0),
            ["pass", edge] => Self::Pass(edge.parse().map_err(|_| wrong())?),
            ["reroute"] => Self::Reroute(0),
            ["reroute", edge] => Self::Reroute(edge.parse().map_err(|_| wrong())?),
            ["drop", reason] => Self::Drop(reason.parse().map_err(|_| wrong())?),
            ["bounce"] => Self::Bounce,
            ["redirect", port] => Self::Redirect((*port).to_owned()),
            ["raise"] => Self::Raise,
            ["trap", kind] => Self::Trap((*kind).to_owned()),
            ["start", "refused", code] => Self::StartRefused(code.parse().map_err(|_| wrong())?),
            ["start", "trapped", kind] => Self::StartTrapped((*kind).to_owned()),
            _ => return Err(wrong()),
        })
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass(0) => f.write_str("pass"),
            Self::Pass(edge) => write!(f, "pass {edge}"),
            Self::Reroute(0) => f.write_str("reroute"),
            Self::Reroute(edge) => write!(f, "reroute {edge}"),
            Self::Drop(reason) => write!(f, "drop {reason}"),
            Self::Bounce => f.write_str("bounce"),
            Self::Redirect(port) => write!(f, "redirect {port}"),
            Self::Raise => f.write_str("raise"),
            Self::Trap(kind) => write!(f, "trap {kind}"),
            Self::StartRefused(code) => write!(f, "start refused {code}"),
            Self::StartTrapped(kind) => write!(f, "start trapped {kind}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_is_read_as_it_is_written() {
        for text in [
            "pass",
            "pass 3",
            "reroute",
            "reroute 1",
            "drop 65535",
            "bounce",
            "redirect right",
            "raise",
            "trap unreachable",
            "start refused -1",
            "start trapped arithmetic",
        ] {
            assert_eq!(text.parse::<Ending>().unwrap().to_string(), text);
        }
        for text in ["", "drop", "drop 65536", "pass 256", "start"] {
            assert!(text.parse::<Ending>().is_err(), "{text}");
        }
    }
}
