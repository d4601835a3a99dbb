//! Unit tests of port share accounts in memory of this process: the test plays the front door,
//! which counts packets sent up and packets sent directly from lower levels.

use super::*;
use crate::dispatch::tests::shared::{memory, write};
use bpf_maps::{Account, FUEL_SHIFT, LINES_MAX, PortShare as Record};
use rustix::fd::OwnedFd;
use std::mem::offset_of;

const PORT: PortId = PortId(1);
const GOLD: SessionId = SessionId(2);
const SILVER: SessionId = SessionId(3);
/// Accounts of the two sessions; that of all others has the port's number.
const OF_GOLD: u32 = 500;
const OF_SILVER: u32 = 501;
const OF_OTHERS: u32 = PORT.0 as u32;

struct Bench {
    accounts: PortShareAccounts,
    map: OwnedFd,
}

impl Bench {
    fn new() -> Self {
        let map = memory(LINES_MAX * size_of::<Record>());
        let mut bench = Self { accounts: PortShareAccounts::default(), map };
        // Packets sent up before the cell existed do not count.
        bench.send_up(OF_GOLD, 0, 7);
        bench.accounts.pay_from(bpf::PortShares::from_fd(&bench.map).unwrap());
        bench.accounts.set_payer(PORT, GOLD, Some(OF_GOLD));
        bench.accounts.set_payer(PORT, SILVER, Some(OF_SILVER));
        bench
    }

    fn at(account: u32, field: usize) -> usize {
        account as usize * size_of::<Record>() + field
    }

    fn word(&self, account: u32, field: usize) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::pread(&self.map, &mut bytes, Self::at(account, field) as u64).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn set(&self, account: u32, field: usize, value: u64) {
        write(&self.map, Self::at(account, field), &value.to_le_bytes());
    }

    fn add(&self, account: u32, field: usize, more: u64) {
        self.set(account, field, self.word(account, field) + more);
    }

    /// Counts packets of a module at kernel level as sent up.
    fn send_up(&self, account: u32, epoch: usize, packets: u64) {
        self.add(account, offset_of!(Record, up) + 8 * epoch, packets);
    }

    /// Returns the number of waiting packets, as the front door computes it.
    fn waiting(&self, account: u32) -> i64 {
        let up = offset_of!(Record, up);
        let sum = self.word(account, up).wrapping_add(self.word(account, up + 8));
        sum.wrapping_sub(self.word(account, offset_of!(Record, gone))) as i64
    }
}

#[test]
fn waiting_packets_are_published_at_once_and_departures_when_the_device_has_sent_them() {
    let mut bench = Bench::new();
    let counted = [(); 3].map(|()| bench.accounts.wait(1, GOLD).unwrap());
    assert_eq!((bench.waiting(OF_GOLD), bench.waiting(OF_SILVER)), (3, 0));
    counted[..2].iter().for_each(|counted| bench.accounts.release(*counted));
    assert_eq!(bench.waiting(OF_GOLD), 3, "it lies in a ring");
    let more = bench.accounts.wait(1, GOLD).unwrap();
    assert_eq!(bench.waiting(OF_GOLD), 3, "behind them: nothing is said that is not so yet");
    bench.accounts.publish_all();
    assert_eq!(bench.waiting(OF_GOLD), 2);
    [counted[2], more].into_iter().for_each(|counted| bench.accounts.release(counted));
    bench.accounts.publish_all();
    assert_eq!(bench.waiting(OF_GOLD), 0);
    // Sessions without a share have a common account, and the node's own services none.
    assert!(bench.accounts.wait(1, SessionId::BEST_EFFORT).is_some());
    assert_eq!((bench.waiting(OF_OTHERS), bench.accounts.wait(1, SessionId::SYSTEM)), (1, None));
}

#[test]
fn packets_from_kernel_level_wait_until_they_have_left_and_lost_ones_are_settled() {
    let mut bench = Bench::new();
    bench.send_up(OF_GOLD, 0, 3);
    let arrived = [(); 2].map(|()| bench.accounts.on_arrival(OF_GOLD, 0).unwrap());
    assert!(arrived.iter().all(|counted| counted.is_of_kernel));
    assert_eq!(bench.waiting(OF_GOLD), 3, "one is on its way");
    arrived.into_iter().for_each(|counted| bench.accounts.release(counted));
    bench.accounts.publish_all();
    assert_eq!(bench.waiting(OF_GOLD), 1);
    bench.accounts.settle(1);
    assert_eq!(bench.waiting(OF_GOLD), 1, "of the other epoch none is missing");
    bench.accounts.settle(0);
    assert_eq!(bench.waiting(OF_GOLD), 0);
    assert_eq!(bench.accounts.on_arrival(OF_GOLD + 100, 0), None, "nobody has that account");
}

