//! Objects: from the bytes of a compiled object to loaded maps and programs.
//!
//! Between opening and loading, globals, map sizes and shared maps are set. After loading, libbpf's
//! object is closed: each map and program is a descriptor of its own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Once;

use bytemuck::Pod;
use libbpf_sys as sys;

use crate::btf::{Btf, text_of};
use crate::map::{Map, MapError};
use crate::program::Program;

/// Size of the verifier's log in bytes: the kernel keeps the end of a longer one since Linux 6.4.
/// The memory is only touched when a load fails.
const LOG_LENGTH: usize = 16 << 20;
/// Most lines of the log in an error's message; the last ones name the fault.
const LOG_LINES_SHOWN: usize = 12;

/// Failure to open or prepare an object: a defect of this program, or a damaged installation.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// libbpf rejects the bytes.
    #[error("cannot open the BPF object {object}: {source}{}", indented(.messages))]
    Open {
        /// The object's name.
        object: String,
        /// Error of libbpf.
        source: io::Error,
        /// Messages of libbpf.
        messages: String,
    },
    /// The name has a NUL character.
    #[error("the BPF object {object} can have nothing named {name:?}: it has a NUL character")]
    Name {
        /// The object's name.
        object: String,
        /// The name.
        name: String,
    },
    /// The object lacks a map, program or global variable.
    #[error("the BPF object {object} has no {kind} named '{name}'")]
    Missing {
        /// The object's name.
        object: String,
        /// `map`, `program` or `global variable`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// The Rust type is not as large as the variable.
    #[error("the global variable '{name}' of {object} has {expected} bytes, not {found}")]
    GlobalSize {
        /// The object's name.
        object: String,
        /// Name of the variable.
        name: String,
        /// Size of the variable, bytes.
        expected: usize,
        /// Size of the Rust type, bytes.
        found: usize,
    },
    /// A map to be shared differs from the one that the object declares.
    #[error("the map '{map}' of {object} cannot be shared: its {what} is {expected}, not {found}")]
    Reuse {
        /// The object's name.
        object: String,
        /// Name of the map.
        map: String,
        /// `type`, `key size` or `value size`.
        what: &'static str,
        /// Declared number.
        expected: u32,
        /// Number found.
        found: u32,
    },
    /// libbpf or the kernel refused for another reason.
    #[error("cannot {action} '{name}' of {object}: {source}")]
    Refused {
        /// The object's name.
        object: String,
        /// Action that was tried.
        action: &'static str,
        /// Map or program of the action.
        name: String,
        /// Error of libbpf or the kernel.
        source: io::Error,
    },
}

/// Failure of the kernel to load an object.
#[derive(Debug, thiserror::Error)]
#[error("cannot load the BPF object {object}: {source}{}", explain(.source, .log, .messages))]
pub struct LoadError {
    /// The object's name.
    pub object: String,
    /// The kernel's answer.
    pub source: io::Error,
    /// Whole log of the verifier; empty when it was not reached.
    pub log: String,
    /// Messages of libbpf.
    pub messages: String,
}

/// Object whose maps do not exist yet.
#[derive(Debug)]
pub struct OpenObject {
    object: NonNull<sys::bpf_object>,
    name: String,
    /// Buffer that libbpf writes to until the object is closed.
    log: Vec<u8>,
}

/// Loaded object.
#[derive(Debug)]
pub struct Object {
    name: String,
    maps: BTreeMap<String, Map>,
    programs: BTreeMap<String, Program>,
}

