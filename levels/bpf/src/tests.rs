//! Tests of the safe layer on the running kernel. They need root, and report when they lack it.

use std::sync::atomic::Ordering;

use bytemuck::{Pod, Zeroable};

use crate::{
    AttachError, DevmapValue, Inventory, Link, Map, MapError, Object, ObjectError, OpenObject,
    PinError, Program, Update, XdpMode, objects, pin, possible_cpus,
};

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
struct Pair {
    first: u64,
    second: u32,
    zero: u32,
}

const FRAME: [u8; 64] = [0; 64];
const XDP_DROP: u32 = 1;
const XDP_TX: u32 = 3;

/// Returns true if this process may load programs.
pub(crate) fn privileged() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        testbase::skip_this("loading BPF programs needs root");
    }
    root
}

fn opened() -> OpenObject {
    Object::open(objects::bench::SELFTEST, "selftest").unwrap()
}

#[test]
fn a_program_runs_over_a_packet() {
    if !privileged() {
        return;
    }
    let object = opened().load().unwrap();
    let run = object.program("counted").unwrap().test_run(&FRAME, None, 1000).unwrap();
    assert_eq!((run.retval, run.data_out.as_slice()), (XDP_DROP, &FRAME[..]));

    let counts: Vec<u32> = object.map("counts").unwrap().lookup_percpu(&0u32).unwrap().unwrap();
    assert_eq!((counts.len(), counts.iter().sum::<u32>()), (possible_cpus(), 1000));
}

#[test]
fn a_constant_is_set_before_loading() {
    if !privileged() {
        return;
    }
    let mut open = opened();
    open.set_global("answer", &XDP_TX).unwrap();
    let program = open.load().unwrap().program("counted").unwrap();
    assert_eq!(program.test_run(&FRAME, None, 1).unwrap().retval, XDP_TX);
}

#[test]
fn a_wrong_name_or_size_is_an_error() {
    if !privileged() {
        return;
    }
    let mut open = opened();
    assert!(matches!(open.set_global("anwser", &1u32), Err(ObjectError::Missing { .. })));
    let wrong = open.set_global("answer", &1u64);
    assert!(matches!(wrong, Err(ObjectError::GlobalSize { expected: 4, found: 8, .. })));
    assert!(matches!(open.set_max_entries("none", 1), Err(ObjectError::Missing { .. })));

    let object = open.load().unwrap();
    let pairs = object.map("pairs").unwrap();
    let key = pairs.lookup::<u64, Pair>(&1);
    assert!(matches!(key, Err(MapError::KeySize { expected: 4, found: 8, .. })), "{key:?}");
    let value = pairs.lookup::<u32, u64>(&1);
    assert!(matches!(value, Err(MapError::ValueSize { expected: 16, found: 8, .. })), "{value:?}");
    let counts = object.map("counts").unwrap();
    let single = counts.lookup::<u32, u32>(&0);
    assert!(matches!(single, Err(MapError::PerCpu { per_cpu: true, .. })), "{single:?}");
    let mapped = counts.map_array::<u32>();
    assert!(matches!(mapped, Err(MapError::NotMappable { .. })), "{mapped:?}");
}

#[test]
fn map_entries_come_back() {
    if !privileged() {
        return;
    }
    let pairs = opened().load().unwrap().map("pairs").unwrap();
    let pair = Pair { first: 7, second: 9, zero: 0 };
    assert_eq!(pairs.lookup::<u32, Pair>(&1).unwrap(), None);
    pairs.update(&1u32, &pair, Update::Any).unwrap();
    pairs.update(&2u32, &pair, Update::Create).unwrap();
    assert_eq!(pairs.lookup(&1u32).unwrap(), Some(pair));
    let mut keys = pairs.keys::<u32>().unwrap();
    keys.sort_unstable();
    assert_eq!(keys, [1, 2]);
    let full = pairs.update(&3u32, &pair, Update::Any);
    assert!(matches!(full, Err(MapError::Full { max_entries: 2, .. })), "{full:?}");
    assert!(pairs.delete(&1u32).unwrap());
    assert!(!pairs.delete(&1u32).unwrap());
}

