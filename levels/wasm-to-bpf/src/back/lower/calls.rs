//! Functions: how they begin, how they call each other, and what they ask of
//! the host.

use regalloc2::VReg;

use abi::HostFunction;
use abi::layout::host_error;
use abi::packet::RESIZE_ROOM;

use super::super::insn::{Bits, R0, R1, R2, R3, Reg, Test};
use super::super::setting::moves_packet;
use super::super::subprogram::Subprogram;
use super::super::vcode::{Condition, Op as V, defined_at, used, used_in};
use super::{Lower, PacketEnds};
use crate::ir::{Value, Width};
use crate::{Flavour, layout};

/// Registers that hand over arguments: r1 to r5.
pub(crate) const ARGUMENT_REGISTERS: usize = 5;

/// How many of a function's parameters go in registers.
pub(crate) fn in_registers(parameters: usize, takes_context: bool) -> usize {
    parameters.min(ARGUMENT_REGISTERS - usize::from(takes_context))
}

/// `now_ms` in the metadata.
const NOW: u32 = 32;

impl Lower<'_> {
    /// The function's first instructions: its parameters, and what it keeps of the packet.
    pub(super) fn enter(&mut self) {
        let parameters =
            self.function.blocks.first().map(|block| block.parameters.clone()).unwrap_or_default();
        if self.is_entry {
            if self.setting.has_packet() {
                self.take_packet();
            }
            return self.load_parameters(&parameters, 0);
        }
        let first = R1 + Reg::from(self.needs.context);
        let count = in_registers(parameters.len(), self.needs.context);
        let (direct, rest) = parameters.split_at(count);
        let operands: Vec<_> = direct
            .iter()
            .zip(first..)
            .map(|(&value, register)| defined_at(self.define(value), register))
            .collect();
        self.push(V::Arguments, &operands);
        self.load_parameters(rest, 0);
        if self.needs.pointers {
            self.take_pointers();
        }
    }

    /// Those that lie in the block; they are read before anything can overwrite them.
    fn load_parameters(&mut self, parameters: &[Value], from: u32) {
        for (&value, number) in parameters.iter().zip(from..) {
            let block = self.block_address();
            let register = self.load_field(Width::Eight, block, layout::ARGUMENTS + 8 * number);
            self.set(value, register);
        }
    }

    pub(super) fn call(&mut self, callee: u32, arguments: &[Value], results: &[Value]) {
        let needs = self.plan.needs.get(callee as usize).copied().unwrap_or_default();
        let count = in_registers(arguments.len(), needs.context);
        let (direct, rest) = arguments.split_at(count);
        for (&value, number) in rest.iter().zip(0..) {
            self.store_field_value(layout::ARGUMENTS + 8 * number, value);
        }
        let returned = self.call_with(V::Call(callee), needs.context, direct);
        let can_trap =
            self.unit.functions.get(callee as usize).is_none_or(|function| function.can_trap);
        if can_trap || needs.pointers || needs.changes_packet {
            let block = self.block_address();
            let code = self.load_field(Width::Four, block, layout::TRAP_CODE);
            let left = Condition { test: Test::Ne, bits: Bits::B32, immediate: Some(0) };
            self.push(V::TrapAfterCall(left), &[used(code)]);
        }
        if needs.changes_packet {
            self.renew();
        }
        for (&value, number) in results.iter().zip(0..) {
            if !self.uses.is_needed(value) {
                continue;
            }
            let register = if number == 0 {
                returned
            } else {
                let block = self.block_address();
                self.load_field(Width::Eight, block, layout::RESULTS + 8 * number)
            };
            self.set(value, register);
        }
    }

    /// A call with arguments in registers, the context first if it is taken; what it returns.
    pub(super) fn call_with(&mut self, call: V, with_context: bool, arguments: &[Value]) -> VReg {
        let first = R1 + Reg::from(with_context);
        let mut operands: Vec<_> = arguments
            .iter()
            .zip(first..)
            .map(|(&value, register)| used_in(self.value(value), register))
            .collect();
        let returned = self.vcode.register();
        operands.push(defined_at(returned, R0));
        self.push(call, &operands);
        self.forget();
        returned
    }

    /// After the packet's length has changed.
    fn renew(&mut self) {
        if self.needs.pointers {
            self.take_pointers();
        }
    }

    pub(super) fn host(&mut self, host: HostFunction, arguments: &[Value]) -> VReg {
        let subprogram = match host {
            HostFunction::NowMs => return self.now(),
            // They do nothing in on_packet; the others do nothing without it.
            HostFunction::ParamLoad
            | HostFunction::PortFind
            | HostFunction::StateWrite
            | HostFunction::StateRead
            | HostFunction::QueueWatch => return self.wrong_hook(),
            _ if !self.setting.has_packet() => return self.wrong_hook(),
            HostFunction::PacketLoad => Subprogram::PacketLoad,
            HostFunction::PacketStore => Subprogram::PacketStore,
            HostFunction::PacketResizeHead => Subprogram::ResizeHead,
            HostFunction::PacketResizeTail => Subprogram::ResizeTail,
            HostFunction::PacketSend => Subprogram::Send,
            HostFunction::Event => Subprogram::Event,
            HostFunction::MessageSend => Subprogram::Message,
        };
        if let (Subprogram::ResizeHead, Some(by)) = (subprogram, self.head_moves(arguments)) {
            return self.move_head(by);
        }
        let result = self.call_with(V::CallHost(subprogram), true, arguments);
        if moves_packet(host, self.setting.flavour) {
            self.renew();
        }
        result
    }

    /// The constant number of bytes that the head moves, where it can move in place.
    fn head_moves(&self, arguments: &[Value]) -> Option<i16> {
        let by = (self.constant(*arguments.first()?)? as u32).cast_signed();
        let by = i16::try_from(by).ok().filter(|&by| by != 0 && by <= RESIZE_ROOM as i16)?;
        (self.setting.flavour == Flavour::Xdp && by > i16::MIN).then_some(by)
    }

    fn move_head(&mut self, by: i16) -> VReg {
        let result = self.vcode.register();
        let (data, data_end) = (self.vcode.register(), self.vcode.register());
        self.push(
            V::MoveHead(by),
            &[defined_at(result, R0), defined_at(data, R2), defined_at(data_end, R3)],
        );
        self.forget();
        self.local.packet = PacketEnds { data: Some(data), data_end: Some(data_end) };
        result
    }

    fn wrong_hook(&mut self) -> VReg {
        self.make(u64::from(host_error::WRONG_HOOK as u32))
    }

    /// What the front door wrote, or the node where there is no packet.
    fn now(&mut self) -> VReg {
        if self.setting.has_packet() {
            let hand_over = self.hand_over();
            return self.load_field(Width::Eight, hand_over, layout::hand_over::METADATA + NOW);
        }
        let block = self.block_address();
        self.load_field(Width::Eight, block, layout::NOW_MS)
    }
}
