//! How much of each thing: the columns of a bill.

/// What is billed. The order is that of the columns in records and tables; new ones come last,
/// with a new version of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// Packets given to a service, each once, at whatever level.
    PacketsIn,
    /// Their bytes, as they came.
    BytesIn,
    /// Packets that left it, and frames of its own making.
    PacketsOut,
    /// WebAssembly operators that it ran at `nic`.
    FuelNic,
    /// The same at `kernel`.
    FuelKernel,
    /// Nanoseconds that its calls took at `user`: an estimate.
    CpuUserNs,
    /// Bytes of its memory, times the seconds that it had them.
    MemoryByteSeconds,
    /// Modules that came into the node's store for it.
    Fetches,
    /// Their bytes.
    FetchedBytes,
    /// Nanoseconds of processor time of compiling its modules.
    CompileNs,
}

/// How many there are.
pub const FIELDS: usize = Field::ALL.len();

impl Field {
    /// All of them, in order.
    pub const ALL: [Self; 10] = [
        Self::PacketsIn,
        Self::BytesIn,
        Self::PacketsOut,
        Self::FuelNic,
        Self::FuelKernel,
        Self::CpuUserNs,
        Self::MemoryByteSeconds,
        Self::Fetches,
        Self::FetchedBytes,
        Self::CompileNs,
    ];

    /// Its name, with its unit, in documents and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PacketsIn => "packets_in",
            Self::BytesIn => "bytes_in",
            Self::PacketsOut => "packets_out",
            Self::FuelNic => "fuel_nic",
            Self::FuelKernel => "fuel_kernel",
            Self::CpuUserNs => "cpu_user_ns",
            Self::MemoryByteSeconds => "memory_byte_seconds",
            Self::Fetches => "fetches",
            Self::FetchedBytes => "fetched_bytes",
            Self::CompileNs => "compile_ns",
        }
    }
}

/// An amount of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts([u64; FIELDS]);

impl Amounts {
    /// Nothing of anything.
    pub const NONE: Self = Self([0; FIELDS]);

    /// In the order of [`Field::ALL`].
    #[must_use]
    pub const fn new(amounts: [u64; FIELDS]) -> Self {
        Self(amounts)
    }

    /// In the order of [`Field::ALL`].
    #[must_use]
    pub const fn as_array(&self) -> &[u64; FIELDS] {
        &self.0
    }

    /// How much of this.
    #[must_use]
    pub const fn get(&self, field: Field) -> u64 {
        self.0[field as usize]
    }

    /// The same with so much of this.
    #[must_use]
    pub const fn with(mut self, field: Field, amount: u64) -> Self {
        self.0[field as usize] = amount;
        self
    }

    /// Whether there is nothing of anything.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// What has come since `before`.
    ///
    /// # Errors
    /// The field of which there was more before: a counter does not run backwards.
    pub fn since(&self, before: &Self) -> Result<Self, Field> {
        self.each(before, u64::checked_sub)
    }

    /// Both together.
    ///
    /// # Errors
    /// The field whose sum has no room in 64 bits. A bill that stops at a limit would be wrong.
    pub fn plus(&self, other: &Self) -> Result<Self, Field> {
        self.each(other, u64::checked_add)
    }

    fn each(&self, other: &Self, of: fn(u64, u64) -> Option<u64>) -> Result<Self, Field> {
        let mut result = Self::NONE;
        for field in Field::ALL {
            let at = field as usize;
            result.0[at] = of(self.0[at], other.0[at]).ok_or(field)?;
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_add_and_subtract_exactly_or_name_the_field() {
        let (few, many) = (Amounts::new([3; FIELDS]), Amounts::new([5; FIELDS]));
        assert_eq!(many.since(&few), Ok(Amounts::new([2; FIELDS])));
        assert_eq!(few.plus(&few.with(Field::Fetches, 0)).unwrap().get(Field::Fetches), 3);
        assert_eq!(few.since(&few.with(Field::CompileNs, 4)), Err(Field::CompileNs));
        assert_eq!(few.plus(&few.with(Field::FuelNic, u64::MAX)), Err(Field::FuelNic));
        for (at, field) in Field::ALL.into_iter().enumerate() {
            assert_eq!(field as usize, at);
        }
    }
}
