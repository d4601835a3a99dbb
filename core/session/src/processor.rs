//! Virtual processors: a share of one guest core, with or without extra time.

use core::fmt;
use core::str::FromStr;

use crate::share::{Share, ShareError};
use crate::text::{serde_as_text, shown};

/// Suffix of a virtual processor that may have extra time.
const EXTRA: &str = "extra";

/// A share of one guest core's time; as text `1ms/4ms`, or `1ms/4ms+extra`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualProcessor {
    /// Reserved slice and period.
    pub share: Share,
    /// True if it takes part in the surplus, by its session's weight.
    pub extra: bool,
}

/// Parse error of a virtual processor. The operator's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcessorError {
    /// The share is invalid.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// The word after `+` is not `extra`.
    #[error(
        "the virtual processor '{text}' has '+{word}' behind its share; \
         write '+{EXTRA}' for a part of what nobody uses, or nothing"
    )]
    Word {
        /// Input, shortened.
        text: String,
        /// Word after the `+`.
        word: String,
    },
}

impl FromStr for VirtualProcessor {
    type Err = ProcessorError;

    /// Reads `1ms/4ms` or `1ms/4ms+extra`.
    fn from_str(text: &str) -> Result<Self, ProcessorError> {
        match text.split_once('+') {
            None => Ok(Self { share: text.parse()?, extra: false }),
            Some((share, EXTRA)) => Ok(Self { share: share.parse()?, extra: true }),
            Some((_, word)) => Err(ProcessorError::Word { text: shown(text), word: shown(word) }),
        }
    }
}

impl fmt::Display for VirtualProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.share)?;
        if self.extra { write!(f, "+{EXTRA}") } else { Ok(()) }
    }
}

serde_as_text!(VirtualProcessor);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_processor_is_a_share_with_or_without_extra_time() {
        for text in ["1ms/4ms", "1ms/4ms+extra"] {
            let processor: VirtualProcessor = text.parse().unwrap();
            assert_eq!(processor.to_string(), text);
            assert_eq!(processor.extra, text.ends_with("extra"));
            let json = serde_json::to_string(&processor).unwrap();
            assert_eq!(serde_json::from_str::<VirtualProcessor>(&json).unwrap(), processor);
        }
    }

    #[test]
    fn an_unknown_suffix_is_refused() {
        let refused = "1ms/4ms+more".parse::<VirtualProcessor>().unwrap_err();
        assert!(refused.to_string().contains("'+more'"), "{refused}");
        assert!("1ms+extra".parse::<VirtualProcessor>().is_err());
    }
}
