//! Arenas on the running kernel; they need root.

use std::os::fd::AsFd;

use super::*;

fn privileged() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        testkit::skip_this("making BPF maps needs root");
    }
    root
}

#[test]
fn bytes_are_kept_in_populated_pages_only() {
    if !privileged() {
        return;
    }
    let arena = MappedArena::create("tam_test", 32, 2).unwrap();
    arena.write(8190, b"ab").unwrap();
    let mut bytes = [9u8; 4];
    arena.read(8188, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0\0ab");

    let error = arena.write(8191, b"ab").unwrap_err();
    assert!(matches!(error, ArenaError::OutOfRange { start: 8191, end: 8193, populated: 8192 }));

    arena.arena().populate(2, 30).unwrap();
    let more = arena.arena().populate(32, 1);
    assert!(matches!(more, Err(ArenaError::OutOfRange { end: 135_168, populated: 131_072, .. })));
}

#[test]
fn a_page_is_populated_once() {
    if !privileged() {
        return;
    }
    let arena = MappedArena::create("tam_test", 4, 1).unwrap();
    let again = arena.arena().populate(0, 2);
    assert!(matches!(again, Err(ArenaError::Populate { first: 0, pages: 2 })));
}

#[test]
fn a_received_arena_knows_where_it_belongs() {
    if !privileged() {
        return;
    }
    let reservation = Reservation::new().unwrap();
    let made = Arena::create("tam_test", 3, reservation.address()).unwrap();
    made.populate(0, 1).unwrap();
    let received = Arena::from_fd(made.as_fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!((received.pages(), received.address()), (3, reservation.address()));

    let mapped = MappedArena::new(received, reservation, 1).unwrap();
    mapped.write(0, b"x").unwrap();

    let elsewhere = MappedArena::new(made, Reservation::new().unwrap(), 1);
    assert!(matches!(elsewhere, Err(ArenaError::Elsewhere { .. })));
}

#[test]
fn another_map_is_no_arena() {
    if !privileged() {
        return;
    }
    let array = Map::create("tam_test", &MapSpec::array(8, 1)).unwrap();
    let answer = Arena::from_fd(array.as_fd().try_clone_to_owned().unwrap());
    assert!(matches!(answer, Err(ArenaError::NotAnArena { .. })));
    assert!(matches!(Arena::create("tam_test", 0, 0), Err(ArenaError::Size { pages: 0, .. })));
}
