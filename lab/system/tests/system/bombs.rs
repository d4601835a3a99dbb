//! Modules made to exhaust the compiler: each ends within the worker's limits, and the node answers
//! meanwhile.

use crate::common::{Ends, Line, SOON, module};
use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::{Service, root_or_skip, wait_for};

/// Limits of the compile worker: node/cell/src/compile.rs.
const CPU_SECONDS_MAX: u64 = 5;
const MEMORY_MAX: u64 = 256 << 20;
/// Time limit of a deployment, far above five seconds of processor time on a shared machine: only a
/// compiler without limits takes longer.
const ENDS_WITHIN: Duration = Duration::from_secs(100);
/// Time limit of an API request, shorter than a compilation that the daemon would wait for.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Bombs of a long run.
const SOAK: u32 = 1000;

/// Function that makes a bomb of a size: the fields of a module, `on_packet` among them.
type Make = fn(u32) -> String;

/// Bombs with the sizes of an ordinary run, of which the last is about the largest possible module.
const BOMBS: &[(&str, Make, [u32; 3])] = &[
    ("one long function", long, [10_000, 60_000, 200_000]),
    ("values that all live at once", alive, [1_000, 10_000, 100_000]),
    ("blocks within blocks", nested, [1_000, 10_000, 200_000]),
    ("loops within loops", loops, [100, 1_000, 50_000]),
    ("tables of branches", tables, [100, 700, 1_000]),
    ("branches to every block around", fans, [100, 500, 1_000]),
    ("many locals", locals, [100, 5_000, 50_000]),
    ("many functions", functions, [1_000, 10_000, 90_000]),
    ("divisions and loads", checks, [1_000, 20_000, 80_000]),
    ("calls by a table", calls, [100, 2_000, 40_000]),
];

fn on_packet(locals: &str, body: &str) -> String {
    format!(
        r#"(memory (export "memory") 1 1)
           (func (export "on_packet") (result i32) {locals} {body} (i32.const 0))"#
    )
}

fn repeat(count: u32, text: impl Fn(u32) -> String) -> String {
    (0..count).fold(String::new(), |mut all, at| {
        let _ = writeln!(all, "{}", text(at));
        all
    })
}

fn long(size: u32) -> String {
    let body = repeat(size, |at| {
        format!("(local.set 0 (i32.add (i32.mul (local.get 0) (i32.const {at})) (local.get 1)))")
    });
    on_packet("(local i32 i32)", &body)
}

fn alive(size: u32) -> String {
    let loads = repeat(size, |at| format!("(i32.load (i32.const {}))", 0x9000 + at % 1024 * 4));
    let sums = repeat(size - 1, |_| "i32.xor".to_owned());
    on_packet("", &format!("{loads} {sums} drop"))
}

fn nested(size: u32) -> String {
    let body = "block ".repeat(size as usize) + &"end ".repeat(size as usize);
    on_packet("", &body)
}

fn loops(size: u32) -> String {
    let open = "loop ".repeat(size as usize);
    let close = "local.get 0 i32.const 1 i32.sub local.tee 0 br_if 0 end ".repeat(size as usize);
    on_packet("(local i32)", &format!("{open}{close}"))
}

fn tables(size: u32) -> String {
    let targets = "0 1 ".repeat(size as usize);
    let table = format!("block block local.get 0 br_table {targets} 0 end local.get 0 drop end\n");
    on_packet("(local i32)", &table.repeat(size as usize))
}

fn fans(size: u32) -> String {
    let open = "block ".repeat(size as usize);
    let body = repeat(size, |at| {
        let around: Vec<String> = (0..size - at).map(|to| to.to_string()).collect();
        format!(
            "(local.set 1 (i32.add (local.get 1) (local.get 0)))
                 (if (local.get 1) (then (br_table {} (local.get 0)))) end",
            around.join(" ")
        )
    });
    on_packet("(local i32 i32)", &format!("{open}{body}"))
}

fn locals(size: u32) -> String {
    let declared = format!("(local {})", "i64 ".repeat(size as usize));
    let body = repeat(size, |at| {
        let other = (u64::from(at) * 7919 % u64::from(size)) as u32;
        format!("(local.set {at} (i64.add (local.get {other}) (i64.const {at})))")
    });
    on_packet(&declared, &format!("loop {body} (br_if 0 (i64.eqz (local.get 0))) end"))
}

fn functions(size: u32) -> String {
    let all = repeat(size, |at| {
        let next = if at + 1 < size { format!("(call $f{})", at + 1) } else { String::new() };
        format!("(func $f{at} {next})")
    });
    format!("{} {all}", on_packet("", "(call $f0)"))
}

fn checks(size: u32) -> String {
    let body = repeat(size, |_| {
        "(local.set 0 (i64.div_s (i64.load (i32.wrap_i64 (local.get 0))) (local.get 0)))".to_owned()
    });
    on_packet("(local i64)", &body)
}

