//! What principals used: records, sums and receipts (docs/guides/ledger.md).

use ledger::{Account, Amounts, Field, Sum, Usage};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An amount of each thing that is billed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LedgerAmounts {
    /// Packets given to services.
    pub packets_in: u64,
    /// Their bytes, as they came.
    pub bytes_in: u64,
    /// Packets that left them, and frames of their own making.
    pub packets_out: u64,
    /// Operators run at `nic`.
    pub fuel_nic: u64,
    /// Operators run at `kernel`.
    pub fuel_kernel: u64,
    /// Nanoseconds of calls at `user`, estimated from one call of 64.
    pub cpu_user_ns: u64,
    /// Bytes of memory, times seconds.
    pub memory_byte_seconds: u64,
    /// Modules that came into the store.
    pub fetches: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Nanoseconds of processor time of compiling.
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
    /// By name, in the order of records.
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

/// What a meter counted since it was read before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerRecord {
    /// The number of its frame in the ledger; not in a receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// Which of its principal's records it is.
    pub own_number: u64,
    /// When the meter was read before, in Unix seconds.
    pub since: u64,
    /// When it was read, by the ledger's time, which never runs backwards.
    pub time: u64,
    /// What the node's clock said then.
    pub clock: u64,
    /// Who pays.
    pub principal: String,
    /// In which of its sessions.
    pub session: String,
    /// For which service, if for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// What counted.
    pub meter: String,
    /// The meter counts no further.
    pub last: bool,
    /// What is billed.
    pub used: LedgerAmounts,
    /// What the meter showed.
    pub reading: LedgerAmounts,
}

impl LedgerRecord {
    /// A record, with the number of its frame if it is of a ledger.
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
    /// The records.
    pub records: Vec<LedgerRecord>,
    /// The number to ask for next.
    pub next: u64,
    /// Whether there was more than this answer has room for.
    pub more: bool,
}

/// What an account used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerTotal {
    /// Who pays.
    pub principal: String,
    /// In which session.
    pub session: String,
    /// The records that this is the sum of.
    pub records: u64,
    /// The time of the first, in Unix seconds.
    pub first: u64,
    /// The time of the last.
    pub last: u64,
    /// What they come to.
    pub used: LedgerAmounts,
}

impl LedgerTotal {
    /// Of one account.
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

/// What each account used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerTotals {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Who signs: `ed25519/…`.
    pub node_key: String,
    /// Where it is on the node's machine.
    pub directory: String,
    /// Which ledger it is.
    pub ledger: String,
    /// How many frames it has.
    pub frames: u64,
    /// What all of them come to: the chain behind the last one.
    pub chain: String,
    /// By principal and session.
    pub accounts: Vec<LedgerTotal>,
}

/// A principal's own records, with the node's signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerReceipt {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// How many records it has.
    pub records: u64,
    /// The own number from which the next receipt goes on.
    pub next: u64,
    /// The receipt, as a PEM text.
    pub receipt: String,
}
