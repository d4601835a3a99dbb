//! Property tests of the check: it never panics on any bytes, and a module that it accepts keeps
//! the promises that the engine relies on.

use abi::layout::{DATA_ADDRESS, MEMORY_PAGES_MAX, META_ADDRESS, WINDOW_LENGTH_MAX};
use abi::{Manifest, Unverified};
use proptest::prelude::*;

const GOOD: &str = include_str!("../../../vectors/abi/good.wat");

/// Returns true if the properties hold that the engine relies on without checking again.
fn is_sound(bytes: &[u8]) -> bool {
    let Ok(checked) = Unverified(bytes).check() else { return true };
    let memory = checked.memory;
    let end = u64::from(memory.pages_min) << 16;
    let counter_is_sound = |address: u32| {
        let last = u64::from(address) + 8;
        address.is_multiple_of(8)
            && last <= end
            && (address >= DATA_ADDRESS || last <= META_ADDRESS.into())
    };
    checked.manifest.window <= WINDOW_LENGTH_MAX
        && (1..=memory.pages_max).contains(&memory.pages_min)
        && memory.pages_max <= MEMORY_PAGES_MAX
        && checked.hooks.on_timer == checked.manifest.timer_ms.is_some()
        && checked.counters.iter().all(|counter| counter_is_sound(counter.address))
}

proptest! {
    // A failure prints its input; nothing is left in the tree.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        prop_assert!(is_sound(&bytes));
        let mut module = b"\0asm\x01\0\0\0".to_vec();
        module.extend(bytes);
        prop_assert!(is_sound(&module));
    }

    #[test]
    fn a_mutated_good_module_is_answered(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = wat::parse_str(GOOD).unwrap();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        prop_assert!(is_sound(&bytes));
    }

    #[test]
    fn a_cut_module_is_answered(cut in any::<prop::sample::Index>()) {
        let bytes = wat::parse_str(GOOD).unwrap();
        prop_assert!(is_sound(&bytes[..cut.index(bytes.len())]));
    }

    #[test]
    fn arbitrary_text_is_answered(text in "\\PC{0,200}") {
        if let Ok(manifest) = Manifest::parse(&text) {
            prop_assert!(manifest.window <= WINDOW_LENGTH_MAX);
        }
    }
}
