//! Ledger of what principals used: records, totals and receipts (docs/guides/ledger.md).

use ledger::{Account, Amounts, Field, Sum, Usage};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Amounts of everything that is billed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LedgerAmounts {
    /// Packets given to services.
    pub packets_in: u64,
    /// Bytes of these packets, as they came.
    pub bytes_in: u64,
    /// Packets that left services, and frames that services made.
    pub packets_out: u64,
    /// Operators executed at `nic`.
    pub fuel_nic: u64,
    /// Operators executed at `kernel`.
    pub fuel_kernel: u64,
    /// Nanoseconds of calls at `user`, estimated from one call of 64.
    pub cpu_user_ns: u64,
    /// Bytes of memory, times seconds.
    pub memory_byte_seconds: u64,
    /// Modules fetched into the store.
    pub fetches: u64,
    /// Bytes of these modules.
    pub fetched_bytes: u64,
    /// Nanoseconds of processor time spent compiling.
    pub compile_ns: u64,
}

impl From<&Amounts> for LedgerAmounts {
    fn from(amounts: &Amounts) -> Self {
        let get = |field| amounts.get(field);
        Self {
            packets_in: get(Field::PacketsIn),
            bytes_in: get(Field::BytesIn),
            packets_out: get(Field::PacketsOut),
            fuel_nic: get(Field::FuelNic),
            fuel_kernel: get(Field::FuelKernel),
            cpu_user_ns: get(Field::CpuUserNs),
            memory_byte_seconds: get(Field::MemoryByteSeconds),
            fetches: get(Field::Fetches),
            fetched_bytes: get(Field::FetchedBytes),
            compile_ns: get(Field::CompileNs),
        }
    }
}

impl LedgerAmounts {
    /// Returns the amounts by name, in the order of records.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, u64); 10] {
        [
            (Field::PacketsIn.name(), self.packets_in),
            (Field::BytesIn.name(), self.bytes_in),
            (Field::PacketsOut.name(), self.packets_out),
            (Field::FuelNic.name(), self.fuel_nic),
            (Field::FuelKernel.name(), self.fuel_kernel),
            (Field::CpuUserNs.name(), self.cpu_user_ns),
            (Field::MemoryByteSeconds.name(), self.memory_byte_seconds),
            (Field::Fetches.name(), self.fetches),
            (Field::FetchedBytes.name(), self.fetched_bytes),
            (Field::CompileNs.name(), self.compile_ns),
        ]
    }
}

/// Reading of a meter, with what it counted since the previous one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerRecord {
    /// Number of the record's frame in the ledger; absent in a receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// Number of the record among those of its principal.
    pub own_number: u64,
    /// Time of the previous reading, in Unix seconds.
    pub since: u64,
    /// Time of this reading, in Unix seconds of the ledger's time, which never runs backwards.
    pub time: u64,
    /// Time of the node's clock at this reading.
    pub clock: u64,
    /// Principal that pays.
    pub principal: String,
    /// Session of the principal.
    pub session: String,
    /// Service, if the meter is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Id of the meter.
    pub meter: String,
    /// True if the meter counts no further.
    pub last: bool,
    /// Amounts since the previous reading, which are billed.
    pub used: LedgerAmounts,
    /// Amounts that the meter showed.
    pub reading: LedgerAmounts,
}

impl LedgerRecord {
    /// Returns a record, with the number of its frame if it is from a ledger.
    #[must_use]
    pub fn of(number: Option<u64>, usage: &Usage) -> Self {
        Self {
            number,
            own_number: usage.own_number,
            since: usage.since.0,
            time: usage.time.0,
            clock: usage.clock.0,
            principal: usage.account.principal.to_string(),
            session: usage.account.session.to_string(),
            service: usage.service.as_ref().map(ToString::to_string),
            meter: usage.meter.to_string(),
            last: usage.is_last,
            used: (&usage.used).into(),
            reading: (&usage.reading).into(),
        }
    }
}

/// Records, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerRecords {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Records.
    pub records: Vec<LedgerRecord>,
    /// Number to request next.
    pub next: u64,
    /// True if there are more records than fit this answer.
    pub more: bool,
}

/// Total of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerTotal {
    /// Principal that pays.
    pub principal: String,
    /// Session of the principal.
    pub session: String,
    /// Number of records in the total.
    pub records: u64,
    /// Time of the first record, in Unix seconds.
    pub first: u64,
    /// Time of the last record, in Unix seconds.
    pub last: u64,
    /// Amounts of all these records together.
    pub used: LedgerAmounts,
}

impl LedgerTotal {
    /// Returns the total of one account.
    #[must_use]
    pub fn of(account: &Account, sum: &Sum) -> Self {
        Self {
            principal: account.principal.to_string(),
            session: account.session.to_string(),
            records: sum.records,
            first: sum.first.0,
            last: sum.last.0,
            used: (&sum.used).into(),
        }
    }
}

/// Totals of all accounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerTotals {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Public key of the node that signs: `ed25519/…`.
    pub node_key: String,
    /// Directory of the ledger on the node's machine.
    pub directory: String,
    /// Id of the ledger.
    pub ledger: String,
    /// Number of frames in the ledger.
    pub frames: u64,
    /// Hash chain after the last frame.
    pub chain: String,
    /// Totals by principal and session.
    pub accounts: Vec<LedgerTotal>,
}

/// Receipt: a principal's own records, with the node's signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerReceipt {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Number of records in the receipt.
    pub records: u64,
    /// Number of the principal's record with which the next receipt begins.
    pub next: u64,
    /// Receipt, as a PEM text.
    pub receipt: String,
}
