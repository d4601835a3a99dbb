//! Programs by descriptor, and the links that attach them.
//!
//! A link detaches its program when its last descriptor and pin are gone.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use libbpf_sys as sys;

use crate::pin::{self, Kind, PinError};
use crate::test_run::{self, TestRun, TestRunError, Tested};

/// Failure to attach a program.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Another XDP program is attached already.
    #[error(
        "the device with index {ifindex} has the XDP program '{name}' (number {id}) already; detach it with 'ip link set dev DEVICE xdp off', or stop its owner ('bpftool link')"
    )]
    Busy {
        /// Interface index of the device.
        ifindex: u32,
        /// Number of that program; 0 when it left meanwhile.
        id: u32,
        /// Name of that program, or empty.
        name: String,
    },
    /// No such device is in this network namespace.
    #[error("there is no device with index {ifindex} in this network namespace")]
    NoDevice {
        /// Interface index.
        ifindex: u32,
    },
    /// The driver has no native XDP.
    #[error("the driver of the device with index {ifindex} cannot run XDP natively: {source}")]
    NoNative {
        /// Interface index of the device.
        ifindex: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel has no such tracepoint.
    #[error("this kernel has no tracepoint named {name}")]
    NoTracepoint {
        /// Name of the tracepoint.
        name: String,
    },
    /// The kernel refused for another reason.
    #[error("cannot {action}: {source}")]
    Kernel {
        /// Action that was tried, with its object.
        action: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Mode of an XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// XDP in the driver, before a socket buffer is made.
    Native,
    /// XDP in the stack, after a socket buffer was made: for devices without XDP.
    Generic,
}

/// Verified program.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    name: String,
    id: u32,
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Program {
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let mut info = sys::bpf_prog_info::default();
        object_info(fd.as_fd(), &mut info)?;
        let name = info.name.iter().take_while(|&&c| c != 0).map(|&c| c as u8 as char).collect();
        Ok(Self { fd, name, id: info.id })
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, name: self.name.clone(), id: self.id })
    }

    /// Opens a pinned program.
    ///
    /// # Errors
    /// Nothing, or no program, is pinned there.
    pub fn open_pinned(path: &Path) -> Result<Self, PinError> {
        let fd = pin::open(path, Kind::Program)?;
        Self::from_fd(fd).map_err(|source| PinError::Kernel {
            action: "open",
            path: path.to_owned(),
            source,
        })
    }

    /// Pins the program, which then outlives this process.
    ///
    /// # Errors
    /// The path is taken or lies in no BPF file system.
    pub fn pin(&self, path: &Path) -> Result<(), PinError> {
        pin::pin(self.fd.as_fd(), path)
    }

    /// Returns its name, at most 15 characters.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its number in the kernel.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the number of instructions that the verifier walked, each as often as it did.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn verified_instructions(&self) -> io::Result<u32> {
        let mut info = sys::bpf_prog_info::default();
        object_info(self.fd.as_fd(), &mut info)?;
        Ok(info.verified_insns)
    }

    /// Attaches it to a device of the current network namespace (links for XDP: Linux 5.9).
    ///
    /// # Errors
    /// [`AttachError::Busy`] when another program is attached.
    pub fn attach_xdp(&self, ifindex: u32, mode: XdpMode) -> Result<Link, AttachError> {
        let flags = match mode {
            XdpMode::Native => sys::XDP_FLAGS_DRV_MODE,
            XdpMode::Generic => sys::XDP_FLAGS_SKB_MODE,
        };
        let answer = self.link_to(ifindex, sys::BPF_XDP, flags)?;
        if answer >= 0 {
            return Ok(Link::from_answer(answer));
        }
        let source = io::Error::from_raw_os_error(-answer);
        Err(match -answer {
            libc::EBUSY | libc::EEXIST => {
                let (id, name) = attached(ifindex);
                AttachError::Busy { ifindex, id, name }
            }
            libc::ENODEV => AttachError::NoDevice { ifindex },
            // Error of bpf_xdp_link_attach (net/core/dev.c) for a missing device.
            libc::EINVAL if !exists(ifindex) => AttachError::NoDevice { ifindex },
            libc::EOPNOTSUPP if mode == XdpMode::Native => {
                AttachError::NoNative { ifindex, source }
            }
            _ => {
                let action = format!(
                    "attach the XDP program '{}' to the device with index {ifindex}",
                    self.name
                );
                AttachError::Kernel { action, source }
            }
        })
    }

    /// Attaches it in the first of these modes that the device supports. Returns the link, the
    /// mode, and the error of the mode before. Only a lack of driver support makes it try the next
    /// mode.
    pub(crate) fn attach_xdp_as(
        &self,
        ifindex: u32,
        modes: &[XdpMode],
    ) -> Result<(Link, XdpMode, Option<AttachError>), AttachError> {
        let mut refused = None;
        for (at, &mode) in modes.iter().enumerate() {
            match self.attach_xdp(ifindex, mode) {
                Ok(link) => return Ok((link, mode, refused)),
                Err(AttachError::Busy { ifindex, id, name }) => {
                    return Err(AttachError::Busy { ifindex, id, name });
                }
                Err(error) if at + 1 == modes.len() => return Err(error),
                Err(error) => refused = Some(error),
            }
        }
        panic!("there is no way to attach by")
    }

    /// Attaches it to the ingress of a device of the current network namespace (tcx: Linux 6.6),
    /// before all attached programs.
    ///
    /// # Errors
    /// The device does not exist, or the kernel refuses.
    pub fn attach_tcx(&self, ifindex: u32) -> Result<Link, AttachError> {
        let answer = self.link_to(ifindex, sys::BPF_TCX_INGRESS, sys::BPF_F_BEFORE)?;
        match -answer {
            ..=0 => Ok(Link::from_answer(answer)),
            libc::ENODEV => Err(AttachError::NoDevice { ifindex }),
            errno => {
                let source = io::Error::from_raw_os_error(errno);
                let action = format!(
                    "attach the program '{}' to the tcx ingress of the device with index {ifindex}",
                    self.name
                );
                Err(AttachError::Kernel { action, source })
            }
        }
    }

    /// Attaches it to the egress of a device, before or after all attached programs (tcx: Linux
    /// 6.6).
    ///
    /// # Errors
    /// The device does not exist, or the kernel refuses.
    pub fn attach_tcx_egress(&self, ifindex: u32, order: Order) -> Result<Link, AttachError> {
        let order = match order {
            Order::First => sys::BPF_F_BEFORE,
            Order::Last => sys::BPF_F_AFTER,
        };
        let answer = self.link_to(ifindex, sys::BPF_TCX_EGRESS, order)?;
        match -answer {
            ..=0 => Ok(Link::from_answer(answer)),
            libc::ENODEV => Err(AttachError::NoDevice { ifindex }),
            errno => {
                let source = io::Error::from_raw_os_error(errno);
                let action = format!("attach '{}' to the egress of device {ifindex}", self.name);
                Err(AttachError::Kernel { action, source })
            }
        }
    }

    /// Opens the loaded program with this number.
    ///
    /// # Errors
    /// The program is gone, or the caller lacks the right.
    pub fn by_id(id: u32) -> io::Result<Self> {
        // SAFETY: no conditions.
        let answer = unsafe { sys::bpf_prog_get_fd_by_id(id) };
        if answer < 0 {
            return Err(io::Error::from_raw_os_error(-answer));
        }
        // SAFETY: a new descriptor that nobody else holds.
        let fd = unsafe { OwnedFd::from_raw_fd(answer) };
        Self::from_fd(fd)
    }

    /// Creates a link; returns the kernel's result: a new descriptor, or a negative error.
    fn link_to(
        &self,
        ifindex: u32,
        place: sys::bpf_attach_type,
        flags: u32,
    ) -> Result<i32, AttachError> {
        let options = sys::bpf_link_create_opts {
            sz: size_of::<sys::bpf_link_create_opts>() as u64,
            flags,
            ..Default::default()
        };
        let Ok(target) = i32::try_from(ifindex) else {
            return Err(AttachError::NoDevice { ifindex });
        };
        // SAFETY: the descriptor is open and the options live across the call.
        Ok(unsafe { sys::bpf_link_create(self.fd.as_raw_fd(), target, place, &raw const options) })
    }

    /// Attaches it to a raw tracepoint, such as `xdp_devmap_xmit`.
    ///
    /// # Errors
    /// [`AttachError::NoTracepoint`] when the kernel has none of that name.
    pub fn attach_raw_tracepoint(&self, name: &str) -> Result<Link, AttachError> {
        let action = || format!("attach '{}' to the raw tracepoint {name:?}", self.name);
        let Ok(c_name) = CString::new(name) else {
            return Err(AttachError::NoTracepoint { name: name.escape_default().to_string() });
        };
        // SAFETY: the name ends with NUL and lives across the call.
        let answer = unsafe { sys::bpf_raw_tracepoint_open(c_name.as_ptr(), self.fd.as_raw_fd()) };
        match -answer {
            ..=0 => Ok(Link::from_answer(answer)),
            libc::ENOENT => Err(AttachError::NoTracepoint { name: name.to_owned() }),
            errno => {
                let source = io::Error::from_raw_os_error(errno);
                Err(AttachError::Kernel { action: action(), source })
            }
        }
    }

    /// Attaches it to the target that its section's name gives, for programs typed by the kernel's
    /// BTF (`tp_btf`).
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn attach_tracing(&self) -> Result<Link, AttachError> {
        // SAFETY: the descriptor is open; the program knows its tracepoint, which has no name here.
        let answer = unsafe { sys::bpf_raw_tracepoint_open(std::ptr::null(), self.fd.as_raw_fd()) };
        if answer < 0 {
            let source = io::Error::from_raw_os_error(-answer);
            return Err(AttachError::Kernel { action: format!("attach '{}'", self.name), source });
        }
        Ok(Link::from_answer(answer))
    }

    /// Runs the program over a packet, `repeat` times, each over the result of the last run.
    ///
    /// # Errors
    /// The kernel refuses: a packet below an Ethernet header, or an inconsistent
    /// context.
    pub fn test_run(
        &self,
        data: &[u8],
        ctx: Option<&[u8]>,
        repeat: u32,
    ) -> Result<TestRun, TestRunError> {
        test_run::once(self.tested(), data, ctx, repeat)
    }

    /// Runs the program over `repeat` copies of a frame and carries out each result: redirect and
    /// pass are real (Linux 5.18).
    ///
    /// Each call has a fixed cost of about 25 ms: rates hold from 2^20 repetitions on. `batch_size`
    /// frames, at most 256, are sent between two flushes; 0 means 64.
    ///
    /// # Errors
    /// The kernel refuses: an unknown device, or a frame over a page.
    pub fn test_run_live(
        &self,
        frame: &[u8],
        ingress_ifindex: u32,
        repeat: u32,
        batch_size: u32,
    ) -> Result<(), TestRunError> {
        test_run::live(self.tested(), frame, ingress_ifindex, repeat, batch_size)
    }

    fn tested(&self) -> Tested<'_> {
        Tested { name: self.name(), fd: self.as_fd() }
    }
}

