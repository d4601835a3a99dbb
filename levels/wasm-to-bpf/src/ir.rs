//! Intermediate representation: one function in SSA form, with block
//! parameters instead of phi nodes.
//!
//! ```text
//! Wasm ─build─▶ ir::Function ─passes─▶ ir::Function ─back─▶ eBPF
//! ```
//!
//! WebAssembly without the stack machine, and with every trap
//! explicit: [`Op::Binary`] never traps (a division is preceded by
//! [`Op::TrapIf`]), `call_indirect` is a [`Terminator::Switch`] over direct
//! calls, and fuel is an ordinary 64-bit value that blocks pass on.
//! Not represented: registers, eBPF, packets beyond [`Region`].

use abi::HostFunction;

use crate::TrapCode;

/// SSA value, defined once: by an instruction or as a parameter of a block. An index into
/// [`Function::types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value(pub u32);

/// Block, as an index into [`Function::blocks`]. The entry is block 0; it has the function's
/// parameters as its parameters, and no predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// Function of the module, by its index in the module's function space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionIndex(pub u32);

/// Position in the module's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u32);

/// Type of a value. An `I32` is always zero-extended to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// 32-bit integer.
    I32,
    /// 64-bit integer.
    I64,
}

/// All functions that the entry can reach, each inlined as far as it pays.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Functions; function 0 is the entry. No recursion: the call graph is acyclic.
    pub functions: Vec<Function>,
    /// Types and initial values of the module's globals, by index.
    pub globals: Vec<Global>,
    /// Memory, if the module has one.
    pub memory: Option<Memory>,
}

/// Global of the module.
#[derive(Clone, Copy, Debug)]
pub struct Global {
    /// Type of the global.
    pub ty: Type,
    /// Value in a new instance (an `i32` zero-extended).
    pub initial: u64,
    /// True if it ever changes; if not, the IR has its value instead.
    pub mutable: bool,
}

/// Linear memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Initial size in pages of 64 KiB.
    pub pages_min: u32,
    /// Largest size in pages; equal to `pages_min` if the code never grows it, so that its size is
    /// a constant.
    pub pages_max: u32,
}

/// Function in SSA form.
#[derive(Clone, Debug)]
pub struct Function {
    /// Index in the module.
    pub index: FunctionIndex,
    /// Name from the name section or an export.
    pub name: Option<String>,
    /// Types of the parameters.
    pub parameters: Vec<Type>,
    /// Types of the results.
    pub results: Vec<Type>,
    /// Type of each value, by its number.
    pub types: Vec<Type>,
    /// Blocks in reverse post-order, every one reachable.
    pub blocks: Vec<Block>,
    /// True if the function, or a callee, can end in a trap: then a caller checks for it after the
    /// call.
    pub can_trap: bool,
}

/// Straight-line code.
#[derive(Clone, Debug)]
pub struct Block {
    /// Values defined by the incoming edges.
    pub parameters: Vec<Value>,
    /// Instructions in order.
    pub instructions: Vec<Instruction>,
    /// End of the block.
    pub terminator: Terminator,
    /// True if the block has a back edge, from a block that this one dominates (WebAssembly's
    /// control flow is reducible, so no other cycle exists).
    pub is_loop_header: bool,
    /// Number of loops that contain the block.
    pub loop_depth: u32,
    /// Most iterations of a loop header's loop each time that it is entered, if known. It stays
    /// valid, since no pass removes a header.
    pub rounds_max: Option<u64>,
}

/// Operation with its results.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// Values that are defined: none, one, or (calls) several.
    pub results: Vec<Value>,
    /// Operation.
    pub op: Op,
    /// Position in the module, for traps and refusals.
    pub place: Place,
}

