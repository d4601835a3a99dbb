//! Taps: frames on arrival, with their outcome, and as they leave or end.
//!
//! ```text
//!  link of the port ─▶ front door            while a Tap lives: ─▶ front door with taps ┐
//!  tcx egress ──────────────────────────────────────────────────▶ tap ──────────────────┤
//!  modules' programs ─▶ afterwards   while a ModuleTap lives: ─▶ afterwards with taps ──┴─▶ ring
//! ```
//!
//! Copies with taps (`c/tapped_door.bpf.c`), with the same maps, replace a port's front door and
//! the program that ends modules' programs; both are restored when [`Tap`] and [`ModuleTap`]
//! are dropped. Packets sent by the cell are not captured here: AF_XDP bypasses the stack's egress.

use std::sync::Arc;

use bpf_maps::{CAPTURED_NONE, Captured, PORT_TC, SNAP_MAX};
use units::{EntryId, Nanos, PortId, RuleId, SessionId};

use super::FrontDoorError;
use super::maps::Maps;
use super::ports::Ports;
use super::programs::{AFTERS, AFTERWARDS, AFTERWARDS_TC, DOOR, KEPT, call_at_0, serve_port};
use crate::map::Map;
use crate::mapped::MappedArray;
use crate::new_map::MapSpec;
use crate::object::{Object, OpenObject};
use crate::objects;
use crate::program::{Link, Order, Program};
use crate::ring::{BrokenRing, RingBuffer};

/// Selection of a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapSpec {
    /// Most bytes that are kept of each frame, at most [`SNAP_MAX`].
    pub snap: u32,
    /// Captures frames on arrival.
    pub arriving: bool,
    /// Captures frames that leave.
    pub leaving: bool,
    /// Captures only arrivals that the front door or a module below dropped, and no departures.
    pub dropped_only: bool,
}

/// Captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedFrame {
    /// Time on the kernel's monotonic clock.
    pub time: Nanos,
    /// Port: of arrival or, for a frame that leaves, of egress.
    pub port: PortId,
    /// `bpf_maps::WAY_*`.
    pub way: u8,
    /// Name of the front door's outcome counter.
    pub outcome: Option<&'static str>,
    /// `XDP_*` action of the front door.
    pub action: u8,
    /// Matching rule; session and entry are valid only with one.
    pub rule: Option<RuleId>,
    /// Session of the rule.
    pub session: SessionId,
    /// Entry that the rule leads to.
    pub entry: EntryId,
    /// Module below user level that handled the frame.
    pub module: Option<Module>,
    /// Number of the reason for the drop by the kernel's stack, with
    /// [`bpf_maps::WAY_STACK_DROPPED`].
    pub stack_reason: u32,
    /// True if the frame begins with its IP header, possible only for drops by the stack.
    pub is_bare: bool,
    /// Length on the wire, bytes.
    pub length: u32,
    /// First bytes of the frame, tags in line.
    pub bytes: Vec<u8>,
}

/// Verdict of a module below user level on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module {
    /// `LEVEL_*` of the module.
    pub level: u32,
    /// Value returned by the module, if `trapped` is 0.
    pub verdict: u32,
    /// Cause of the trap, 0 if none, as in the hand-over.
    pub trapped: u32,
}

/// Number of entries of `tam_tap_scratch` (`TAP_SCRATCHES`), and the size of one in bytes.
const SCRATCHES: u32 = 4;
const SCRATCH_LENGTH: u32 = size_of::<Captured>() as u32 + SNAP_MAX;

/// Ring buffer of one capture.
#[derive(Debug)]
pub struct TapRing {
    map: Map,
    /// Scratch of the taps, per CPU, for the packet being handled.
    scratch: Map,
    ring: RingBuffer,
}

impl TapRing {
    /// Makes a ring of `bytes` bytes: a power of two, and a multiple of a page.
    ///
    /// # Errors
    /// The kernel does not make it.
    pub fn new(bytes: u32) -> Result<Self, FrontDoorError> {
        use std::os::fd::AsFd;
        let map = Map::create("tam_captured", &MapSpec::ring_buffer(bytes))?;
        let ring = RingBuffer::from_fd(map.as_fd(), bytes).map_err(FrontDoorError::Ring)?;
        let scratch = MapSpec::per_cpu_array(SCRATCH_LENGTH, SCRATCHES);
        Ok(Self { map, scratch: Map::create("tam_tap_scratch", &scratch)?, ring })
    }