/// Position of a program among those attached to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// First, before all others.
    First,
    /// Last, after all others.
    Last,
}

/// Attachment of a program.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Link {
    /// Takes ownership of the descriptor that the kernel has just returned.
    fn from_answer(answer: i32) -> Self {
        // SAFETY: the callers pass a new descriptor that nobody else holds.
        Self { fd: unsafe { OwnedFd::from_raw_fd(answer) } }
    }

    /// Opens a pinned link.
    ///
    /// # Errors
    /// Nothing, or no link, is pinned there.
    pub fn open_pinned(path: &Path) -> Result<Self, PinError> {
        Ok(Self { fd: pin::open(path, Kind::Link)? })
    }

    /// Pins the link: it stays attached when this process ends.
    ///
    /// # Errors
    /// The path is taken or lies in no BPF file system.
    pub fn pin(&self, path: &Path) -> Result<(), PinError> {
        pin::pin(self.fd.as_fd(), path)
    }

    /// Replaces the attached program between two packets.
    ///
    /// # Errors
    /// The new program is of another type, or does not fit the device.
    pub fn update(&self, program: &Program) -> Result<(), AttachError> {
        // SAFETY: both descriptors are open; without options it replaces whatever is attached.
        let answer = unsafe {
            sys::bpf_link_update(self.fd.as_raw_fd(), program.fd.as_raw_fd(), std::ptr::null())
        };
        if answer < 0 {
            let action = format!("replace an attached program by '{}'", program.name);
            let source = io::Error::from_raw_os_error(-answer);
            return Err(AttachError::Kernel { action, source });
        }
        Ok(())
    }

    /// Returns the number of the attached program.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn program_id(&self) -> io::Result<u32> {
        let mut info = sys::bpf_link_info::default();
        object_info(self.fd.as_fd(), &mut info)?;
        Ok(info.prog_id)
    }

    /// Returns the interface index of the device that the program is attached to by XDP or tcx; 0
    /// when it is gone, or the link is of another type.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn ifindex(&self) -> io::Result<u32> {
        let mut info = sys::bpf_link_info::default();
        object_info(self.fd.as_fd(), &mut info)?;
        match info.type_ {
            // SAFETY: of an XDP link, the union holds the device; all its variants are plain
            // numbers.
            sys::BPF_LINK_TYPE_XDP => Ok(unsafe { info.__bindgen_anon_1.xdp.ifindex }),
            // SAFETY: the same of a tcx link.
            sys::BPF_LINK_TYPE_TCX => Ok(unsafe { info.__bindgen_anon_1.tcx.ifindex }),
            _ => Ok(0),
        }
    }

    /// Returns another descriptor of the same link.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()? })
    }
}

