//! Escaped code: actions that remain possible for code that has broken out of its module, or of the
//! compiler, in a real cell and a real compile worker. The list of permitted actions is
//! docs/reference/privileges.md.
//!
//! ```text
//!  node: daemon ─ cell ◀────── ptrace: do this, do that, each refused
//!               └ worker ◀──── the same
//!  a process of root ◀──────── the same, each done
//! ```

mod attempts;
mod hostile;

use self::attempts::{ATTEMPTS, Attempt, Expected, Scene};
use self::hostile::{Hostile, Outcome, find_secret};
use crate::common::{Line, SOON, module};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use testkit::{Service, root_or_skip, wait_for};

/// Idle process of root with all privileges.
struct Outside(Child);

impl Outside {
    fn start() -> Self {
        let mut command = Command::new("/bin/sleep");
        command.arg("600").stdin(Stdio::null()).process_group(0);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a module that does nothing, for all levels.
fn idle(name: &str) -> Vec<u8> {
    let fields = r#"(memory (export "memory") 1)
        (func (export "on_packet") (result i32) (i32.const 0))"#;
    module(name, "window = 0\nmemory_pages_max = 1\n", fields)
}

/// Returns the confined worker that waits for the next module.
fn waiting_worker(line: &Line) -> u32 {
    let find = || {
        let is_it = |pid: &u32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let is_worker = words.split(|byte| *byte == 0).any(|word| word == b"compile-worker");
            is_worker && status(*pid).get("Seccomp").is_some_and(|mode| mode == "2")
        };
        line.node.workers().ok()?.into_iter().find(is_it)
    };
    wait_for(SOON, find).expect("a worker waits for the next module")
}

/// Reads `/proc/PID/status` of a process.
fn status(pid: u32) -> BTreeMap<String, String> {
    status_of(&format!("/proc/{pid}"))
}

fn status_of(folder: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(format!("{folder}/status")).unwrap_or_default();
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().to_owned()))
    };
    text.lines().filter_map(field).collect()
}

/// Returns the start address of a readable part of a process's memory: its stack.
fn stack_of(pid: u32) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
    let (_, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
    u64::from_str_radix(end, 16).unwrap() - 4096
}

fn try_all(it: &mut Hostile, scene: &Scene, expected: fn(&Attempt) -> Expected) -> Vec<String> {
    let mut wrong = Vec::new();
    for attempt in ATTEMPTS {
        it.begin();
        let outcome = (attempt.act)(it, scene).unwrap();
        if !expected(attempt).is(outcome) {
            wrong.push(format!("{}: {outcome:?}, not {:?}", attempt.name, expected(attempt)));
        }
        assert!(it.is_alive(), "'{}' ended it", attempt.name);
    }
    wrong
}

#[test]
fn hostile_native_code_in_a_cell_or_compiler_is_refused_every_way_out() {
    if !root_or_skip("escape") {
        return;
    }
    let (line, other) = (Line::up(), Line::up());
    line.node.deploy(&idle("idle"), &Service::default()).unwrap();
    let daemon = line.node.pid().unwrap();
    let scene = Scene { daemon, other: other.node.cell().unwrap(), address: stack_of(daemon) };

    // Each on a process that nothing was tried on.
    let mut wrong = Vec::new();
    for attempt in ATTEMPTS {
        let outside = Outside::start();
        let mut it = Hostile::take_over(outside.0.id()).unwrap();
        let outcome = (attempt.act)(&mut it, &scene).unwrap();
        if outcome == Outcome::Refused(libc::ENOSYS) && attempt.outside != Expected::Lacking {
            eprintln!("this kernel has nothing to '{}' with", attempt.name);
        } else if !attempt.outside.is(outcome) {
            wrong.push(format!("{}: {outcome:?}, not {:?}", attempt.name, attempt.outside));
        }
    }
    assert_eq!(wrong, [""; 0], "outside");

    let mut cell = Hostile::take_over(line.node.cell().unwrap()).unwrap();
    assert_eq!(try_all(&mut cell, &scene, |attempt| attempt.cell), [""; 0], "the cell");
    drop(cell);
    // It goes on, and runs what comes.
    let message = line.node.deploy(&idle("after"), &Service::default());
    assert!(message.is_ok(), "{message:?}");
    line.resolve_neighbours();

    let worker = waiting_worker(&line);
    let mut worker = Hostile::take_over(worker).unwrap();
    assert_eq!(try_all(&mut worker, &scene, |attempt| attempt.worker), [""; 0], "the worker");
    drop(worker);
    let message = line.node.deploy(&idle("last"), &Service::default());
    assert!(message.is_ok(), "{message:?}");
}

