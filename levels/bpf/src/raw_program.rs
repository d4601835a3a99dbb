//! Loading of programs without an object file: the compiler's output for a module.
//!
//! Fills in the maps' descriptors and describes the functions in BTF; the caller provides the
//! instructions, and the verifier judges their safety.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_sys as sys;

use crate::function_btf::FunctionBtf;
pub use crate::function_btf::RawFunction;
use crate::insn;
use crate::object::last_lines;
use crate::object_name::short_name;
use crate::program::Program;

/// Size of the verifier's log in bytes, which is only requested after a refusal: the kernel keeps
/// the end of a longer one, and the end names the fault.
const LOG_LENGTH: usize = 256 << 10;
/// Licence of programs made from modules: they use no helper that only GPL programs may call.
const LICENCE: &CStr = c"Apache-2.0";

/// Attachment point of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawKind {
    /// XDP, in the driver; with `fragments`, on packets of several pages too.
    Xdp {
        /// True for `xdp.frags`. Programs that tail-call each other must agree on it.
        fragments: bool,
    },
    /// tcx ingress.
    Tc,
}

/// Program to be loaded.
#[derive(Clone, Copy, Debug)]
pub struct RawProgram<'a> {
    /// Name; the kernel shows 15 characters of it.
    pub name: &'a str,
    /// Attachment point.
    pub kind: RawKind,
    /// `struct bpf_insn`s as little-endian words.
    pub instructions: &'a [u64],
    /// Map references to fill in.
    pub maps: &'a [RawMap<'a>],
    /// Functions in the order of their first instruction, the entry first.
    pub functions: &'a [RawFunction],
}

/// Reference to a map.
#[derive(Clone, Copy, Debug)]
pub struct RawMap<'a> {
    /// First of the two words of the load (`ld_imm64`).
    pub instruction: u32,
    /// Descriptor of the map.
    pub fd: BorrowedFd<'a>,
    /// Offset into the first value, whose address is loaded; the second word holds a further
    /// offset. `None` loads the map itself.
    pub value: Option<u32>,
}

/// Failure to load a program.
#[derive(Debug, thiserror::Error)]
pub enum RawLoadError {
    /// A map reference is invalid: a defect of the compiler.
    #[error("program '{name}': no map can be filled in at instruction {instruction}")]
    NoReference {
        /// Name of the program.
        name: String,
        /// Index of the instruction.
        instruction: u32,
    },
    /// The kernel rejects the description of the functions.
    #[error("program '{name}': the kernel refuses the BTF of its {functions} functions: {source}")]
    Btf {
        /// Name of the program.
        name: String,
        /// Number of functions.
        functions: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The verifier gave up.
    #[error(
        "program '{name}' of {instructions} instructions is too large for the verifier to follow all its paths"
    )]
    TooComplex {
        /// Name of the program.
        name: String,
        /// Number of instructions.
        instructions: usize,
    },
    /// The verifier refused it, or the kernel did.
    #[error("the kernel refuses program '{name}': {source}{}", last_lines(.log))]
    Refused {
        /// Name of the program.
        name: String,
        /// The kernel's answer.
        source: io::Error,
        /// End of the verifier's log.
        log: String,
    },
}

