//! Packet functions `functions/*.c`: each is compiled to a module and to three XDP programs.
//!
//! Needs clang 19 or newer (arenas, cpu v4) and LLVM's linker for WebAssembly. Where one is missing
//! the crate builds without the functions, and `tam bench levels` says what is missing.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::run;

/// First set, in the order of the report: the functions that the compiler is optimised with.
const FIRST: [&str; 14] = [
    "header_rewrite",
    "count_min",
    "lpm",
    "token_bucket",
    "nat",
    "syn_flood",
    "ipip",
    "dscp",
    "dns_match",
    "bloom",
    "conntrack",
    "lb_hash",
    "mss_clamp",
    "quic_cid",
];
/// Second set, with at least one function for each kind of work that packet functions do. It was
/// written before the compiler was changed for it, and does not change with the compiler.
const UNSEEN: [&str; 12] = [
    "ip_options",
    "ipv6_chain",
    "vxlan_decap",
    "gre_decap",
    "payload_hash",
    "http_host",
    "signatures",
    "first_match",
    "flow_meter",
    "syn_cookie",
    "protobuf",
    "set_cache",
];
/// Module that does nothing, for the cost of entry and exit.
const NOTHING: &str = "nothing";
/// Function for the hashing of `tam reproduce`.
const SHA1: &str = "sha1";
/// Program that runs before and after a measured program.
const RESTORE: &str = "restore";

/// Clang versions that are searched for: from the oldest with arenas to the newest known by its
/// number.
const CLANG_VERSIONS: std::ops::RangeInclusive<u32> = 19..=40;
/// The oldest linker that leaves the packet's addresses free (docs/reference/module-abi.md).
const LINKER_VERSIONS: std::ops::RangeInclusive<u32> = 19..=40;

const WARNINGS: [&str; 5] =
    ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-unused-parameter"];
const BPF: [&str; 4] = ["--target=bpf", "-mcpu=v4", "-O2", "-g"];
const WASM: [&str; 5] =
    ["--target=wasm32", "-O2", "-ffreestanding", "-fvisibility=hidden", "-I../../sdk/c"];
const LINK: [&str; 7] = [
    "--no-entry",
    "--stack-first",
    "-z",
    "stack-size=32768",
    "--global-base=36864",
    "--export-dynamic",
    "--strip-debug",
];

/// Compiler and linker.
struct Tools {
    clang: String,
    /// Linker, with the arguments that select WebAssembly.
    linker: Vec<String>,
}

pub fn build(out: &Path) {
    let code = match tools() {
        Ok(tools) => tools.compile(out),
        Err(missing) => {
            // A file that never exists makes Cargo run this at each build, until the tools are
            // installed.
            println!("cargo:rerun-if-changed={}", out.join("never").display());
            format!("pub(super) static COMPILED: Result<Compiled, &str> = Err({missing:?});\n")
        }
    };
    fs::write(out.join("levels.rs"), code).expect("OUT_DIR is writable");
    println!("cargo:rerun-if-changed=functions");
    println!("cargo:rerun-if-changed=../../sdk/c");
    println!("cargo:rerun-if-env-changed=TAM_CLANG");
}

impl Tools {
    /// Compiles everything; returns the Rust source that embeds the results.
    fn compile(&self, out: &Path) -> String {
        let mut functions = String::new();
        let first = FIRST.map(|name| ("First", name));
        for (set, name) in first.into_iter().chain(UNSEEN.map(|name| ("Unseen", name))) {
            let module = self.module(name, out);
            let arena = self.object(name, "arena", &[], out);
            let entry = self.object(name, "entry", &["-DWITH_ENTRY"], out);
            let maps = self.object(name, "maps", &["-DTABLES_IN_MAPS"], out);
            let vectors = absolute(&format!("functions/{name}.toml"));
            writeln!(
                functions,
                "    Function {{ name: {name:?}, set: Set::{set}, module: include_bytes!({module:?}), \
                 arena: &Aligned(*include_bytes!({arena:?})).0, \
                 entry: &Aligned(*include_bytes!({entry:?})).0, \
                 maps: &Aligned(*include_bytes!({maps:?})).0, \
                 vectors: include_str!({vectors:?}) }},",
            )
            .expect("writing to a string cannot fail");
        }
        let [nothing, sha1] = [NOTHING, SHA1].map(|name| self.module(name, out));
        let restore = self.object(RESTORE, "arena", &[], out);
        format!(
            "pub(super) static COMPILED: Result<Compiled, &str> = Ok(Compiled {{\n  functions: &[\n\
             {functions}  ],\n  nothing: include_bytes!({nothing:?}),\n  \
             sha1: include_bytes!({sha1:?}),\n  \
             restore: &Aligned(*include_bytes!({restore:?})).0,\n}});\n"
        )
    }