#[test]
fn a_system_call_of_32_bits_ends_a_confined_process() {
    /// Number of `getpid` in the 32-bit interface.
    const GETPID_32: u64 = 20;
    if !root_or_skip("escape") {
        return;
    }
    let outside = Outside::start();
    let mut it = Hostile::take_over(outside.0.id()).unwrap();
    assert_eq!(it.call_32(GETPID_32).unwrap(), Outcome::Done(outside.0.id().into()));
    drop(it);

    let line = Line::up();
    let before = line.node.cell().unwrap();
    let mut cell = Hostile::take_over(before).unwrap();
    assert_eq!(cell.call_32(GETPID_32).unwrap(), Outcome::Died(Signal::SIGSYS));
    let again = || line.node.cell().ok().filter(|pid| *pid != before);
    assert!(wait_for(SOON, again).is_some(), "the daemon starts another cell");
}

#[test]
fn a_secret_of_another_process_is_in_no_cells_memory_and_cannot_be_read_there() {
    if !root_or_skip("escape") {
        return;
    }
    // Found nowhere else, this program's own constants included.
    let secret =
        format!("tam canary {:x}", rustix::process::getpid().as_raw_nonzero().get() ^ 0x5a);
    let (line, other) = (Line::up(), Line::up());
    let knows = module(
        "knows",
        "window = 0\nmemory_pages_max = 1\n[parameters.secret]\ntype = \"text\"\n",
        r#"(import "tam" "param_load" (func $load (param i32 i32 i32 i32) (result i32)))
           (memory (export "memory") 1)
           (data (i32.const 0x9000) "secret")
           (func (export "on_start") (result i32)
             (drop (call $load (i32.const 0x9000) (i32.const 6) (i32.const 0x9100) (i32.const 99)))
             (i32.const 0))
           (func (export "on_packet") (result i32) (i32.const 0))"#,
    );
    let parameters = [("secret", secret.as_str())];
    other.node.deploy(&knows, &Service { parameters: &parameters, ..Service::default() }).unwrap();
    line.node.deploy(&idle("idle"), &Service::default()).unwrap();

    let read = |it: &mut Hostile, (pid, address): (u32, u64)| {
        it.begin();
        let length = secret.len() as u64;
        let here = it.bytes(&vec![0; secret.len()]).unwrap();
        let (local, remote) =
            (it.words(&[here, length]).unwrap(), it.words(&[address, length]).unwrap());
        let call = libc::SYS_process_vm_readv;
        let outcome = it.call(call, &[pid.into(), local, 1, remote, 1, 0]).unwrap();
        (outcome, it.read(here, secret.len()).unwrap())
    };
    let outside = Outside::start();
    let mut it = Hostile::take_over(outside.0.id()).unwrap();
    // A copy that a request brought is soon overwritten: one that can be read from outside.
    let mut readable = |pid: u32| {
        let place = (pid, find_secret(pid, secret.as_bytes()).unwrap().expect("it knows it"));
        let (outcome, found) = read(&mut it, place);
        assert_eq!(outcome, Outcome::Done(secret.len() as u64));
        (found == secret.as_bytes()).then_some(place)
    };
    let pids = [other.node.pid().unwrap(), other.node.cell().unwrap()];
    let secrets: Vec<(u32, u64)> = pids
        .into_iter()
        .map(|pid| wait_for(SOON, || readable(pid)).expect("it is read from outside"))
        .collect();
    drop(it);

    for pid in [line.node.cell().unwrap(), waiting_worker(&line)] {
        assert_eq!(find_secret(pid, secret.as_bytes()).unwrap(), None);
        let mut it = Hostile::take_over(pid).unwrap();
        for place in &secrets {
            let (outcome, found) = read(&mut it, *place);
            assert_eq!(outcome, Outcome::Refused(libc::EPERM));
            assert_eq!(found, vec![0; secret.len()]);
        }
    }
}

/// Bits of capabilities: capabilities(7).
const CAP_IPC_LOCK: u64 = 1 << 14;
const CAP_SYS_RESOURCE: u64 = 1 << 24;

