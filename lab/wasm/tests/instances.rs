//! Thousands of instances at once. Alone in its process, since it counts the process's resources.

#[path = "attacks/subject.rs"]
#[expect(dead_code, reason = "shared with tests/attacks.rs")]
mod subject;

use subject::{Subject, WITNESS, Witness, compile, privileged};
use wasm_lab::{Instance, KernelError};
use wasm_to_bpf::Flavour;

/// Instances that exist at once.
const INSTANCES: usize = 2_000;
/// Instances that every machine has resources for.
const INSTANCES_MIN: usize = 100;

#[test]
fn thousands_of_instances_are_made_until_a_limit_and_leave_nothing() {
    if !privileged() {
        return;
    }
    let mut witness = Witness::new();
    let program = compile(&wat::parse_str(WITNESS).unwrap(), Flavour::Xdp).unwrap();
    let (files, mappings) = (open_files(), mapped());
    let one = || {
        let instance = Instance::new(&program.image)?;
        let program = instance.load(&program)?;
        Ok::<_, KernelError>(Subject { instance, program })
    };
    for round in 0..2 {
        let mut instances = Vec::new();
        let end = loop {
            match one() {
                Ok(instance) => instances.push(instance),
                Err(error) => break Some(error),
            }
            if instances.len() == INSTANCES {
                break None;
            }
        };
        let end = end.map(|error| error.to_string());
        println!("round {round}: {} instances, then {end:?}", instances.len());
        assert!(instances.len() >= INSTANCES_MIN, "only {} instances", instances.len());
        for at in [0, instances.len() / 2, instances.len() - 1] {
            assert_eq!(instances[at].run(&[0; 64]), Ok(0x1_0001), "instance {at}");
        }
        witness.works();
        drop(instances);
        assert_eq!((open_files(), mapped()), (files, mappings), "after round {round}");
        witness.works();
    }
}

/// Returns the number of descriptors of this process.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the number of mappings of BPF maps in this process.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("bpf-map")).count()
}
