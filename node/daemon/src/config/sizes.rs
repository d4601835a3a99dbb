//! Sizes and intervals in the node file.

use serde::Deserialize;

/// Capacity of the large flow cache on each CPU, in flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u32")]
pub struct FlowCache(pub u32);

impl Default for FlowCache {
    /// 9 MiB on each CPU.
    fn default() -> Self {
        Self(65_536)
    }
}

impl TryFrom<u32> for FlowCache {
    type Error = String;

    fn try_from(flows: u32) -> Result<Self, String> {
        const MAX: u32 = bpf::front_door::FLOWS_LARGE_MAX;
        if flows > MAX {
            return Err(format!(
                "a flow cache of {flows} flows is too large; at most {MAX} are allowed"
            ));
        }
        Ok(Self(flows))
    }
}

/// Interval at which usage is written to the ledger, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u64")]
pub struct LedgerEvery(pub u64);

/// Longest interval in seconds: it bounds what a power failure takes from the bill.
const LEDGER_EVERY_MAX: u64 = 3600;

impl Default for LedgerEvery {
    /// 4 KB of ledger a minute for a service that is always at work.
    fn default() -> Self {
        Self(10)
    }
}

impl TryFrom<u64> for LedgerEvery {
    type Error = String;

    fn try_from(seconds: u64) -> Result<Self, String> {
        match seconds {
            1..=LEDGER_EVERY_MAX => Ok(Self(seconds)),
            _ => Err(format!(
                "a ledger that is written every {seconds} s is none; 1 to {LEDGER_EVERY_MAX} are allowed"
            )),
        }
    }
}
