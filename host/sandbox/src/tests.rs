//! Tests of the sandbox. Each runs in a process of its own, which runs this test program again:
//! rights that are given up stay given up.

use super::*;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Environment variable that marks the inner process of a test.
const INSIDE: &str = "TAM_SANDBOX_INSIDE";

const CELL: Role = Role::Cell { locked_bytes: 1 << 20 };

/// Runs the test `name` again in a process of its own, where `act` is done.
fn inside(name: &str, act: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return act();
    }
    run_again(name, &[]);
}

fn run_again(name: &str, environment: &[(&str, &str)]) {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.envs(environment.iter().copied());
    let name = format!("tests::{name}");
    let output = again.args(["--exact", &name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output_text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output_text.contains("1 passed"), "it ran no test: {output_text}");
}

fn refused<T>(result: io::Result<T>) {
    assert_eq!(result.map(|_| ()).map_err(|e| e.kind()), Err(io::ErrorKind::PermissionDenied));
}

#[test]
fn a_sealed_process_opens_no_file_and_no_socket_and_starts_nothing() {
    inside("a_sealed_process_opens_no_file_and_no_socket_and_starts_nothing", || {
        confine(CELL).unwrap();
        refused(File::open("/etc/hostname"));
        refused(std::net::UdpSocket::bind("127.0.0.1:0"));
        refused(Command::new("/bin/true").spawn());
        refused(std::thread::Builder::new().spawn(|| ()));
    });
}

#[test]
fn existing_threads_are_sealed_too() {
    inside("existing_threads_are_sealed_too", || {
        let entered = enter(Role::CompileWorker).unwrap();
        let (go, gone) = std::sync::mpsc::channel();
        let (runs, running) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            runs.send(()).unwrap();
            gone.recv().unwrap();
            File::open("/etc/hostname").map(|_| ()).map_err(|error| error.kind())
        });
        running.recv().unwrap();
        entered.seal().unwrap();
        go.send(()).unwrap();
        assert_eq!(other.join().unwrap(), Err(io::ErrorKind::PermissionDenied));
    });
}

#[test]
fn without_the_filter_no_file_can_be_opened_either() {
    inside("without_the_filter_no_file_can_be_opened_either", || {
        let before = File::open("/etc/hostname").is_ok();
        let entered = enter(CELL).unwrap();
        assert!(before, "it can be opened at first");
        let confined = entered.confined;
        let opened = File::open("/etc/hostname").map(|_| ()).map_err(|error| error.raw_os_error());
        if confined.empty_root {
            // The thread whose folder it was has ended.
            assert_eq!(opened, Err(Some(libc::ESRCH)));
        } else if matches!(confined.landlock, Landlock::Version(_)) {
            assert_eq!(opened, Err(Some(libc::EACCES)));
        }
        let held = caps::read(None, caps::CapSet::Permitted).unwrap();
        assert_eq!(held.is_empty(), !confined.locks_memory, "{held:?}");
        let user = rustix::process::getuid().as_raw();
        assert_eq!(confined.user.unwrap_or(user), user);
    });
}

