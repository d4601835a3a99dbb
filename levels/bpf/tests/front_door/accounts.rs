//! Tests of accounts: a session's modules use their budget below user level, and no packet more.

use bpf_maps::{Account, FUEL_SHIFT, OVER_DROP, OVER_NOT, OVER_RAISE};
use std::time::{Duration, Instant};
use wire::FrameBuilder;

use crate::harness::{XDP_DROP, XDP_PASS, addressed};
use crate::namespace::{add_way_out, enter};
use crate::nic_harness::{Nic, Script};

const NUMBER: u16 = 16_383;
/// Verdict: drop, with the module's own reason.
const DROP: u32 = 1;

fn frame() -> Vec<u8> {
    addressed(FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2).build())
}

fn of(fuel: i64, per_tick: u64, full: u64) -> Account {
    let parts = |fuel: u64| fuel << FUEL_SHIFT;
    let (per_tick, full) = (parts(per_tick), parts(full));
    Account { left: fuel << FUEL_SHIFT, per_tick, full, ..Account::default() }
}

impl Nic {
    fn put(&self, account: Account) {
        let map = self.door.map("tam_accounts");
        map.update(&u32::from(NUMBER), &account, bpf::Update::Any).unwrap();
    }

    /// Returns the remaining fuel, rounded down.
    fn fuel_left(&self) -> i64 {
        let map = self.door.map("tam_accounts");
        let account: Account = map.lookup(&u32::from(NUMBER)).unwrap().unwrap();
        account.left >> FUEL_SHIFT
    }

    /// Sends a packet whose module uses that much fuel; returns whether it ran.
    fn uses(&mut self, fuel: u32) -> bool {
        let before = self.hand_over().fuel_used;
        self.run(&frame(), Script { verdict: DROP, fuel, ..Script::default() });
        self.hand_over().fuel_used != before
    }
}

#[test]
fn a_lane_with_a_spent_account_is_not_run_and_its_overdraft_is_owed() {
    if !enter("a_lane_with_a_spent_account_is_not_run_and_its_overdraft_is_owed") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    nic.put(of(250, 0, 250));
    assert!((0..3).all(|_| nic.uses(100)), "without an account nobody is asked");
    nic.change_record(|lane| (lane.account, lane.beyond) = (NUMBER, u16::from(OVER_DROP)));
    // Earlier use is charged with the first packet, as is each packet with the next one.
    assert!(!nic.uses(100));
    assert_eq!(nic.fuel_left(), -50);
    nic.put(of(250, 0, 250));
    let ran = (0..10).filter(|_| nic.uses(100)).count();
    assert_eq!((ran, nic.fuel_left()), (3, -50));
    let stats = nic.stats();
    assert_eq!((stats.drop_budget, stats.drop_module, nic.ended()), (8, 6, 14));
    assert_eq!(stats.drop_budget_bytes, 8 * frame().len() as u64);
}

#[test]
fn beyond_an_account_packets_are_dropped_or_raised() {
    if !enter("beyond_an_account_packets_are_dropped_or_raised") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    nic.put(of(0, 0, 250));
    for (beyond, action, counted) in [
        (OVER_DROP, XDP_DROP, (1, 0)),
        (OVER_RAISE, XDP_PASS, (1, 1)),
        (OVER_NOT, XDP_DROP, (1, 1)),
    ] {
        nic.change_record(|lane| (lane.account, lane.beyond) = (NUMBER, u16::from(beyond)));
        let done = nic.verdict(&frame(), DROP);
        let stats = nic.stats();
        // Without a cell a raised packet goes plainly.
        let found = (done.action, (stats.drop_budget, stats.plain));
        assert_eq!(found, (action, counted), "{beyond}");
    }
    assert_eq!(nic.stats().drop_module, 1, "who pays nothing is run");
}

#[test]
fn an_account_fills_with_the_kernels_ticks_as_far_as_it_holds() {
    if !enter("an_account_fills_with_the_kernels_ticks_as_far_as_it_holds") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    nic.change_record(|lane| (lane.account, lane.beyond) = (NUMBER, u16::from(OVER_DROP)));
    // It was never filled: for all jiffies since the kernel started, but not beyond its bound.
    nic.put(of(-1, 1_000, 5_000));
    assert!(nic.uses(1));
    assert_eq!(nic.fuel_left(), 5_000);
    let begin = Instant::now();
    assert!(nic.uses(50_000));
    assert!(!nic.uses(1), "it owes");
    assert!(nic.fuel_left() < -30_000);
    while !nic.uses(1) {
        assert!(begin.elapsed() < Duration::from_secs(10), "{}", nic.fuel_left());
    }
    // It owed 45,000 at 1,000 a jiffy, of a millisecond at least.
    assert!(begin.elapsed() >= Duration::from_millis(40), "{:?}", begin.elapsed());
}
