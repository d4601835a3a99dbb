//! The codings that there are, and how hard an encoder may try.

use std::fmt;

/// A content coding that an encoder is here for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Coding {
    /// The zlib format (RFC 1950) around DEFLATE, as RFC 9110, section 8.4.1.2, says; not DEFLATE
    /// alone, which some call by this name.
    Deflate = 1,
    /// gzip (RFC 1952).
    Gzip = 2,
    /// Brotli (RFC 7932).
    Brotli = 3,
    /// Zstandard (RFC 8878), with a window far below the 8 MiB of RFC 9659.
    Zstd = 4,
}

impl Coding {
    /// All of them, by number.
    pub const ALL: [Self; 4] = [Self::Deflate, Self::Gzip, Self::Brotli, Self::Zstd];

    /// Its number where modules name it; 0 is no coding.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The coding of a number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|coding| coding.number() == number)
    }

    /// Its name in Content-Encoding and Accept-Encoding.
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

/// How hard an encoder tries: 1 is the fastest, 9 the smallest that is worth its time while
/// somebody waits. One scale for all codings; each codec has its own table of what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u8);

impl Level {
    /// The fastest.
    pub const MIN: Self = Self(1);
    /// The smallest.
    pub const MAX: Self = Self(9);
    /// When nobody says anything: a proxy's processor is dearer than its link.
    pub const DEFAULT: Self = Self(1);
    /// How many there are.
    pub const COUNT: usize = 9;

    /// A level from 1 to 9.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number >= Self::MIN.0 && number <= Self::MAX.0 { Some(Self(number)) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Its place in a table of all levels.
    #[must_use]
    pub(crate) const fn index(self) -> usize {
        (self.0 - Self::MIN.0) as usize
    }

    /// All levels, fastest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (Self::MIN.0..=Self::MAX.0).map(Self)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A codec gave up: no memory for its state, or a fault of its own. What has been given out is
/// no whole body, and nothing follows; the connection has to be reset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the encoder for {coding} gave up: {reason}")]
pub struct Failed {
    /// Which codec.
    pub coding: Coding,
    /// What it said.
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
