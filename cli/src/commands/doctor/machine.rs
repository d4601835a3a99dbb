//! Checks that read what the kernel and the file system say; nothing is changed.

use super::{Check, State};
use crate::nodes;
use crate::project::{CToolchain, Libraries, Toolchain};
use namespaces::sysctl;
use sandbox::Landlock;
use session::admission::ONE_CORE_PERIOD_MIN;
use session::share::Time;
use std::path::Path;
use std::process::Command;

/// Major and minor version of the oldest kernel that has everything a node uses: AF_XDP frames of
/// several descriptors, and tcx.
const KERNEL_MIN: (u32, u32) = (6, 6);
/// Capabilities that a node needs (capabilities(7)): number and name.
const CAPABILITIES: [(u32, &str); 5] = [
    (12, "CAP_NET_ADMIN"),
    (13, "CAP_NET_RAW"),
    (21, "CAP_SYS_ADMIN"),
    (38, "CAP_PERFMON"),
    (39, "CAP_BPF"),
];
/// Number of CAP_IPC_LOCK, by which locked memory has no limit.
const CAPABILITY_IPC_LOCK: u32 = 14;
/// Bytes of locked memory of the largest cell: its packet frames.
const LOCKED_BYTES: u64 = 256 << 20;

/// Makes all checks of this file.
pub fn checks() -> Vec<Check> {
    let release = sysctl::read("kernel.osrelease").unwrap_or_default();
    vec![
        rights(),
        kernel(&release),
        bpf_jit(),
        bpf_file_system(),
        btf(),
        memory_lock(),
        seccomp(),
        landlock(),
        cores(std::thread::available_parallelism().map_or(1, usize::from)),
        arena(),
        speed(),
        tcx(&release),
        tproxy(&release),
        forwarding(),
        reverse_path(),
        codec(),
        clang(),
        wasm_toolchain(),
        c_toolchain(),
        user_namespaces(),
        leftovers(),
    ]
}

/// Checks for user namespaces, in which `tam demo` runs without root.
fn user_namespaces() -> Check {
    const NAME: &str = "user namespaces";
    match namespaces::userns::refusal() {
        None => Check::useful(NAME, State::Ok, "no setting refuses them: the demo without root"),
        Some(namespaces::userns::Refusal { key, refusing, allowing }) => {
            let found = format!("{key} is {refusing}: no demo without root");
            Check::useful(NAME, State::Missing, found).advice(format!("sysctl -w {key}={allowing}"))
        }
    }
}

fn effective_capabilities() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn rights() -> Check {
    let Some(held) = effective_capabilities() else {
        return Check::needed("rights", State::Unknown, "/proc/self/status cannot be read");
    };
    let missing: Vec<_> = CAPABILITIES
        .iter()
        .filter(|(bit, _)| held & 1 << bit == 0)
        .map(|(_, name)| *name)
        .collect();
    let found = match missing.as_slice() {
        [] => "all capabilities that a node needs".to_owned(),
        _ => format!("without {}", missing.join(", ")),
    };
    Check::needed("rights", missing.is_empty().into(), found).advice("run it as root, as with sudo")
}

/// Returns major and minor version of a release such as `6.1.0-18-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn kernel(release: &str) -> Check {
    let state = version(release).map_or(State::Unknown, |found| (found >= KERNEL_MIN).into());
    let advice = format!("use Linux {}.{} or later", KERNEL_MIN.0, KERNEL_MIN.1);
    Check::needed("kernel", state, format!("Linux {release}")).advice(advice)
}

fn bpf_jit() -> Check {
    const ADVICE: &str = "sysctl -w net.core.bpf_jit_enable=1";
    match sysctl::read("net.core.bpf_jit_enable") {
        Ok(value) => {
            let is_on = value.trim() != "0";
            let found = if is_on { "BPF with its compiler" } else { "BPF is interpreted" };
            Check::needed("bpf", is_on.into(), found).advice(ADVICE)
        }
        Err(error) => Check::needed("bpf", State::Unknown, error.to_string()).advice(ADVICE),
    }
}

fn bpf_file_system() -> Check {
    use bpf::pin::BPFFS;
    // A node would do the same.
    let mounted = bpf::pin::mount_bpffs().is_ok() && bpf::pin::is_bpffs(Path::new(BPFFS));
    let found = if mounted { "mounted on " } else { "not mounted on " };
    Check::needed("bpffs", mounted.into(), format!("{found}{BPFFS}"))
        .advice(format!("mount -t bpf bpf {BPFFS}"))
}

fn btf() -> Check {
    const FILE: &str = "/sys/kernel/btf/vmlinux";
    let there = Path::new(FILE).exists();
    let found = if there { "the kernel describes its types" } else { "no type description" };
    Check::needed("btf", there.into(), found)
        .advice("use a kernel built with CONFIG_DEBUG_INFO_BTF, as distributions' are")
}

