//! Body of one function: statements that end, expressions of a type.

use wasm_encoder::{BlockType, Function, HeapType, InstructionSink, MemArg, MemArgTarget, ValType};

use super::{
    CHANGING, GLOBALS, MEMORY, PASSIVE_BYTES, PASSIVE_ELEMENTS, Plan, REFERENCE, Signature, TABLE,
    integer,
};
use crate::random::rng::Rng;

/// Nesting depth of expressions and statements.
const EXPRESSION_DEPTH: u32 = 5;
const STATEMENT_DEPTH: u32 = 3;
/// Most iterations of a loop: loops of loops of calls still end soon.
const ROUNDS_MAX: u64 = 6;
/// Most statements of a function, for three sizes of modules: a small one shows a fault at a
/// glance.
pub(super) const STATEMENTS: [u32; 3] = [2, 7, 24];

/// Function being generated.
pub(super) struct Body<'m> {
    rng: &'m mut Rng,
    plan: &'m Plan,
    index: u32,
    /// Types of parameters and locals.
    locals: Vec<ValType>,
    /// Index of the first local that counts iterations; nothing else writes these.
    counters: u32,
    loops: u32,
    statements: u32,
    function: Function,
}

impl<'m> Body<'m> {
    /// Generates the function of that index.
    pub(super) fn write(rng: &'m mut Rng, plan: &'m Plan, index: u32) -> Function {
        let signature = &plan.signatures[index as usize];
        // Few locals, or more than there are registers.
        let most = [4, 8, 24][rng.below(3) as usize];
        let mut locals = signature.parameters.clone();
        locals.extend((0..1 + rng.below(most)).map(|_| integer(rng)));
        let counters = locals.len() as u32;
        let depth = STATEMENT_DEPTH as usize + 1;
        locals.extend(std::iter::repeat_n(ValType::I32, depth));
        let declared = &locals[signature.parameters.len()..];
        let function = Function::new_with_locals_types(declared.iter().copied());
        let statements = plan.statements;
        let mut body = Self { rng, plan, index, locals, counters, loops: 0, statements, function };
        let first = 1 + body.rng.below(6);
        body.several(first, STATEMENT_DEPTH);
        for ty in &signature.results {
            body.expression(*ty, EXPRESSION_DEPTH);
        }
        body.emit().end();
        body.function
    }