#[test]
fn an_account_that_another_session_has_now_is_not_touched_by_packets_of_the_one_before() {
    let mut bench = Bench::new();
    let counted = bench.accounts.wait(1, GOLD).unwrap();
    bench.accounts.set_payer(PORT, GOLD, None);
    bench.accounts.set_payer(PORT, SILVER, Some(OF_GOLD));
    assert_eq!(bench.waiting(OF_GOLD), 0, "it begins with nothing");
    let own = bench.accounts.wait(1, SILVER).unwrap();
    bench.accounts.release(counted);
    bench.accounts.publish_all();
    assert_eq!(bench.waiting(OF_GOLD), 1, "its own waits");
    bench.accounts.release(own);
    bench.accounts.publish_all();
    assert_eq!(bench.waiting(OF_GOLD), 0);
    // Without its share the session pays from the common account.
    bench.accounts.wait(1, GOLD).unwrap();
    assert_eq!(bench.waiting(OF_OTHERS), 1);
}

#[test]
fn packets_sent_at_user_level_are_paid_from_the_in_kernel_accounts_with_bounded_debt() {
    let bench = Bench::new();
    let (left, full) = (offset_of!(Account, left), offset_of!(Account, full));
    bench.set(OF_GOLD, left, 1_000 << FUEL_SHIFT);
    bench.set(OF_GOLD, full, 200 << FUEL_SHIFT);
    bench.accounts.pay(1, GOLD, (100, Bytes(24)), false);
    assert_eq!(bench.word(OF_GOLD, left), (1_000 - 124) << FUEL_SHIFT);
    bench.accounts.pay(1, GOLD, (2_000, Bytes(24)), true);
    assert_eq!(bench.word(OF_GOLD, left) as i64, -(200 << FUEL_SHIFT));
    let sent = [offset_of!(Record, sent_above), offset_of!(Record, sent_up)];
    assert_eq!(sent.map(|field| bench.word(OF_GOLD, field)), [100, 2_000]);
    bench.accounts.pay(1, SessionId::SYSTEM, (50, Bytes::ZERO), false);
    bench.accounts.pay(1, SessionId::BEST_EFFORT, (50, Bytes::ZERO), false);
    assert_eq!(bench.word(OF_OTHERS, sent[0]), 50, "the node's own services pay nothing");
}

#[test]
fn packets_that_left_from_the_kernel_are_seen_once_for_all_accounts_of_their_port() {
    let mut bench = Bench::new();
    let (packets, bytes) = (offset_of!(Account, packets), offset_of!(Account, sent));
    for (account, count) in [(OF_GOLD, 1), (OF_SILVER, 2), (OF_OTHERS, 4), (OF_OTHERS + 1, 8)] {
        bench.add(account, packets, count);
        bench.add(account, bytes, 60 * count);
        bench.add(account, bytes + 8, 40 * count);
    }
    assert_eq!(bench.accounts.take_bypassed(1), (Packets(7), Bytes(700)));
    assert_eq!(bench.accounts.take_bypassed(1), (Packets(0), Bytes::ZERO));
    bench.add(OF_SILVER, packets, 1);
    bench.add(OF_SILVER, bytes, 60);
    assert_eq!(bench.accounts.take_bypassed(1), (Packets(1), Bytes(60)));
}

#[test]
fn with_many_accounts_a_limited_number_is_read_each_time_in_rotation() {
    let mut bench = Bench::new();
    let packets = offset_of!(Account, packets);
    let sessions = 10..10 + 2 * READS_MAX as u32;
    for session in sessions.clone() {
        bench.accounts.set_payer(PORT, SessionId(session as u16), Some(1_000 + session));
        bench.add(1_000 + session, packets, 1);
    }
    let seen: Vec<u64> = (0..4).map(|_| bench.accounts.take_bypassed(1).0.0).collect();
    assert_eq!(seen.iter().sum::<u64>(), sessions.len() as u64, "{seen:?}");
    assert!(seen[0] < READS_MAX as u64 + 1 && seen[0] > 0, "{seen:?}");
}
