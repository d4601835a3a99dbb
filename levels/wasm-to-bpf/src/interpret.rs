//! Interpreter of the intermediate representation, for tests: slow, obvious, and strict about the
//! claims of passes. An access that was declared to need no check and is out of bounds, or that
//! lies elsewhere than its region says, is a panic.

use crate::ir::{
    Access, BinaryOp, BlockId, CompareOp, Edge, Function, Op, Region, Terminator, Type, UnaryOp,
    Unit, Value, Width,
};
use crate::{Image, TrapCode};

/// Most steps of a test, to end endless loops.
const STEPS_MAX: u64 = 5_000_000;
/// Size of a page, bytes.
const PAGE_LENGTH: usize = 65_536;

/// Running instance.
pub(crate) struct Machine<'u> {
    unit: &'u Unit,
    pub(crate) memory: Vec<u8>,
    /// Data behind the largest size of the memory.
    pub(crate) behind: Vec<u8>,
    pub(crate) globals: Vec<u64>,
    pub(crate) fuel: i64,
    /// Addresses of the first packet byte and of the end, if there is a packet.
    pub(crate) window: Option<(u32, u32)>,
    steps: u64,
}

impl<'u> Machine<'u> {
    pub(crate) fn new(unit: &'u Unit, image: &Image) -> Self {
        let mut memory = vec![0; image.pages_min as usize * PAGE_LENGTH];
        let mut behind = vec![0; image.pages_behind as usize * PAGE_LENGTH];
        for (address, bytes) in &image.data {
            let place = match (*address as usize).checked_sub(end_of_memory(unit)) {
                Some(address) => &mut behind[address..],
                None => &mut memory[*address as usize..],
            };
            place[..bytes.len()].copy_from_slice(bytes);
        }
        let globals = image.globals.clone();
        Self { unit, memory, behind, globals, fuel: 1 << 40, window: None, steps: 0 }
    }

    /// Calls the entry.
    pub(crate) fn run(&mut self, arguments: &[u64]) -> Result<Vec<u64>, TrapCode> {
        self.call(0, arguments)
    }

    fn call(&mut self, position: u32, arguments: &[u64]) -> Result<Vec<u64>, TrapCode> {
        let unit = self.unit;
        let function = &unit.functions[position as usize];
        let mut frame = Frame { function, values: vec![None; function.types.len()] };
        let mut block = BlockId(0);
        let mut incoming = arguments.to_vec();
        // Iterations of each loop since it was entered.
        let mut rounds = vec![0_u64; function.blocks.len()];
        loop {
            let here = &function.blocks[block.0 as usize];
            assert_eq!(here.parameters.len(), incoming.len(), "arguments of {block}");
            for (parameter, value) in here.parameters.iter().zip(&incoming) {
                frame.set(*parameter, *value);
            }
            for instruction in &here.instructions {
                self.steps += 1;
                assert!(self.steps < STEPS_MAX, "it does not end");
                let results = self.op(&frame, &instruction.op, &instruction.results)?;
                assert_eq!(results.len(), instruction.results.len(), "{}", instruction.op);
                for (value, result) in instruction.results.iter().zip(results) {
                    frame.set(*value, result);
                }
            }
            let edge: &Edge = match &here.terminator {
                Terminator::Jump(edge) => edge,
                Terminator::Branch(condition, taken, not) => {
                    if frame.get(*condition) != 0 {
                        taken
                    } else {
                        not
                    }
                }
                Terminator::Switch(index, list, default) => {
                    list.get(frame.get(*index) as usize).unwrap_or(default)
                }
                Terminator::Return(values) => {
                    return Ok(values.iter().map(|value| frame.get(*value)).collect());
                }
                Terminator::Trap(code, _) => return Err(*code),
            };
            incoming = edge.arguments.iter().map(|value| frame.get(*value)).collect();
            let target = edge.target.0 as usize;
            rounds[target] = if edge.target <= block { rounds[target] + 1 } else { 0 };
            let most = function.blocks[target].rounds_max.unwrap_or(u64::MAX);
            assert!(rounds[target] <= most, "{} goes round more than {most} times", edge.target);
            block = edge.target;
        }
    }

