//! Content codings, and the levels of an encoder.

use std::fmt;

/// Content coding for which there is an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Coding {
    /// zlib format (RFC 1950) around DEFLATE, as RFC 9110, section 8.4.1.2, says; not raw DEFLATE,
    /// which some call by this name.
    Deflate = 1,
    /// gzip (RFC 1952).
    Gzip = 2,
    /// Brotli (RFC 7932).
    Brotli = 3,
    /// Zstandard (RFC 8878), with a window far below the 8 MiB of RFC 9659.
    Zstd = 4,
}

impl Coding {
    /// All codings, by number.
    pub const ALL: [Self; 4] = [Self::Deflate, Self::Gzip, Self::Brotli, Self::Zstd];

    /// Returns the number of the coding in the module ABI; 0 means no coding.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns the coding of a number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|coding| coding.number() == number)
    }

    /// Returns the name in Content-Encoding and Accept-Encoding.
    #[must_use]
    pub const fn token(self) -> &'static str {
        match self {
            Self::Deflate => "deflate",
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }
}

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.token())
    }
}

/// Effort of an encoder: 1 is the fastest, 9 the smallest output that is worth its time while a
/// client waits. One scale for all codings; each codec maps it to its own levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u8);

impl Level {
    /// Fastest level.
    pub const MIN: Self = Self(1);
    /// Level with the smallest output.
    pub const MAX: Self = Self(9);
    /// Default level: a proxy's processor time costs more than its link.
    pub const DEFAULT: Self = Self(1);
    /// Number of levels.
    pub const COUNT: usize = 9;

    /// Creates a level from 1 to 9.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number >= Self::MIN.0 && number <= Self::MAX.0 { Some(Self(number)) } else { None }
    }

    /// Returns the number of the level.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Returns the index in a table of all levels.
    #[must_use]
    pub(crate) const fn index(self) -> usize {
        (self.0 - Self::MIN.0) as usize
    }

    /// Returns all levels, fastest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (Self::MIN.0..=Self::MAX.0).map(Self)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A codec failed: no memory for its state, or an internal error. The output so far is incomplete
/// and nothing follows; the connection has to be reset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the encoder for {coding} gave up: {reason}")]
pub struct Failed {
    /// Codec that failed.
    pub coding: Coding,
    /// Error of the codec.
    pub reason: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_levels_are_those_of_the_table() {
        for coding in Coding::ALL {
            assert_eq!(Coding::from_number(coding.number()), Some(coding));
        }
        assert_eq!([0, 5, 255].map(Coding::from_number), [None; 3]);
        assert_eq!(
            Level::all().map(Level::number).collect::<Vec<_>>(),
            (1..=9).collect::<Vec<_>>()
        );
        assert_eq!([0, 10, 255].map(Level::new), [None; 3]);
        assert_eq!(Level::all().count(), Level::COUNT);
    }
}
