//! Attempts of hostile native code to escape, and the expected result of each.

use super::hostile::{Hostile, Outcome};
use libc::{EAFNOSUPPORT, EFAULT, EINVAL, ENOENT, ENOEXEC, ENOSYS, EPERM, ESRCH, c_long};
use std::io;

/// Targets of the attempts.
pub struct Scene {
    /// Process number of the daemon, whose memory and children an attacker wants.
    pub daemon: u32,
    /// Process number of another node's cell.
    pub other: u32,
    /// Readable address in the daemon's memory.
    pub address: u64,
}

/// Attempt to escape.
pub struct Attempt {
    /// Description of the attempt.
    pub name: &'static str,
    /// Result for a process of root outside: without its success the refusal would prove nothing.
    pub outside: Expected,
    /// Expected result for a cell.
    pub cell: Expected,
    /// Expected result for a compile worker.
    pub worker: Expected,
    /// Performs the attempt.
    pub act: fn(&mut Hostile, &Scene) -> io::Result<Outcome>,
}

/// Expected result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The call succeeds.
    Done,
    /// The call fails with this error, which has nothing to do with rights.
    Fails(i32),
    /// No kernel has the call; where one did, the filter would refuse it.
    Lacking,
    /// The call is not permitted.
    Refused,
}

use Expected::{Done, Fails, Lacking, Refused};

impl Expected {
    /// Returns true if the outcome is the expected one.
    pub fn is(self, outcome: Outcome) -> bool {
        match self {
            Self::Done => matches!(outcome, Outcome::Done(_)),
            Self::Fails(error) => outcome == Outcome::Refused(error),
            Self::Lacking => outcome == Outcome::Refused(ENOSYS),
            Self::Refused => outcome == Outcome::Refused(EPERM),
        }
    }
}

type Act = fn(&mut Hostile, &Scene) -> io::Result<Outcome>;

/// Returns an attempt that both roles are refused.
const fn refused(name: &'static str, outside: Expected, act: Act) -> Attempt {
    Attempt { name, outside, cell: Refused, worker: Refused, act }
}

/// Returns an attempt that only a cell may make, with its own memory.
const fn for_cells(name: &'static str, act: Act) -> Attempt {
    Attempt { name, outside: Done, cell: Done, worker: Refused, act }
}

const HERE: u64 = libc::AT_FDCWD as u64;
const NONE: u64 = u64::MAX;

fn open(it: &mut Hostile, path: &str, flags: i32) -> io::Result<Outcome> {
    let path = it.text(path)?;
    it.call(libc::SYS_openat, &[HERE, path, flags as u64, 0o600])
}

fn socket(it: &mut Hostile, family: i32, kind: i32, protocol: i32) -> io::Result<Outcome> {
    it.call(libc::SYS_socket, &[family as u64, kind as u64, protocol as u64])
}

fn map(it: &mut Hostile, access: i32) -> io::Result<Outcome> {
    let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    it.call(libc::SYS_mmap, &[0, 4096, access as u64, kind, NONE, 0])
}

fn protect(it: &mut Hostile, access: i32) -> io::Result<Outcome> {
    match map(it, libc::PROT_READ | libc::PROT_WRITE)? {
        Outcome::Done(page) => it.call(libc::SYS_mprotect, &[page, 4096, access as u64]),
        other => Ok(other),
    }
}

/// Copies eight bytes from or to another process.
fn copy(it: &mut Hostile, call: c_long, pid: u32, address: u64) -> io::Result<Outcome> {
    let here = it.words(&[0])?;
    let (local, remote) = (it.words(&[here, 8])?, it.words(&[address, 8])?);
    it.call(call, &[pid.into(), local, 1, remote, 1, 0])
}

/// Calls bpf(2) with `struct bpf_attr` of a map with one element, and of a program that returns 0.
fn bpf(it: &mut Hostile, command: u64) -> io::Result<Outcome> {
    let attributes = if command == 0 {
        it.words(&[4 << 32 | 2, 1 << 32 | 8, 0, 0, 0, 0, 0, 0, 0])?
    } else {
        let program = it.words(&[0xb7, 0x95])?;
        let licence = it.text("GPL")?;
        it.words(&[2 << 32 | 1, program, licence, 0, 0, 0, 0, 0, 0])?
    };
    it.call(libc::SYS_bpf, &[command, attributes, 72])
}

