//! Content codings of a node.

/// Content coding (RFC 9110, section 8.4.1; RFC 7932; RFC 8878).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// zlib format.
    Deflate = 1,
    /// gzip.
    Gzip = 2,
    /// Brotli.
    Brotli = 3,
    /// Zstandard.
    Zstd = 4,
}

impl Coding {
    /// Number of codings.
    pub const COUNT: usize = 4;
    /// All codings, by preference: zstd takes half of gzip's time; br has a smaller output than
    /// gzip and takes twice its time; deflate is ambiguous among implementations.
    pub const PREFERRED: [Self; Self::COUNT] =
        [Self::Zstd, Self::Brotli, Self::Gzip, Self::Deflate];

    /// Returns its number in the node's function.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns its index in a table.
    pub const fn index(self) -> usize {
        self as usize - 1
    }

    /// Returns its name in fields.
    pub const fn token(self) -> &'static str {
        match self {
            Self::Deflate => "deflate",
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    /// Returns the coding with a name. RFC 9110, section 8.4: names are case-insensitive; 8.4.1.3:
    /// `x-gzip` is gzip.
    pub fn named(name: &[u8]) -> Option<Self> {
        if name.eq_ignore_ascii_case(b"x-gzip") {
            return Some(Self::Gzip);
        }
        Self::PREFERRED
            .into_iter()
            .find(|coding| name.eq_ignore_ascii_case(coding.token().as_bytes()))
    }
}