/// Operation. Operands have one type unless stated otherwise.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Constant; an `i32` zero-extended.
    Const(u64),
    /// Unary operator, such as `i32.clz`.
    Unary(UnaryOp, Value),
    /// Arithmetic of the type of its result. Division and remainder: the divisor is not zero, the
    /// signed quotient does not overflow; the signed remainder by -1 is 0. Shifts and rotations:
    /// the count is taken modulo the width.
    Binary(BinaryOp, Value, Value),
    /// Comparison: 1 or 0, an `i32`; the operands have one type, either.
    Compare(CompareOp, Value, Value),
    /// Zero extension, `i64.extend_i32_u`.
    ExtendUnsigned(Value),
    /// Sign extension, `i64.extend_i32_s`.
    ExtendSigned(Value),
    /// Truncation, `i32.wrap_i64`.
    Wrap(Value),
    /// Choice: the second if the first, an `i32`, is not zero, else the third.
    Select(Value, Value, Value),
    /// Read of linear memory, little-endian, at `address + offset`.
    Load {
        /// Number of bytes.
        width: Width,
        /// True if the bytes are sign-extended to the result's type.
        signed: bool,
        /// Address.
        access: Access,
    },
    /// Write of the value's low bytes.
    Store {
        /// Number of bytes.
        width: Width,
        /// Value to write.
        value: Value,
        /// Address.
        access: Access,
    },
    /// Read of a mutable global.
    GlobalGet(u32),
    /// Write of a mutable global.
    GlobalSet(u32, Value),
    /// Size of the memory in pages, an `i32`.
    MemorySize,
    /// Growth by a number of pages; results in the former size, or -1.
    MemoryGrow(Value),
    /// `memory.copy`: destination, source, length. Traps if out of bounds.
    MemoryCopy(Value, Value, Value),
    /// `memory.fill`: destination, byte, length. Traps if out of bounds.
    MemoryFill(Value, Value, Value),
    /// Direct call: the callee's position in [`Unit::functions`].
    Call(u32, Vec<Value>),
    /// Call of a host function.
    Host(HostFunction, Vec<Value>),
    /// Trap if the `i32` is not zero.
    TrapIf(Value, TrapCode),
    /// Read of the remaining fuel, an `i64`: at the beginning of a function and after a call, since
    /// the callee spends from the same.
    FuelLoad,
    /// Write of the remaining fuel: before a call and before a return.
    FuelStore(Value),
    /// Length of the packet, an `i32`, where nothing writes metadata: compared only with numbers
    /// that are certainly not beyond the window, and with no sum that may wrap.
    PacketLength,
    /// Same number, of which the verifier knows nothing: at the entry of loops, and at joins of
    /// values that later decide a branch.
    Opaque(Value),
}

/// Runs the code behind `|operand|` for each operand of an [`Op`], in order: a reference that is as
/// mutable as that of the operation. A macro, because a function is either one or the other.
macro_rules! for_each_operand {
    ($op:expr, |$operand:ident| $code:expr) => {
        match $op {
            Op::Const(_) | Op::GlobalGet(_) | Op::MemorySize | Op::PacketLength | Op::FuelLoad => {}
            Op::Unary(_, $operand)
            | Op::ExtendUnsigned($operand)
            | Op::ExtendSigned($operand)
            | Op::Wrap($operand)
            | Op::GlobalSet(_, $operand)
            | Op::MemoryGrow($operand)
            | Op::TrapIf($operand, _)
            | Op::FuelStore($operand)
            | Op::Opaque($operand)
            | Op::Load { access: Access { address: $operand, .. }, .. } => $code,
            Op::Store { value, access: Access { address, .. }, .. } => {
                for $operand in [address, value] {
                    $code;
                }
            }
            Op::Binary(_, a, b) | Op::Compare(_, a, b) => {
                for $operand in [a, b] {
                    $code;
                }
            }
            Op::Select(a, b, c) | Op::MemoryCopy(a, b, c) | Op::MemoryFill(a, b, c) => {
                for $operand in [a, b, c] {
                    $code;
                }
            }
            Op::Call(_, arguments) | Op::Host(_, arguments) => {
                for $operand in arguments {
                    $code;
                }
            }
        }
    };
}

impl Op {
    /// Calls `visit` with each operand, in order.
    pub fn for_each_use(&self, mut visit: impl FnMut(Value)) {
        for_each_operand!(self, |operand| visit(*operand));
    }

    /// Calls `change` with each operand, to replace it.
    pub fn for_each_use_mut(&mut self, mut change: impl FnMut(&mut Value)) {
        for_each_operand!(self, |operand| change(operand));
    }

    /// Returns true when the operation has no effect but its result, which depends only on its
    /// operands.
    #[must_use]
    pub const fn is_pure(&self) -> bool {
        matches!(
            self,
            Self::Const(_)
                | Self::PacketLength
                | Self::Unary(..)
                | Self::Binary(..)
                | Self::Compare(..)
                | Self::ExtendUnsigned(_)
                | Self::ExtendSigned(_)
                | Self::Wrap(_)
                | Self::Select(..)
                | Self::Opaque(_)
        )
    }

    /// Returns true when the operation can be removed if its results are unused.
    #[must_use]
    pub const fn can_be_dropped(&self) -> bool {
        match self {
            Self::Load { access, .. } => !access.bounds_check,
            Self::GlobalGet(_) | Self::MemorySize | Self::FuelLoad => true,
            _ => self.is_pure(),
        }
    }
}

/// Address, with the known facts about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Base address, an unsigned `i32`.
    pub address: Value,
    /// Offset, added without overflow (33 bits).
    pub offset: u32,
    /// Region that the access may lie in.
    pub region: Region,
    /// True if `address + offset + width` may lie beyond the memory; if not, an earlier check or
    /// the address itself excludes it.
    pub bounds_check: bool,
}

/// Region of an access. Where there is no packet (hooks, the conformance suite) it is
/// [`Region::Memory`] or [`Region::Behind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Certainly outside metadata and window.
    Memory,
    /// Compiler's data behind the memory: tables that change, passive segments. Only its own
    /// accesses lie there, and none needs a check.
    Behind,
    /// Certainly in the declared window: packet bytes.
    Window,
    /// Certainly in the 64 bytes of metadata.
    Metadata,
    /// Decided at run time.
    Unknown {
        /// True if the address is probably below the metadata (derived from the stack pointer):
        /// selects which test comes first.
        below: bool,
    },
}