impl Object {
    /// Opens a compiled object; `name` is the prefix of the names of its data sections' maps.
    ///
    /// # Errors
    /// Libbpf rejects it.
    pub fn open(bytes: &'static [u8], name: &str) -> Result<OpenObject, ObjectError> {
        capture_messages();
        let c_name = c_string(name, name)?;
        let mut log = vec![0u8; LOG_LENGTH];
        let options = sys::bpf_object_open_opts {
            sz: size_of::<sys::bpf_object_open_opts>() as u64,
            object_name: c_name.as_ptr(),
            kernel_log_buf: log.as_mut_ptr().cast(),
            kernel_log_size: LOG_LENGTH as u64,
            ..Default::default()
        };
        // SAFETY: the bytes live for ever, the options and the name across the
        // call, and the log, whose buffer is never resized, as long as the object.
        let object = unsafe {
            sys::bpf_object__open_mem(bytes.as_ptr().cast(), bytes.len() as u64, &raw const options)
        };
        match NonNull::new(object) {
            Some(object) => Ok(OpenObject { object, name: name.to_owned(), log }),
            None => {
                // libbpf leaves the error in errno.
                let source = io::Error::last_os_error();
                Err(ObjectError::Open { object: name.to_owned(), source, messages: messages() })
            }
        }
    }

    /// Returns a map by its name in C; data sections are `.rodata`, `.data` and `.bss`.
    ///
    /// # Errors
    /// The object has none of this name, or the process has too many descriptors.
    pub fn map(&self, name: &str) -> Result<Map, ObjectError> {
        let map = self.maps.get(name).ok_or_else(|| missing(&self.name, "map", name))?;
        map.try_clone().map_err(|error| match error {
            MapError::Kernel { source, .. } => refused(&self.name, "open map", name, source),
            other => refused(&self.name, "open map", name, io::Error::other(other)),
        })
    }

    /// Returns a program by its name in C.
    ///
    /// # Errors
    /// The object has none of this name, or the process has too many descriptors.
    pub fn program(&self, name: &str) -> Result<Program, ObjectError> {
        let program =
            self.programs.get(name).ok_or_else(|| missing(&self.name, "program", name))?;
        program.try_clone().map_err(|source| refused(&self.name, "open program", name, source))
    }

    /// Returns the names of its maps.
    pub fn map_names(&self) -> impl Iterator<Item = &str> {
        self.maps.keys().map(String::as_str)
    }

    /// Returns the names of its programs.
    pub fn program_names(&self) -> impl Iterator<Item = &str> {
        self.programs.keys().map(String::as_str)
    }
}

impl OpenObject {
    /// Sets the initial value of a global variable, constants included.
    ///
    /// # Errors
    /// The variable does not exist, or has another size than `T`.
    pub fn set_global<T: Pod>(&mut self, name: &str, value: &T) -> Result<(), ObjectError> {
        // SAFETY: the object is open, and stays so while self is borrowed.
        let btf = unsafe { Btf::of(self.object.as_ptr()) };
        let kind = "global variable";
        let global =
            btf.and_then(|btf| btf.global(name)).ok_or_else(|| missing(&self.name, kind, name))?;
        if global.size != size_of::<T>() {
            let (expected, found) = (global.size, size_of::<T>());
            let (object, name) = (self.name.clone(), name.to_owned());
            return Err(ObjectError::GlobalSize { object, name, expected, found });
        }
        let map = self.find(&global.section)?;
        let mut length = 0u64;
        // SAFETY: the map belongs to the open object; the answer is its data, `length` bytes.
        let start = unsafe { sys::bpf_map__initial_value(map.as_ptr(), &raw mut length) };
        if start.is_null() || global.offset.saturating_add(global.size) as u64 > length {
            return Err(missing(&self.name, kind, name));
        }
        // SAFETY: the variable lies within the section's data (checked above).
        let target = unsafe { start.cast::<u8>().add(global.offset) };
        let bytes = bytemuck::bytes_of(value);
        // SAFETY: `target` has room for `bytes`, which lie in another object.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        Ok(())
    }

    /// Sets a map's size.
    ///
    /// # Errors
    /// The map does not exist, or libbpf does not take the size.
    pub fn set_max_entries(&mut self, map: &str, entries: u32) -> Result<(), ObjectError> {
        let found = self.find(map)?;
        // SAFETY: the map belongs to the open object.
        let answer = unsafe { sys::bpf_map__set_max_entries(found.as_ptr(), entries) };
        self.checked("set the size of map", map, answer)
    }