fn memory_lock() -> Check {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let limit = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory")?.split_whitespace().next());
    let has_right =
        effective_capabilities().is_some_and(|held| held & 1 << CAPABILITY_IPC_LOCK != 0);
    let is_enough = match limit {
        Some("unlimited") => true,
        Some(bytes) => bytes.parse().is_ok_and(|bytes: u64| bytes >= LOCKED_BYTES),
        None => false,
    };
    let shown = limit.unwrap_or("unknown");
    let found =
        if has_right { "no limit (CAP_IPC_LOCK)".to_owned() } else { format!("limit {shown}") };
    Check::needed("locked memory", (has_right || is_enough).into(), found)
        .advice("raise it with: ulimit -l unlimited")
}

/// Checks for system call filters, without which no cell and no compile worker runs.
fn seccomp() -> Check {
    const ADVICE: &str = "use a kernel built with CONFIG_SECCOMP_FILTER, as distributions' are";
    let there = sysctl::read("kernel.seccomp.actions_avail");
    let is_there = there.is_ok_and(|actions| actions.contains("errno"));
    let found = if is_there { "system call filters" } else { "no system call filters" };
    Check::needed("seccomp", is_there.into(), found).advice(ADVICE)
}

/// Checks for Landlock, the second layer around cells and compile workers (docs/reference/privileges.md).
fn landlock() -> Check {
    const NAME: &str = "landlock";
    match sandbox::landlock() {
        Ok(found @ Landlock::Version(_)) => {
            let words = match found.is_scoped() {
                true => format!("{found}: files, TCP ports, abstract sockets, signals"),
                false => format!("{found}: without abstract sockets and signals"),
            };
            Check::useful(NAME, found.is_scoped().into(), words)
                .advice("Linux 6.12 or later has them; until then the filter stands alone there")
        }
        Ok(found @ Landlock::Off) => Check::useful(NAME, State::Missing, found.to_string())
            .advice("add landlock to the kernel's parameter lsm=; cells run without it"),
        Ok(found @ Landlock::NotBuilt) => Check::useful(NAME, State::Missing, found.to_string())
            .advice("use a kernel built with CONFIG_SECURITY_LANDLOCK; cells run without it"),
        Err(error) => Check::useful(NAME, State::Unknown, error)
            .advice("cells and compile workers do not start while landlock refuses"),
    }
}

fn cores(count: usize) -> Check {
    let found = match count {
        1 => format!(
            "1 core: modules and packets share it, and no session is promised anything in less \
             than {}",
            Time(ONE_CORE_PERIOD_MIN)
        ),
        _ => format!(
            "{count} cores; modules run on core {}, the last, unless the node file says otherwise",
            count - 1
        ),
    };
    Check::useful("cores", (count > 1).into(), found)
        .advice("a node works on one core; two keep a module's load away from plain packets")
}

/// Measures the fuel in a microsecond, by which time below user level is counted.
fn speed() -> Check {
    const NAME: &str = "fuel";
    match cell::below::measure_speed() {
        Ok(speed) => {
            Check::useful(NAME, State::Ok, format!("{speed} a microsecond below user level"))
        }
        Err(error) => Check::useful(NAME, State::Unknown, error.to_string())
            .advice("run it as root; nodes count with a slow machine's until they know"),
    }
}

/// Returns true when the kernel has a function of this name; `None` when it hides its symbols.
fn has_symbol(name: &str) -> Option<bool> {
    let symbols = std::fs::read_to_string("/proc/kallsyms").ok().filter(|text| !text.is_empty())?;
    Some(symbols.lines().any(|line| line.split_ascii_whitespace().nth(2) == Some(name)))
}

fn arena() -> Check {
    const FOR: &str = "for modules at nic and kernel level";
    match has_symbol("arena_map_alloc") {
        Some(there) => {
            let found = if there { "arena maps" } else { "no arena maps" };
            Check::useful("bpf arena", there.into(), found)
                .advice(format!("{FOR}: Linux 6.9 or later"))
        }
        None => {
            Check::useful("bpf arena", State::Unknown, "the kernel hides its symbols").advice(FOR)
        }
    }
}

fn tcx(release: &str) -> Check {
    let state = version(release).map_or(State::Unknown, |found| (found >= KERNEL_MIN).into());
    Check::useful("tcx", state, format!("Linux {release}")).advice("for modules at kernel level")
}

fn tproxy(release: &str) -> Check {
    const FOR: &str = "for services of streams";
    let folder = format!("/lib/modules/{release}");
    let built_in = std::fs::read_to_string(format!("{folder}/modules.builtin")).unwrap_or_default();
    let module = Path::new(&folder).join("kernel/net/netfilter/nft_tproxy.ko");
    let compressed = ["", ".xz", ".zst", ".gz"]
        .iter()
        .any(|end| Path::new(&format!("{}{end}", module.display())).exists());
    let there = built_in.contains("nft_tproxy")
        || compressed
        || has_symbol("nft_tproxy_eval") == Some(true);
    match there {
        true => Check::useful("tproxy", State::Ok, "nftables can intercept connections"),
        false => Check::useful("tproxy", State::Unknown, "no nft_tproxy seen").advice(FOR),
    }
}