    fn object(&self, name: &str, variant: &str, more: &[&str], out: &Path) -> PathBuf {
        let object = out.join(format!("{name}.{variant}.bpf.o"));
        let mut clang = Command::new(&self.clang);
        clang.args(BPF).args(WARNINGS).args(more);
        run(clang.arg("-c").arg(source(name)).arg("-o").arg(&object));
        object
    }

    fn module(&self, name: &str, out: &Path) -> PathBuf {
        let (object, module) =
            (out.join(format!("{name}.wasm.o")), out.join(format!("{name}.wasm")));
        let mut clang = Command::new(&self.clang);
        clang.args(WASM).args(WARNINGS);
        run(clang.arg("-c").arg(source(name)).arg("-o").arg(&object));
        let mut linker = Command::new(&self.linker[0]);
        run(linker.args(&self.linker[1..]).args(LINK).arg(&object).arg("-o").arg(&module));
        module
    }
}

fn source(name: &str) -> String {
    format!("functions/{name}.c")
}

fn absolute(path: &str) -> PathBuf {
    let crate_folder = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    Path::new(&crate_folder).join(path)
}

fn tools() -> Result<Tools, &'static str> {
    let clang =
        clang().ok_or("clang 19 or newer ('apt-get install clang-19' on Debian, Ubuntu)")?;
    let linker = linker().ok_or("LLVM's linker 19 or newer ('apt-get install lld-19')")?;
    Ok(Tools { clang, linker })
}

/// Returns `TAM_CLANG`, or the first clang that is new enough and has both targets.
fn clang() -> Option<String> {
    let numbered = CLANG_VERSIONS.map(|version| format!("clang-{version}"));
    let mut names = env::var("TAM_CLANG").ok().into_iter().chain(numbered).chain(["clang".into()]);
    names.find(|name| {
        version_of(Command::new(name).arg("--version")) >= Some(*CLANG_VERSIONS.start()) && {
            let targets = text_of(Command::new(name).arg("--print-targets")).unwrap_or_default();
            ["bpf ", "wasm32 "].iter().all(|target| targets.contains(target))
        }
    })
}

/// Returns the system's `wasm-ld`, or the linker that Rust brings.
fn linker() -> Option<Vec<String>> {
    let numbered = LINKER_VERSIONS.map(|version| vec![format!("wasm-ld-{version}")]);
    let mut known = numbered.chain([vec!["wasm-ld".to_owned()]]).chain(rust_lld());
    known.find(|linker| {
        let mut command = Command::new(&linker[0]);
        version_of(command.args(&linker[1..]).arg("--version")) >= Some(*LINKER_VERSIONS.start())
    })
}

fn rust_lld() -> Option<Vec<String>> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| OsStr::new("rustc").to_owned());
    let sysroot = text_of(Command::new(rustc).args(["--print", "sysroot"]))?;
    let lld = Path::new(sysroot.trim())
        .join("lib/rustlib")
        .join(env::var_os("HOST")?)
        .join("bin/rust-lld");
    Some(vec![lld.to_str()?.to_owned(), "-flavor".to_owned(), "wasm".to_owned()])
}

/// Parses the major version in "clang version 19.1.7" or "LLD 19.1.7".
fn version_of(command: &mut Command) -> Option<u32> {
    let text = text_of(command)?;
    let number =
        text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    number.split('.').next()?.parse().ok()
}

fn text_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}