    /// Returns true if it declares such a map.
    #[must_use]
    pub fn has_map(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// Uses an existing map in place of the declared one.
    ///
    /// # Errors
    /// The existing map's type or sizes are not those that the object declares.
    pub fn reuse_map(&mut self, map: &str, existing: &Map) -> Result<(), ObjectError> {
        let found = self.find(map)?.as_ptr();
        // SAFETY: the map belongs to the open object.
        let kind = unsafe { sys::bpf_map__type(found) };
        // SAFETY: as above.
        let key_size = unsafe { sys::bpf_map__key_size(found) };
        // SAFETY: as above.
        let value_size = unsafe { sys::bpf_map__value_size(found) };
        let info = existing.info();
        let pairs = [
            ("type", kind, info.kind),
            ("key size", key_size, info.key_size),
            ("value size", value_size, info.value_size),
        ];
        if let Some(&(what, expected, found)) = pairs.iter().find(|(_, a, b)| a != b) {
            let (object, map) = (self.name.clone(), map.to_owned());
            return Err(ObjectError::Reuse { object, map, what, expected, found });
        }
        // SAFETY: the map belongs to the open object; libbpf copies the descriptor.
        let answer = unsafe { sys::bpf_map__reuse_fd(found, existing.as_fd().as_raw_fd()) };
        self.checked("share map", map, answer)
    }

    /// Selects whether a program is loaded with the object.
    ///
    /// # Errors
    /// The program does not exist.
    pub fn set_autoload(&mut self, program: &str, load: bool) -> Result<(), ObjectError> {
        let c_name = c_string(&self.name, program)?;
        // SAFETY: the object is open and the name ends with NUL.
        let found =
            unsafe { sys::bpf_object__find_program_by_name(self.object.as_ptr(), c_name.as_ptr()) };
        if found.is_null() {
            return Err(missing(&self.name, "program", program));
        }
        // SAFETY: the program belongs to the open object.
        let answer = unsafe { sys::bpf_program__set_autoload(found, load) };
        self.checked("choose program", program, answer)
    }

    /// Makes the maps and loads the programs, after verification.
    ///
    /// # Errors
    /// The kernel refuses; the error has the verifier's log.
    pub fn load(self) -> Result<Object, LoadError> {
        capture_messages();
        // SAFETY: the object is open.
        let answer = unsafe { sys::bpf_object__load(self.object.as_ptr()) };
        if answer < 0 {
            return Err(self.load_error(io::Error::from_raw_os_error(-answer)));
        }
        let (maps, programs) = match self.maps().and_then(|maps| Ok((maps, self.programs()?))) {
            Ok(loaded) => loaded,
            Err(source) => return Err(self.load_error(source)),
        };
        Ok(Object { name: self.name.clone(), maps, programs })
    }

    /// Copies the descriptors of all maps.
    fn maps(&self) -> io::Result<BTreeMap<String, Map>> {
        let mut maps = BTreeMap::new();
        let mut map = std::ptr::null_mut();
        loop {
            // SAFETY: the object is open and `map` null or one of its maps.
            map = unsafe { sys::bpf_object__next_map(self.object.as_ptr(), map) };
            if map.is_null() {
                return Ok(maps);
            }
            // SAFETY: the map belongs to the open object.
            let name = text_of(unsafe { sys::bpf_map__name(map) });
            // SAFETY: as above.
            let fd = unsafe { sys::bpf_map__fd(map) };
            if fd < 0 {
                continue;
            }
            // SAFETY: the object holds the descriptor open across this statement.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
            maps.insert(name, Map::from_fd(fd)?);
        }
    }

    /// Copies the descriptors of all loaded programs.
    fn programs(&self) -> io::Result<BTreeMap<String, Program>> {
        let mut programs = BTreeMap::new();
        let mut program = std::ptr::null_mut();
        loop {
            // SAFETY: the object is open and `program` null or one of its programs.
            program = unsafe { sys::bpf_object__next_program(self.object.as_ptr(), program) };
            if program.is_null() {
                return Ok(programs);
            }
            // SAFETY: the program belongs to the open object.
            let name = text_of(unsafe { sys::bpf_program__name(program) });
            // SAFETY: as above.
            let fd = unsafe { sys::bpf_program__fd(program) };
            if fd < 0 {
                continue;
            }
            // SAFETY: the object holds the descriptor open across this statement.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
            programs.insert(name, Program::from_fd(fd)?);
        }
    }

    fn find(&self, map: &str) -> Result<NonNull<sys::bpf_map>, ObjectError> {
        let c_name = c_string(&self.name, map)?;
        // SAFETY: the object is open and the name ends with NUL.
        let found =
            unsafe { sys::bpf_object__find_map_by_name(self.object.as_ptr(), c_name.as_ptr()) };
        NonNull::new(found).ok_or_else(|| missing(&self.name, "map", map))
    }

    fn checked(&self, action: &'static str, name: &str, answer: c_int) -> Result<(), ObjectError> {
        if answer < 0 {
            let source = io::Error::from_raw_os_error(-answer);
            return Err(refused(&self.name, action, name, source));
        }
        Ok(())
    }

    fn load_error(&self, source: io::Error) -> LoadError {
        let end = self.log.iter().position(|&byte| byte == 0).unwrap_or(self.log.len());
        let log = String::from_utf8_lossy(&self.log[..end]).into_owned();
        LoadError { object: self.name.clone(), source, log, messages: messages() }
    }

    /// Loads it as [`Self::load`], and returns the instructions of each program.
    #[cfg(test)]
    pub(crate) fn load_for_instructions(self) -> Result<Vec<Instructions>, LoadError> {
        // SAFETY: the object is open.
        let answer = unsafe { sys::bpf_object__load(self.object.as_ptr()) };
        if answer < 0 {
            return Err(self.load_error(io::Error::from_raw_os_error(-answer)));
        }
        // SAFETY: the object is open until the end of this function.
        let btf = unsafe { Btf::of(self.object.as_ptr()) };
        let mut programs = Vec::new();
        let mut program = std::ptr::null_mut();
        loop {
            // SAFETY: the object is open and `program` null or one of its programs.
            program = unsafe { sys::bpf_object__next_program(self.object.as_ptr(), program) };
            if program.is_null() {
                return Ok(programs);
            }
            // SAFETY: the program belongs to the open object and is loaded.
            let instructions = unsafe {
                let count = sys::bpf_program__insn_cnt(program) as usize;
                std::slice::from_raw_parts(sys::bpf_program__insns(program), count)
            };
            // SAFETY: as above.
            let functions = unsafe {
                let count = sys::bpf_program__func_info_cnt(program) as usize;
                std::slice::from_raw_parts(sys::bpf_program__func_info(program), count)
            };
            let name_of = |id| btf.as_ref().and_then(|btf| btf.name(id)).unwrap_or_default();
            programs.push(Instructions {
                all: instructions.to_vec(),
                functions: functions.iter().map(|f| (f.insn_off, name_of(f.type_id))).collect(),
            });
        }
    }

    /// Returns size and members (name, offset in bytes) of a struct of the object.
    #[cfg(test)]
    pub(crate) fn layout(&self, name: &str) -> Option<(usize, Vec<(String, usize)>)> {
        // SAFETY: the object is open, and stays so while self is borrowed.
        unsafe { Btf::of(self.object.as_ptr()) }?.layout(name)
    }

    /// Returns names and values of an enum of the object.
    #[cfg(test)]
    pub(crate) fn values(&self, name: &str) -> Option<Vec<(String, i64)>> {
        // SAFETY: the object is open, and stays so while self is borrowed.
        unsafe { Btf::of(self.object.as_ptr()) }?.values(name)
    }
}

/// Instructions of a program, as they are given to the verifier.
#[cfg(test)]
pub(crate) struct Instructions {
    /// Instructions of the program, followed by the functions that it may call.
    pub(crate) all: Vec<sys::bpf_insn>,
    /// First instruction and name of each function, in this order.
    pub(crate) functions: Vec<(u32, String)>,
}

impl Drop for OpenObject {
    fn drop(&mut self) {
        // SAFETY: ours, opened once and closed once; nothing borrowed from it is left.
        unsafe { sys::bpf_object__close(self.object.as_ptr()) };
    }
}

fn missing(object: &str, kind: &'static str, name: &str) -> ObjectError {
    ObjectError::Missing { object: object.to_owned(), kind, name: name.to_owned() }
}

fn refused(object: &str, action: &'static str, name: &str, source: io::Error) -> ObjectError {
    ObjectError::Refused { object: object.to_owned(), action, name: name.to_owned(), source }
}

fn c_string(object: &str, name: &str) -> Result<CString, ObjectError> {
    CString::new(name)
        .map_err(|_| ObjectError::Name { object: object.to_owned(), name: name.to_owned() })
}

/// Returns advice for a load error's message, with the end of the log.
fn explain(source: &io::Error, log: &str, messages: &str) -> String {
    let advice = match source.raw_os_error() {
        Some(libc::EPERM) => "; it needs root, or CAP_BPF and CAP_NET_ADMIN",
        Some(libc::ENOMEM) => "; raise the limit of locked memory, or free some",
        _ => "",
    };
    let end = last_lines(log);
    format!("{advice}{}", if end.is_empty() { indented(messages) } else { end })
}

/// Returns the end of a verifier's log, for the end of an error's message.
pub(crate) fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.is_empty()).collect();
    let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
    if shown.is_empty() {
        return String::new();
    }
    format!("; the verifier's last lines:{}", indented(&shown.join("\n")))
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("\n    {line}")).collect()
}