fn forwarding() -> Check {
    let read = |key: &str| sysctl::read(key).map(|value| value.trim() != "0");
    match (read("net.ipv4.ip_forward"), read("net.ipv6.conf.all.forwarding")) {
        (Ok(v4), Ok(v6)) => {
            let word = |on| if on { "on" } else { "off" };
            let found = format!("IPv4 {}, IPv6 {} in this namespace", word(v4), word(v6));
            Check::useful("forwarding", (v4 && v6).into(), found).advice(
                "to route between devices of this namespace: sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 (labs do it by themselves)",
            )
        }
        _ => Check::useful("forwarding", State::Unknown, "it cannot be read"),
    }
}

fn reverse_path() -> Check {
    match sysctl::read("net.ipv4.conf.all.rp_filter").as_deref().map(str::trim) {
        Ok("0") => Check::useful("reverse path", State::Ok, "source addresses are not judged"),
        Ok("1") => Check::useful("reverse path", State::Ok, "strict; the front door does the same"),
        Ok("2") => Check::useful("reverse path", State::Ok, "loose; the front door does the same"),
        _ => Check::useful("reverse path", State::Unknown, "rp_filter cannot be read"),
    }
}

/// Returns the first line of a program's version; `None` where there is no such program.
fn version_of(name: &str, argument: &str) -> Option<String> {
    let output = Command::new(name).arg(argument).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then(|| text.lines().next().unwrap_or(name).to_owned())
}

fn codec() -> Check {
    let program = version_of("ffmpeg", "-version");
    let found = program.clone().unwrap_or_else(|| "no ffmpeg".to_owned());
    Check::useful("codec", program.is_some().into(), found).advice(
        "only for services with `transcode`, 5.1 or newer: apt install ffmpeg, and start the node again",
    )
}

fn clang() -> Check {
    let names = ["clang", "clang-19", "clang-16", "clang-14"];
    let program = names.into_iter().find_map(|name| version_of(name, "--version"));
    let found = program.clone().unwrap_or_else(|| "none".to_owned());
    Check::useful("clang", program.is_some().into(), found)
        .advice("only to build tam itself from source: apt install clang")
}

fn wasm_toolchain() -> Check {
    match Toolchain::find(Path::new(".")) {
        Ok(toolchain) => {
            let libraries = match toolchain.libraries {
                Libraries::Installed => "with libraries for WebAssembly",
                Libraries::Built { .. } => "which builds its libraries for WebAssembly",
            };
            let found = format!("{} {libraries}", toolchain.cargo.display());
            Check::useful("wasm toolchain", State::Ok, found)
        }
        Err(error) => Check::useful("wasm toolchain", State::Missing, "none")
            .advice(format!("only for `tam build` of projects in Rust: {error}")),
    }
}

fn c_toolchain() -> Check {
    match CToolchain::find() {
        Ok(CToolchain { clang, linker }) => {
            let found = format!("{} and {}", clang.display(), linker[0].display());
            Check::useful("c toolchain", State::Ok, found)
        }
        Err(error) => Check::useful("c toolchain", State::Missing, "none")
            .advice(format!("only for `tam build` of projects in C: {error}")),
    }
}

fn leftovers() -> Check {
    let (running, dead) = nodes::found();
    let pinned = bpf::front_door::pinned_nodes().unwrap_or_default();
    let mut dead: Vec<String> = dead.iter().map(ToString::to_string).collect();
    dead.extend(pinned.into_iter().filter(|name| running.iter().all(|node| node.as_str() != name)));
    dead.sort();
    dead.dedup();
    let labs = topology::list().unwrap_or_default();
    let found = match dead.as_slice() {
        [] => format!("{} nodes and {} labs, none dead", running.len(), labs.len()),
        _ => format!("left by dead nodes: {}", dead.join(", ")),
    };
    Check::useful("nodes and labs", dead.is_empty().into(), found).advice(removal_of(&dead))
}

/// Returns advice by which remains of dead nodes are removed, and nothing else.
fn removal_of(dead: &[String]) -> String {
    let commands: Vec<_> = dead.iter().map(|name| format!("tam node --cleanup {name}")).collect();
    format!("start the node again, or remove what it left: {}", commands.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_a_version() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("6.18.5"), Some((6, 18)));
        assert_eq!(version("unknown"), None);
    }
    #[test]
    fn remains_of_dead_nodes_are_removed_and_living_nodes_spared() {
        let advice = removal_of(&["r1".to_owned(), "r2".to_owned()]);
        assert!(advice.ends_with("tam node --cleanup r1; tam node --cleanup r2"), "{advice}");
        assert!(!advice.contains("lab down"), "{advice}");
    }

    #[test]
    fn on_one_core_it_is_said_what_is_not_promised() {
        let one = cores(1);
        assert_eq!((one.state, one.needed), (State::Missing, false));
        assert!(one.found.contains("promised anything in less than 100ms"), "{}", one.found);
        let two = cores(2);
        assert!(two.state == State::Ok && !two.found.contains("promised"), "{}", two.found);
    }
}
