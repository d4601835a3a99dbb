//! Daemon and cell are killed at random moments, alone and together, while services are deployed,
//! moved and removed; the receiver checks every number.
//!
//! The seed of the random numbers is printed; `TAM_SOAK` makes it 100 kills.

use std::time::Duration;

use crate::clean_end::{gone, kill};
use crate::common::{Line, SOON, assert_no_bpf_since};
use crate::handover::{Flows, IN_RINGS_MAX, deploy};
use crate::levels::{BELOW, stamper};
use testkit::{Service, leftovers, root_or_skip, wait_for};

/// Kills of one run; a hundred take some minutes.
const KILLS: u32 = 10;
const KILLS_SOAK: u32 = 100;
const SEED: u64 = 0x7a6d_616e_6475_6101;
/// Services that stay: name, level and L4 port. One is left alone, one is moved.
const STAY: [(&str, &str, u16); 2] = [("up", "user", 7000), ("low", "nic", 7001)];
/// Name of the service that is deployed and removed.
const GUEST: &str = "guest";

/// Random generator xorshift64 (Marsaglia 2003), which chooses the next action.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Sends a request that may be cut off at any point: the answer does not matter.
fn ask(line: &Line, what: u64) {
    let client = line.node.client();
    match what {
        0 => {
            let rules = ["proto udp dport 7009"];
            let service =
                Service { name: GUEST, rules: &rules, level: "nic", ..Service::default() };
            drop(line.node.deploy(&stamper(BELOW), &service));
        }
        1 => drop(client.remove(GUEST, true)),
        2 => drop(client.move_service("low", "kernel")),
        3 => drop(client.move_service("low", "user")),
        4 => drop(client.move_service("low", "nic")),
        5 => drop(client.message("up", b"")),
        _ => drop(client.stats()),
    }
}

/// Checks that all services that should run do, and that the guest exists completely or not at all;
/// `None` while this is not so.
fn settled(line: &Line, dead_cell: Option<u32>) -> Option<()> {
    let node = line.node.client().node().ok()?;
    // The daemon may not have noticed the cell's death yet.
    let heard = dead_cell.is_none_or(|dead| node.cell_pid != Some(dead));
    let services = line.node.client().services().ok()?.services;
    let run = services.iter().all(|service| service.state == "running");
    let there = STAY.iter().all(|(name, ..)| services.iter().any(|s| s.name == *name));
    let rules = line.node.client().rules().ok()?.rules;
    let guests = services.iter().filter(|service| service.name == GUEST).count();
    let leads = rules.iter().filter(|rule| rule.action.ends_with(GUEST)).count();
    (node.cell == "ready" && heard && run && there && guests == leads).then_some(())
}

/// Tests that inspect the whole machine, or end processes of others: they run alone.
mod alone {
    use super::*;

    #[test]
    fn kills_at_random_moments_lose_nothing_but_what_was_in_a_dead_cells_rings() {
        if !root_or_skip("random kills") {
            return;
        }
        let kills = if std::env::var_os("TAM_SOAK").is_some() { KILLS_SOAK } else { KILLS };
        let seed =
            std::env::var("TAM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED);
        eprintln!("{kills} kills, TAM_SEED={seed}");
        let mut dice = Dice(seed | 1);
        let held = bpf::Inventory::take().unwrap();
        let mut line = Line::up();
        line.resolve_neighbours();
        for (name, level, port) in STAY {
            deploy(&line, name, level, port);
        }
        let flows = Flows::new(&line, &STAY.map(|(_, _, port)| port));
        let mut cells = vec![line.node.cell().unwrap()];
        let (cell_kills, sent, arrived) = flows.during(|sent| {
            let mut cell_kills = 0;
            for number in 0..kills {
                sent.more(20);
                let (what, who, pause) = (dice.below(7), dice.below(4), dice.below(40_000));
                let cell = line.node.cell().unwrap();
                std::thread::scope(|scope| {
                    let asked = &line;
                    scope.spawn(move || ask(asked, what));
                    std::thread::sleep(Duration::from_micros(pause));
                    let daemon = line.node.pid().unwrap();
                    // Three of four kills hit the daemon, two the cell.
                    match who {
                        0 | 1 => kill(daemon),
                        2 => kill(cell),
                        _ => [daemon, cell].into_iter().for_each(kill),
                    }
                });
                cell_kills += usize::from(who >= 2);
                if who != 2 {
                    line.node.kill().unwrap();
                    sent.more(dice.below(50) as u32);
                    line.node.start_again(&line.net, "r1").unwrap();
                }
                let dead_cell = (who >= 2).then_some(cell);
                wait_for(SOON * 6, || settled(&line, dead_cell)).unwrap_or_else(|| {
                    let services = line.node.client().services();
                    panic!("kill {number} ({what}, {who}): {services:#?}\n{}", line.node.log())
                });
                cells.push(line.node.cell().unwrap());
            }
            cell_kills
        });
        let lost: Vec<usize> =
            arrived.iter().map(|arrived| sent as usize - arrived.len()).collect();
        eprintln!("{sent} packets to each service, lost {lost:?} in {cell_kills} dead cells");
        for ((name, ..), arrived) in STAY.iter().zip(&arrived) {
            let wrong = arrived.windows(2).find(|pair| pair[0].0 >= pair[1].0);
            assert_eq!(wrong, None, "{name}: in order, and none twice");
        }
        assert!(
            lost.iter().all(|lost| *lost <= cell_kills * IN_RINGS_MAX),
            "{lost:?}, {cell_kills}"
        );

        line.node.stop().unwrap();
        assert_eq!(leftovers(line.node.name()), [""; 0]);
        cells.sort_unstable();
        cells.dedup();
        assert!(cells.iter().all(|cell| gone(*cell)), "a cell runs on: {cells:?}");
        let links = line.net.netlink("r1").unwrap().links().unwrap();
        let own = |name: &str| name.starts_with("tam-") || name.starts_with("tup-");
        assert!(!links.iter().any(|link| own(&link.name)), "{links:?}");
        assert_no_bpf_since(&held);
        line.resolve_neighbours();
    }
}
