//! Colours of what people read at a terminal.
//!
//! None in files and pipes, none on a terminal that has none, and none with `NO_COLOR`
//! (no-color.org), unless `--color` says otherwise. A colour repeats what the words beside it say and is never all that says it.

use clap::ValueEnum;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};

static OUTPUT_IS_STYLED: AtomicBool = AtomicBool::new(false);
static ERRORS_ARE_STYLED: AtomicBool = AtomicBool::new(false);

/// Condition for colours, as given by `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// Colours in a terminal that has them, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Colours everywhere, also in files and pipes.
    Always,
    /// No colours.
    Never,
}

/// A stream that people may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Errors,
    /// A terminal with colours.
    #[cfg(test)]
    Terminal,
}

/// Purpose of a piece of text; each has its SGR parameters (ECMA-48, 8.3.117).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// A heading: bold.
    Heading,
    /// Something is as it should be, or added: green.
    Good,
    /// Something stays and changes, or is not known: yellow.
    Warning,
    /// Something failed, or is taken away: red.
    Bad,
    /// A kind of thing, beside many others: cyan.
    Kind,
}

impl Stream {
    /// Returns the text with the colour of its purpose, or as it is where there are no colours.
    pub fn paint(self, ink: Ink, text: &str) -> String {
        if !self.is_styled() || text.is_empty() {
            return text.to_owned();
        }
        format!("\u{1b}[{}m{text}\u{1b}[0m", ink.parameters())
    }

    /// True where the stream has colours.
    pub fn is_styled(self) -> bool {
        match self {
            Self::Output => OUTPUT_IS_STYLED.load(Ordering::Relaxed),
            Self::Errors => ERRORS_ARE_STYLED.load(Ordering::Relaxed),
            #[cfg(test)]
            Self::Terminal => true,
        }
    }
}

impl Ink {
    const fn parameters(self) -> &'static str {
        match self {
            Self::Heading => "1",
            Self::Good => "32",
            Self::Warning => "33",
            Self::Bad => "31",
            Self::Kind => "36",
        }
    }

    /// Returns the colour of a word for the state of something, if it has one.
    pub fn of_state(word: &str) -> Option<Self> {
        match word {
            "running" | "ready" | "up" | "ok" | "yes" | "there" => Some(Self::Good),
            "failed" | "MISSING" | "lost" | "gone" => Some(Self::Bad),
            "starting" | "missing" | "unknown" | "slow" | "down" => Some(Self::Warning),
            _ => None,
        }
    }
}

/// Detects which streams have colours; before this none has.
pub fn detect_colours(when: When) {
    let has = |is_terminal| has_colours(when, is_terminal, |name| std::env::var(name).ok());
    OUTPUT_IS_STYLED.store(has(io::stdout().is_terminal()), Ordering::Relaxed);
    ERRORS_ARE_STYLED.store(has(io::stderr().is_terminal()), Ordering::Relaxed);
}

fn has_colours(when: When, is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    let refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    let cannot = variable("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    match when {
        When::Always => true,
        When::Never => false,
        When::Auto => is_terminal && !refused && !cannot,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_that_has_colours_gets_them() {
        for (is_terminal, no_color, term, expected) in [
            (true, None, Some("xterm-256color"), true),
            (true, Some(""), Some("xterm"), true),
            (true, Some("1"), Some("xterm"), false),
            (true, None, Some("dumb"), false),
            (true, None, None, false),
            (false, None, Some("xterm"), false),
        ] {
            let variable = |name: &str| {
                let value = if name == "NO_COLOR" { no_color } else { term };
                value.map(str::to_owned)
            };
            let said = format!("{is_terminal} {no_color:?} {term:?}");
            assert_eq!(has_colours(When::Auto, is_terminal, variable), expected, "{said}");
            assert!(has_colours(When::Always, is_terminal, variable), "{said}");
            assert!(!has_colours(When::Never, is_terminal, variable), "{said}");
        }
    }

    #[test]
    fn a_stream_without_colours_has_the_text_as_it_is() {
        assert_eq!(Stream::Output.paint(Ink::Bad, "failed"), "failed");
    }
}
