//! The codings that a node has.

/// A content coding (RFC 9110, section 8.4.1; RFC 7932; RFC 8878).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// The zlib format.
    Deflate = 1,
    /// gzip.
    Gzip = 2,
    /// Brotli.
    Brotli = 3,
    /// Zstandard.
    Zstd = 4,
}

impl Coding {
    /// How many there are.
    pub const COUNT: usize = 4;
    /// All, the one that is preferred first: zstd takes half of gzip's time; br is smaller than
    /// gzip and takes twice its time; of deflate there are two kinds around.
    pub const PREFERRED: [Self; Self::COUNT] =
        [Self::Zstd, Self::Brotli, Self::Gzip, Self::Deflate];

    /// Its number for the node.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Its place in a table.
    pub const fn index(self) -> usize {
        self as usize - 1
    }

    /// Its name in fields.
    pub const fn token(self) -> &'static str {
        match self {
            Self::Deflate => "deflate",
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    /// The coding of a name. RFC 9110, section 8.4: names have no case; 8.4.1.3: `x-gzip` is gzip.
    pub fn named(name: &[u8]) -> Option<Self> {
        if name.eq_ignore_ascii_case(b"x-gzip") {
            return Some(Self::Gzip);
        }
        Self::PREFERRED
            .into_iter()
            .find(|coding| name.eq_ignore_ascii_case(coding.token().as_bytes()))
    }
}
