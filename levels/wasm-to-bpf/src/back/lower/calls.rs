//! Functions: their beginning, calls between them, and calls of the host.

use regalloc2::VReg;

use abi::HostFunction;
use abi::layout::host_error;
use abi::packet::RESIZE_ROOM;

use super::super::insn::{Bits, R0, R1, R2, R3, Reg, Test};
use super::super::setting::moves_packet;
use super::super::subprogram::Subprogram;
use super::super::vcode::{Condition, Op as V, defined_at, used, used_in};
use super::builder::Builder;
use super::local::PacketEnds;
use super::{Lower, packet};
use crate::ir::{Value, Width};
use crate::{Flavour, layout};

/// Number of registers that pass arguments: r1 to r5.
pub(crate) const ARGUMENT_REGISTERS: usize = 5;

/// Counts the parameters of a function that go in registers.
pub(crate) fn in_registers(parameters: usize, takes_context: bool) -> usize {
    parameters.min(ARGUMENT_REGISTERS - usize::from(takes_context))
}

/// Offset of `now_ms` in the metadata.
const NOW: u32 = 32;

/// Begins the function: its parameters, and the packet state that it keeps.
pub(super) fn enter(lower: &mut Lower<'_>) {
    let parameters = lower
        .code
        .function()
        .blocks
        .first()
        .map(|block| block.parameters.clone())
        .unwrap_or_default();
    if lower.is_entry {
        if lower.setting.has_packet() {
            packet::take_packet(lower);
        }
        return load_parameters(lower, &parameters, 0);
    }
    let first = R1 + Reg::from(lower.needs.context);
    let count = in_registers(parameters.len(), lower.needs.context);
    let (direct, rest) = parameters.split_at(count);
    let operands: Vec<_> = direct
        .iter()
        .zip(first..)
        .map(|(&value, register)| defined_at(lower.code.define(value), register))
        .collect();
    lower.code.push(V::Arguments, &operands);
    load_parameters(lower, rest, 0);
    if lower.needs.pointers {
        packet::take_pointers(lower);
    }
}

/// Loads the parameters that lie in the block, before anything can overwrite them.
fn load_parameters(lower: &mut Lower<'_>, parameters: &[Value], from: u32) {
    for (&value, number) in parameters.iter().zip(from..) {
        let block = lower.block_address();
        let register = lower.code.load_field(Width::Eight, block, layout::ARGUMENTS + 8 * number);
        lower.code.set(value, register);
    }
}

pub(super) fn call(lower: &mut Lower<'_>, callee: u32, arguments: &[Value], results: &[Value]) {
    let needs = lower.plan.needs.get(callee as usize).copied().unwrap_or_default();
    let count = in_registers(arguments.len(), needs.context);
    let (direct, rest) = arguments.split_at(count);
    for (&value, number) in rest.iter().zip(0..) {
        lower.store_field_value(layout::ARGUMENTS + 8 * number, value);
    }
    let returned = call_with(lower, V::Call(callee), needs.context, direct);
    let can_trap =
        lower.unit.functions.get(callee as usize).is_none_or(|function| function.can_trap);
    if can_trap || needs.pointers || needs.changes_packet {
        let block = lower.block_address();
        let code = lower.code.load_field(Width::Four, block, layout::TRAP_CODE);
        let left = Condition { test: Test::Ne, bits: Bits::B32, immediate: Some(0) };
        lower.code.push(V::TrapAfterCall(left), &[used(code)]);
    }
    if needs.changes_packet {
        renew(lower);
    }
    for (&value, number) in results.iter().zip(0..) {
        if !lower.uses.is_needed(value) {
            continue;
        }
        let register = if number == 0 {
            returned
        } else {
            let block = lower.block_address();
            lower.code.load_field(Width::Eight, block, layout::RESULTS + 8 * number)
        };
        lower.code.set(value, register);
    }
}

/// Adds a call with arguments in registers, the context first if it is taken; returns its result.
pub(super) fn call_with(
    lower: &mut Lower<'_>,
    call: V,
    with_context: bool,
    arguments: &[Value],
) -> VReg {
    let first = R1 + Reg::from(with_context);
    let mut operands: Vec<_> = arguments
        .iter()
        .zip(first..)
        .map(|(&value, register)| used_in(lower.code.value(value), register))
        .collect();
    let returned = lower.code.register();
    operands.push(defined_at(returned, R0));
    lower.code.push(call, &operands);
    lower.forget();
    returned
}

/// Reloads the pointers after the packet's length has changed.
fn renew(lower: &mut Lower<'_>) {
    if lower.needs.pointers {
        packet::take_pointers(lower);
    }
}

pub(super) fn host(lower: &mut Lower<'_>, host: HostFunction, arguments: &[Value]) -> VReg {
    let subprogram = match host {
        HostFunction::NowMs => return now(lower),
        // These have no effect in on_packet; the others have none outside it.
        HostFunction::ParamLoad
        | HostFunction::PortFind
        | HostFunction::StateWrite
        | HostFunction::StateRead
        | HostFunction::QueueWatch => return wrong_hook(&mut lower.code),
        _ if !lower.setting.has_packet() => return wrong_hook(&mut lower.code),
        HostFunction::PacketLoad => Subprogram::PacketLoad,
        HostFunction::PacketStore => Subprogram::PacketStore,
        HostFunction::PacketResizeHead => Subprogram::ResizeHead,
        HostFunction::PacketResizeTail => Subprogram::ResizeTail,
        HostFunction::PacketSend => Subprogram::Send,
        HostFunction::Event => Subprogram::Event,
        HostFunction::MessageSend => Subprogram::Message,
    };
    if let (Subprogram::ResizeHead, Some(by)) = (subprogram, head_moves(lower, arguments)) {
        return move_head(lower, by);
    }
    let result = call_with(lower, V::CallHost(subprogram), true, arguments);
    if moves_packet(host, lower.setting.flavour) {
        renew(lower);
    }
    result
}

/// Returns the constant number of bytes that the head moves, where it can move in place.
fn head_moves(lower: &Lower<'_>, arguments: &[Value]) -> Option<i16> {
    let by = (lower.code.constant(*arguments.first()?)? as u32).cast_signed();
    let by = i16::try_from(by).ok().filter(|&by| by != 0 && by <= RESIZE_ROOM as i16)?;
    (lower.setting.flavour == Flavour::Xdp && by > i16::MIN).then_some(by)
}

fn move_head(lower: &mut Lower<'_>, by: i16) -> VReg {
    let result = lower.code.register();
    let (data, data_end) = (lower.code.register(), lower.code.register());
    lower.code.push(
        V::MoveHead(by),
        &[defined_at(result, R0), defined_at(data, R2), defined_at(data_end, R3)],
    );
    lower.forget();
    lower.local.packet = PacketEnds { data: Some(data), data_end: Some(data_end) };
    result
}

fn wrong_hook(code: &mut Builder<'_>) -> VReg {
    code.make(u64::from(host_error::WRONG_HOOK as u32))
}

/// Loads the time that the front door wrote, or the node where there is no packet.
fn now(lower: &mut Lower<'_>) -> VReg {
    if lower.setting.has_packet() {
        let hand_over = packet::hand_over(lower);
        return lower.code.load_field(Width::Eight, hand_over, layout::hand_over::METADATA + NOW);
    }
    let block = lower.block_address();
    lower.code.load_field(Width::Eight, block, layout::NOW_MS)
}
