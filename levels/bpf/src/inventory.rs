//! Inventory of the programs, maps and links in the kernel, whoever made them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use libbpf_sys as sys;

use crate::program::object_info;

/// Existing objects by number. Numbers are not reused while a machine runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Programs and their names.
    pub programs: BTreeMap<u32, String>,
    /// Maps and their names.
    pub maps: BTreeMap<u32, String>,
    /// Links, which have no names.
    pub links: BTreeMap<u32, String>,
}

impl Inventory {
    /// Takes an inventory. Objects that appear or vanish meanwhile may be missing.
    ///
    /// # Errors
    /// The kernel refuses: it needs `CAP_SYS_ADMIN`.
    pub fn take() -> io::Result<Self> {
        Ok(Self {
            programs: all(sys::bpf_prog_get_next_id, sys::bpf_prog_get_fd_by_id, |fd| {
                let mut info = sys::bpf_prog_info::default();
                object_info(fd.as_fd(), &mut info)?;
                Ok(text(&info.name))
            })?,
            maps: all(sys::bpf_map_get_next_id, sys::bpf_map_get_fd_by_id, |fd| {
                let mut info = sys::bpf_map_info::default();
                object_info(fd.as_fd(), &mut info)?;
                Ok(text(&info.name))
            })?,
            links: all(sys::bpf_link_get_next_id, sys::bpf_link_get_fd_by_id, |_| {
                Ok(String::new())
            })?,
        })
    }

    /// Returns the objects that were not in `before`, as text.
    #[must_use]
    pub fn new_since(&self, before: &Self) -> Vec<String> {
        let kinds = [
            ("program", &self.programs, &before.programs),
            ("map", &self.maps, &before.maps),
            ("link", &self.links, &before.links),
        ];
        let new = kinds.into_iter().flat_map(|(kind, now, before)| {
            let new = now.iter().filter(|(id, _)| !before.contains_key(id));
            new.map(move |(id, name)| format!("{kind} {id} {name}").trim_end().to_owned())
        });
        new.collect()
    }

    /// Returns the numbers of programs, maps and links.
    #[must_use]
    pub fn counts(&self) -> [usize; 3] {
        [self.programs.len(), self.maps.len(), self.links.len()]
    }
}

type Next = unsafe extern "C" fn(u32, *mut u32) -> i32;
type Open = unsafe extern "C" fn(u32) -> i32;

fn all(
    next: Next,
    open: Open,
    name: impl Fn(OwnedFd) -> io::Result<String>,
) -> io::Result<BTreeMap<u32, String>> {
    let (mut id, mut found) = (0, BTreeMap::new());
    loop {
        // SAFETY: the number is written to a word that lives across the call.
        let answer = unsafe { next(id, &raw mut id) };
        match -answer {
            0 => {}
            libc::ENOENT => return Ok(found),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        // SAFETY: a number that is given; the kernel answers with a descriptor or an error.
        let fd = unsafe { open(id) };
        match -fd {
            // Gone meanwhile; or not there yet: a link has its number before it is complete.
            libc::ENOENT | libc::EAGAIN => {}
            error if error > 0 => return Err(io::Error::from_raw_os_error(error)),
            _ => {
                // SAFETY: the kernel has just opened it, and nobody else has it.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                found.insert(id, name(fd)?);
            }
        }
    }
}

fn text(name: &[std::ffi::c_char]) -> String {
    name.iter().take_while(|&&c| c != 0).map(|&c| c as u8 as char).collect()
}