/// Returns true if the network namespace has the device, also when it cannot be queried.
fn exists(ifindex: u32) -> bool {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    let Ok(any) = socket(AddressFamily::UNIX, SocketType::DGRAM, None) else { return true };
    netdevice::index_to_name(&any, ifindex).is_ok()
}

/// Returns the name of the XDP program on a device; empty when there is none.
#[must_use]
pub fn xdp_program_on(ifindex: u32) -> String {
    attached(ifindex).1
}

/// Returns number and name of the XDP program on a device; zero and empty when there is none.
fn attached(ifindex: u32) -> (u32, String) {
    let mut options = sys::bpf_xdp_query_opts {
        sz: size_of::<sys::bpf_xdp_query_opts>() as u64,
        ..Default::default()
    };
    let target = i32::try_from(ifindex).unwrap_or(0);
    // SAFETY: the options are initialised and live across the call.
    let answer = unsafe { sys::bpf_xdp_query(target, 0, &raw mut options) };
    let ids = [options.prog_id, options.drv_prog_id, options.skb_prog_id];
    let Some(&id) = ids.iter().find(|&&id| answer == 0 && id != 0) else {
        return (0, String::new());
    };
    // SAFETY: a number that the kernel has just told; a program that left gives an error.
    let fd = unsafe { sys::bpf_prog_get_fd_by_id(id) };
    if fd < 0 {
        return (id, String::new());
    }
    // SAFETY: a new descriptor that nobody else holds.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    (id, Program::from_fd(fd).map(|program| program.name).unwrap_or_default())
}

