//! System call filters of the roles. Calls that are not listed are refused with `EPERM`; a call by
//! the numbers of another architecture ends the process.
//!
//! Calls that are dangerous with some arguments are listed with the arguments that are needed.

use super::Role;
use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Is,
    SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;

/// Calls of both roles: existing pipes and sockets, memory, time, threads, exit.
const BOTH: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Further calls of a cell: its daemon's socket and the next daemon's, AF_XDP sockets, packet
/// sockets, TUN devices, sealed memory, slices of time; connections of stream services, whose
/// sockets its daemon makes.
const CELL: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_pread64,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_recvfrom,
    libc::SYS_splice,
    libc::SYS_pipe2,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ftruncate,
    libc::SYS_timer_settime,
    libc::SYS_timer_delete,
];

/// Further calls of a codec, which is a program of the machine: those of the loader and the C
/// library at start, reading of files that landlock allows, threads. It can create no socket and no
/// process.
const CODEC: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_readv,
    libc::SYS_getdents64,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    libc::SYS_fcntl,
    libc::SYS_fadvise64,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_prctl,
    libc::SYS_prlimit64,
    libc::SYS_clone3,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getppid,
    libc::SYS_getrusage,
    libc::SYS_clock_getres,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_membarrier,
];

/// Calls of a codec that only some architectures have.
#[cfg(target_arch = "x86_64")]
const CODEC_ARCH: &[c_long] = &[
    libc::SYS_arch_prctl,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_time,
    libc::SYS_gettimeofday,
];
#[cfg(not(target_arch = "x86_64"))]
const CODEC_ARCH: &[c_long] = &[libc::SYS_gettimeofday];

/// Returns the filter that hides `clone3`, whose arguments no filter can see: programs use `clone`
/// then.
pub(super) fn without_clone3() -> Result<BpfProgram, BackendError> {
    let none = SeccompAction::Errno(libc::ENOSYS as u32);
    let rules = [(libc::SYS_clone3, Vec::new())].into_iter().collect();
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, none, architecture)?.try_into()
}

/// Protection of code memory: readable and executable, not writable. Some processors add landing
/// pads (`PROT_BTI`).
const CODE: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
const EXECUTABLE: u64 = libc::PROT_EXEC as u64;
#[cfg(target_arch = "aarch64")]
const GUARDED: u64 = 0x10;
#[cfg(not(target_arch = "aarch64"))]
const GUARDED: u64 = 0;

/// Condition for a call: for each of some arguments the index, width, comparison and value.
type Condition<'a> = &'a [(u8, Width, Is, u64)];

/// Calls that a role may make.
#[derive(Default)]
struct Allowed(BTreeMap<i64, Vec<SeccompRule>>);

impl Allowed {
    fn all(&mut self, calls: &[c_long]) {
        self.0.extend(calls.iter().map(|&call| (call, Vec::new())));
    }

    /// Allows a call under one of these conditions.
    fn only(&mut self, call: c_long, conditions: &[Condition<'_>]) -> Result<(), BackendError> {
        let rules = conditions.iter().map(|condition| {
            let conditions = condition.iter().map(|(argument, width, is, value)| {
                SeccompCondition::new(*argument, width.clone(), is.clone(), *value)
            });
            SeccompRule::new(conditions.collect::<Result<_, _>>()?)
        });
        let rules = rules.collect::<Result<_, _>>()?;
        self.0.insert(call, rules);
        Ok(())
    }

    /// Allows a call whose argument of 32 bits is one of these values.
    fn one_of(&mut self, call: c_long, argument: u8, values: &[i32]) -> Result<(), BackendError> {
        let value =
            |value: &i32| [(argument, Width::Dword, Is::Eq, u64::from(value.cast_unsigned()))];
        let conditions: Vec<_> = values.iter().map(value).collect();
        self.only(call, &conditions.iter().map(|condition| &condition[..]).collect::<Vec<_>>())
    }
}

/// Returns the filter of a role, for the calling process.
pub(super) fn of(role: Role) -> Result<BpfProgram, BackendError> {
    let mut allowed = Allowed::default();
    allowed.all(BOTH);
    // `abort`: a signal to this process only.
    allowed.one_of(libc::SYS_tgkill, 1, &[rustix::process::getpid().as_raw_nonzero().get()])?;
    let plain: Condition<'_> = &[(2, Width::Qword, Is::MaskedEq(EXECUTABLE), 0)];
    allowed.only(libc::SYS_mmap, &[plain])?;
    match role {
        Role::CompileWorker => {
            // A compile worker writes code and runs none.
            allowed.only(libc::SYS_mprotect, &[plain])?;
            allowed.one_of(libc::SYS_fcntl, 1, &[libc::F_GETFD])?;
        }
        Role::Cell { .. } => {
            allowed.all(CELL);
            let code: Condition<'_> = &[(2, Width::Qword, Is::MaskedEq(!GUARDED), CODE)];
            allowed.only(libc::SYS_mprotect, &[plain, code])?;
            cell_descriptors(&mut allowed)?;
            cell_sockets(&mut allowed)?;
        }
        Role::Codec => {
            allowed.all(CODEC);
            allowed.all(CODEC_ARCH);
            // Threads of this process, in its present namespaces.
            let thread = u64::from(libc::CLONE_THREAD.cast_unsigned());
            let is_thread: Condition<'_> = &[(0, Width::Qword, Is::MaskedEq(thread), thread)];
            allowed.only(libc::SYS_clone, &[is_thread])?;
        }
    }
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(allowed.0, refuse, SeccompAction::Allow, architecture)?.try_into()
}

/// Allows a cell's calls on descriptors: no signals by them, no locks, no leases.
fn cell_descriptors(allowed: &mut Allowed) -> Result<(), BackendError> {
    let commands = [
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_GETFL,
        libc::F_DUPFD_CLOEXEC,
        libc::F_GET_SEALS,
        libc::F_ADD_SEALS,
    ];
    allowed.one_of(libc::SYS_fcntl, 1, &commands)?;
    // Images of modules: memory of this process under another name, never executable.
    let sealable = (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING).cast_signed();
    allowed.one_of(libc::SYS_memfd_create, 1, &[sealable])
}

/// Allows a cell's calls on sockets: no filter of its own, no membership, no other process id, and
/// no datagram to an address that it names.
fn cell_sockets(allowed: &mut Allowed) -> Result<(), BackendError> {
    let of = |level: i32| (1, Width::Dword, Is::Eq, u64::from(level.cast_unsigned()));
    let option = |name: i32| (2, Width::Dword, Is::Eq, u64::from(name.cast_unsigned()));
    let xdp: Condition<'_> = &[of(libc::SOL_XDP)];
    let counted: Condition<'_> = &[of(libc::SOL_PACKET), option(libc::PACKET_STATISTICS)];
    let room: Condition<'_> = &[of(libc::SOL_SOCKET), option(libc::SO_SNDBUF)];
    let lingers: Condition<'_> = &[of(libc::SOL_SOCKET), option(libc::SO_LINGER)];
    allowed.only(libc::SYS_getsockopt, &[xdp, counted])?;
    // Query for bytes that were sent and have not arrived.
    allowed.one_of(libc::SYS_ioctl, 1, &[libc::TIOCOUTQ as i32])?;
    let acknowledges: Condition<'_> = &[of(libc::IPPROTO_TCP), option(libc::TCP_QUICKACK)];
    allowed.only(libc::SYS_setsockopt, &[xdp, room, lingers, acknowledges])?;
    allowed.only(libc::SYS_sendto, &[&[(4, Width::Qword, Is::Eq, 0)]])
}