#[test]
fn without_the_filter_landlock_blocks_ports_and_processes() {
    use rustix::process::test_kill_process;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    const ADDRESSES: &str = "TAM_SANDBOX_ADDRESSES";
    let name = "without_the_filter_landlock_blocks_ports_and_processes";
    if std::env::var_os(INSIDE).is_none() {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let abstract_name = format!("tam-sandbox-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let _unix = UnixListener::bind_addr(&address).unwrap();
        let addresses = format!("{} {abstract_name}", tcp.local_addr().unwrap());
        return run_again(name, &[(ADDRESSES, &addresses)]);
    }
    let addresses = std::env::var(ADDRESSES).unwrap();
    let (tcp, abstract_name) = addresses.split_once(' ').unwrap();
    let address = SocketAddr::from_abstract_name(abstract_name).unwrap();
    let parent = rustix::process::getppid().unwrap();
    let all = || {
        let tcp = std::net::TcpStream::connect(tcp).is_ok();
        let unix = UnixStream::connect_addr(&address).is_ok();
        (tcp, unix, test_kill_process(parent).is_ok())
    };
    assert_eq!(all(), (true, true, true), "before");
    // Only landlock applies here, and the user stays the same, so that nothing else refuses.
    let landlock = ruleset::restrict(Role::CompileWorker, None).unwrap();
    let (tcp, unix, kill) = all();
    assert_eq!(tcp, !matches!(landlock, Landlock::Version(4..)));
    assert_eq!((unix, kill), (!landlock.is_scoped(), !landlock.is_scoped()));
}

#[test]
fn a_sealed_process_keeps_its_descriptors() {
    inside("a_sealed_process_keeps_its_descriptors", || {
        let (ours, theirs) = crate::fd_passing::pair().unwrap();
        confine(CELL).unwrap();
        crate::fd_passing::send(theirs.as_fd(), b"still here", &[]).unwrap();
        let mut buffer = [0; 32];
        let received = crate::fd_passing::receive(ours.as_fd(), &mut buffer).unwrap();
        assert!(matches!(received, crate::fd_passing::Received::Message(10, _)));
    });
}

#[test]
fn only_a_cell_makes_memory_executable_and_none_that_can_be_written() {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
    inside("only_a_cell_makes_memory_executable_and_none_that_can_be_written", || {
        let map = |protection| {
            // SAFETY: a null hint lets the kernel choose the place, so nothing mapped is replaced.
            unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, protection, MapFlags::PRIVATE) }
        };
        let protect = |page, protection| {
            // SAFETY: the page was just mapped, and nobody has a reference to it.
            unsafe { mprotect(page, 4096, protection) }
        };
        confine(CELL).unwrap();
        let page = map(ProtFlags::READ | ProtFlags::WRITE).unwrap();
        let (read, write, execute) =
            (MprotectFlags::READ, MprotectFlags::WRITE, MprotectFlags::EXEC);
        assert!(protect(page, read | write | execute).is_err());
        assert!(protect(page, write | execute).is_err());
        assert!(protect(page, read | execute).is_ok());
        assert!(map(ProtFlags::READ | ProtFlags::EXEC).is_err());
        assert!(map(ProtFlags::READ | ProtFlags::WRITE | ProtFlags::EXEC).is_err());
    });
}

#[test]
fn a_codec_opens_the_files_that_programs_need_and_nothing_else() {
    use std::os::unix::process::CommandExt;
    inside("a_codec_opens_the_files_that_programs_need_and_nothing_else", || {
        let secret = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(secret.path(), "secret").unwrap();
        std::fs::set_permissions(secret.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
        let entered = enter_codec(Path::new("/usr/bin/env")).unwrap();
        let is_fenced = matches!(entered.confined.landlock, Landlock::Version(_));
        entered.seal().unwrap();
        for path in [secret.path(), Path::new("/etc/passwd"), Path::new("/proc/self/environ")] {
            assert_eq!(File::open(path).is_err(), is_fenced, "{}", path.display());
        }
        assert!(File::create("/tmp/of-a-codec").is_err() || !is_fenced);
        refused(std::net::UdpSocket::bind("127.0.0.1:0"));
        refused(std::os::unix::net::UnixStream::pair());
        // The codec can start no process, but threads, as some versions of the program have them.
        refused(Command::new("/usr/bin/env").spawn());
        std::thread::spawn(|| ()).join().unwrap();
        // The codec can execute a program, whose output shows that this test has passed.
        println!("1 passed");
        let error = Command::new("/usr/bin/env").arg("true").env_clear().exec();
        panic!("{error}");
    });
}

#[test]
fn the_kernel_reports_its_landlock_version() {
    let here = landlock().unwrap();
    assert_eq!(here.is_scoped(), matches!(here, Landlock::Version(6..)));
    // This thread is not confined.
    File::open("/etc/hostname").unwrap();
}