    /// Makes a program with taps write to this ring.
    pub(super) fn share(
        &self,
        object: &mut OpenObject,
        spec: &TapSpec,
    ) -> Result<(), FrontDoorError> {
        object.set_global("tap_snap", &spec.snap.min(SNAP_MAX))?;
        object.reuse_map("tam_captured_ring", &self.map)?;
        Ok(object.reuse_map("tam_tap_scratch", &self.scratch)?)
    }

    /// Returns the next frame, `None` when there is none yet.
    ///
    /// # Errors
    /// The ring's contents are not in the taps' format.
    pub fn take(&mut self) -> Result<Option<CapturedFrame>, BrokenRing> {
        loop {
            match self.ring.next(CapturedFrame::read)? {
                Some(Some(tapped)) => return Ok(Some(tapped)),
                // Shorter than a record of ours: not reached.
                Some(None) => {}
                None => return Ok(None),
            }
        }
    }
}

impl CapturedFrame {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(size_of::<Captured>())?;
        let head: Captured = bytemuck::pod_read_unaligned(head);
        let frame = rest.get(..head.captured as usize)?;
        let mut bytes = frame.to_vec();
        // A frame dropped by the stack may lack the link header in which a tag could be.
        let tagged = head.tagged != 0 && head.bare == 0;
        if tagged && bytes.len() >= 12 {
            let tag = [head.tpid_be, head.tci.to_be_bytes()].concat();
            bytes.splice(12..12, tag);
        }
        let outcome = bpf_maps::OUTCOMES.get(usize::from(head.outcome));
        Some(Self {
            time: Nanos(head.time_ns),
            port: PortId(head.port),
            way: head.way,
            outcome: outcome.filter(|_| head.outcome != CAPTURED_NONE).map(|(name, _)| *name),
            action: head.action,
            rule: (head.rule != u32::MAX).then_some(RuleId(head.rule)),
            session: SessionId(head.session),
            entry: EntryId(head.entry),
            module: (head.level != 0).then_some(Module {
                level: head.level.into(),
                verdict: head.verdict,
                trapped: head.trapped,
            }),
            stack_reason: head.stack_reason,
            is_bare: head.bare != 0,
            length: head.length + if tagged { 4 } else { 0 },
            bytes,
        })
    }
}

/// Taps on one port; off when dropped.
#[derive(Debug)]
pub struct Tap {
    lost: MappedArray<u64>,
    door: Link,
    /// Program of the port without taps.
    plain: Program,
    _egress: Option<Link>,
}

impl Tap {
    /// Returns the number of frames for which the ring was full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(0).unwrap_or_default()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // Fails only when the port's device is gone, and the program with it.
        let _ = self.door.update(&self.plain);
    }
}

/// Taps behind modules below user level; off when dropped.
#[derive(Debug)]
pub struct ModuleTap {
    lost: MappedArray<u64>,
    /// Program arrays, with their programs without taps.
    plain: [(Map, Program); AFTERS.len()],
}

impl ModuleTap {
    /// Returns the number of frames for which the ring was full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(0).unwrap_or_default()
    }
}

impl Drop for ModuleTap {
    fn drop(&mut self) {
        for (map, program) in &self.plain {
            // Fails only without memory: then the taps stay, and write to a ring without a reader.
            let _ = call_at_0(map, program);
        }
    }
}

/// Taps of a front door, and the programs that replace them when they are off.
#[derive(Debug)]
pub(super) struct Taps {
    maps: Arc<Maps>,
    /// Programs that end modules' programs without a capture.
    plain: [Program; AFTERS.len()],
}

impl Taps {
    /// Begins without taps: a capture may have been running when the previous daemon died.
    pub(super) fn new(
        maps: Arc<Maps>,
        plain: [Program; AFTERS.len()],
    ) -> Result<Self, FrontDoorError> {
        for ((map, _), program) in AFTERS.iter().zip(&plain) {
            call_at_0(maps.get(map), program)?;
        }
        Ok(Self { maps, plain })
    }

