//! Generated modules to load, of selectable size, in which every byte is executed.
//!
//! Each step mixes a word of the packet's headers into a hash and increments one of 1,024 counters
//! by the hash; eight steps make a function, and a packet runs through all of them. Finally the
//! packet gets the module's mark, which identifies its first packet.

use std::fmt::Write as _;

use abi::layout::{DATA_ADDRESS, WINDOW_ADDRESS};
use anyhow::{Context as _, Result};

/// Steps of one function.
const STEPS_OF_FUNCTION: u32 = 8;
/// Offset of the mark in the frame: the start of the UDP payload.
pub(crate) const MARK_AT: u32 = 14 + 20 + 8;
/// Offset of the hashed words: the IPv4 header and the L4 ports.
const WORDS_AT: u32 = 14;
const WORDS: u32 = 6;

/// Size of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Size {
    /// Size of about 2 KB.
    Small,
    /// Size of about 50 KB.
    Large,
}

impl Size {
    pub(crate) const ALL: [Self; 2] = [Self::Small, Self::Large];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
        }
    }

    const fn steps(self) -> u32 {
        match self {
            Self::Small => 36,
            Self::Large => 1000,
        }
    }
}

/// Returns a module that marks its packets with this word; another word makes another module.
pub(crate) fn module(size: Size, mark: u32) -> Result<Vec<u8>> {
    wat::parse_str(text(size, mark)).context("making a module of the benchmark's own")
}

fn text(size: Size, mark: u32) -> String {
    let functions = size.steps().div_ceil(STEPS_OF_FUNCTION);
    let mut text = String::from(
        r#"(module
(@custom "tamandua" "abi = 1\nname = \"load\"\nversion = \"0.1.0\"\nwindow = 64\nlevels = [\"nic\", \"kernel\", \"user\"]\nmemory_pages_max = 1\n")
(memory (export "memory") 1 1)
"#,
    );
    for function in 0..functions {
        let steps =
            (function * STEPS_OF_FUNCTION)..size.steps().min((function + 1) * STEPS_OF_FUNCTION);
        let _ = writeln!(text, "(func $f{function} (param $h i32) (result i32) (local $at i32)");
        text.extend(steps.map(step));
        text.push_str("(local.get $h))\n");
    }
    text.push_str("(func (export \"on_packet\") (result i32) (local $h i32)\n");
    for function in 0..functions {
        let _ = writeln!(text, "(local.set $h (call $f{function} (local.get $h)))");
    }
    let at = WINDOW_ADDRESS + MARK_AT;
    let _ =
        writeln!(text, "(i32.store align=1 (i32.const {at}) (i32.const {mark}))\n(i32.const 0)))");
    text
}

fn step(number: u32) -> String {
    let word = WINDOW_ADDRESS + WORDS_AT + number % WORDS * 4;
    let turn = 1 + number % 31;
    // An odd factor for each step, from the golden ratio, so that all differ.
    let factor = (number + 1).wrapping_mul(0x9e37_79b9) | 0x4000_0001;
    format!(
        "(local.set $h (i32.mul (i32.rotl (i32.xor (local.get $h) \
         (i32.load align=1 (i32.const {word}))) (i32.const {turn})) (i32.const {factor})))\n\
         (i32.store offset={DATA_ADDRESS} (local.tee $at (i32.and (i32.shr_u (local.get $h) \
         (i32.const 20)) (i32.const 0xffc))) (i32.add (i32.load offset={DATA_ADDRESS} \
         (local.get $at)) (i32.const 1)))\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::Unverified;

    #[test]
    fn the_modules_have_the_length_that_they_are_called_by() {
        for (size, around) in [(Size::Small, 2_000), (Size::Large, 50_000)] {
            let wasm = module(size, 0x4d00_0001).unwrap();
            assert!(wasm.len().abs_diff(around) < around / 20, "{size:?}: {}", wasm.len());
            assert_eq!(Unverified(&wasm).check().unwrap().manifest.name.as_str(), "load");
        }
    }

    #[test]
    fn another_mark_makes_another_module_with_the_same_memory() {
        let modules = [1, 2].map(|mark| module(Size::Small, mark).unwrap());
        assert_ne!(modules[0], modules[1]);
        let images = modules.map(|wasm| Unverified(&wasm).check().unwrap().image);
        assert_eq!(images[0], images[1]);
    }
}
