//! What a module asks for: the arguments of the foreign function [`FUNCTION`].
//!
//! ```text
//!  byte 0: coding, 0 is none │ byte 1: level, 255 is the host's choice
//! ```

use crate::{Coding, Level};

/// The foreign function by which a module has the body of its stream's response coded.
pub const FUNCTION: &str = "tamandua_code_response";
/// The level that leaves the choice to the host.
const LEVEL_OF_HOST: u8 = 255;
/// The coding that is none.
const IDENTITY: u8 = 0;

/// What becomes of a response's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// It stays as it is: takes back what was asked for before.
    Identity,
    /// It is coded.
    Code {
        /// How.
        coding: Coding,
        /// How hard; without one the host chooses, and may choose again.
        level: Option<Level>,
    },
}

/// Why two bytes are no wish. The module's author's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WishError {
    /// Not two bytes.
    #[error("{FUNCTION} takes two bytes, coding and level; it got {found}")]
    Length {
        /// How many there were.
        found: usize,
    },
    /// No such coding.
    #[error(
        "{FUNCTION} knows the codings 0 identity, 1 deflate, 2 gzip, 3 br and 4 zstd, not {found}"
    )]
    Coding {
        /// What was there.
        found: u8,
    },
    /// No such level.
    #[error("{FUNCTION} takes a level from 1 to 9, or 255 for the host's choice, not {found}")]
    Level {
        /// What was there.
        found: u8,
    },
}

impl Wish {
    /// Reads what a module has written.
    ///
    /// # Errors
    /// When it is not two bytes, or one of them means nothing.
    pub fn parse(bytes: &[u8]) -> Result<Self, WishError> {
        let &[coding, level] = bytes else {
            return Err(WishError::Length { found: bytes.len() });
        };
        let level = match level {
            LEVEL_OF_HOST => None,
            number => Some(Level::new(number).ok_or(WishError::Level { found: number })?),
        };
        match coding {
            IDENTITY => Ok(Self::Identity),
            number => Coding::from_number(number)
                .map(|coding| Self::Code { coding, level })
                .ok_or(WishError::Coding { found: number }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_bytes_is_a_wish_or_says_why_not() {
        let mut wishes = 0;
        for coding in 0..=255 {
            for level in 0..=255 {
                let is_level = (1..=9).contains(&level) || level == 255;
                let expected = match (coding, is_level) {
                    (_, false) => Err(WishError::Level { found: level }),
                    (0, true) => Ok(Wish::Identity),
                    (1..=4, true) => Ok(Wish::Code {
                        coding: Coding::ALL[usize::from(coding) - 1],
                        level: Level::new(level),
                    }),
                    _ => Err(WishError::Coding { found: coding }),
                };
                assert_eq!(Wish::parse(&[coding, level]), expected);
                wishes += usize::from(expected.is_ok());
            }
        }
        assert_eq!(wishes, 5 * 10);
        for bytes in [&[][..], &[2], &[2, 1, 0]] {
            assert_eq!(Wish::parse(bytes), Err(WishError::Length { found: bytes.len() }));
        }
    }
}