    fn op(&mut self, frame: &Frame<'_>, op: &Op, results: &[Value]) -> Result<Vec<u64>, TrapCode> {
        let get = |value: &Value| frame.get(*value);
        let ty = |value: &Value| frame.function.types[value.0 as usize];
        let one = |value: u64| Ok(vec![value]);
        match op {
            Op::Const(value) => one(*value),
            Op::Unary(op, a) => one(unary(*op, ty(a), get(a))),
            Op::Binary(op, a, b) => one(binary(*op, ty(&results[0]), get(a), get(b))),
            Op::Compare(op, a, b) => {
                assert_eq!(ty(a), ty(b), "compared types");
                one(u64::from(compare(*op, ty(a), get(a), get(b))))
            }
            Op::ExtendUnsigned(a) => one(get(a)),
            Op::ExtendSigned(a) => one(get(a) as u32 as i32 as i64 as u64),
            Op::Wrap(a) => one(u64::from(get(a) as u32)),
            Op::Select(a, b, c) => one(if get(a) != 0 { get(b) } else { get(c) }),
            Op::Load { width, signed, access } => {
                let mut bytes = [0; 8];
                let place = self.access(frame, access, *width)?;
                bytes[..place.len()].copy_from_slice(place);
                let value = u64::from_le_bytes(bytes);
                let wide = if *signed { sign(value, 8 * width.bytes()) } else { value };
                one(narrow(ty(&results[0]), wide))
            }
            Op::Store { width, value, access } => {
                let bytes = get(value).to_le_bytes();
                let place = self.access(frame, access, *width)?;
                place.copy_from_slice(&bytes[..place.len()]);
                Ok(vec![])
            }
            Op::GlobalGet(index) => one(self.globals[*index as usize]),
            Op::GlobalSet(index, a) => {
                self.globals[*index as usize] = get(a);
                Ok(vec![])
            }
            Op::MemorySize => one((self.memory.len() / PAGE_LENGTH) as u64),
            Op::MemoryGrow(a) => one(self.grow(get(a))),
            Op::MemoryCopy(to, from, length) => {
                let from = self.range(get(from), get(length))?;
                let to = self.range(get(to), get(length))?;
                self.memory.copy_within(from, to.start);
                Ok(vec![])
            }
            Op::MemoryFill(to, byte, length) => {
                let to = self.range(get(to), get(length))?;
                self.memory[to].fill(get(byte) as u8);
                Ok(vec![])
            }
            Op::Call(position, arguments) => {
                let arguments: Vec<u64> = arguments.iter().map(get).collect();
                self.call(*position, &arguments)
            }
            Op::Host(..) => one(7),
            Op::TrapIf(a, code) => {
                if get(a) != 0 {
                    Err(*code)
                } else {
                    Ok(vec![])
                }
            }
            Op::FuelLoad => one(self.fuel as u64),
            Op::FuelStore(a) => {
                self.fuel = get(a) as i64;
                Ok(vec![])
            }
            Op::PacketLength => {
                let at = abi::layout::META_ADDRESS as usize;
                let bytes = self.memory[at..at + 4].try_into().expect("four bytes");
                one(u64::from(u32::from_le_bytes(bytes)))
            }
            Op::Opaque(a) => one(get(a)),
        }
    }

    /// Returns the bytes of an access.
    fn access(
        &mut self,
        frame: &Frame<'_>,
        access: &Access,
        width: Width,
    ) -> Result<&mut [u8], TrapCode> {
        let begin = frame.get(access.address) + u64::from(access.offset);
        let end = begin + u64::from(width.bytes());
        if access.region == Region::Behind {
            let within = |at: u64| (at as usize).checked_sub(end_of_memory(self.unit));
            let place = within(begin).zip(within(end)).expect("an access behind the memory");
            return Ok(&mut self.behind[place.0..place.1]);
        }
        if end > self.memory.len() as u64 {
            assert!(access.bounds_check, "an unchecked access to {begin:#x}");
            return Err(TrapCode::OutOfBounds);
        }
        let within = |from: u32, to: u32| begin >= u64::from(from) && end <= u64::from(to);
        let touches = |from: u32, to: u32| begin < u64::from(to) && end > u64::from(from);
        if let Some((from, to)) = self.window {
            match access.region {
                Region::Memory => {
                    assert!(!touches(from, to), "{begin:#x} is in the window");
                    assert!(!touches(0x8000, 0x8040), "{begin:#x} is metadata");
                }
                Region::Window => assert!(within(from, to), "{begin:#x} is outside the window"),
                Region::Metadata => assert!(within(0x8000, 0x8040), "{begin:#x} is no metadata"),
                Region::Behind | Region::Unknown { .. } => {}
            }
        } else {
            assert_eq!(access.region, Region::Memory, "a region without a packet");
        }
        Ok(&mut self.memory[begin as usize..end as usize])
    }

    fn grow(&mut self, pages: u64) -> u64 {
        let before = self.memory.len() / PAGE_LENGTH;
        let max = self.unit.memory.map_or(0, |memory| memory.pages_max as usize);
        if pages as usize + before > max {
            return u64::from(u32::MAX);
        }
        self.memory.resize((before + pages as usize) * PAGE_LENGTH, 0);
        before as u64
    }

