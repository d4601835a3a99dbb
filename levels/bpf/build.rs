//! Compiles every `c/*.bpf.c` and `c/bench/*.bpf.c` with clang for the BPF
//! target and writes `objects.rs`, which embeds the results.
//!
//! Not a general build system: one translation unit, one object, fixed flags.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compilers to look for, best first; `TAM_CLANG` goes before them.
const CLANGS: [&str; 7] =
    ["clang-19", "clang-20", "clang-18", "clang-17", "clang-16", "clang", "clang-14"];

/// Flags of clang. `v3` has 32-bit jumps and atomics, and every kernel that we support (5.15 and
/// later) accepts it.
const FLAGS: [&str; 8] =
    ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-fno-stack-protector"];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let clang = clang();
    let mut includes = vec![PathBuf::from("c")];
    includes.extend(env::var_os("DEP_BPF_INCLUDE").map(PathBuf::from));
    includes.extend(multiarch_include());

    let top = sources(Path::new("c"));
    let bench = sources(Path::new("c/bench"));
    let mut code = String::new();
    embed(&mut code, &clang, &includes, &out, "", &top);
    code.push_str("/// Generators, sinks and baselines of the benchmarks.\npub mod bench {\n");
    code.push_str("    use super::Aligned;\n");
    embed(&mut code, &clang, &includes, &out, "bench_", &bench);
    code.push_str("}\n");
    fs::write(out.join("objects.rs"), code).expect("OUT_DIR is writable");

    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=c");
    println!("cargo:rerun-if-env-changed=TAM_CLANG");
    // Not from PATH, which differs between `make demo` and `make test`; the compiler must not.
}

/// Returns the first clang that runs.
fn clang() -> String {
    let wanted = env::var("TAM_CLANG").ok();
    let candidates: Vec<&str> =
        wanted.as_deref().map_or_else(|| CLANGS.to_vec(), |wanted| vec![wanted]);
    let runs = |name: &&str| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    match candidates.iter().copied().find(|name| runs(name)) {
        Some(name) => name.to_owned(),
        None => panic!(
            "no clang found (tried {}): the front door is C compiled for BPF. Install it with \
             'apt-get install clang libc6-dev linux-libc-dev' (Debian, Ubuntu), 'dnf install \
             clang kernel-headers' (Fedora), or name one in the variable TAM_CLANG",
            candidates.join(", ")
        ),
    }
}

/// Returns Debian's folder of `asm/types.h`, named after the machine, which clang does not search
/// when the target is BPF.
fn multiarch_include() -> Option<PathBuf> {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let dir = PathBuf::from(format!("/usr/include/{arch}-linux-gnu"));
    dir.join("asm/types.h").exists().then_some(dir)
}

/// Returns the `.bpf.c` files of a folder, sorted.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().ends_with(".bpf.c"))
        .collect();
    found.sort();
    found
}

/// Compiles `sources` and appends one `static` for each to `code`.
fn embed(
    code: &mut String,
    clang: &str,
    includes: &[PathBuf],
    out: &Path,
    prefix: &str,
    sources: &[PathBuf],
) {
    for source in sources {
        let file = source.file_name().unwrap_or_default().to_string_lossy();
        let stem = file.trim_end_matches(".bpf.c").to_owned();
        let object = out.join(format!("{prefix}{stem}.bpf.o"));
        let mut command = Command::new(clang);
        command.args(FLAGS);
        for include in includes {
            command.arg("-I").arg(include);
        }
        let output = command.arg("-c").arg(source).arg("-o").arg(&object).output();
        let output = output.unwrap_or_else(|error| panic!("cannot run {clang}: {error}"));
        let messages = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{clang} refused {}:\n{messages}\nIf a header is missing: 'apt-get install \
             libc6-dev linux-libc-dev' (Debian, Ubuntu)",
            source.display()
        );
        writeln!(
            code,
            "/// `{}`, compiled.\npub static {}: &[u8] = &Aligned(*include_bytes!({:?})).0;",
            source.display(),
            stem.to_uppercase(),
            object.display().to_string()
        )
        .expect("writing to a string cannot fail");
    }
}
