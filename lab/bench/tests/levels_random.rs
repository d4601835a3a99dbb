//! Random packets through the packet functions: every runner gives the same verdicts, bytes and
//! tables.

mod levels_packets;
mod levels_user;

use bench::levels::{Baseline, Handled, Kind, Ours, Runner, Vectors, functions};
use engine::Engine;
use levels_packets::{ETHERNET_LENGTH, Random, packets};
use levels_user::User;

#[test]
fn random_packets_get_the_same_results_everywhere() {
    if !rustix::process::geteuid().is_root() {
        testbase::skip_this("BPF programs need root");
        return;
    }
    let functions = match functions() {
        Ok(functions) => functions,
        Err(error) => return testbase::skip_this(&error.to_string()),
    };
    let engine = Engine::new().unwrap();
    for function in functions {
        let vectors = Vectors::parse(function.vectors).unwrap();
        let baseline = |kind| Baseline::load(function, kind, &vectors.tables).unwrap();
        let mut runners: [(&str, Box<dyn Runner>); 4] = [
            ("user", Box::new(User::start(&engine, function.module).unwrap())),
            ("nic", Box::new(Ours::load(function.module).unwrap())),
            ("clang, arena", Box::new(baseline(Kind::Arena))),
            ("clang, maps", Box::new(baseline(Kind::Maps))),
        ];
        let mut random = Random::new();
        let mut now_ms = 1;
        for number in 0..packets() / functions.len() as u64 {
            let frame = random.frame(&vectors.packets, |_| ETHERNET_LENGTH);
            now_ms += random.time();
            let handled: Vec<Handled> = runners
                .iter_mut()
                .map(|(name, runner)| match runner.handle(&frame, now_ms) {
                    Ok(handled) => handled,
                    Err(error) => panic!("{} packet {number} at {name}: {error:#}", function.name),
                })
                .collect();
            for (at, handled_there) in handled.iter().enumerate() {
                let frame = hex::encode(&frame);
                let name = runners[at].0;
                assert_eq!(
                    &handled[0], handled_there,
                    "{} {number} at {name}: {frame}",
                    function.name
                );
            }
        }
        assert_same_tables(function.name, &mut runners, &vectors);
    }
}

fn assert_same_tables(
    function: &str,
    runners: &mut [(&'static str, Box<dyn Runner>); 4],
    vectors: &Vectors,
) {
    for table in &vectors.tables {
        for index in 0..table.count {
            let entries = runners
                .each_mut()
                .map(|(name, runner)| (*name, runner.entry(table, index).unwrap()));
            for (name, entry) in &entries {
                assert_eq!(*entry, entries[0].1, "{function} at {name}: {} {index}", table.name);
            }
        }
    }
}
