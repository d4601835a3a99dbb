//! Giving pages of an arena memory: only a sleepable program may ask for it,
//! so a program of 14 instructions is made, run once and dropped.
//!
//! `bpf_arena_alloc_pages` is a kernel function without a number in any
//! header; the kernel's own BTF has it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;

use libbpf_sys as sys;

use crate::insn::{self, Register};
use crate::raw_program;

/// Only programs that say that they may be GPL call functions of the kernel.
/// This one is ours and has nothing of a module.
const LICENCE: &CStr = c"Dual MIT/GPL";

/// The program's argument.
#[repr(C)]
struct Context {
    address: u64,
    pages: u32,
    zero: u32,
}

/// Populates `pages` pages at `address`; `false` when the kernel did not.
pub(crate) fn run(arena: BorrowedFd<'_>, address: u64, pages: u32) -> io::Result<bool> {
    let Some(function) = function_id() else {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel's BTF has no bpf_arena_alloc_pages",
        ));
    };
    let program = program(arena.as_raw_fd(), function);
    let mut options = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as u64,
        prog_flags: sys::BPF_F_SLEEPABLE,
        ..Default::default()
    };
    let kind = sys::BPF_PROG_TYPE_SYSCALL;
    // SAFETY: the options hold no pointers.
    let fd =
        unsafe { raw_program::load_words(kind, c"tam_populate", LICENCE, &program, &mut options) }?;
    let context = Context { address, pages, zero: 0 };
    let mut run = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as u64,
        ctx_in: (&raw const context).cast(),
        ctx_size_in: size_of::<Context>() as u32,
        ..Default::default()
    };
    // SAFETY: the context lives across the call and is as long as the options say.
    let answer = unsafe { sys::bpf_prog_test_run_opts(fd.as_raw_fd(), &raw mut run) };
    if answer < 0 {
        return Err(io::Error::from_raw_os_error(-answer));
    }
    Ok(run.retval == 1)
}

/// Returns 1 if `bpf_arena_alloc_pages(arena, address, pages, -1, 0)` is not null, else 0.
fn program(arena: i32, function: i32) -> Vec<u64> {
    use Register::{R0, R1, R2, R3, R4, R5};
    let [arena, second] = insn::load_map(R1, arena);
    vec![
        insn::load(insn::WIDTH_8, R2, R1, 0),
        insn::load(insn::WIDTH_4, R3, R1, 8),
        arena,
        second,
        insn::move_immediate(R4, -1),
        insn::move_immediate(R5, 0),
        insn::call_kernel(function),
        insn::jump_if_zero(R0, 2),
        insn::move_immediate(R0, 1),
        insn::exit(),
        insn::move_immediate(R0, 0),
        insn::exit(),
    ]
}

/// The function's number in the kernel's BTF, looked up once: the BTF has some megabytes.
fn function_id() -> Option<i32> {
    static FOUND: OnceLock<Option<i32>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: no conditions; null when the kernel has no BTF.
        let btf = unsafe { sys::btf__load_vmlinux_btf() };
        if btf.is_null() {
            return None;
        }
        let name = c"bpf_arena_alloc_pages";
        // SAFETY: the BTF is ours and the name ends with NUL.
        let id = unsafe { sys::btf__find_by_name_kind(btf, name.as_ptr(), sys::BTF_KIND_FUNC) };
        // SAFETY: ours, freed once.
        unsafe { sys::btf__free(btf) };
        (id > 0).then_some(id)
    })
}