/// Returns true if a device takes frames that XDP programs of others redirect to it (Linux 6.3),
/// also where the kernel does not tell.
///
/// A veth does so only while its other end polls: with an XDP program there, or GRO on. A device
/// without XDP in its driver never does.
#[must_use]
pub fn takes_redirects(ifindex: u32) -> bool {
    /// Bit of `enum netdev_xdp_act` (include/uapi/linux/netdev.h).
    const NDO_XMIT: u64 = 1 << 2;
    let mut options = sys::bpf_xdp_query_opts {
        sz: size_of::<sys::bpf_xdp_query_opts>() as u64,
        ..Default::default()
    };
    let target = i32::try_from(ifindex).unwrap_or(0);
    // SAFETY: the options are initialised and live across the call.
    let answer = unsafe { sys::bpf_xdp_query(target, 0, &raw mut options) };
    answer != 0 || options.feature_flags & NDO_XMIT != 0
}

/// Kernel's structs that `BPF_OBJ_GET_INFO_BY_FD` fills.
pub(crate) trait Info {}
impl Info for sys::bpf_map_info {}
impl Info for sys::bpf_prog_info {}
impl Info for sys::bpf_link_info {}

pub(crate) fn object_info<T: Info>(fd: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    let mut length = size_of::<T>() as u32;
    // SAFETY: `info` is zeroed by its default, so that it asks for no arrays,
    // and `length` is its size; the kernel writes no more.
    let answer = unsafe {
        sys::bpf_obj_get_info_by_fd(
            fd.as_raw_fd(),
            std::ptr::from_mut(info).cast(),
            &raw mut length,
        )
    };
    if answer < 0 {
        return Err(io::Error::from_raw_os_error(-answer));
    }
    Ok(())
}
