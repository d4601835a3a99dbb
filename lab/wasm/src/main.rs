//! Command `wasm-lab`: runs the suite, a range of random modules, or one file.
//!
//! ```text
//! wasm-lab suite [PREFIX]          all files, or those that begin so
//! wasm-lab refused REASON          where the suite is refused for a reason
//! wasm-lab random SEED COUNT       what fails, the smallest module of each kind
//! wasm-lab show SEED               the module of a seed
//! wasm-lab shrink SEED             a smaller module that fails as this one does
//! wasm-lab file FILE SEED          one module, called with the arguments of a seed
//! ```
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;

use wasm_lab::random::{Engines, Verdict, bytes_of};
use wasm_lab::suite;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let answer = match words.as_slice() {
        ["suite"] => run_suite(""),
        ["suite", prefix] => run_suite(prefix),
        ["refused", reason] => refused(reason),
        ["random", seed, count] => run_random(seed, count),
        ["shrink", seed] => shrink(seed),
        ["show", seed] => show(seed),
        ["file", path, seed] => run_file(path, seed),
        _ => Err("usage: wasm-lab suite [PREFIX] | refused REASON | random SEED COUNT | show SEED | shrink SEED | file FILE SEED".into()),
    };
    match answer {
        Ok(code) => code,
        Err(error) => {
            eprintln!("wasm-lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_suite(prefix: &str) -> Result<ExitCode, Box<dyn Error>> {
    let tally = suite::run(prefix)?;
    for wrong in tally.wrong_ones() {
        println!("WRONG {wrong}");
    }
    let counts = tally.counts();
    print!("{}", toml::to_string(counts)?);
    println!("{:.2} % run", counts.share_run());
    Ok(if tally.wrong_ones().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn refused(reason: &str) -> Result<ExitCode, Box<dyn Error>> {
    let tally = suite::run("")?;
    for place in tally.refused_ones().get(reason).into_iter().flatten() {
        println!("{place}");
    }
    Ok(ExitCode::SUCCESS)
}

fn run_random(seed: &str, count: &str) -> Result<ExitCode, Box<dyn Error>> {
    std::panic::set_hook(Box::new(|_| {}));
    let engines = Engines::new()?;
    let (seed, count): (u64, u64) = (seed.parse()?, count.parse()?);
    let mut verdicts = BTreeMap::<String, u64>::new();
    let mut smallest = BTreeMap::<String, (u64, String)>::new();
    for seed in seed..seed.saturating_add(count) {
        let kind = match engines.compare(seed) {
            Ok(Verdict::Equal { .. }) => "equal".to_owned(),
            Ok(Verdict::Refused(code)) => format!("refused: {code}"),
            Ok(Verdict::Skipped(why)) => format!("skipped: {why}"),
            Err(fault) => {
                let (kind, text) = (fault.kind(), fault.to_string());
                let least = smallest.entry(kind.clone()).or_insert_with(|| (seed, text.clone()));
                if text.len() < least.1.len() {
                    *least = (seed, text);
                }
                kind
            }
        };
        *verdicts.entry(kind).or_default() += 1;
    }
    for (seed, text) in smallest.values() {
        println!("---- {seed}\n{text}");
    }
    for (kind, count) in &verdicts {
        println!("{count:8} {kind}");
    }
    Ok(if smallest.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn shrink(seed: &str) -> Result<ExitCode, Box<dyn Error>> {
    std::panic::set_hook(Box::new(|_| {}));
    match wasm_lab::random::shrink(&Engines::new()?, seed.parse()?) {
        Some(fault) => println!("{fault}"),
        None => println!("nothing fails with this seed"),
    }
    Ok(ExitCode::SUCCESS)
}

fn show(seed: &str) -> Result<ExitCode, Box<dyn Error>> {
    let bytes = bytes_of(seed.parse()?).ok_or("this seed gives no module")?;
    println!("{}", wasmprinter::print_bytes(bytes)?);
    Ok(ExitCode::SUCCESS)
}

fn run_file(path: &str, seed: &str) -> Result<ExitCode, Box<dyn Error>> {
    let bytes = wat::parse_file(path)?;
    println!("{:?}", Engines::new()?.compare_bytes(seed.parse()?, bytes)?);
    Ok(ExitCode::SUCCESS)
}