    /// Attaches taps to a port whose device has this index.
    pub(super) fn tap(
        &self,
        ports: &Ports,
        port: PortId,
        ifindex: u32,
        spec: &TapSpec,
        ring: &TapRing,
    ) -> Result<Tap, FrontDoorError> {
        let link = ports.link(port).ok_or(FrontDoorError::NotAttached { port })?;
        let flags = ports.config(port)?.unwrap_or_default().flags;
        let at_tc = flags & PORT_TC != 0;
        let bytes = if at_tc { objects::TAPPED_TC_DOOR } else { objects::TAPPED_DOOR };
        let mut object = self.tapped(bytes, spec, ring)?;
        object.set_global("tap_port", &u32::from(port.0))?;
        let program = serve_port(&mut object, port, flags)?;
        let object = object.load()?;
        let plain = link.program_id().and_then(Program::by_id).map_err(FrontDoorError::Ring)?;
        let door = link.try_clone().map_err(FrontDoorError::Ring)?;
        let lost = object.map(".data.tap_lost")?.map_array::<u64>()?;
        let egress = spec
            .leaving
            .then(|| {
                object
                    .program("tam_tap_egress")?
                    .attach_tcx_egress(ifindex, Order::Last)
                    .map_err(FrontDoorError::from)
            })
            .transpose()?;
        // Last: from here on only dropping undoes it.
        door.update(&object.program(program)?)?;
        Ok(Tap { lost, door, plain, _egress: egress })
    }

    /// Attaches taps behind modules below user level, for all ports.
    pub(super) fn tap_modules(
        &self,
        spec: &TapSpec,
        ring: &TapRing,
    ) -> Result<ModuleTap, FrontDoorError> {
        let mut object = self.tapped(objects::TAPPED_DOOR, spec, ring)?;
        for other in KEPT.into_iter().chain([DOOR, "tam_tap_egress"]) {
            object.set_autoload(other, [AFTERWARDS, AFTERWARDS_TC].contains(&other))?;
        }
        let object = object.load()?;
        let plain = |at: usize| -> Result<_, FrontDoorError> {
            let program = self.plain[at].try_clone().map_err(FrontDoorError::Ring)?;
            Ok((self.maps.get(AFTERS[at].0).try_clone()?, program))
        };
        let tap = ModuleTap {
            lost: object.map(".data.tap_lost")?.map_array::<u64>()?,
            plain: [plain(0)?, plain(1)?],
        };
        for (map, name) in AFTERS {
            call_at_0(self.maps.get(map), &object.program(name)?)?;
        }
        Ok(tap)
    }

    /// Opens a copy with taps, with the node's maps.
    fn tapped(
        &self,
        bytes: &'static [u8],
        spec: &TapSpec,
        ring: &TapRing,
    ) -> Result<OpenObject, FrontDoorError> {
        let mut object = Object::open(bytes, "tam")?;
        self.maps.share_with_door(&mut object)?;
        for (name, on) in [
            ("tap_arriving", spec.arriving),
            ("tap_leaving", spec.leaving),
            ("tap_dropped_only", spec.dropped_only),
        ] {
            object.set_global(name, &u32::from(on))?;
        }

        ring.share(&mut object, spec)?;
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_gets_its_tag_back_and_lengths_are_checked() {
        let head = Captured {
            time_ns: 5,
            length: 60,
            captured: 14,
            port: 3,
            outcome: CAPTURED_NONE,
            tagged: 1,
            tci: 0x2007,
            tpid_be: [0x81, 0],
            ..Captured::default()
        };
        let mut bytes = bytemuck::bytes_of(&head).to_vec();
        bytes.extend([2; 12]);
        bytes.extend([8, 0]);
        let tapped = CapturedFrame::read(&bytes).unwrap();
        assert_eq!((tapped.length, tapped.outcome), (64, None));
        assert_eq!(tapped.bytes[10..], [2, 2, 0x81, 0, 0x20, 7, 8, 0]);
        bytes.pop();
        assert_eq!(CapturedFrame::read(&bytes), None);
        assert_eq!(CapturedFrame::read(&bytes[..10]), None);
    }
}
