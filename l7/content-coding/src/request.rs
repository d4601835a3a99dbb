//! Requests of modules for coding: the arguments of the foreign function [`FUNCTION`].
//!
//! ```text
//!   byte 0: coding, 0 is none │ byte 1: level, 255 is the host's choice
//! ```

use crate::{Coding, Level};

/// Foreign function by which a module requests the coding of its stream's response body.
pub const FUNCTION: &str = "tamandua_code_response";
/// Number that leaves the level to the host.
const HOST_LEVEL: u8 = 255;
/// Number that means no coding.
const IDENTITY: u8 = 0;

/// Request for a response's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodingRequest {
    /// Leave the body as it is; cancels an earlier request.
    Identity,
    /// Encode the body.
    Code {
        /// Coding to use.
        coding: Coding,
        /// Level; `None` leaves the choice to the host, which may change it later.
        level: Option<Level>,
    },
}

/// The arguments are no valid request: a fault of the module's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodingRequestError {
    /// The arguments are not two bytes.
    #[error("{FUNCTION} takes two bytes, coding and level; it got {found}")]
    Length {
        /// Number of bytes.
        found: usize,
    },
    /// The coding is unknown.
    #[error(
        "{FUNCTION} knows the codings 0 identity, 1 deflate, 2 gzip, 3 br and 4 zstd, not {found}"
    )]
    Coding {
        /// Number of the coding.
        found: u8,
    },
    /// The level is out of range.
    #[error("{FUNCTION} takes a level from 1 to 9, or 255 for the host's choice, not {found}")]
    Level {
        /// Number of the level.
        found: u8,
    },
}

impl CodingRequest {
    /// Parses the arguments of a module.
    ///
    /// # Errors
    /// The arguments are not two bytes, or one of them is invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, CodingRequestError> {
        let &[coding, level] = bytes else {
            return Err(CodingRequestError::Length { found: bytes.len() });
        };
        let level = match level {
            HOST_LEVEL => None,
            number => Some(Level::new(number).ok_or(CodingRequestError::Level { found: number })?),
        };
        match coding {
            IDENTITY => Ok(Self::Identity),
            number => Coding::from_number(number)
                .map(|coding| Self::Code { coding, level })
                .ok_or(CodingRequestError::Coding { found: number }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_bytes_is_a_request_or_an_error() {
        let mut requests = 0;
        for coding in 0..=255 {
            for level in 0..=255 {
                let is_level = (1..=9).contains(&level) || level == 255;
                let expected = match (coding, is_level) {
                    (_, false) => Err(CodingRequestError::Level { found: level }),
                    (0, true) => Ok(CodingRequest::Identity),
                    (1..=4, true) => Ok(CodingRequest::Code {
                        coding: Coding::ALL[usize::from(coding) - 1],
                        level: Level::new(level),
                    }),
                    _ => Err(CodingRequestError::Coding { found: coding }),
                };
                assert_eq!(CodingRequest::parse(&[coding, level]), expected);
                requests += usize::from(expected.is_ok());
            }
        }
        assert_eq!(requests, 5 * 10);
        for bytes in [&[][..], &[2], &[2, 1, 0]] {
            assert_eq!(
                CodingRequest::parse(bytes),
                Err(CodingRequestError::Length { found: bytes.len() })
            );
        }
    }
}