/// Makes the process fork: the child ends by itself, or is killed.
fn fork(it: &mut Hostile, call: c_long, arguments: &[u64]) -> io::Result<Outcome> {
    let outcome = it.call(call, arguments)?;
    if let Outcome::Done(child @ 1..) = outcome {
        it.call(libc::SYS_kill, &[child, libc::SIGKILL as u64])?;
        it.call(libc::SYS_wait4, &[child, 0, 0, 0])?;
    }
    Ok(outcome)
}

/// Attempts, in the order of the report.
pub const ATTEMPTS: &[Attempt] = &[
    // Files.
    refused("open a file by its path", Done, |it, _| open(it, "/etc/passwd", libc::O_RDONLY)),
    refused("open a file from where it is", Done, |it, _| open(it, ".", libc::O_RDONLY)),
    refused("open its own memory", Done, |it, _| open(it, "/proc/self/mem", libc::O_RDWR)),
    refused("open its own descriptor again", Done, |it, _| {
        open(it, "/proc/self/fd/0", libc::O_RDONLY)
    }),
    refused("open the daemon's memory", Done, |it, scene| {
        open(it, &format!("/proc/{}/mem", scene.daemon), libc::O_RDONLY)
    }),
    refused("open the daemon's descriptor", Done, |it, scene| {
        open(it, &format!("/proc/{}/fd/2", scene.daemon), libc::O_WRONLY)
    }),
    refused("list the daemon's descriptors", Done, |it, scene| {
        open(it, &format!("/proc/{}/fd", scene.daemon), libc::O_DIRECTORY)
    }),
    refused("open through a descriptor", Fails(libc::ENOTDIR), |it, _| {
        let path = it.text("etc/passwd")?;
        it.call(libc::SYS_openat, &[0, path, 0, 0])
    }),
    refused("open with more flags", Done, |it, _| {
        let (path, how) = (it.text("/etc/passwd")?, it.words(&[0, 0, 0])?);
        it.call(libc::SYS_openat2, &[HERE, path, how, 24])
    }),
    refused("make a file", Done, |it, _| open(it, "/tmp", libc::O_TMPFILE | libc::O_RDWR)),
    refused("make a folder", Fails(libc::EEXIST), |it, _| {
        let path = it.text("/tmp")?;
        it.call(libc::SYS_mkdirat, &[HERE, path, 0o700])
    }),
    refused("remove a file", Fails(ENOENT), |it, _| {
        let path = it.text("/tmp/tam-no-such-file")?;
        it.call(libc::SYS_unlinkat, &[HERE, path, 0])
    }),
    refused("look at a file", Done, |it, _| {
        let (path, room) = (it.text("/etc/passwd")?, it.bytes(&[0; 256])?);
        it.call(libc::SYS_statx, &[HERE, path, 0, 0, room])
    }),
    refused("change the rights of a file", Fails(ENOENT), |it, _| {
        let path = it.text("/tmp/tam-no-such-file")?;
        it.call(libc::SYS_fchmodat, &[HERE, path, 0o777])
    }),
    refused("make a device", Fails(libc::EEXIST), |it, _| {
        let path = it.text("/tmp")?;
        it.call(libc::SYS_mknodat, &[HERE, path, u64::from(libc::S_IFCHR), 0x101])
    }),
    refused("leave its root", Done, |it, _| {
        let path = it.text("/tmp")?;
        it.call(libc::SYS_chroot, &[path])
    }),
    refused("change its folder", Done, |it, _| {
        let path = it.text("/")?;
        it.call(libc::SYS_chdir, &[path])
    }),
    refused("mount", Fails(ENOENT), |it, _| {
        let (what, place) = (it.text("tmpfs")?, it.text("/tmp/tam-no-such-folder")?);
        it.call(libc::SYS_mount, &[what, place, what, 0, 0])
    }),
    refused("make a file system", Done, |it, _| {
        let what = it.text("tmpfs")?;
        it.call(libc::SYS_fsopen, &[what, 0])
    }),
    refused("take a tree of files", Done, |it, _| {
        let path = it.text("/")?;
        it.call(libc::SYS_open_tree, &[HERE, path, 1])
    }),
    refused("open a file by its number", Fails(EFAULT), |it, _| {
        it.call(libc::SYS_open_by_handle_at, &[HERE, 0, 0])
    }),
    refused("watch files", Done, |it, _| it.call(libc::SYS_inotify_init1, &[0])),
    refused("watch all files", Done, |it, _| it.call(libc::SYS_fanotify_init, &[0, 0])),
    // Programs and processes.
    refused("execute a program", Fails(ENOENT), |it, _| {
        let path = it.text("/bin/tam-no-such-program")?;
        it.call(libc::SYS_execve, &[path, 0, 0])
    }),
    refused("execute a descriptor", Fails(libc::EACCES), |it, _| {
        let (path, flags) = (it.text("")?, libc::AT_EMPTY_PATH as u64);
        it.call(libc::SYS_execveat, &[0, path, 0, 0, flags])
    }),
    refused("fork", Done, |it, _| fork(it, libc::SYS_fork, &[])),
    refused("clone a process", Done, |it, _| fork(it, libc::SYS_clone, &[libc::SIGCHLD as u64])),
    refused("clone a process the new way", Done, |it, _| {
        let what = it.words(&[0, 0, 0, 0, libc::SIGCHLD as u64, 0, 0, 0])?;
        fork(it, libc::SYS_clone3, &[what, 64])
    }),
    refused("trace the daemon", Done, |it, scene| {
        it.call(libc::SYS_ptrace, &[u64::from(libc::PTRACE_SEIZE), scene.daemon.into(), 0, 0])
    }),
    refused("trace another cell", Done, |it, scene| {
        it.call(libc::SYS_ptrace, &[u64::from(libc::PTRACE_SEIZE), scene.other.into(), 0, 0])
    }),
    refused("read the daemon's memory", Done, |it, scene| {
        copy(it, libc::SYS_process_vm_readv, scene.daemon, scene.address)
    }),
    refused("write the daemon's memory", Fails(EFAULT), |it, scene| {
        copy(it, libc::SYS_process_vm_writev, scene.daemon, 0)
    }),
    refused("signal the daemon", Done, |it, scene| {
        it.call(libc::SYS_kill, &[scene.daemon.into(), 0])
    }),
    refused("signal another cell", Done, |it, scene| {
        it.call(libc::SYS_kill, &[scene.other.into(), 0])
    }),
    refused("signal everybody", Done, |it, _| it.call(libc::SYS_kill, &[NONE, 0])),
    refused("signal a thread of the daemon", Done, |it, scene| {
        it.call(libc::SYS_tgkill, &[scene.daemon.into(), scene.daemon.into(), 0])
    }),
    refused("signal a thread", Done, |it, scene| {
        it.call(libc::SYS_tkill, &[scene.daemon.into(), 0])
    }),
    refused("queue a signal", Done, |it, scene| {
        let what = it.words(&[0, libc::SI_QUEUE.cast_unsigned().into(), 0, 0])?;
        it.bytes(&[0; 128])?;
        it.call(libc::SYS_rt_sigqueueinfo, &[scene.daemon.into(), 0, what])
    }),
    refused("have the kernel signal the daemon", Done, |it, scene| {
        it.call(libc::SYS_fcntl, &[0, libc::F_SETOWN as u64, scene.daemon.into()])
    }),
    refused("hold the daemon by a descriptor", Done, |it, scene| {
        it.call(libc::SYS_pidfd_open, &[scene.daemon.into(), 0])
    }),
    refused("take a descriptor of the daemon", Done, |it, scene| {
        match it.call(libc::SYS_pidfd_open, &[scene.daemon.into(), 0])? {
            Outcome::Done(process) => it.call(libc::SYS_pidfd_getfd, &[process, 2, 0]),
            _ => it.call(libc::SYS_pidfd_getfd, &[0, 2, 0]),
        }
    }),
    refused("signal by a descriptor", Fails(libc::EBADF), |it, _| {
        it.call(libc::SYS_pidfd_send_signal, &[0, 0, 0, 0])
    }),
    refused("compare itself with the daemon", Done, |it, scene| {
        it.call(libc::SYS_kcmp, &[scene.daemon.into(), scene.other.into(), 1, 0, 0])
    }),
    refused("change the daemon's limits", Done, |it, scene| {
        let room = it.bytes(&[0; 16])?;
        it.call(libc::SYS_prlimit64, &[scene.daemon.into(), 0, 0, room])
    }),
    refused("take the daemon's cores", Fails(EINVAL), |it, scene| {
        let none = it.words(&[0])?;
        it.call(libc::SYS_sched_setaffinity, &[scene.daemon.into(), 8, none])
    }),
    refused("go before all others", Done, |it, _| {
        let priority = it.bytes(&1_i32.to_ne_bytes())?;
        it.call(libc::SYS_sched_setscheduler, &[0, libc::SCHED_FIFO as u64, priority])
    }),
    refused("be less nice", Done, |it, _| it.call(libc::SYS_setpriority, &[0, 0, -20_i64 as u64])),
    // The network.
    refused("a TCP socket", Done, |it, _| socket(it, libc::AF_INET, libc::SOCK_STREAM, 0)),
    refused("a UDP socket", Done, |it, _| socket(it, libc::AF_INET6, libc::SOCK_DGRAM, 0)),
    refused("a UNIX socket", Done, |it, _| socket(it, libc::AF_UNIX, libc::SOCK_STREAM, 0)),
    refused("a pair of sockets", Done, |it, _| {
        let room = it.bytes(&[0; 8])?;
        let (family, kind) = (libc::AF_UNIX as u64, libc::SOCK_STREAM as u64);
        it.call(libc::SYS_socketpair, &[family, kind, 0, room])
    }),
    refused("a netlink socket", Done, |it, _| socket(it, libc::AF_NETLINK, libc::SOCK_RAW, 0)),
    refused("a packet socket", Done, |it, _| socket(it, libc::AF_PACKET, libc::SOCK_RAW, 0)),
    refused("a raw socket", Done, |it, _| socket(it, libc::AF_INET, libc::SOCK_RAW, 1)),
    refused("an AF_XDP socket", Done, |it, _| socket(it, libc::AF_XDP, libc::SOCK_RAW, 0)),
    refused("a socket of a family that nobody has", Fails(EAFNOSUPPORT), |it, _| {
        socket(it, 99, libc::SOCK_RAW, 0)
    }),
    // A cell may connect what its daemon gives it for that: nothing without a service of streams.
    Attempt {
        name: "connect",
        outside: Fails(libc::ENOTSOCK),
        cell: Fails(libc::ENOTSOCK),
        worker: Refused,
        act: |it, _| {
            let address = it.bytes(&[2, 0, 0, 80, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0])?;
            it.call(libc::SYS_connect, &[0, address, 16])
        },
    },
    refused("send to an address", Fails(libc::ENOTSOCK), |it, _| {
        let address = it.bytes(&[2, 0, 0, 80, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0])?;
        it.call(libc::SYS_sendto, &[0, address, 1, 0, address, 16])
    }),
    refused("listen", Fails(libc::ENOTSOCK), |it, _| it.call(libc::SYS_listen, &[0, 1])),
    refused("put a filter in front of a socket", Fails(libc::ENOTSOCK), |it, _| {
        let (level, option) = (libc::SOL_SOCKET as u64, libc::SO_ATTACH_FILTER as u64);
        it.call(libc::SYS_setsockopt, &[0, level, option, 0, 0])
    }),
    refused("ask who is at the other end", Fails(libc::ENOTSOCK), |it, _| {
        let (level, option) = (libc::SOL_SOCKET as u64, libc::SO_PEERCRED as u64);
        it.call(libc::SYS_getsockopt, &[0, level, option, 0, 0])
    }),
    refused("a device's controls", Fails(libc::ENOTTY), |it, _| {
        let room = it.bytes(&[0; 64])?;
        it.call(libc::SYS_ioctl, &[0, libc::TIOCSTI, room])
    }),
    // Memory.
    refused("memory that can be written and executed", Done, |it, _| {
        map(it, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)
    }),
    refused("memory that can be executed", Done, |it, _| {
        map(it, libc::PROT_READ | libc::PROT_EXEC)
    }),
    refused("make memory executable as it is written", Done, |it, _| {
        protect(it, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)
    }),
    for_cells("make written memory executable", |it, _| {
        protect(it, libc::PROT_READ | libc::PROT_EXEC)
    }),
    refused("the same by a key", Fails(EINVAL), |it, _| {
        it.call(libc::SYS_pkey_mprotect, &[1, 4096, 5, NONE])
    }),
    for_cells("memory by a descriptor, to be sealed", |it, _| {
        let (name, flags) = (it.text("mine")?, libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        it.call(libc::SYS_memfd_create, &[name, flags.into()])
    }),
    refused("memory by a descriptor that outlives programs", Done, |it, _| {
        let name = it.text("mine")?;
        it.call(libc::SYS_memfd_create, &[name, 0])
    }),
    refused("the machine's memory", Fails(ENOENT), |it, _| open(it, "/dev/mem", libc::O_RDWR)),
    refused("memory that others find by a key", Done, |it, _| {
        it.call(libc::SYS_shmget, &[0, 4096, 0o600])
    }),
    refused("move the daemon's memory", Done, |it, scene| {
        it.call(libc::SYS_move_pages, &[scene.daemon.into(), 0, 0, 0, 0, 0])
    }),
    refused("handle faults of memory", Done, |it, _| it.call(libc::SYS_userfaultfd, &[0])),
    // The kernel.
    refused("make a BPF map", Done, |it, _| bpf(it, 0)),
    refused("load a BPF program", Done, |it, _| bpf(it, 5)),
    refused("measure the machine", Fails(EFAULT), |it, _| {
        it.call(libc::SYS_perf_event_open, &[0, 0, 0, 0, 0])
    }),
    refused("rings of system calls", Done, |it, _| {
        let parameters = it.bytes(&[0; 120])?;
        it.call(libc::SYS_io_uring_setup, &[1, parameters])
    }),
    refused("use a ring of system calls", Fails(libc::EOPNOTSUPP), |it, _| {
        it.call(libc::SYS_io_uring_enter, &[0, 0, 0, 0, 0, 0])
    }),
    refused("load a module of the kernel", Fails(ENOEXEC), |it, _| {
        let (image, parameters) = (it.bytes(&[0; 128])?, it.text("")?);
        it.call(libc::SYS_init_module, &[image, 128, parameters])
    }),
    refused("load a module by a descriptor", Fails(EINVAL), |it, _| {
        let parameters = it.text("")?;
        it.call(libc::SYS_finit_module, &[0, parameters, 0])
    }),
    refused("read the kernel's log", Done, |it, _| it.call(libc::SYS_syslog, &[10, 0, 0])),
    refused("look for a key", Fails(libc::ENOKEY), |it, _| {
        let (kind, name) = (it.text("user")?, it.text("tam-no-such-key")?);
        it.call(libc::SYS_request_key, &[kind, name, 0, 0])
    }),
    refused("its own keys", Done, |it, _| it.call(libc::SYS_keyctl, &[0, -3_i64 as u64, 1])),
    refused("set the clock", Fails(EFAULT), |it, _| it.call(libc::SYS_clock_settime, &[0, 1])),
    refused("stop the machine", Fails(EINVAL), |it, _| it.call(libc::SYS_reboot, &[0, 0, 0, 0])),
    refused("name the machine", Fails(EINVAL), |it, _| it.call(libc::SYS_sethostname, &[0, NONE])),
    refused("reach the machine's ports", Done, |it, _| it.call(libc::SYS_iopl, &[3])),
    refused("a system call of another interface", Lacking, |it, _| {
        it.call(libc::SYS_getpid | 0x4000_0000, &[])
    }),
    // Who it is.
    refused("become root", Done, |it, _| it.call(libc::SYS_setresuid, &[0, 0, 0])),
    refused("join root's group", Done, |it, _| {
        let groups = it.bytes(&[0; 4])?;
        it.call(libc::SYS_setgroups, &[1, groups])
    }),
    refused("take capabilities", Fails(EFAULT), |it, _| it.call(libc::SYS_capset, &[0, 0])),
    refused("be open to others again", Done, |it, _| {
        it.call(libc::SYS_prctl, &[libc::PR_SET_DUMPABLE as u64, 1, 0, 0, 0])
    }),
    refused("change its own limits", Done, |it, _| {
        let limit = it.words(&[0, 0])?;
        it.call(libc::SYS_setrlimit, &[u64::from(libc::RLIMIT_CORE), limit])
    }),
    refused("a world of its own", Done, |it, _| {
        it.call(libc::SYS_unshare, &[libc::CLONE_NEWUSER as u64])
    }),
    refused("the daemon's world", Done, |it, scene| {
        match it.call(libc::SYS_pidfd_open, &[scene.daemon.into(), 0])? {
            Outcome::Done(process) => {
                it.call(libc::SYS_setns, &[process, libc::CLONE_NEWNET as u64])
            }
            _ => it.call(libc::SYS_setns, &[0, libc::CLONE_NEWNET as u64]),
        }
    }),
    refused("another filter", Done, |it, _| {
        // Which actions there are: the least that the call does.
        let action = it.bytes(&0_u32.to_ne_bytes())?;
        it.call(libc::SYS_seccomp, &[2, 0, action])
    }),
    refused("nobody by that number", Fails(ESRCH), |it, _| {
        it.call(libc::SYS_kill, &[0x3fff_ffff, 0])
    }),
];