impl RawProgram<'_> {
    /// Loads the program, after verification.
    ///
    /// # Errors
    /// [`RawLoadError::Refused`] with the verifier's log.
    pub fn load(&self) -> Result<Program, RawLoadError> {
        let words = self.with_maps()?;
        let context = match self.kind {
            RawKind::Xdp { .. } => c"xdp_md",
            RawKind::Tc => c"__sk_buff",
        };
        let btf = FunctionBtf::load(context, self.functions).map_err(|source| {
            let functions = self.functions.len();
            RawLoadError::Btf { name: self.name.to_owned(), functions, source }
        })?;
        let (kind, c_name) = (self.kind.number(), short_name(self.name));
        let mut options = self.options(&btf);
        // SAFETY: the options point into `btf`, which lives across the call.
        match unsafe { load_words(kind, &c_name, LICENCE, &words, &mut options) } {
            Ok(fd) => Program::from_fd(fd).map_err(|source| self.refused(source, String::new())),
            // The limit on instructions; requesting the log would take another second.
            Err(error) if error.raw_os_error() == Some(libc::E2BIG) => {
                Err(self.too_complex(words.len()))
            }
            Err(error) => {
                let mut log = vec![0u8; LOG_LENGTH];
                options.log_level = 1;
                options.log_buf = log.as_mut_ptr().cast();
                options.log_size = LOG_LENGTH as u32;
                // SAFETY: as above; the log lives across the call.
                let again = unsafe { load_words(kind, &c_name, LICENCE, &words, &mut options) };
                let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
                let log = String::from_utf8_lossy(&log[..end]).into_owned();
                if is_too_complex(&log) {
                    return Err(self.too_complex(words.len()));
                }
                // The error for a log that did not fit says nothing about the program.
                let of_program = |error: &io::Error| error.raw_os_error() != Some(libc::ENOSPC);
                Err(self.refused(again.err().filter(of_program).unwrap_or(error), log))
            }
        }
    }

    fn options(&self, btf: &FunctionBtf) -> sys::bpf_prog_load_opts {
        let fragments = self.kind == RawKind::Xdp { fragments: true };
        sys::bpf_prog_load_opts {
            sz: size_of::<sys::bpf_prog_load_opts>() as u64,
            expected_attach_type: self.kind.attach_type(),
            prog_flags: if fragments { sys::BPF_F_XDP_HAS_FRAGS } else { 0 },
            prog_btf_fd: btf.as_raw_fd() as u32,
            func_info: btf.functions.as_ptr().cast(),
            func_info_cnt: btf.functions.len() as u32,
            func_info_rec_size: size_of::<sys::bpf_func_info>() as u32,
            ..Default::default()
        }
    }

    /// Returns the instructions with the descriptors filled in.
    fn with_maps(&self) -> Result<Vec<u64>, RawLoadError> {
        const LOAD_IMMEDIATE: u64 = 0x18;
        let mut words = self.instructions.to_vec();
        for map in self.maps {
            let (at, name) = (map.instruction as usize, self.name);
            let missing = || RawLoadError::NoReference {
                name: name.to_owned(),
                instruction: map.instruction,
            };
            let [first, second] =
                words.get_mut(at..).and_then(<[u64]>::first_chunk_mut).ok_or_else(missing)?;
            if *first & 0xff != LOAD_IMMEDIATE {
                return Err(missing());
            }
            let register = (*first >> 8) as u8 & 0xf;
            let kind = match map.value {
                Some(offset) => {
                    *second += u64::from(offset) << 32;
                    sys::BPF_PSEUDO_MAP_VALUE
                }
                None => sys::BPF_PSEUDO_MAP_FD,
            };
            *first = insn::word(0x18, register, kind as u8, 0, map.fd.as_raw_fd());
        }
        Ok(words)
    }

    fn too_complex(&self, instructions: usize) -> RawLoadError {
        RawLoadError::TooComplex { name: self.name.to_owned(), instructions }
    }

    fn refused(&self, source: io::Error, log: String) -> RawLoadError {
        RawLoadError::Refused { name: self.name.to_owned(), source, log }
    }
}

/// Returns true if the log ends with the limit on pending branches
/// (`BPF_COMPLEXITY_LIMIT_JMP_SEQ`), for which the verifier has no error of its own.
fn is_too_complex(log: &str) -> bool {
    log.lines().rev().take(2).any(|line| line.ends_with("jumps is too complex."))
}

impl RawKind {
    fn number(self) -> sys::bpf_prog_type {
        match self {
            Self::Xdp { .. } => sys::BPF_PROG_TYPE_XDP,
            Self::Tc => sys::BPF_PROG_TYPE_SCHED_CLS,
        }
    }

    /// Returns the type that libbpf sets for `SEC("xdp")` and `SEC("tcx/ingress")`: programs that
    /// tail-call each other must agree on it.
    fn attach_type(self) -> sys::bpf_attach_type {
        match self {
            Self::Xdp { .. } => sys::BPF_XDP,
            Self::Tc => sys::BPF_TCX_INGRESS,
        }
    }
}

/// Loads instructions unchanged.
///
/// # Safety
/// The data that the options point to must be as long as they say, and live across the
/// call.
pub(crate) unsafe fn load_words(
    kind: sys::bpf_prog_type,
    name: &CStr,
    licence: &CStr,
    words: &[u64],
    options: &mut sys::bpf_prog_load_opts,
) -> io::Result<OwnedFd> {
    // SAFETY: name and licence end with NUL, a word is as large as a
    // `bpf_insn` and no less aligned; the options are the caller's promise.
    let answer = unsafe {
        sys::bpf_prog_load(
            kind,
            name.as_ptr(),
            licence.as_ptr(),
            words.as_ptr().cast(),
            words.len() as u64,
            std::ptr::from_mut(options),
        )
    };
    if answer < 0 {
        return Err(io::Error::from_raw_os_error(-answer));
    }
    // SAFETY: a new descriptor that nobody else holds.
    Ok(unsafe { OwnedFd::from_raw_fd(answer) })
}

#[cfg(test)]
#[path = "raw_program/tests.rs"]
mod tests;
