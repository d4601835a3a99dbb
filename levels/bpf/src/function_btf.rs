//! Function BTF: describes the functions of a program without an object file, so
//! that the verifier checks the global ones separately.
//!
//! ```text
//! long  struct CONTEXT  CONTEXT *      FUNC_PROTO (ctx?, n × long) → long, FUNC name, …
//! ```
//!
//! The kernel recognises the context by the struct's name, whatever its members.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use libbpf_sys as sys;

/// Function of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawFunction {
    /// Index of the first instruction.
    pub start: u32,
    /// Name: letters, digits and `_`.
    pub name: String,
    /// True when the first parameter is the context.
    pub takes_context: bool,
    /// Number of 64-bit parameters after it.
    pub scalars: u32,
    /// True when the kernel verifies it once, separately; else at each call.
    pub global: bool,
}

/// BTF in the kernel; kept by the program that refers to it.
#[derive(Debug)]
pub(crate) struct FunctionBtf {
    btf: Builder,
    /// `struct bpf_func_info`: first instruction and type of each function.
    pub(crate) functions: Vec<sys::bpf_func_info>,
}

impl FunctionBtf {
    /// Describes the functions and loads the description.
    pub(crate) fn load(context: &CStr, functions: &[RawFunction]) -> io::Result<Self> {
        let btf = Builder::new()?;
        let long = btf.long()?;
        let context = btf.pointer_to_struct(context)?;
        let functions = functions
            .iter()
            .map(|function| {
                let type_id = btf.function(function, context, long)?;
                Ok(sys::bpf_func_info { insn_off: function.start, type_id })
            })
            .collect::<io::Result<_>>()?;
        btf.load()?;
        Ok(Self { btf, functions })
    }

    /// Returns the descriptor of the kernel's object.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: a loaded BTF has a descriptor, which it closes on drop.
        unsafe { BorrowedFd::borrow_raw(sys::btf__fd(self.btf.0.as_ptr())) }
    }
}

impl AsRawFd for FunctionBtf {
    fn as_raw_fd(&self) -> i32 {
        self.fd().as_raw_fd()
    }
}

/// libbpf's BTF under construction.
#[derive(Debug)]
struct Builder(NonNull<sys::btf>);

impl Builder {
    fn new() -> io::Result<Self> {
        // SAFETY: no conditions; null and errno when there is no memory.
        NonNull::new(unsafe { sys::btf__new_empty() })
            .map(Self)
            .ok_or_else(io::Error::last_os_error)
    }

    /// Adds `long`, the type of every scalar.
    fn long(&self) -> io::Result<i32> {
        let encoding = sys::BTF_INT_SIGNED as i32;
        // SAFETY: ours, and the name ends with NUL.
        checked(unsafe { sys::btf__add_int(self.0.as_ptr(), c"long".as_ptr(), 8, encoding) })
    }

    fn pointer_to_struct(&self, name: &CStr) -> io::Result<i32> {
        // SAFETY: ours, and the name ends with NUL.
        let id = checked(unsafe { sys::btf__add_struct(self.0.as_ptr(), name.as_ptr(), 0) })?;
        // SAFETY: ours.
        checked(unsafe { sys::btf__add_ptr(self.0.as_ptr(), id) })
    }

    fn function(&self, function: &RawFunction, context: i32, long: i32) -> io::Result<u32> {
        // SAFETY: ours.
        let prototype = checked(unsafe { sys::btf__add_func_proto(self.0.as_ptr(), long) })?;
        if function.takes_context {
            self.parameter(c"ctx", context)?;
        }
        for _ in 0..function.scalars {
            self.parameter(c"n", long)?;
        }
        let name = CString::new(function.name.as_str())?;
        let linkage = if function.global { sys::BTF_FUNC_GLOBAL } else { sys::BTF_FUNC_STATIC };
        // SAFETY: ours, and the name ends with NUL.
        let id = unsafe { sys::btf__add_func(self.0.as_ptr(), name.as_ptr(), linkage, prototype) };
        Ok(checked(id)?.unsigned_abs())
    }

    /// Adds a parameter to the prototype that was added last.
    fn parameter(&self, name: &CStr, id: i32) -> io::Result<()> {
        // SAFETY: ours, and the name ends with NUL.
        checked(unsafe { sys::btf__add_func_param(self.0.as_ptr(), name.as_ptr(), id) })?;
        Ok(())
    }

    fn load(&self) -> io::Result<()> {
        // SAFETY: ours.
        checked(unsafe { sys::btf__load_into_kernel(self.0.as_ptr()) })?;
        Ok(())
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        // SAFETY: ours, freed once.
        unsafe { sys::btf__free(self.0.as_ptr()) };
    }
}

fn checked(answer: i32) -> io::Result<i32> {
    if answer < 0 { Err(io::Error::from_raw_os_error(-answer)) } else { Ok(answer) }
}