/// Size of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// 1 byte.
    One,
    /// 2 bytes.
    Two,
    /// 4 bytes.
    Four,
    /// 8 bytes.
    Eight,
}

impl Width {
    /// Returns the number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

/// Operator with one operand, and a result of the same type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// Count of leading zeros.
    Clz,
    /// Count of trailing zeros.
    Ctz,
    /// Count of ones.
    Popcnt,
    /// Sign extension of 8 bits, `extend8_s`.
    Extend8,
    /// Sign extension of 16 bits, `extend16_s`.
    Extend16,
    /// Sign extension of 32 bits, `i64.extend32_s`.
    Extend32,
    /// Byte reversal: WebAssembly has no such operator; passes find it in shifts and masks.
    ByteSwap,
    /// Byte reversal of the low two bytes, the others zero.
    ByteSwap16,
}

/// Operator with two operands, and a result of the same type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "WebAssembly's names")]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    DivS,
    DivU,
    RemS,
    RemU,
    And,
    Or,
    Xor,
    Shl,
    ShrS,
    ShrU,
    Rotl,
    Rotr,
}

/// Comparison. `eqz` is [`CompareOp::Eq`] with a zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "WebAssembly's names")]
pub enum CompareOp {
    Eq,
    Ne,
    LtS,
    LtU,
    GtS,
    GtU,
    LeS,
    LeU,
    GeS,
    GeU,
}

impl CompareOp {
    /// Returns the comparison with its operands exchanged.
    pub(crate) const fn swapped(self) -> Self {
        match self {
            Self::Eq => Self::Eq,
            Self::Ne => Self::Ne,
            Self::LtS => Self::GtS,
            Self::LtU => Self::GtU,
            Self::GtS => Self::LtS,
            Self::GtU => Self::LtU,
            Self::LeS => Self::GeS,
            Self::LeU => Self::GeU,
            Self::GeS => Self::LeS,
            Self::GeU => Self::LeU,
        }
    }
}

/// Edge to a block, with the values for its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Target of the edge.
    pub target: BlockId,
    /// Argument for each parameter of the target.
    pub arguments: Vec<Value>,
}

/// End of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Terminator {
    /// Unconditional jump.
    Jump(Edge),
    /// Branch on an `i32`: not zero takes the first edge, else the second.
    Branch(Value, Edge, Edge),
    /// `br_table`: indexed by an unsigned `i32`, with a default beyond the list.
    Switch(Value, Vec<Edge>, Edge),
    /// Return with the results.
    Return(Vec<Value>),
    /// Unconditional trap.
    Trap(TrapCode, Place),
}

impl Terminator {
    /// Returns the edges, in order: of a branch first the taken one, of a switch last the default.
    pub fn edges(&self) -> impl Iterator<Item = &Edge> {
        let (list, last, second): (&[Edge], _, _) = match self {
            Self::Jump(edge) => (&[], Some(edge), None),
            Self::Branch(_, taken, not) => (&[], Some(taken), Some(not)),
            Self::Switch(_, list, default) => (list, Some(default), None),
            Self::Return(_) | Self::Trap(..) => (&[], None, None),
        };
        list.iter().chain(last).chain(second)
    }

    /// Returns the edges, mutable.
    pub fn edges_mut(&mut self) -> impl Iterator<Item = &mut Edge> {
        let (list, last, second): (&mut [Edge], _, _) = match self {
            Self::Jump(edge) => (&mut [], Some(edge), None),
            Self::Branch(_, taken, not) => (&mut [], Some(taken), Some(not)),
            Self::Switch(_, list, default) => (list, Some(default), None),
            Self::Return(_) | Self::Trap(..) => (&mut [], None, None),
        };
        list.iter_mut().chain(last).chain(second)
    }

    /// Calls `visit` with the deciding value and the returned ones.
    pub fn for_each_own_use(&self, visit: impl FnMut(Value)) {
        match self {
            Self::Branch(value, ..) | Self::Switch(value, ..) => {
                [*value].into_iter().for_each(visit)
            }
            Self::Return(values) => values.iter().copied().for_each(visit),
            Self::Jump(_) | Self::Trap(..) => {}
        }
    }

    /// Calls `visit` with each used value, arguments of edges included.
    pub fn for_each_use(&self, mut visit: impl FnMut(Value)) {
        self.for_each_own_use(&mut visit);
        for edge in self.edges() {
            edge.arguments.iter().copied().for_each(&mut visit);
        }
    }

    /// Calls `change` with each used value, arguments of edges included.
    pub fn for_each_use_mut(&mut self, mut change: impl FnMut(&mut Value)) {
        match self {
            Self::Branch(value, ..) | Self::Switch(value, ..) => change(value),
            Self::Return(values) => values.iter_mut().for_each(&mut change),
            Self::Jump(_) | Self::Trap(..) => {}
        }
        for edge in self.edges_mut() {
            edge.arguments.iter_mut().for_each(&mut change);
        }
    }
}
