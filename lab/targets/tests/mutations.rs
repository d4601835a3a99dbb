//! Tests of every target with its seeds, and with a few thousand mutations of them, the same each
//! time. `TAM_FUZZ_SECONDS=600` runs each for that long, with other mutations each time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use targets::mutation::Mutations;
use targets::{TARGETS, Target};

/// Mutations of one target in an ordinary run.
const COUNT: u64 = 5000;
/// Mutations of the target whose inputs are written to a disk.
const COUNT_WITH_FILES: u64 = 500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the files of a folder whose names end so; none without the folder.
fn files(folder: &Path, end: &str) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.is_file() && path.to_string_lossy().ends_with(end));
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Returns valid inputs of a target from the source tree, beside its own seeds.
fn of_the_tree(name: &str) -> Vec<Vec<u8>> {
    let services = || {
        let entries = std::fs::read_dir(root().join("services")).unwrap();
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
    };
    match name {
        "check_module" => {
            let text = std::fs::read_to_string(root().join("vectors/abi/good.wat")).unwrap();
            let golden = files(&root().join("vectors/v1/abi"), ".wasm");
            golden.into_iter().chain([wat::parse_str(text).unwrap()]).collect()
        }
        "check_stream_module" => {
            let text = r#"(module (import "env" "proxy_log" (func (param i32 i32 i32) (result i32)))
                (memory (export "memory") 1) (func (export "proxy_abi_version_0_2_1"))
                (func (export "proxy_on_tick") (param i32)))"#;
            vec![wat::parse_str(text).unwrap()]
        }
        "parse_manifest" => services().flat_map(|path| files(&path, "module.toml")).collect(),
        "read_capture" => {
            services().flat_map(|path| files(&path.join("captures"), ".pcap")).collect()
        }
        _ => Vec::new(),
    }
}

fn seeds(target: &Target) -> Vec<Vec<u8>> {
    let mut seeds = files(&root().join("lab/fuzz/seeds").join(target.name), "");
    seeds.extend((target.seeds)());
    seeds.extend(of_the_tree(target.name));
    assert!(!seeds.is_empty(), "{} has no seeds", target.name);
    seeds
}

fn run(target: &Target, bytes: &[u8], which: &str) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))).is_err() {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        panic!("{}: {which} of {} bytes: {hex}", target.name, bytes.len());
    }
}

fn holds(name: &str) {
    let target = targets::target(name);
    let seeds = seeds(&target);
    for (number, seed) in seeds.iter().enumerate() {
        run(&target, seed, &format!("seed {number}"));
    }
    let soak = std::env::var("TAM_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let (begin, duration) = (Instant::now(), soak.map(Duration::from_secs));
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let chosen = if soak.is_some() { clock } else { 1 };
    let count = if name == "read_store" { COUNT_WITH_FILES } else { COUNT };
    let mut mutations = Mutations::new(chosen);
    let mut done = 0;
    while duration.map_or(done < count, |duration| begin.elapsed() < duration) {
        run(&target, &mutations.next(&seeds), &format!("mutation {done} of seed {chosen}"));
        done += 1;
    }
    println!("{name}: {} seeds, {done} mutations, nothing found", seeds.len());
}

macro_rules! each {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                holds(stringify!($name));
            }
        )*

        #[test]
        fn every_target_is_here_and_in_the_fuzzers_list() {
            let here = [$(stringify!($name)),*];
            assert_eq!(TARGETS.iter().map(|target| target.name).collect::<Vec<_>>(), here);
            let list = std::fs::read_to_string(root().join("lab/fuzz/Cargo.toml")).unwrap();
            for name in here {
                assert!(list.contains(&format!("name = \"{name}\"")), "{name}");
                let path = root().join(format!("lab/fuzz/targets/{name}.rs"));
                assert!(std::fs::read_to_string(path).unwrap().contains(&format!("\"{name}\"")));
            }
        }
    };
}

each!(
    bounce_active_packet,
    check_module,
    check_stream_module,
    encode_body,
    parse_frame,
    parse_manifest,
    parse_match,
    parse_node_file,
    parse_topology,
    pass_filter,
    read_association,
    read_backup,
    read_capture,
    read_cell_message,
    read_header_map,
    read_http1,
    read_icy,
    read_image,
    read_key,
    read_ledger,
    read_media,
    read_pictures,
    read_receipt,
    read_request,
    read_signature,
    read_store,
    read_token,
    read_video,
);
