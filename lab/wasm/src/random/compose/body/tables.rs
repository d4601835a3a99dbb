//! References, tables that change and passive segments: places that mostly
//! exist.

use wasm_encoder::{BlockType, HeapType, ValType};

use super::Body;
use crate::random::compose::{CHANGING, PASSIVE_BYTES, PASSIVE_ELEMENTS, REFERENCE, TABLE};

impl Body<'_> {
    /// An operator that changes a table, or copies out of a passive segment.
    pub(super) fn table(&mut self) {
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

    /// A number that a reference or a table gives.
    pub(super) fn asked(&mut self) {
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

    /// Destination, source and count; now and then beyond.
    fn range(&mut self, to: u64, from: u64) {
        self.below(to);
        self.below(from);
        self.below(to / 2);
    }

    /// A number below another, mostly.
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
