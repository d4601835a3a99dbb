//! Operators of an expression: each of them as often as any other.

use wasm_encoder::ValType;

use super::Body;
use crate::random::compose::integer;

impl Body<'_> {
    pub(super) fn binary(&mut self, ty: ValType, depth: u32) {
        self.expression(ty, depth);
        self.expression(ty, depth);
        let (op, wide) = (self.rng.below(18), ty == ValType::I64);
        let divides = (11..15).contains(&op);
        if divides && self.rng.below(20) > 0 {
            // Neither zero nor -1.
            match wide {
                true => self.emit().i64_const(0x7fff).i64_and().i64_const(1).i64_or(),
                false => self.emit().i32_const(0x7fff).i32_and().i32_const(1).i32_or(),
            };
        }
        let mut emit = self.emit();
        match (op, wide) {
            (0 | 1, true) => emit.i64_add(),
            (2 | 3, true) => emit.i64_sub(),
            (4, true) => emit.i64_mul(),
            (5, true) => emit.i64_and(),
            (6, true) => emit.i64_or(),
            (7, true) => emit.i64_xor(),
            (8, true) => emit.i64_shl(),
            (9, true) => emit.i64_shr_s(),
            (10, true) => emit.i64_shr_u(),
            (11, true) => emit.i64_div_s(),
            (12, true) => emit.i64_div_u(),
            (13, true) => emit.i64_rem_s(),
            (14, true) => emit.i64_rem_u(),
            (15, true) => emit.i64_rotl(),
            (_, true) => emit.i64_rotr(),
            (0 | 1, false) => emit.i32_add(),
            (2 | 3, false) => emit.i32_sub(),
            (4, false) => emit.i32_mul(),
            (5, false) => emit.i32_and(),
            (6, false) => emit.i32_or(),
            (7, false) => emit.i32_xor(),
            (8, false) => emit.i32_shl(),
            (9, false) => emit.i32_shr_s(),
            (10, false) => emit.i32_shr_u(),
            (11, false) => emit.i32_div_s(),
            (12, false) => emit.i32_div_u(),
            (13, false) => emit.i32_rem_s(),
            (14, false) => emit.i32_rem_u(),
            (15, false) => emit.i32_rotl(),
            (_, false) => emit.i32_rotr(),
        };
    }

    pub(super) fn unary(&mut self, ty: ValType, depth: u32) {
        self.expression(ty, depth);
        let (op, wide) = (self.rng.below(6), ty == ValType::I64);
        let mut emit = self.emit();
        match (op, wide) {
            (0, true) => emit.i64_clz(),
            (1, true) => emit.i64_ctz(),
            (2, true) => emit.i64_popcnt(),
            (3, true) => emit.i64_extend8_s(),
            (4, true) => emit.i64_extend16_s(),
            (_, true) => emit.i64_extend32_s(),
            (0, false) => emit.i32_clz(),
            (1, false) => emit.i32_ctz(),
            (2, false) => emit.i32_popcnt(),
            (3, false) => emit.i32_extend8_s(),
            (4, false) => emit.i32_extend16_s(),
            (_, false) => emit.i32_eqz(),
        };
    }

    pub(super) fn compare(&mut self, depth: u32) {
        let ty = integer(self.rng);
        self.expression(ty, depth);
        self.expression(ty, depth);
        let op = self.rng.below(10);
        let mut emit = self.emit();
        match (op, ty == ValType::I64) {
            (0, true) => emit.i64_eq(),
            (1, true) => emit.i64_ne(),
            (2, true) => emit.i64_lt_s(),
            (3, true) => emit.i64_lt_u(),
            (4, true) => emit.i64_gt_s(),
            (5, true) => emit.i64_gt_u(),
            (6, true) => emit.i64_le_s(),
            (7, true) => emit.i64_le_u(),
            (8, true) => emit.i64_ge_s(),
            (_, true) => emit.i64_ge_u(),
            (0, false) => emit.i32_eq(),
            (1, false) => emit.i32_ne(),
            (2, false) => emit.i32_lt_s(),
            (3, false) => emit.i32_lt_u(),
            (4, false) => emit.i32_gt_s(),
            (5, false) => emit.i32_gt_u(),
            (6, false) => emit.i32_le_s(),
            (7, false) => emit.i32_le_u(),
            (8, false) => emit.i32_ge_s(),
            (_, false) => emit.i32_ge_u(),
        };
    }

    pub(super) fn load(&mut self, ty: ValType) {
        let at = self.address();
        let op = self.rng.below(7);
        let mut emit = self.emit();
        match (op, ty == ValType::I64) {
            (0, true) => emit.i64_load8_s(at),
            (1, true) => emit.i64_load8_u(at),
            (2, true) => emit.i64_load16_s(at),
            (3, true) => emit.i64_load16_u(at),
            (4, true) => emit.i64_load32_s(at),
            (5, true) => emit.i64_load32_u(at),
            (_, true) => emit.i64_load(at),
            (0, false) => emit.i32_load8_s(at),
            (1, false) => emit.i32_load8_u(at),
            (2, false) => emit.i32_load16_s(at),
            (3, false) => emit.i32_load16_u(at),
            (_, false) => emit.i32_load(at),
        };
    }
}
