//! Cache of compiled modules: neither the next cell nor the next daemon compiles a module that ran
//! before.

use crate::clean_end::kill;
use crate::common::{Line, SOON, passing};
use crate::streams::{PORT, deploys, passes};
use api::CompilerStats;
use std::fs;
use std::path::PathBuf;
use testkit::{Service, root_or_skip, wait_for};

/// Number of packet services, each with a module of its own.
const PACKETS: usize = 4;

/// Deploys one stream service, and the packet services.
fn services(line: &Line) {
    deploys(line, "streams", PORT, &passes(), &[]);
    for number in 0..PACKETS {
        let (name, rule) = (format!("p{number}"), format!("proto udp dport {}", 9_000 + number));
        let service = Service { name: &name, rules: &[&rule], ..Service::default() };
        line.node.deploy(&passing(&name), &service).unwrap();
    }
}

/// Waits until all services run that were restarted this many times.
fn all_run(line: &Line, restarts: u32) {
    let run = || {
        let services = line.node.client().services().unwrap().services;
        let runs = |it: &api::ServiceInfo| it.state == "running" && it.restarts == restarts;
        (services.len() == PACKETS + 1 && services.iter().all(runs)).then_some(())
    };
    wait_for(SOON, run).unwrap_or_else(|| panic!("{}", line.node.log()));
}

/// Returns the files of code that the node keeps on the disk.
fn kept_code(line: &Line) -> Vec<PathBuf> {
    let files = fs::read_dir(line.node.directory().join("store.state/code"));
    files.unwrap().map(|file| file.unwrap().path()).collect()
}

fn compilers(line: &Line) -> CompilerStats {
    line.node.stats().unwrap().compilers
}

/// Compiler statistics when all code came from the disk.
const FROM_DISK: CompilerStats =
    CompilerStats { started: 0, from_disk: PACKETS as u64 + 1, waiting: 0 };

#[test]
fn neither_the_next_cell_nor_the_next_daemon_compiles_what_ran_before() {
    if !root_or_skip("code that outlives cell and daemon") {
        return;
    }
    let mut line = Line::up();
    services(&line);
    let first = compilers(&line);
    assert_eq!((first.started, first.from_disk), (PACKETS as u64 + 1, 0));
    // The same daemon has the code in memory.
    kill(line.node.cell().unwrap());
    all_run(&line, 1);
    assert_eq!(compilers(&line), first);
    // One that took over has it from the disk, once it is there, before the cell is lost.
    wait_for(SOON, || (kept_code(&line).len() == PACKETS + 1).then_some(())).unwrap();
    assert!(line.node.take_over(&line.net, "r1").unwrap().success());
    let read = || (compilers(&line) == FROM_DISK).then_some(());
    wait_for(SOON, read).unwrap_or_else(|| panic!("{:?}", compilers(&line)));
    kill(line.node.cell().unwrap());
    all_run(&line, 2);
    assert_eq!(compilers(&line), FROM_DISK);
    // So has one that begins anew.
    let cell = line.node.cell().unwrap();
    line.node.kill().unwrap();
    kill(cell);
    line.node.start_again(&line.net, "r1").unwrap();
    all_run(&line, 3);
    assert_eq!(compilers(&line), FROM_DISK);
}

#[test]
fn cached_code_that_does_not_verify_is_compiled_anew() {
    if !root_or_skip("code that was changed on the disk") {
        return;
    }
    let mut line = Line::up();
    services(&line);
    wait_for(SOON, || (kept_code(&line).len() == PACKETS + 1).then_some(())).unwrap();
    for path in kept_code(&line) {
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    assert!(line.node.take_over(&line.net, "r1").unwrap().success());
    let compiled = CompilerStats { started: PACKETS as u64 + 1, from_disk: 0, waiting: 0 };
    let made = || (compilers(&line) == compiled).then_some(());
    wait_for(SOON, made).unwrap_or_else(|| panic!("{:?}", compilers(&line)));
    kill(line.node.cell().unwrap());
    all_run(&line, 1);
    assert!(line.node.log().contains("somebody else has written it"), "{}", line.node.log());
}
