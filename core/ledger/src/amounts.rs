//! Billed amounts: one number for each column of a bill.

/// Billed resource. The order is that of the columns in records and tables; new ones are appended,
/// with a new version of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// Packets delivered to a service, each counted once, at any level.
    PacketsIn,
    /// Bytes of those packets, as received.
    BytesIn,
    /// Packets that left a service, and frames that it generated.
    PacketsOut,
    /// WebAssembly operators that a service executed at `nic`.
    FuelNic,
    /// WebAssembly operators that a service executed at `kernel`.
    FuelKernel,
    /// Estimated nanoseconds of a service's calls at `user`.
    CpuUserNs,
    /// Bytes of a service's memory, times the seconds that they were allocated.
    MemoryByteSeconds,
    /// Modules fetched into the node's store for a service.
    Fetches,
    /// Bytes of those modules.
    FetchedBytes,
    /// Nanoseconds of processor time of compiling a service's modules.
    CompileNs,
}

/// Number of billed resources.
pub const FIELDS: usize = Field::ALL.len();

impl Field {
    /// All resources, in column order.
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

    /// Returns the name, with its unit, in documents and tables.
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

/// Amounts of all billed resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts([u64; FIELDS]);

impl Amounts {
    /// No usage.
    pub const NONE: Self = Self([0; FIELDS]);

    /// Makes amounts, in the order of [`Field::ALL`].
    #[must_use]
    pub const fn new(amounts: [u64; FIELDS]) -> Self {
        Self(amounts)
    }

    /// Returns the amounts, in the order of [`Field::ALL`].
    #[must_use]
    pub const fn as_array(&self) -> &[u64; FIELDS] {
        &self.0
    }

    /// Returns the amount of one resource.
    #[must_use]
    pub const fn get(&self, field: Field) -> u64 {
        self.0[field as usize]
    }

    /// Returns a copy with the given amount of one resource.
    #[must_use]
    pub const fn with(mut self, field: Field, amount: u64) -> Self {
        self.0[field as usize] = amount;
        self
    }

    /// Returns true if all amounts are zero.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Returns the difference to an earlier reading.
    ///
    /// # Errors
    /// The field that was larger before: counters do not run backwards.
    pub fn since(&self, before: &Self) -> Result<Self, Field> {
        self.each(before, u64::checked_sub)
    }

    /// Returns the sum.
    ///
    /// # Errors
    /// The field whose sum exceeds 64 bits. A bill that saturates would be wrong.
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