#[test]
fn per_cpu_values_are_written_and_read() {
    if !privileged() {
        return;
    }
    let counts = opened().load().unwrap().map("counts").unwrap();
    let values: Vec<u32> = (0..possible_cpus() as u32).map(|cpu| cpu + 5).collect();
    counts.update_percpu(&0u32, &values).unwrap();
    assert_eq!(counts.lookup_percpu::<u32, u32>(&0).unwrap(), Some(values));
    let wrong = counts.update_percpu(&0u32, &vec![1u32; possible_cpus() + 1]);
    assert!(matches!(wrong, Err(MapError::CpuCount { .. })), "{wrong:?}");
}

#[test]
fn a_mapped_array_is_shared_with_the_program() {
    if !privileged() {
        return;
    }
    let object = opened().load().unwrap();
    let shared = object.map("shared").unwrap().map_array::<Pair>().unwrap();
    assert!(shared.store(1, &Pair { first: 100, second: 3, zero: 0 }));
    object.program("counted").unwrap().test_run(&FRAME, None, 2).unwrap();
    assert_eq!(shared.load(1), Some(Pair { first: 100 + 2 * 64, second: 3, zero: 0 }));
    assert_eq!(shared.word(1, 0).unwrap().load(Ordering::Relaxed), 228);
    assert!(shared.load(4).is_none() && shared.word(0, 2).is_none());
}

#[test]
fn two_objects_share_a_map() {
    if !privileged() {
        return;
    }
    let first = opened().load().unwrap();
    let mut second = opened();
    second.reuse_map("counts", &first.map("counts").unwrap()).unwrap();
    let wrong = second.reuse_map("pairs", &first.map("shared").unwrap());
    assert!(matches!(wrong, Err(ObjectError::Reuse { what: "type", .. })), "{wrong:?}");
    let second = second.load().unwrap();
    second.program("counted").unwrap().test_run(&FRAME, None, 3).unwrap();
    let counts: Vec<u32> = first.map("counts").unwrap().lookup_percpu(&0u32).unwrap().unwrap();
    assert_eq!(counts.iter().sum::<u32>(), 3);
}

#[test]
fn the_verifiers_log_is_in_the_error() {
    if !privileged() {
        return;
    }
    let mut open = opened();
    open.set_autoload("refused", true).unwrap();
    let error = open.load().unwrap_err();
    assert!(error.log.contains("invalid access to packet"), "{error}");
    assert!(error.to_string().contains("invalid access to packet"), "{error}");
}

#[test]
fn bytes_that_are_no_object_are_an_error() {
    let error =
        Object::open(b"not an ELF file at all, but long enough to be read", "x").unwrap_err();
    assert!(matches!(error, ObjectError::Open { .. }), "{error}");
}

#[test]
fn devices_are_values_of_a_device_map() {
    if !privileged() {
        return;
    }
    let devices = opened().load().unwrap().map("devices").unwrap();
    let loopback = DevmapValue { ifindex: 1, program: 0 };
    devices.update(&1u32, &loopback, Update::Any).unwrap();
    assert_eq!(devices.lookup::<u32, DevmapValue>(&1).unwrap(), Some(loopback));
}

#[test]
fn a_busy_device_names_the_program() {
    if !privileged() {
        return;
    }
    enter_namespace();
    let object = opened().load().unwrap();
    let program = object.program("counted").unwrap();
    let link = program.attach_xdp(LOOPBACK, XdpMode::Generic).unwrap();
    assert_eq!(link.program_id().unwrap(), program.id());
    assert_eq!(link.ifindex().unwrap(), LOOPBACK);
    let busy = program.attach_xdp(LOOPBACK, XdpMode::Generic).unwrap_err();
    let AttachError::Busy { id, name, .. } = busy else { panic!("{busy}") };
    assert_eq!((id, name.as_str()), (program.id(), "counted"));

    drop(link);
    let native = program.attach_xdp(LOOPBACK, XdpMode::Native).unwrap_err();
    assert!(matches!(native, AttachError::NoNative { .. }), "{native}");
    let nowhere = program.attach_xdp(9999, XdpMode::Generic).unwrap_err();
    assert!(matches!(nowhere, AttachError::NoDevice { ifindex: 9999 }), "{nowhere}");
}