thread_local! {
    /// Messages of libbpf since the last call of `capture_messages` on this thread.
    static MESSAGES: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Most bytes of libbpf's messages that are kept: enough for some lines.
const MESSAGES_LENGTH_MAX: usize = 4096;

/// Redirects libbpf's messages to [`MESSAGES`] instead of standard error, and clears earlier ones.
fn capture_messages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the callback is a function, so it lives for ever.
        unsafe { sys::libbpf_set_print(Some(keep_message)) };
    });
    MESSAGES.with_borrow_mut(String::clear);
}

fn messages() -> String {
    MESSAGES.with_borrow(Clone::clone)
}

unsafe extern "C" {
    /// Formats with a va_list (C11, 7.21.6.12).
    fn vsnprintf(
        buffer: *mut c_char,
        length: usize,
        format: *const c_char,
        arguments: *mut sys::__va_list_tag,
    ) -> c_int;
}

/// Callback of libbpf with a printf format.
unsafe extern "C" fn keep_message(
    level: sys::libbpf_print_level,
    format: *const c_char,
    arguments: *mut sys::__va_list_tag,
) -> c_int {
    if level > sys::LIBBPF_INFO {
        return 0;
    }
    let mut line = [0u8; 512];
    // SAFETY: the buffer has the length given, and libbpf passes arguments that fit its format.
    unsafe { vsnprintf(line.as_mut_ptr().cast::<c_char>(), line.len(), format, arguments) };
    if let Ok(text) = CStr::from_bytes_until_nul(&line) {
        MESSAGES.with_borrow_mut(|kept| {
            if kept.len() < MESSAGES_LENGTH_MAX {
                kept.push_str(&text.to_string_lossy());
            }
        });
    }
    0
}

const _: () = assert!(size_of::<*mut c_void>() == 8, "libbpf-sys is bound for 64-bit machines");
