//! Maps by descriptor: typed access with checked sizes.
//!
//! Not a cache: every call asks the kernel. Mapped arrays are in `mapped`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use bytemuck::{Pod, Zeroable};
use libbpf_sys as sys;

pub use crate::mapped::MappedArray;
use crate::new_map::{self, MapSpec, NewMapError};
use crate::pin::{self, Kind, PinError};
use crate::program::object_info;

/// Failure to read or write a map.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The Rust type is not as large as the map's key: a defect of this program.
    #[error("map {map}: its keys have {expected} bytes, not {found}")]
    KeySize {
        /// The map's name.
        map: String,
        /// Bytes of a key.
        expected: u32,
        /// Bytes of the Rust type.
        found: usize,
    },
    /// The Rust type is not as large as the map's value: a defect of this program.
    #[error("map {map}: its values have {expected} bytes, not {found}")]
    ValueSize {
        /// The map's name.
        map: String,
        /// Bytes of a value.
        expected: u32,
        /// Bytes of the Rust type.
        found: usize,
    },
    /// A single value was requested of a map that has one for each CPU, or the reverse.
    #[error("map {map}: it {} one value for each CPU", if *.per_cpu { "has" } else { "does not have" })]
    PerCpu {
        /// The map's name.
        map: String,
        /// True if the map is per CPU.
        per_cpu: bool,
    },
    /// The number of values differs from the machine's possible CPUs.
    #[error("map {map}: {found} values given, one for each of {expected} possible CPUs is needed")]
    CpuCount {
        /// The map's name.
        map: String,
        /// Number of possible CPUs.
        expected: usize,
        /// Number of values given.
        found: usize,
    },
    /// The map is full.
    #[error("map {map} is full: it takes at most {max_entries} entries")]
    Full {
        /// The map's name.
        map: String,
        /// Limit of the map.
        max_entries: u32,
    },
    /// The map was made without `BPF_F_MMAPABLE`, or is no array.
    #[error("map {map} cannot be mapped into memory: it is no array made with BPF_F_MMAPABLE")]
    NotMappable {
        /// The map's name.
        map: String,
    },
    /// The kernel refused for another reason.
    #[error("map {map}: cannot {action}: {source}")]
    Kernel {
        /// The map's name.
        map: String,
        /// Action that was tried.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Properties of a map, from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapInfo {
    /// Name, at most 15 characters.
    pub name: String,
    /// `enum bpf_map_type`.
    pub kind: u32,
    /// Number of the map in the kernel.
    pub id: u32,
    /// Size of a key, bytes.
    pub key_size: u32,
    /// Size of a value on each CPU, bytes.
    pub value_size: u32,
    /// Largest number of entries.
    pub max_entries: u32,
    /// `BPF_F_*` flags.
    pub flags: u32,
    /// Field whose meaning depends on the kind; of an arena its address.
    pub extra: u64,
}

/// Mode of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// Creates or replaces.
    Any,
    /// Only creates.
    Create,
    /// Only replaces.
    Replace,
}

/// Value of a `DEVMAP` or `DEVMAP_HASH` (`struct bpf_devmap_val`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct DevmapValue {
    /// Interface index of the egress device.
    pub ifindex: u32,
    /// Descriptor of the program to run at egress when written, its number when read; 0 for none.
    pub program: u32,
}

/// Returns the number of possible CPUs: the values of a per-CPU map's entry. It is 1 when the
/// kernel does not tell; reading or writing such a map is an error then.
#[must_use]
pub fn possible_cpus() -> usize {
    counted_cpus().unwrap_or(1)
}

fn counted_cpus() -> io::Result<usize> {
    // SAFETY: no conditions; it reads /sys/devices/system/cpu/possible once.
    let count = unsafe { sys::libbpf_num_possible_cpus() };
    usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(-count))
}

