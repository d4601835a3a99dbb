//! What a cell gives up before it runs its first module.
//!
//! After [`confine`] the process holds no capability but that to lock memory
//! (packet memory is pinned when its first socket comes), gains none, and can make
//! only the system calls that its loop needs: no file, socket or process can be
//! opened, made or traced any more. Descriptors that it has, and those that its
//! daemon still sends, keep working.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeMap;
use std::io;

/// Why the process could not be confined; it must then not run modules.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Capabilities could not be dropped.
    #[error("dropping the capabilities: {0}")]
    Capabilities(String),
    /// `PR_SET_NO_NEW_PRIVS`.
    #[error("giving up new privileges: {0}")]
    NoNewPrivileges(io::Error),
    /// The filter was refused.
    #[error("installing the system call filter: {0}")]
    Filter(String),
}

/// The one capability that a cell keeps.
const KEPT: caps::Capability = caps::Capability::CAP_IPC_LOCK;

/// System calls of a cell's loop, of the engine and of the C library's memory and signals.
const ALLOWED: &[libc::c_long] = &[
    // The daemon's socket and the next daemon's, AF_XDP sockets, the TUN device, sealed memory.
    libc::SYS_accept4,
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_bind,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_fcntl,
    // Memory: linear memories, code, rings. Images of modules are memory files.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    // Time, slices, traps, the end.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_timer_settime,
    libc::SYS_timer_delete,
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
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Confines the calling thread, and the process when it has no other.
///
/// # Errors
/// When a step is refused: see [`SandboxError`].
pub fn confine() -> Result<(), SandboxError> {
    drop_capabilities().map_err(|e| SandboxError::Capabilities(e.to_string()))?;
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| SandboxError::NoNewPrivileges(errno.into()))?;
    let filter = filter().map_err(|e| SandboxError::Filter(e.to_string()))?;
    seccompiler::apply_filter(&filter).map_err(|e| SandboxError::Filter(e.to_string()))
}

fn drop_capabilities() -> Result<(), caps::errors::CapsError> {
    let kept: caps::CapsHashSet =
        caps::read(None, caps::CapSet::Permitted)?.into_iter().filter(|c| *c == KEPT).collect();
    caps::clear(None, caps::CapSet::Ambient)?;
    caps::clear(None, caps::CapSet::Inheritable)?;
    caps::set(None, caps::CapSet::Effective, &kept)?;
    caps::set(None, caps::CapSet::Permitted, &kept)
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let allowed: BTreeMap<i64, Vec<seccompiler::SeccompRule>> =
        ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(allowed, refuse, SeccompAction::Allow, architecture)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `act` confined, on a thread of its own: other tests stay free.
    fn confined<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(|| {
            confine().unwrap();
            act()
        })
        .join()
        .unwrap()
    }

    #[test]
    fn a_confined_thread_opens_no_file_and_no_socket() {
        let (file, socket, child) = confined(|| {
            let file = std::fs::File::open("/etc/hostname").map_err(|e| e.kind());
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").map_err(|e| e.kind());
            let child = std::process::Command::new("/bin/true").spawn().map_err(|e| e.kind());
            (file.map(|_| ()), socket.map(|_| ()), child.map(|_| ()))
        });
        assert_eq!(file, Err(io::ErrorKind::PermissionDenied));
        assert_eq!(socket, Err(io::ErrorKind::PermissionDenied));
        assert_eq!(child, Err(io::ErrorKind::PermissionDenied));
    }

    #[test]
    fn what_it_has_still_works() {
        let (ours, theirs) = crate::fd_passing::pair().unwrap();
        confined(move || {
            use rustix::fd::AsFd;
            crate::fd_passing::send(theirs.as_fd(), b"still here", &[]).unwrap();
        });
        let mut buffer = [0; 32];
        use rustix::fd::AsFd;
        let received = crate::fd_passing::receive(ours.as_fd(), &mut buffer).unwrap();
        assert!(matches!(received, crate::fd_passing::Received::Message(10, _)));
    }
}
