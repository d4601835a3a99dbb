//! Tests of arenas on the running kernel; they need root.

use std::os::fd::AsFd;

use super::*;

fn privileged() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        testbase::skip_this("making BPF maps needs root");
    }
    root
}

#[test]
fn bytes_are_kept_in_populated_pages_only() {
    if !privileged() {
        return;
    }
    let (_arena, memory) = MappedArena::create("tam_test", 32, 2).unwrap();
    memory.write(8190, b"ab").unwrap();
    let mut bytes = [9u8; 4];
    memory.read(8188, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0\0ab");

    let error = memory.write(8191, b"ab").unwrap_err();
    assert!(matches!(error, ArenaError::OutOfRange { start: 8191, end: 8193, populated: 8192 }));
    let more = MappedArena::create("tam_test", 32, 33);
    assert!(matches!(more, Err(ArenaError::OutOfRange { end: 135_168, populated: 131_072, .. })));
}

#[test]
fn pages_that_have_memory_keep_what_is_in_it_when_they_are_populated_again() {
    if !privileged() {
        return;
    }
    let (arena, memory) = MappedArena::create("tam_test", 4, 1).unwrap();
    memory.write(5, b"kept").unwrap();
    drop(memory);
    let memory = MappedArena::from_fd(arena.as_fd(), arena.address(), 4).unwrap();
    let mut bytes = [9; 4];
    memory.read(5, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
    memory.read(3 * ARENA_PAGE, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
}

#[test]
fn an_arena_lies_where_it_belongs_whoever_maps_it() {
    if !privileged() {
        return;
    }
    let reservation = Reservation::new().unwrap();
    let address = reservation.address();
    let made = Arena::create("tam_test", 3, address).unwrap();
    let elsewhere = MappedArena::new(&made, Reservation::new().unwrap(), 1);
    assert!(matches!(elsewhere, Err(ArenaError::Elsewhere { .. })));

    let mapped = MappedArena::new(&made, reservation, 3).unwrap();
    mapped.write(0, b"x").unwrap();
    let twice = MappedArena::from_fd(made.as_fd(), address, 3);
    assert!(matches!(twice, Err(ArenaError::Kernel { .. })), "{twice:?}");
    drop(mapped);
    let again = MappedArena::from_fd(made.as_fd(), address, 3).unwrap();
    let mut byte = [0];
    again.read(0, &mut byte).unwrap();
    assert_eq!((&byte, again.populated()), (b"x", 3 * ARENA_PAGE));
    let elsewhere = MappedArena::from_fd(made.as_fd(), address + REACH * 64, 3);
    assert!(matches!(elsewhere, Err(ArenaError::Kernel { .. })), "{elsewhere:?}");
}

#[test]
fn an_arena_has_pages_and_another_map_is_none() {
    if !privileged() {
        return;
    }
    let array = Map::create("tam_test", &MapSpec::array(8, 1)).unwrap();
    let address = Reservation::new().unwrap().address();
    let answer = MappedArena::from_fd(array.as_fd(), address, 1);
    assert!(matches!(answer, Err(ArenaError::Kernel { .. })));
    assert!(matches!(Arena::create("tam_test", 0, 0), Err(ArenaError::Size { pages: 0, .. })));
}
