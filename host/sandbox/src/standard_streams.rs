//! Standard output as this process inherited it.
//!
//! POSIX lets a process start with closed standard streams (`tam list >&-`). Rust's runtime opens
//! `/dev/null` in their place before `main`, so that no other file gets their numbers; output
//! written there afterwards is lost without an error. The inherited state has to be checked before
//! that, in the program's initialisers, which the C runtime calls first.

use std::sync::atomic::{AtomicBool, Ordering};

static OUTPUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: `.init_array` holds pointers to functions of the C calling convention, each of which is
// called once before `main` (System V ABI, gABI 4.1, "Initialization and Termination Functions");
// `inspect` is one, uses nothing that Rust's runtime prepares, and cannot unwind.
// WHY: there is no safe way to run code before Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static INSPECT: extern "C" fn() = inspect;

extern "C" fn inspect() {
    // SAFETY: F_GETFD takes no further argument and changes nothing, whatever the number is.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    OUTPUT_WAS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

/// Returns whether this process was started without a standard output.
#[must_use]
pub fn output_was_closed() -> bool {
    OUTPUT_WAS_CLOSED.load(Ordering::Relaxed)
}