    fn range(&self, begin: u64, length: u64) -> Result<std::ops::Range<usize>, TrapCode> {
        let (begin, end) = (begin as usize, (begin + length) as usize);
        if end > self.memory.len() { Err(TrapCode::OutOfBounds) } else { Ok(begin..end) }
    }
}

fn end_of_memory(unit: &Unit) -> usize {
    unit.memory.map_or(0, |memory| memory.pages_max as usize * PAGE_LENGTH)
}

struct Frame<'u> {
    function: &'u Function,
    values: Vec<Option<u64>>,
}

impl Frame<'_> {
    fn get(&self, value: Value) -> u64 {
        self.values[value.0 as usize].unwrap_or_else(|| panic!("{value} is not defined here"))
    }

    fn set(&mut self, value: Value, number: u64) {
        let ty = self.function.types[value.0 as usize];
        assert_eq!(narrow(ty, number), number, "{value} is wider than {ty}");
        self.values[value.0 as usize] = Some(number);
    }
}

fn narrow(ty: Type, value: u64) -> u64 {
    match ty {
        Type::I32 => u64::from(value as u32),
        Type::I64 => value,
    }
}

fn sign(value: u64, bits: u32) -> u64 {
    let shift = 64 - bits;
    (((value << shift) as i64) >> shift) as u64
}

fn unary(op: UnaryOp, ty: Type, a: u64) -> u64 {
    let long = ty == Type::I64;
    let value = match op {
        UnaryOp::Clz if long => u64::from(a.leading_zeros()),
        UnaryOp::Clz => u64::from((a as u32).leading_zeros()),
        UnaryOp::Ctz if long => u64::from(a.trailing_zeros()),
        UnaryOp::Ctz => u64::from((a as u32).trailing_zeros()),
        UnaryOp::Popcnt => u64::from(a.count_ones()),
        UnaryOp::Extend8 => sign(a, 8),
        UnaryOp::Extend16 => sign(a, 16),
        UnaryOp::Extend32 => sign(a, 32),
        UnaryOp::ByteSwap if long => a.swap_bytes(),
        UnaryOp::ByteSwap => u64::from((a as u32).swap_bytes()),
        UnaryOp::ByteSwap16 => u64::from((a as u16).swap_bytes()),
    };
    narrow(ty, value)
}

fn binary(op: BinaryOp, ty: Type, a: u64, b: u64) -> u64 {
    match ty {
        Type::I64 => binary_64(op, a, b),
        Type::I32 => u64::from(binary_32(op, a as u32, b as u32)),
    }
}

/// Computes the result of an operator at one width.
macro_rules! binary {
    ($name:ident, $unsigned:ty, $signed:ty) => {
        fn $name(op: BinaryOp, a: $unsigned, b: $unsigned) -> $unsigned {
            let (x, y, count) = (a as $signed, b as $signed, b as u32);
            match op {
                BinaryOp::Add => a.wrapping_add(b),
                BinaryOp::Sub => a.wrapping_sub(b),
                BinaryOp::Mul => a.wrapping_mul(b),
                BinaryOp::DivS => x.checked_div(y).expect("a division that traps") as $unsigned,
                BinaryOp::DivU => a.checked_div(b).expect("a division that traps"),
                BinaryOp::RemS => x.wrapping_rem(y) as $unsigned,
                BinaryOp::RemU => a % b,
                BinaryOp::And => a & b,
                BinaryOp::Or => a | b,
                BinaryOp::Xor => a ^ b,
                BinaryOp::Shl => a.wrapping_shl(count),
                BinaryOp::ShrS => x.wrapping_shr(count) as $unsigned,
                BinaryOp::ShrU => a.wrapping_shr(count),
                BinaryOp::Rotl => a.rotate_left(count % <$unsigned>::BITS),
                BinaryOp::Rotr => a.rotate_right(count % <$unsigned>::BITS),
            }
        }
    };
}

binary!(binary_64, u64, i64);
binary!(binary_32, u32, i32);

fn compare(op: CompareOp, ty: Type, a: u64, b: u64) -> bool {
    let (x, y) = match ty {
        Type::I64 => (a as i64, b as i64),
        Type::I32 => (i64::from(a as u32 as i32), i64::from(b as u32 as i32)),
    };
    match op {
        CompareOp::Eq => a == b,
        CompareOp::Ne => a != b,
        CompareOp::LtS => x < y,
        CompareOp::LtU => a < b,
        CompareOp::GtS => x > y,
        CompareOp::GtU => a > b,
        CompareOp::LeS => x <= y,
        CompareOp::LeU => a <= b,
        CompareOp::GeS => x >= y,
        CompareOp::GeU => a >= b,
    }
}
