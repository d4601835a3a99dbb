//! Creation of single maps that no object file declares: the maps of programs compiled from
//! modules.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use libbpf_sys as sys;

use crate::object_name::short_name;

/// Parameters of a map. Zero where a kind has no such parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapSpec {
    /// `enum bpf_map_type`.
    pub kind: u32,
    /// Size of a key, bytes.
    pub key_size: u32,
    /// Size of a value on each CPU, bytes.
    pub value_size: u32,
    /// Largest number of entries; of a ring buffer its bytes, of an arena its pages.
    pub max_entries: u32,
    /// `BPF_F_*` flags.
    pub flags: u32,
    /// Field whose meaning depends on the kind; of an arena its address.
    pub extra: u64,
}

impl MapSpec {
    /// Describes an array of values that can be mapped into memory.
    #[must_use]
    pub fn mappable_array(value_size: u32, entries: u32) -> Self {
        Self { flags: sys::BPF_F_MMAPABLE, ..Self::array(value_size, entries) }
    }

    /// Describes an array of values.
    #[must_use]
    pub fn array(value_size: u32, entries: u32) -> Self {
        let kind = sys::BPF_MAP_TYPE_ARRAY;
        Self { kind, key_size: 4, value_size, max_entries: entries, ..Self::default() }
    }

    /// Describes an array with a value for each CPU.
    #[must_use]
    pub fn per_cpu_array(value_size: u32, entries: u32) -> Self {
        Self { kind: sys::BPF_MAP_TYPE_PERCPU_ARRAY, ..Self::array(value_size, entries) }
    }

    /// Describes an array of programs for tail calls; its values are descriptors.
    #[must_use]
    pub fn program_array(entries: u32) -> Self {
        Self { kind: sys::BPF_MAP_TYPE_PROG_ARRAY, ..Self::array(4, entries) }
    }

    /// Describes a ring buffer; its bytes are a power of two and a multiple of a page.
    #[must_use]
    pub fn ring_buffer(bytes: u32) -> Self {
        Self { kind: sys::BPF_MAP_TYPE_RINGBUF, max_entries: bytes, ..Self::default() }
    }
}

/// Failure to make a map.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the map '{name}' ({spec:?}): {source}")]
pub struct NewMapError {
    /// Name of the map.
    pub name: String,
    /// Requested parameters.
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