    fn emit(&mut self) -> InstructionSink<'_> {
        self.function.instructions()
    }

    fn several(&mut self, count: u64, depth: u32) {
        for _ in 0..count {
            self.statement(depth);
        }
    }

    fn statement(&mut self, depth: u32) {
        if self.statements == 0 {
            return;
        }
        self.statements -= 1;
        match self.rng.below(if depth == 0 { 8 } else { 13 }) {
            0..=2 => self.set_local(),
            3 => self.set_global(),
            4 | 5 => self.store(),
            6 if self.plan.changes && self.rng.below(2) == 0 => self.table(),
            6 => self.bulk(),
            7 => self.call_statement(),
            8 | 9 => self.round(depth - 1),
            10 => self.choice(depth - 1),
            11 => self.switch(depth - 1),
            _ => self.leave(depth - 1),
        }
    }

    fn set_local(&mut self) {
        let local = self.rng.below(u64::from(self.counters)) as u32;
        self.expression(self.locals[local as usize], EXPRESSION_DEPTH);
        self.emit().local_set(local);
    }

    fn set_global(&mut self) {
        let global = self.rng.below(GLOBALS.len() as u64) as u32;
        self.expression(GLOBALS[global as usize], EXPRESSION_DEPTH);
        self.emit().global_set(global);
    }

    fn store(&mut self) {
        let at = self.address();
        let ty = integer(self.rng);
        self.expression(ty, EXPRESSION_DEPTH - 1);
        let narrow = self.rng.below(4);
        let mut emit = self.emit();
        match (ty, narrow) {
            (ValType::I32, 0) => emit.i32_store8(at),
            (ValType::I32, 1) => emit.i32_store16(at),
            (ValType::I32, _) => emit.i32_store(at),
            (_, 0) => emit.i64_store8(at),
            (_, 1) => emit.i64_store16(at),
            (_, 2) => emit.i64_store32(at),
            _ => emit.i64_store(at),
        };
    }

    /// Pushes an address, mostly within the memory, now and then anywhere.
    fn address(&mut self) -> MemArg {
        let offset = match self.rng.below(8) {
            0..=4 => self.rng.below(64),
            5 | 6 => self.rng.below(0x1000),
            _ => 0xffff_0000 + self.rng.below(0x1_0000) * self.rng.below(2),
        };
        let offset = if self.rng.below(30) == 0 { offset } else { offset & 0xffff };
        match self.rng.below(4) {
            0 => {
                let address = self.rng.below(u64::from(MEMORY)) as i32;
                self.emit().i32_const(address);
            }
            1 => {
                self.expression(ValType::I32, 1);
                self.emit().i32_const(0xffc).i32_and();
            }
            _ => {
                self.expression(ValType::I32, 2);
                let mask = if self.rng.below(25) == 0 { -1 } else { 0xefff };
                self.emit().i32_const(mask).i32_and();
            }
        }
        MemArg { offset, align: 0, target: MemArgTarget::Memory(0), ordering: None }
    }

    fn bulk(&mut self) {
        let fill = self.rng.below(2) == 0;
        let value_mask = if fill { -1 } else { 0xefff };
        for mask in [0xefff, value_mask] {
            self.expression(ValType::I32, 1);
            self.emit().i32_const(mask).i32_and();
        }
        match self.rng.below(3) {
            0 => {
                let length = self.rng.below(80) as i32;
                self.emit().i32_const(length);
            }
            _ => {
                self.expression(ValType::I32, 1);
                let mask = [0xff, 0xfff, 0x3fff][self.rng.below(3) as usize];
                self.emit().i32_const(mask).i32_and();
            }
        }
        if fill {
            self.emit().memory_fill(0);
        } else {
            self.emit().memory_copy(0, 0);
        }
    }

    fn call_statement(&mut self) {
        let Some(results) = self.call() else { return self.set_global() };
        for ty in results.into_iter().rev() {
            let places = self.locals_of(ty, self.counters);
            match self.rng.below(places.len() as u64 + 1) as usize {
                place if place < places.len() => self.emit().local_set(places[place]),
                _ => self.emit().drop(),
            };
        }
    }

    /// Calls a function with a lower index, so that calls end; its results are on the stack.
    fn call(&mut self) -> Option<Vec<ValType>> {
        // Calls in loops of loops multiply.
        if self.index == 0 || self.loops > 1 {
            return None;
        }
        let through_table = self.index >= self.plan.in_table && self.plan.in_table > 0;
        let below = u64::from(self.index);
        let callee = self.rng.below(below) as u32;
        let Signature { parameters, results } = self.plan.signatures[callee as usize].clone();
        for ty in &parameters {
            self.expression(*ty, 2);
        }
        if through_table && callee < self.plan.in_table && self.rng.below(2) == 0 {
            let element = self.rng.below(TABLE + 1) as i32;
            if self.rng.below(3) > 0 {
                self.expression(ValType::I32, 1);
                self.emit().i32_const(7).i32_and();
            } else {
                self.emit().i32_const(element);
            }
            let table = self.rng.below(2) as u32;
            self.emit().call_indirect(table, callee);
        } else {
            self.emit().call(callee);
        }
        Some(results)
    }

    /// Generates a loop that counts up to a constant or to a number computed at run time.
    fn round(&mut self, depth: u32) {
        let counter = self.counters + depth;
        let rounds = 1 + self.rng.below(ROUNDS_MAX) as i32;
        if self.rng.below(2) == 0 {
            self.emit().i32_const(0).local_set(counter);
        } else {
            self.expression(ValType::I32, 1);
            self.emit().i32_const(rounds).i32_rem_u().local_set(counter);
        }
        self.loops += 1;
        self.emit().block(BlockType::Empty).loop_(BlockType::Empty);
        let count = 1 + self.rng.below(3);
        self.several(count, depth);
        if self.rng.below(3) == 0 {
            self.expression(ValType::I32, 2);
            self.emit().br_if(1);
        }
        self.emit().local_get(counter).i32_const(1).i32_add().local_tee(counter);
        self.emit().i32_const(rounds).i32_lt_u().br_if(0).end().end();
        self.loops -= 1;
    }

    fn choice(&mut self, depth: u32) {
        self.expression(ValType::I32, 3);
        self.emit().if_(BlockType::Empty);
        let count = 1 + self.rng.below(3);
        self.several(count, depth);
        if self.rng.below(2) == 0 {
            self.emit().else_();
            let count = 1 + self.rng.below(3);
            self.several(count, depth);
        }
        self.emit().end();
    }

    fn switch(&mut self, depth: u32) {
        let ways = 1 + self.rng.below(5) as u32;
        for _ in 0..=ways {
            self.emit().block(BlockType::Empty);
        }
        self.expression(ValType::I32, 2);
        if self.rng.below(2) == 0 {
            self.emit().i32_const(7).i32_and();
        }
        let targets: Vec<u32> =
            (0..ways).map(|_| self.rng.below(u64::from(ways) + 1) as u32).collect();
        let other = self.rng.below(u64::from(ways) + 1) as u32;
        self.emit().br_table(targets, other);
        for way in 0..=ways {
            self.emit().end();
            self.statement(depth);
            if way < ways && self.rng.below(2) == 0 {
                self.emit().br(ways - way - 1);
            }
        }
    }

    /// Generates a block that is left in its middle, perhaps with a value.
    fn leave(&mut self, depth: u32) {
        let ty = integer(self.rng);
        self.emit().block(BlockType::Result(ty));
        self.expression(ty, 3);
        self.expression(ValType::I32, 3);
        self.emit().br_if(0).drop();
        self.statement(depth);
        self.expression(ty, 3);
        self.emit().end();
        let fits = self.locals_of(ty, self.counters);
        let chosen = fits.get(self.rng.below(fits.len() as u64) as usize).copied();
        match chosen {
            Some(local) => self.emit().local_set(local),
            None => self.emit().drop(),
        };
    }

    fn expression(&mut self, ty: ValType, depth: u32) {
        let way = self.rng.below(if depth == 0 { 4 } else { 16 });
        match way {
            0 => self.constant(ty),
            1..=3 => self.variable(ty),
            4..=8 => self.binary(ty, depth - 1),
            9 => self.unary(ty, depth - 1),
            10 => self.load(ty),
            11 if ty == ValType::I32 => self.compare(depth - 1),
            11 => {
                self.expression(ValType::I32, depth - 1);
                if self.rng.below(2) == 0 {
                    self.emit().i64_extend_i32_s();
                } else {
                    self.emit().i64_extend_i32_u();
                }
            }
            12 if ty == ValType::I32 => {
                self.expression(ValType::I64, depth - 1);
                self.emit().i32_wrap_i64();
            }
            12 | 13 => {
                self.expression(ty, depth - 1);
                self.expression(ty, depth - 1);
                self.expression(ValType::I32, depth - 1);
                self.emit().select();
            }
            14 => {
                self.expression(ValType::I32, depth - 1);
                self.emit().if_(BlockType::Result(ty));
                self.expression(ty, depth - 1);
                self.emit().else_();
                self.expression(ty, depth - 1);
                self.emit().end();
            }
            _ => self.rare(ty, depth - 1),
        }
    }

    fn constant(&mut self, ty: ValType) {
        let number = self.rng.number();
        match ty {
            ValType::I32 => self.emit().i32_const(number as i32),
            _ => self.emit().i64_const(number as i64),
        };
    }

    fn variable(&mut self, ty: ValType) {
        let fits = self.locals_of(ty, self.locals.len() as u32);
        // Two globals of each type.
        let first = if ty == ValType::I32 { 0 } else { 2 };
        match self.rng.below(fits.len() as u64 + 2) as usize {
            local if local < fits.len() => self.emit().local_get(fits[local]),
            other => self.emit().global_get(first + (other - fits.len()) as u32),
        };
    }

    /// Returns the locals of a type with an index below `end`.
    fn locals_of(&self, ty: ValType, end: u32) -> Vec<u32> {
        (0..end).filter(|local| self.locals[*local as usize] == ty).collect()
    }

    fn rare(&mut self, ty: ValType, depth: u32) {
        match self.rng.below(4) {
            0 if ty == ValType::I32 => {
                self.emit().memory_size(0);
            }
            1 if ty == ValType::I32 && self.plan.grows => {
                let pages = self.rng.below(3) as i32;
                self.emit().i32_const(pages).memory_grow(0);
            }
            1 if ty == ValType::I32 => self.asked(),
            2 => match self.call() {
                Some(results) => {
                    for _ in &results {
                        self.emit().drop();
                    }
                    self.expression(ty, depth);
                }
                None => self.variable(ty),
            },
            _ => {
                self.expression(ty, depth);
                if let Some(local) = self.locals_of(ty, self.counters).first() {
                    self.emit().local_tee(*local);
                }
            }
        }
    }

    fn binary(&mut self, ty: ValType, depth: u32) {
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

    fn unary(&mut self, ty: ValType, depth: u32) {
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

    fn compare(&mut self, depth: u32) {
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

    fn load(&mut self, ty: ValType) {
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

    /// Generates an operator that changes a table, or copies out of a passive segment.
    fn table(&mut self) {
        match self.rng.below(16) {
            0..=3 => {
                self.below(CHANGING);
                self.reference();
                self.emit().table_set(1);
            }
            4 | 5 => {
                self.below(CHANGING);
                self.reference();
                self.below(CHANGING / 2);
                self.emit().table_fill(1);
            }
            6..=8 => {
                let from = if self.plan.copies { self.rng.below(2) as u32 } else { 1 };
                self.range(CHANGING, if from == 0 { TABLE } else { CHANGING });
                self.emit().table_copy(1, from);
            }
            9 | 10 => {
                self.range(CHANGING, PASSIVE_ELEMENTS);
                self.emit().table_init(1, 0);
            }
            11 => {
                self.reference();
                self.below(3);
                let local = self.locals_of(ValType::I32, self.counters).first().copied();
                self.emit().table_grow(1);
                match local {
                    Some(local) => self.emit().local_set(local),
                    None => self.emit().drop(),
                };
            }
            12 => {
                self.reference();
                self.emit().global_set(REFERENCE);
            }
            13 | 14 => {
                self.expression(ValType::I32, 1);
                self.emit().i32_const(0xefff).i32_and();
                self.below(PASSIVE_BYTES / 2);
                self.below(PASSIVE_BYTES / 2);
                self.emit().memory_init(0, 0);
            }
            _ if self.rng.below(2) == 0 => {
                self.emit().elem_drop(0);
            }
            _ => {
                self.emit().data_drop(0);
            }
        }
    }

    /// Pushes a number computed from a reference or a table.
    fn asked(&mut self) {
        if self.rng.below(3) == 0 {
            self.emit().table_size(1);
        } else {
            self.reference();
            self.emit().ref_is_null();
        }
    }

    fn reference(&mut self) {
        match self.rng.below(8) {
            0 => {
                self.emit().global_get(REFERENCE);
            }
            1 | 2 => {
                self.below(CHANGING);
                self.emit().table_get(1);
            }
            3 => {
                self.below(TABLE);
                self.emit().table_get(0);
            }
            4 => {
                self.expression(ValType::I32, 1);
                self.emit().if_(BlockType::Result(ValType::FUNCREF));
                self.emit().global_get(REFERENCE).else_().ref_null(HeapType::FUNC).end();
            }
            _ if self.plan.in_table > 0 => {
                let function = self.rng.below(u64::from(self.plan.in_table)) as u32;
                self.emit().ref_func(function);
            }
            _ => {
                self.emit().ref_null(HeapType::FUNC);
            }
        }
    }

    /// Pushes destination, source and count; now and then out of range.
    fn range(&mut self, to: u64, from: u64) {
        self.below(to);
        self.below(from);
        self.below(to / 2);
    }

    /// Pushes a number, mostly below `limit`.
    fn below(&mut self, limit: u64) {
        match self.rng.below(12) {
            0 => self.expression(ValType::I32, 1),
            1..=5 => {
                let number = self.rng.below(limit + 1) as i32;
                self.emit().i32_const(number);
            }
            _ => {
                self.expression(ValType::I32, 1);
                self.emit().i32_const(limit as i32).i32_rem_u();
            }
        }
    }
}
