//! Register allocator, by a library: ten registers, preferring those that need not be saved.

use regalloc2::{Algorithm, MachineEnv, Output, PRegSet, RegAllocError, RegallocOptions};

use super::insn::{R0, R5, R6, R9};
use super::spills;
use super::vcode::{VCode, physical};

/// Assigns each value a register or, where there are too few, a slot of the frame.
pub(crate) fn allocate(vcode: &VCode) -> Result<Output, RegAllocError> {
    let registers = |range: core::ops::RangeInclusive<u8>| range.map(physical).collect::<PRegSet>();
    let none = PRegSet::empty();
    let environment = MachineEnv {
        preferred_regs_by_class: [registers(R0..=R5), none, none],
        non_preferred_regs_by_class: [registers(R6..=R9), none, none],
        scratch_by_class: [None; 3],
        fixed_stack_slots: Vec::new(),
    };
    let options = RegallocOptions {
        verbose_log: false,
        // Also in release builds: a fault becomes a refusal and not a panic.
        validate_ssa: true,
        algorithm: Algorithm::Ion,
    };
    let mut output = regalloc2::run(vcode, &environment, &options)?;
    spills::remove_redundant_moves(vcode, &mut output);
    Ok(output)
}