fn capabilities(status: &BTreeMap<String, String>, set: &str) -> u64 {
    u64::from_str_radix(&status[set], 16).unwrap()
}

/// Describes a descriptor in words that do not change from run to run.
fn kind_of(pid: u32, number: &str) -> String {
    let link = fs::read_link(format!("/proc/{pid}/fd/{number}")).unwrap();
    let link = link.to_string_lossy().into_owned();
    let kind = link.split([':', '[']).next().unwrap_or_default();
    match kind {
        "socket" | "pipe" => kind.to_owned(),
        "anon_inode" => link,
        "/memfd" => link.trim_end_matches(" (deleted)").to_owned(),
        _ => link,
    }
}

/// Returns the number of descriptors of each kind.
fn kinds(pid: u32) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let number = entry.unwrap().file_name();
        *kinds.entry(kind_of(pid, &number.to_string_lossy())).or_default() += 1;
    }
    kinds
}

#[test]
fn cells_and_compilers_have_the_descriptors_that_they_need_and_no_rights() {
    if !root_or_skip("escape") {
        return;
    }
    let line = Line::up();
    line.node.deploy(&idle("idle"), &Service::default()).unwrap();
    let (cell, worker) = (line.node.cell().unwrap(), waiting_worker(&line));
    let log = line.node.directory().join("node.log").display().to_string();

    let of_worker = kinds(worker);
    let expected = [("pipe", 2), ("/dev/null", 1)].map(|(kind, count)| (kind.to_owned(), count));
    assert_eq!(of_worker, BTreeMap::from(expected), "standard streams");

    let of_cell = kinds(cell);
    let events = "anon_inode:[eventpoll]";
    let known = ["/dev/null", "socket", "/memfd:tam-code", "/dev/net/tun", events, log.as_str()];
    let maps = ["anon_inode:bpf-map", "anon_inode:bpf_iter"];
    for (kind, count) in &of_cell {
        let is_known = known.contains(&kind.as_str()) || maps.contains(&kind.as_str());
        assert!(is_known, "{count} of {kind}: {of_cell:#?}");
    }
    assert_eq!(of_cell["/dev/null"], 2, "{of_cell:#?}");
    let flags = fs::read_to_string(format!("/proc/{cell}/fdinfo/2")).unwrap();
    let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
    let flags = i32::from_str_radix(flags, 8).unwrap();
    assert_eq!(flags & libc::O_ACCMODE, libc::O_WRONLY, "the log is only written");

    // The capability to lock memory stays where the daemon cannot raise the limit on it.
    let daemon = status(line.node.pid().unwrap());
    let may_raise = capabilities(&daemon, "CapEff") & CAP_SYS_RESOURCE != 0;
    let locks = if may_raise { 0 } else { capabilities(&status(cell), "CapPrm") & CAP_IPC_LOCK };

    let mut users = Vec::new();
    for pid in [cell, worker] {
        for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let status = status_of(&task.unwrap().path().display().to_string());
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                let may_stay = pid == cell && matches!(set, "CapPrm" | "CapEff");
                let expected = if may_stay { locks } else { 0 };
                assert_eq!(capabilities(&status, set), expected, "{set}: {status:#?}");
            }
            assert_eq!((&*status["Seccomp"], &*status["NoNewPrivs"]), ("2", "1"), "{status:#?}");
            assert_eq!(status["Groups"], "", "{status:#?}");
        }
        let user: Vec<_> = status(pid)["Uid"].split_whitespace().map(str::to_owned).collect();
        assert!(user.iter().all(|number| *number == user[0] && number != "0"), "{user:?}");
        users.push(user[0].clone());
        // The folder of a process that ended: nothing is there.
        let root = fs::read_dir(format!("/proc/{pid}/root"));
        assert_eq!(root.map(Iterator::count).unwrap_or_default(), 0);
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let limit = |name: &str| {
            let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().to_owned()
        };
        assert_eq!((&*limit("Max processes"), &*limit("Max core file size")), ("0", "0"));
        // Only root may read it: it belongs to root.
        use std::os::unix::fs::MetadataExt;
        assert_eq!(fs::metadata(format!("/proc/{pid}/mem")).unwrap().uid(), 0);
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        assert!(environment.is_empty() || environment.starts_with(b"TAM_LOG="));
    }
    assert_ne!(users[0], users[1], "each is its own user");
}
