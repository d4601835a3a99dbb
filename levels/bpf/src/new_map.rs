//! Maps made one by one, for what no object file declares: the maps of
//! programs that were compiled from modules.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use libbpf_sys as sys;

use crate::object_name::short_name;

/// What a map is made of. Zero where a kind has no such thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapSpec {
    /// `enum bpf_map_type`.
    pub kind: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value, on each CPU.
    pub value_size: u32,
    /// Most entries; of a ring buffer its bytes, of an arena its pages.
    pub max_entries: u32,
    /// `BPF_F_*`.
    pub flags: u32,
    /// What the kind makes of it; of an arena its address.
    pub extra: u64,
}

impl MapSpec {
    /// An array of values that can be mapped into memory.
    #[must_use]
    pub fn mappable_array(value_size: u32, entries: u32) -> Self {
        Self { flags: sys::BPF_F_MMAPABLE, ..Self::array(value_size, entries) }
    }

    /// An array of values.
    #[must_use]
    pub fn array(value_size: u32, entries: u32) -> Self {
        let kind = sys::BPF_MAP_TYPE_ARRAY;
        Self { kind, key_size: 4, value_size, max_entries: entries, ..Self::default() }
    }

    /// An array with a value for each CPU.
    #[must_use]
    pub fn per_cpu_array(value_size: u32, entries: u32) -> Self {
        Self { kind: sys::BPF_MAP_TYPE_PERCPU_ARRAY, ..Self::array(value_size, entries) }
    }

    /// An array of programs for tail calls; its values are descriptors.
    #[must_use]
    pub fn program_array(entries: u32) -> Self {
        Self { kind: sys::BPF_MAP_TYPE_PROG_ARRAY, ..Self::array(4, entries) }
    }

    /// A ring buffer; its bytes are a power of two and a multiple of a page.
    #[must_use]
    pub fn ring_buffer(bytes: u32) -> Self {
        Self { kind: sys::BPF_MAP_TYPE_RINGBUF, max_entries: bytes, ..Self::default() }
    }
}

/// Why a map could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the map '{name}' ({spec:?}): {source}")]
pub struct NewMapError {
    /// Its name.
    pub name: String,
    /// As asked.
    pub spec: MapSpec,
    /// The kernel's answer.
    pub source: io::Error,
}

/// Makes a map, and returns its descriptor.
pub(crate) fn create(name: &str, spec: &MapSpec) -> Result<OwnedFd, NewMapError> {
    let c_name = short_name(name);
    let options = sys::bpf_map_create_opts {
        sz: size_of::<sys::bpf_map_create_opts>() as u64,
        map_flags: spec.flags,
        map_extra: spec.extra,
        ..Default::default()
    };
    let refused = |source| NewMapError { name: name.to_owned(), spec: *spec, source };
    // SAFETY: the name ends with NUL; name and options live across the call.
    let answer = unsafe {
        sys::bpf_map_create(
            spec.kind,
            c_name.as_ptr(),
            spec.key_size,
            spec.value_size,
            spec.max_entries,
            &raw const options,
        )
    };
    if answer < 0 {
        return Err(refused(io::Error::from_raw_os_error(-answer)));
    }
    // SAFETY: a new descriptor that nobody else holds.
    Ok(unsafe { OwnedFd::from_raw_fd(answer) })
}
