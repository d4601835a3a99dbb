//! Programs of a front door: those that are loaded once and kept for the next daemon, and the one
//! that each port loads for itself.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use bpf_maps::{PORT_RAW, PORT_TC};
use units::PortId;

use super::FrontDoorError;
use super::maps::{AFTER, AFTER_TC};
use crate::map::{Map, MapError, Update};
use crate::object::{Object, OpenObject};
use crate::program::Program;

/// Name of a port's program in the driver.
pub const DOOR: &str = "tam_front_door";
/// Name of a port's program behind the kernel's receive path.
const TC_DOOR: &str = "tam_tc_door";
/// Name of the program that renews the lease of cached routes.
const HEARTBEAT: &str = "tam_heartbeat";
/// Name of the program that tells whether a packet can carry a mark.
const CARRIES_MARKS: &str = "tam_carries_marks";
/// Name of the program at tcx ingress: one for all ports.
const TC: &str = "tam_tc";
/// Name of the front door's second half, the end of modules' programs.
pub(super) const AFTERWARDS: &str = "tam_afterwards";
/// Name of the second half at kernel level.
pub(super) const AFTERWARDS_TC: &str = "tam_afterwards_tc";
/// Name of the program that answers the cell, at tcx ingress of the device by which packets come
/// up.
const ASK: &str = "tam_ask";
/// Name of the program at tcx egress of each port, which gives packets that the kernel sends for a
/// module the module's source.
const TRANSLATE: &str = "tam_translate";
/// Programs that a daemon uses all the time, and so does the next one: they are loaded with the
/// maps, and no port loads them again.
pub(super) const KEPT: [&str; 7] =
    [HEARTBEAT, CARRIES_MARKS, TC, AFTERWARDS, AFTERWARDS_TC, ASK, TRANSLATE];
/// Maps that call the second half, with its program.
pub(super) const AFTERS: [(&str, &str); 2] = [(AFTER, AFTERWARDS), (AFTER_TC, AFTERWARDS_TC)];

/// Programs that are pinned for the next daemon.
#[derive(Debug)]
pub(super) struct KeptPrograms {
    pub(super) heartbeat: Program,
    pub(super) carries_marks: Program,
    pub(super) tc: Program,
    /// Second halves, as [`AFTERS`].
    pub(super) after: [Program; AFTERS.len()],
    pub(super) ask: Program,
    pub(super) translate: Program,
}

impl KeptPrograms {
    /// Takes the programs of a loaded object, and pins them.
    pub(super) fn create(folder: &Path, object: &Object) -> Result<Self, FrontDoorError> {
        Self::of(|name| {
            let program = object.program(name)?;
            program.pin(&folder.join(name))?;
            Ok(program)
        })
    }

    /// Opens the programs that another process has pinned.
    pub(super) fn open(folder: &Path) -> Result<Self, FrontDoorError> {
        Self::of(|name| Ok(Program::open_pinned(&folder.join(name))?))
    }

    fn of(
        program: impl Fn(&'static str) -> Result<Program, FrontDoorError>,
    ) -> Result<Self, FrontDoorError> {
        Ok(Self {
            heartbeat: program(HEARTBEAT)?,
            carries_marks: program(CARRIES_MARKS)?,
            tc: program(TC)?,
            after: [program(AFTERWARDS)?, program(AFTERWARDS_TC)?],
            ask: program(ASK)?,
            translate: program(TRANSLATE)?,
        })
    }
}

/// Configures a front door, with taps or not, for a port with these flags. Returns the name of its
/// program.
pub(super) fn serve_port(
    object: &mut OpenObject,
    port: PortId,
    flags: u8,
) -> Result<&'static str, FrontDoorError> {
    object.set_global("port_number", &u32::from(port.0))?;
    if flags & PORT_TC != 0 {
        return Ok(TC_DOOR);
    }
    object.set_global("begins_with_ip", &u32::from(flags & PORT_RAW))?;
    for once in KEPT {
        object.set_autoload(once, false)?;
    }
    Ok(DOOR)
}

/// Makes a program array call this program at index 0.
pub(super) fn call_at_0(programs: &Map, program: &Program) -> Result<(), MapError> {
    programs.update(&0u32, &(program.as_fd().as_raw_fd() as u32), Update::Any)
}