fn calls(size: u32) -> String {
    let body = repeat(size, |_| "(call_indirect (type $t) (local.get 0))".to_owned());
    format!(
        "(type $t (func)) (table 64 funcref) (func $one) (elem (i32.const 0) func $one) {}",
        on_packet("(local i32)", &body)
    )
}

/// Returns the longest and the 99th percentile of the node's response times while `act` ran, and
/// the number of requests.
fn answers_during(line: &Line, act: impl FnOnce()) -> (Duration, Duration, usize) {
    let ended = AtomicBool::new(false);
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let mut times = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let begin = Instant::now();
                line.node.client().node().unwrap();
                times.push(begin.elapsed());
                // At the rate of a monitoring program, which is no load of its own.
                std::thread::sleep(Duration::from_millis(10));
            }
            times
        });
        let _ends = Ends(&ended);
        act();
        drop(_ends);
        asks.join().unwrap()
    });
    times.sort_unstable();
    let most = times.last().copied().unwrap_or_default();
    (most, times.get(times.len() * 99 / 100).copied().unwrap_or_default(), times.len())
}

/// Deploys a module; returns true if it runs, false if it was refused with a helpful message.
fn explode(line: &Line, name: &str, fields: &str) -> bool {
    let manifest = "window = 64\nmemory_pages_max = 1\nlevels = [\"nic\", \"kernel\", \"user\"]\n";
    let wasm = module("bomb", manifest, fields);
    let begin = Instant::now();
    let deployed = line.node.deploy(&wasm, &Service::default());
    let took = begin.elapsed();
    assert!(took < ENDS_WITHIN, "{name}: {took:?}");
    eprintln!(
        "{name}, {} KiB: {took:?}, {}",
        wasm.len() >> 10,
        match &deployed {
            Ok(_) => "runs".to_owned(),
            Err(error) => format!("{error:#}").chars().take(160).collect(),
        }
    );
    match deployed {
        Ok(_) => {
            line.node.remove("bomb").unwrap();
            true
        }
        Err(error) => {
            let said = format!("{error:#}");
            let helps = ["was stopped", "larger than", "at most", "beyond", "too ", "limit"];
            assert!(helps.iter().any(|words| said.contains(words)), "{name}: {said}");
            // A service of that name never ran.
            let gone = || line.node.service("bomb").is_err().then_some(());
            if line.node.service("bomb").is_ok() {
                line.node.remove("bomb").unwrap();
            }
            assert!(wait_for(SOON, gone).is_some(), "{name}");
            false
        }
    }
}

#[test]
fn modules_made_to_blow_up_the_compiler_end_within_its_limits_while_the_node_answers() {
    if !root_or_skip("bombs") {
        return;
    }
    let line = Line::up();
    let mut runs = 0;
    let (most, usual, count) = answers_during(&line, || {
        for (name, make, sizes) in BOMBS {
            for size in sizes {
                runs += usize::from(explode(&line, name, &make(*size)));
            }
        }
        if std::env::var_os("TAM_SOAK").is_some() {
            for round in 0..SOAK {
                let (name, make, [least, _, most]) = BOMBS[round as usize % BOMBS.len()];
                let size = least + (u64::from(round) * 7919 % u64::from(most - least)) as u32;
                explode(&line, name, &make(size));
            }
        }
    });
    eprintln!("{runs} ran; {count} answers, 99 of 100 within {usual:?}, all within {most:?}");
    assert!(runs > 0, "small ones are modules like others");
    // A busy host may delay one answer; a daemon that compiles itself would delay all.
    assert!(count > 0 && usual < ANSWERS_WITHIN, "{usual:?}");
    // And it compiles what comes.
    assert!(explode(&line, "after all of them", &long(10)));
}

#[test]
fn a_compile_worker_has_the_limits_that_it_says() {
    if !root_or_skip("bombs") {
        return;
    }
    let line = Line::up();
    assert!(explode(&line, "small", &long(10)));
    let limits = || {
        line.node.workers().ok()?.into_iter().find_map(|pid| {
            let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
            let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
            // It limits itself when it is about to be confined.
            (words.contains("compile-worker") && limits.contains(&MEMORY_MAX.to_string()))
                .then_some(limits)
        })
    };
    let limits = wait_for(SOON, limits).expect("a worker waits for the next module");
    // A second between the signal that says so and the one that ends it.
    let cpu = (CPU_SECONDS_MAX, CPU_SECONDS_MAX + 1);
    for (name, (soft, hard)) in [("Max data size", (MEMORY_MAX, MEMORY_MAX)), ("Max cpu time", cpu)]
    {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let values: Vec<_> = line.split_whitespace().take(2).map(str::parse).collect();
        assert_eq!(values, [Ok(soft), Ok(hard)], "{name}");
    }
}
