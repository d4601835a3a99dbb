//! Tests of the number of instructions that the kernel's verifier walks to load the programs of the
//! front doors: each port's program is loaded separately when a node starts, and a capture loads
//! them anew.

use bpf::Object;
use bpf::objects;
use testbase::root_or_skip;

/// Most instructions that the verifier may walk for one program, each counted as often as it does:
/// some ten milliseconds for a hundred thousand. It gives up at a million.
const VERIFIED_MAX: u32 = 150_000;

#[test]
fn no_program_takes_the_verifier_long() {
    if !root_or_skip("verified") {
        return;
    }
    let doors = [
        ("front_door", objects::FRONT_DOOR),
        ("tapped_door", objects::TAPPED_DOOR),
        ("tc_door", objects::TC_DOOR),
        ("tapped_tc_door", objects::TAPPED_TC_DOOR),
    ];
    for (name, bytes) in doors {
        let object = Object::open(bytes, name).unwrap().load().unwrap();
        for program in object.program_names() {
            let verified = object.program(program).unwrap().verified_instructions().unwrap();
            println!("{name}: {program}: {verified}");
            assert!(verified <= VERIFIED_MAX, "{name}: {program}: {verified}");
        }
    }
}