#[test]
fn live_frames_reach_the_stack() {
    if !privileged() {
        return;
    }
    enter_namespace();
    let mut open = opened();
    const XDP_PASS: u32 = 2;
    open.set_global("answer", &XDP_PASS).unwrap();
    let object = open.load().unwrap();
    object.program("counted").unwrap().test_run_live(&FRAME, 0, 100, 0).unwrap();
    let shared = object.map("shared").unwrap().map_array::<Pair>().unwrap();
    assert_eq!(shared.load(1).unwrap().first, 100 * 64);
}

#[test]
fn pins_are_opened_by_what_they_are() {
    if !privileged() {
        return;
    }
    pin::mount_bpffs().unwrap();
    // The BPF file system accepts no name with a dot.
    let folder = tempfile::Builder::new().prefix("tt-bpf-").tempdir_in(pin::BPFFS).unwrap();
    let object = opened().load().unwrap();
    let (map, program) = (folder.path().join("map"), folder.path().join("program"));
    object.map("pairs").unwrap().pin(&map).unwrap();
    object.program("counted").unwrap().pin(&program).unwrap();
    let again = object.map("pairs").unwrap().pin(&map);
    assert!(matches!(again, Err(PinError::Exists { .. })), "{again:?}");

    let pairs = object.map("pairs").unwrap();
    pairs.update(&1u32, &Pair::default(), Update::Any).unwrap();
    assert_eq!(Map::open_pinned(&map).unwrap().keys::<u32>().unwrap(), [1]);
    assert_eq!(Program::open_pinned(&program).unwrap().name(), "counted");
    assert!(matches!(Map::open_pinned(&program), Err(PinError::Kind { .. })));
    assert!(matches!(Link::open_pinned(&map), Err(PinError::Kind { .. })));

    pin::unpin(&map).unwrap();
    pin::unpin(&program).unwrap();
    assert!(matches!(Map::open_pinned(&map), Err(PinError::Missing { .. })));
    let elsewhere = object.map("pairs").unwrap().pin("/tmp/tam-not-bpffs".as_ref());
    assert!(matches!(elsewhere, Err(PinError::NotBpffs { .. })), "{elsewhere:?}");
}

#[test]
fn a_raw_tracepoint_is_attached_or_refused_by_name() {
    if !privileged() {
        return;
    }
    let mut open = opened();
    open.set_autoload("transmitted", true).unwrap();
    let program = open.load().unwrap().program("transmitted").unwrap();
    program.attach_raw_tracepoint("xdp_devmap_xmit").unwrap();
    let none = program.attach_raw_tracepoint("no_such_point").unwrap_err();
    assert!(matches!(none, AttachError::NoTracepoint { .. }), "{none}");
}

/// Loopback's index in a new network namespace.
const LOOPBACK: u32 = 1;

/// Moves this thread, and so this test, into a network namespace of its own; it ends with the
/// thread.
fn enter_namespace() {
    // SAFETY: unshare of the network namespace shares no memory or descriptors anew.
    let answer = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn an_inventory_has_a_map_and_a_program_while_they_are_there() {
    if !privileged() {
        return;
    }
    let before = Inventory::take().unwrap();
    let object = opened().load().unwrap();
    let map = object.map("pairs").unwrap().info().id;
    let during = Inventory::take().unwrap();
    assert_eq!(during.maps.get(&map).map(String::as_str), Some("pairs"));
    let new = during.new_since(&before);
    assert!(new.contains(&format!("map {map} pairs")), "{new:?}");
    assert!(new.iter().any(|it| it.starts_with("program ")), "{new:?}");
    drop(object);
    let gone = || (!Inventory::take().unwrap().maps.contains_key(&map)).then_some(());
    assert!(testbase::wait_for(std::time::Duration::from_secs(5), gone).is_some());
}
