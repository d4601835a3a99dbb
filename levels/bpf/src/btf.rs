//! Global variables, structs and enums, as described by an object's BTF and the kernel's.
//!
//! Reads libbpf's parsed form; follows no pointers out of the object.

use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;

use libbpf_sys as sys;

/// Location of a global variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Global {
    /// Section: `.rodata`, `.data`, `.bss` or a custom one.
    pub(crate) section: String,
    /// Offset in the section, bytes.
    pub(crate) offset: usize,
    /// Size of the variable, bytes.
    pub(crate) size: usize,
}

/// BTF of an open object, borrowed from it.
pub(crate) struct Btf<'object> {
    btf: *const sys::btf,
    object: std::marker::PhantomData<&'object ()>,
}

impl<'object> Btf<'object> {
    /// Returns the BTF of an object.
    ///
    /// # Safety
    /// `object` must be open, and stay so for `'object`.
    pub(crate) unsafe fn of(object: *const sys::bpf_object) -> Option<Self> {
        // SAFETY: the caller promises an open object; the answer belongs to it.
        let btf = unsafe { sys::bpf_object__btf(object) };
        (!btf.is_null()).then_some(Self { btf, object: std::marker::PhantomData })
    }

    /// Finds a global variable by its name in C.
    pub(crate) fn global(&self, name: &str) -> Option<Global> {
        // Type 0 is void; the count includes it.
        (1..self.type_count()).filter_map(|id| self.type_at(id)).find_map(|section| {
            if section.kind() != sys::BTF_KIND_DATASEC {
                return None;
            }
            let variables = section.trailing::<sys::btf_var_secinfo>();
            let variable = variables.iter().find(|v| {
                self.type_at(v.type_).is_some_and(|t| self.text(t.header().name_off) == name)
            })?;
            Some(Global {
                section: self.text(section.header().name_off),
                offset: variable.offset as usize,
                size: variable.size as usize,
            })
        })
    }

    /// Returns the size of `struct name` and its members' names and offsets, in bytes.
    #[cfg(test)]
    pub(crate) fn layout(&self, name: &str) -> Option<(usize, Vec<(String, usize)>)> {
        let found = self.find(name, sys::BTF_KIND_STRUCT)?;
        let members = found.trailing::<sys::btf_member>();
        let member = |m: &sys::btf_member| (self.text(m.name_off), m.offset as usize / 8);
        // SAFETY: of a struct, the union holds the size.
        let size = unsafe { found.header().__bindgen_anon_1.size } as usize;
        Some((size, members.iter().map(member).collect()))
    }

    /// Returns names and values of `enum name`, in their order.
    pub(crate) fn values(&self, name: &str) -> Option<Vec<(String, i64)>> {
        let found = self.find(name, sys::BTF_KIND_ENUM)?;
        let values = found.trailing::<sys::btf_enum>();
        Some(values.iter().map(|v| (self.text(v.name_off), i64::from(v.val))).collect())
    }

    /// Returns the number of arguments that the tracepoint `name` passes to programs (its typedef
    /// `btf_trace_NAME` is a pointer to a function, whose first argument is the tracepoint's own).
    pub(crate) fn arguments_of_tracepoint(&self, name: &str) -> Option<usize> {
        let typedef = self.find(&format!("btf_trace_{name}"), sys::BTF_KIND_TYPEDEF)?;
        let pointer = self.type_at(typedef.referred())?;
        let function = self.type_at(pointer.referred())?;
        (function.kind() == sys::BTF_KIND_FUNC_PROTO)
            .then(|| function.trailing::<sys::btf_param>().len().saturating_sub(1))
    }

    /// Returns the name of the type with this number.
    #[cfg(test)]
    pub(crate) fn name(&self, id: u32) -> Option<String> {
        Some(self.text(self.type_at(id)?.header().name_off))
    }

    fn find(&self, name: &str, kind: u32) -> Option<Type<'object>> {
        let name = std::ffi::CString::new(name).ok()?;
        // SAFETY: the BTF is alive for 'object and the name ends with NUL.
        let id = unsafe { sys::btf__find_by_name_kind(self.btf, name.as_ptr(), kind) };
        self.type_at(u32::try_from(id).ok()?)
    }

    fn type_count(&self) -> u32 {
        // SAFETY: the BTF is alive for 'object.
        unsafe { sys::btf__type_cnt(self.btf) }
    }

    fn type_at(&self, id: u32) -> Option<Type<'object>> {
        // SAFETY: the BTF is alive for 'object; an unknown number gives null.
        let found = unsafe { sys::btf__type_by_id(self.btf, id) };
        (!found.is_null()).then_some(Type { found, object: std::marker::PhantomData })
    }

    fn text(&self, offset: u32) -> String {
        // SAFETY: the BTF is alive for 'object; an unknown offset gives null.
        let text = unsafe { sys::btf__name_by_offset(self.btf, offset) };
        text_of(text)
    }
}

/// Types of the running kernel.
pub(crate) struct KernelBtf(NonNull<sys::btf>);

impl KernelBtf {
    /// Reads them from `/sys/kernel/btf/vmlinux`.
    pub(crate) fn load() -> io::Result<Self> {
        // SAFETY: no conditions; what comes back is ours.
        let btf = unsafe { sys::btf__load_vmlinux_btf() };
        // libbpf leaves the error in errno.
        NonNull::new(btf).map(Self).ok_or_else(io::Error::last_os_error)
    }

    pub(crate) fn btf(&self) -> Btf<'_> {
        Btf { btf: self.0.as_ptr(), object: std::marker::PhantomData }
    }
}

impl Drop for KernelBtf {
    fn drop(&mut self) {
        // SAFETY: ours since `load`, and no `Btf` that borrows it is left.
        unsafe { sys::btf__free(self.0.as_ptr()) }
    }
}

/// Converts a C string of libbpf to text; null is empty.
pub(crate) fn text_of(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: libbpf's strings end with NUL, and the owner is borrowed by our caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// BTF type, whose entries follow its header in memory.
struct Type<'object> {
    found: *const sys::btf_type,
    object: std::marker::PhantomData<&'object ()>,
}

impl Type<'_> {
    fn header(&self) -> &sys::btf_type {
        // SAFETY: not null (checked by `type_at`), and the object outlives us.
        unsafe { &*self.found }
    }

    /// Returns bits 24 to 28 of `info` (include/uapi/linux/btf.h).
    fn kind(&self) -> u32 {
        (self.header().info >> 24) & 0x1f
    }

    /// Returns the target type of a typedef or pointer.
    fn referred(&self) -> u32 {
        // SAFETY: both variants of the union are plain numbers of the same size.
        unsafe { self.header().__bindgen_anon_1.type_ }
    }

    /// Returns the entries of a data section, struct, enum or function.
    ///
    /// `T` must be the entry of this kind: private, and each caller checks the kind first.
    fn trailing<T: Copy>(&self) -> &[T] {
        let count = (self.header().info & 0xffff) as usize;
        // SAFETY: libbpf has checked at parsing that the entries, whose number
        // is in the lower 16 bits of `info`, follow the 12-byte header.
        let first = unsafe { self.found.add(1) }.cast::<T>();
        // SAFETY: as above; entries are made of u32 and BTF is aligned to 4.
        unsafe { std::slice::from_raw_parts(first, count) }
    }
}