/// Map; the kernel frees it when no descriptor, pin or program is left.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    info: MapInfo,
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Map {
    /// Makes a map. The kernel shows 15 characters of its name, with characters other than letters,
    /// digits and `.` as `_`.
    ///
    /// # Errors
    /// The kernel refuses: an unknown kind, a size that the kind does not allow, no
    /// memory.
    pub fn create(name: &str, spec: &MapSpec) -> Result<Self, NewMapError> {
        let fd = new_map::create(name, spec)?;
        Self::from_fd(fd).map_err(|source| NewMapError {
            name: name.to_owned(),
            spec: *spec,
            source,
        })
    }

    /// Takes a descriptor that refers to a map.
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let info = info_of(fd.as_fd())?;
        Ok(Self { fd, info })
    }

    /// Opens a pinned map.
    ///
    /// # Errors
    /// Nothing, or no map, is pinned there.
    pub fn open_pinned(path: &Path) -> Result<Self, PinError> {
        let fd = pin::open(path, Kind::Map)?;
        Self::from_fd(fd).map_err(|source| PinError::Kernel {
            action: "open",
            path: path.to_owned(),
            source,
        })
    }

    /// Pins the map, which then outlives this process.
    ///
    /// # Errors
    /// The path is taken or lies in no BPF file system.
    pub fn pin(&self, path: &Path) -> Result<(), PinError> {
        pin::pin(self.fd.as_fd(), path)
    }

    /// Returns the kernel's properties of the map.
    #[must_use]
    pub fn info(&self) -> &MapInfo {
        &self.info
    }

    /// Returns another descriptor of the same map.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn try_clone(&self) -> Result<Self, MapError> {
        let fd =
            self.fd.try_clone().map_err(|source| self.refused("copy the descriptor", source))?;
        Ok(Self { fd, info: self.info.clone() })
    }

    /// Returns the value under a key, if there is one.
    ///
    /// # Errors
    /// A size is wrong or the map is per CPU.
    pub fn lookup<K: Pod, V: Pod>(&self, key: &K) -> Result<Option<V>, MapError> {
        self.check::<K, V>(false)?;
        let mut value = V::zeroed();
        let found = self.lookup_into(key, std::slice::from_mut(&mut value))?;
        Ok(found.then_some(value))
    }

    /// Returns the values under a key, one for each possible CPU.
    ///
    /// # Errors
    /// A size is wrong or the map is not per CPU.
    pub fn lookup_percpu<K: Pod, V: Pod>(&self, key: &K) -> Result<Option<Vec<V>>, MapError> {
        self.check::<K, V>(true)?;
        let stride = size_of::<V>().next_multiple_of(PERCPU_ALIGN);
        let mut bytes = vec![0u8; stride * self.cpus()?];
        if !self.lookup_into(key, &mut bytes)? {
            return Ok(None);
        }
        let value = |chunk: &[u8]| bytemuck::pod_read_unaligned(&chunk[..size_of::<V>()]);
        Ok(Some(bytes.chunks_exact(stride).map(value).collect()))
    }

    /// Writes the value under a key.
    ///
    /// # Errors
    /// A size is wrong, the map is full or per CPU, or `mode` does not allow it.
    pub fn update<K: Pod, V: Pod>(&self, key: &K, value: &V, mode: Update) -> Result<(), MapError> {
        self.check::<K, V>(false)?;
        self.update_from(key, std::slice::from_ref(value), mode)
    }

    /// Writes many values at once (Linux 5.6).
    ///
    /// # Errors
    /// Same as [`Map::update`]; some values may have been written then.
    pub fn update_batch<K: Pod, V: Pod>(&self, keys: &[K], values: &[V]) -> Result<(), MapError> {
        self.check::<K, V>(false)?;
        let mut count = keys.len().min(values.len()) as u32;
        // SAFETY: keys and values have the map's sizes (checked above), and there are `count` of each.
        let answer = unsafe {
            sys::bpf_map_update_batch(
                self.fd.as_raw_fd(),
                keys.as_ptr().cast(),
                values.as_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        };
        match -answer {
            0 => Ok(()),
            libc::E2BIG => {
                let (map, max_entries) = (self.info.name.clone(), self.info.max_entries);
                Err(MapError::Full { map, max_entries })
            }
            errno => Err(self.refused("update many", io::Error::from_raw_os_error(errno))),
        }
    }

    /// Writes one value for each possible CPU.
    ///
    /// # Errors
    /// A size or the number of values is wrong, or the map is not per CPU.
    pub fn update_percpu<K: Pod, V: Pod>(&self, key: &K, values: &[V]) -> Result<(), MapError> {
        self.check::<K, V>(true)?;
        let (expected, found) = (self.cpus()?, values.len());
        if expected != found {
            return Err(MapError::CpuCount { map: self.info.name.clone(), expected, found });
        }
        let stride = size_of::<V>().next_multiple_of(PERCPU_ALIGN);
        let mut bytes = vec![0u8; stride * values.len()];
        for (chunk, value) in bytes.chunks_exact_mut(stride).zip(values) {
            chunk[..size_of::<V>()].copy_from_slice(bytemuck::bytes_of(value));
        }
        self.update_from(key, &bytes, Update::Any)
    }

    /// Removes a key; returns whether it existed.
    ///
    /// # Errors
    /// The size is wrong or the map cannot delete.
    pub fn delete<K: Pod>(&self, key: &K) -> Result<bool, MapError> {
        self.check_key::<K>()?;
        // SAFETY: the key has the map's key size (checked above).
        let answer = unsafe {
            sys::bpf_map_delete_elem(self.fd.as_raw_fd(), std::ptr::from_ref(key).cast())
        };
        match -answer {
            0 => Ok(true),
            libc::ENOENT => Ok(false),
            errno => Err(self.refused("delete", io::Error::from_raw_os_error(errno))),
        }
    }

    /// Returns all keys, as far as they stay during the call: other writers may add and remove.
    ///
    /// # Errors
    /// The size is wrong or the map has no keys to iterate over.
    pub fn keys<K: Pod>(&self) -> Result<Vec<K>, MapError> {
        self.check_key::<K>()?;
        let mut keys = Vec::new();
        let mut next = K::zeroed();
        let mut current = std::ptr::null();
        // A hash map that changes meanwhile restarts the iteration: the limit ends that.
        while keys.len() < self.info.max_entries as usize {
            // SAFETY: both keys have the map's key size (checked above); null means "the first".
            let answer = unsafe {
                sys::bpf_map_get_next_key(
                    self.fd.as_raw_fd(),
                    current,
                    std::ptr::from_mut(&mut next).cast(),
                )
            };
            match -answer {
                0 => keys.push(next),
                libc::ENOENT => break,
                errno => {
                    return Err(self.refused("list keys", io::Error::from_raw_os_error(errno)));
                }
            }
            current = keys.last().map_or(std::ptr::null(), |key| std::ptr::from_ref(key).cast());
        }
        Ok(keys)
    }

    /// Maps an array made with `BPF_F_MMAPABLE` (Linux 5.5) into memory.
    ///
    /// # Errors
    /// The map is no such array, or the size is wrong.
    pub fn map_array<T: Pod>(&self) -> Result<MappedArray<T>, MapError> {
        if self.info.kind != sys::BPF_MAP_TYPE_ARRAY || self.info.flags & sys::BPF_F_MMAPABLE == 0 {
            return Err(MapError::NotMappable { map: self.info.name.clone() });
        }
        self.check_value::<T>()?;
        MappedArray::new(self.fd.as_fd(), self.info.max_entries as usize)
            .map_err(|source| self.refused("map into memory", source))
    }

    /// Reads a value; `value` is one V, or the bytes of one for each CPU; the caller has checked
    /// both sizes.
    fn lookup_into<K: Pod, B: Pod>(&self, key: &K, value: &mut [B]) -> Result<bool, MapError> {
        // SAFETY: the key has the map's key size and `value` has room for what
        // the kernel writes: value_size, or, per CPU, as many strides.
        let answer = unsafe {
            sys::bpf_map_lookup_elem(
                self.fd.as_raw_fd(),
                std::ptr::from_ref(key).cast(),
                value.as_mut_ptr().cast(),
            )
        };
        match -answer {
            0 => Ok(true),
            libc::ENOENT => Ok(false),
            errno => Err(self.refused("look up", io::Error::from_raw_os_error(errno))),
        }
    }

    fn update_from<K: Pod, B: Pod>(
        &self,
        key: &K,
        value: &[B],
        mode: Update,
    ) -> Result<(), MapError> {
        let flags = match mode {
            Update::Any => sys::BPF_ANY,
            Update::Create => sys::BPF_NOEXIST,
            Update::Replace => sys::BPF_EXIST,
        };
        // SAFETY: the callers have checked that key and value are as large as the kernel reads.
        let answer = unsafe {
            sys::bpf_map_update_elem(
                self.fd.as_raw_fd(),
                std::ptr::from_ref(key).cast(),
                value.as_ptr().cast(),
                u64::from(flags),
            )
        };
        match -answer {
            0 => Ok(()),
            libc::E2BIG => {
                let (map, max_entries) = (self.info.name.clone(), self.info.max_entries);
                Err(MapError::Full { map, max_entries })
            }
            errno => Err(self.refused("update", io::Error::from_raw_os_error(errno))),
        }
    }

    fn cpus(&self) -> Result<usize, MapError> {
        counted_cpus().map_err(|source| self.refused("count the CPUs", source))
    }

    fn check<K: Pod, V: Pod>(&self, per_cpu: bool) -> Result<(), MapError> {
        self.check_key::<K>()?;
        self.check_value::<V>()?;
        if is_per_cpu(self.info.kind) != per_cpu {
            return Err(MapError::PerCpu { map: self.info.name.clone(), per_cpu: !per_cpu });
        }
        Ok(())
    }

    fn check_key<K: Pod>(&self) -> Result<(), MapError> {
        let (expected, found) = (self.info.key_size, size_of::<K>());
        if expected as usize == found {
            return Ok(());
        }
        Err(MapError::KeySize { map: self.info.name.clone(), expected, found })
    }

    fn check_value<V: Pod>(&self) -> Result<(), MapError> {
        let (expected, found) = (self.info.value_size, size_of::<V>());
        if expected as usize == found {
            return Ok(());
        }
        Err(MapError::ValueSize { map: self.info.name.clone(), expected, found })
    }

    fn refused(&self, action: &'static str, source: io::Error) -> MapError {
        MapError::Kernel { map: self.info.name.clone(), action, source }
    }
}

/// Alignment of each CPU's value (kernel/bpf/syscall.c, `bpf_map_value_size`).
const PERCPU_ALIGN: usize = 8;

fn is_per_cpu(kind: u32) -> bool {
    matches!(
        kind,
        sys::BPF_MAP_TYPE_PERCPU_HASH
            | sys::BPF_MAP_TYPE_PERCPU_ARRAY
            | sys::BPF_MAP_TYPE_LRU_PERCPU_HASH
            | sys::BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE
    )
}

fn info_of(fd: BorrowedFd<'_>) -> io::Result<MapInfo> {
    let info = raw_info(fd)?;
    let name = info.name.iter().take_while(|&&c| c != 0).map(|&c| c as u8 as char).collect();
    Ok(MapInfo {
        name,
        kind: info.type_,
        id: info.id,
        key_size: info.key_size,
        value_size: info.value_size,
        max_entries: info.max_entries,
        flags: info.map_flags,
        extra: info.map_extra,
    })
}

fn raw_info(fd: BorrowedFd<'_>) -> io::Result<sys::bpf_map_info> {
    let mut info = sys::bpf_map_info::default();
    object_info(fd, &mut info)?;
    Ok(info)
}
