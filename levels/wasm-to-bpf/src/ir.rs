//! The intermediate representation: one function in SSA form, with block
//! parameters instead of phi nodes.
//!
//! ```text
//! Wasm ─build─▶ ir::Function ─passes─▶ ir::Function ─back─▶ eBPF
//! ```
//!
//! It is WebAssembly with the stack machine taken out and every trap made
//! explicit: [`Op::Binary`] never traps (a division is preceded by
//! [`Op::TrapIf`]), `call_indirect` is a [`Terminator::Switch`] over direct
//! calls, and fuel is an ordinary 64-bit value that blocks pass on.
//! What it does not know: registers, eBPF, packets beyond [`Region`].

use abi::HostFunction;

use crate::TrapCode;

/// A number in SSA form, defined once: by an instruction or as a parameter of
/// a block. An index into [`Function::types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value(pub u32);

/// A block, as an index into [`Function::blocks`]. The entry is block 0; it
/// has the function's parameters as its parameters, and no predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// A function of the module, by its index in the module's function space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionIndex(pub u32);

/// Where in the module's bytes something came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u32);

/// The type of a value. An `I32` is always zero-extended to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// 32 bits.
    I32,
    /// 64 bits.
    I64,
}

/// All functions that the entry can reach, each inlined as far as it pays.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Function 0 is the entry. No recursion: the call graph is acyclic.
    pub functions: Vec<Function>,
    /// Types and initial values of the module's globals, by index.
    pub globals: Vec<Global>,
    /// The memory, if the module has one.
    pub memory: Option<Memory>,
}

/// A global of the module.
#[derive(Clone, Copy, Debug)]
pub struct Global {
    /// Its type.
    pub ty: Type,
    /// Its value in a new instance (an `i32` zero-extended).
    pub initial: u64,
    /// Whether it ever changes; if not, the IR has its value instead.
    pub mutable: bool,
}

/// The linear memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Pages of 64 KiB that it begins with.
    pub pages_min: u32,
    /// Pages that it may grow to; equal to `pages_min` if the code never
    /// grows it, so that its size is a constant.
    pub pages_max: u32,
}

/// One function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its index in the module.
    pub index: FunctionIndex,
    /// Its name, from the name section or an export.
    pub name: Option<String>,
    /// Types of its parameters.
    pub parameters: Vec<Type>,
    /// Types of its results.
    pub results: Vec<Type>,
    /// The type of each value, by its number.
    pub types: Vec<Type>,
    /// Its blocks, in reverse post-order, every one reachable.
    pub blocks: Vec<Block>,
    /// Whether it, or what it calls, can end in a trap: then a caller looks
    /// after the call.
    pub can_trap: bool,
}

/// Straight-line code.
#[derive(Clone, Debug)]
pub struct Block {
    /// Defined by the edges that come in.
    pub parameters: Vec<Value>,
    /// In order.
    pub instructions: Vec<Instruction>,
    /// What follows.
    pub terminator: Terminator,
    /// Whether an edge comes back here from a block that this one dominates
    /// (WebAssembly's control flow is reducible, so no other cycle exists).
    pub is_loop_header: bool,
    /// How many loops it is in.
    pub loop_depth: u32,
    /// Of a loop header: how often its loop goes round at most, each time that it is
    /// entered, if the passes know. It stays true, since no pass leaves a header out.
    pub rounds_max: Option<u64>,
}

/// One operation with its results.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// What is defined: none, one, or (calls) several.
    pub results: Vec<Value>,
    /// What is done.
    pub op: Op,
    /// Where in the module it stands, for traps and refusals.
    pub place: Place,
}

/// An operation. Operands of one operation have one type unless it says so.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A constant; an `i32` zero-extended.
    Const(u64),
    /// `i32.clz` and its kind.
    Unary(UnaryOp, Value),
    /// Arithmetic of the type of its result. Division and remainder: the
    /// divisor is not zero, the signed quotient does not overflow; the signed
    /// remainder by -1 is 0. Shifts and rotations: the count is taken modulo
    /// the width, whatever it is.
    Binary(BinaryOp, Value, Value),
    /// 1 or 0, an `i32`; the operands have one type, either.
    Compare(CompareOp, Value, Value),
    /// `i64.extend_i32_u`.
    ExtendUnsigned(Value),
    /// `i64.extend_i32_s`.
    ExtendSigned(Value),
    /// `i32.wrap_i64`.
    Wrap(Value),
    /// The second if the first, an `i32`, is not zero, else the third.
    Select(Value, Value, Value),
    /// Reads linear memory, little-endian, at `address + offset`.
    Load {
        /// Bytes that are read.
        width: Width,
        /// Whether they are sign-extended to the result's type.
        signed: bool,
        /// Where.
        access: Access,
    },
    /// Writes the value's low bytes.
    Store {
        /// Bytes that are written.
        width: Width,
        /// What.
        value: Value,
        /// Where.
        access: Access,
    },
    /// Reads a mutable global.
    GlobalGet(u32),
    /// Writes a mutable global.
    GlobalSet(u32, Value),
    /// The size in pages, an `i32`.
    MemorySize,
    /// Grows by so many pages; the former size, or -1.
    MemoryGrow(Value),
    /// `memory.copy`: destination, source, length. Traps if out of bounds.
    MemoryCopy(Value, Value, Value),
    /// `memory.fill`: destination, byte, length. Traps if out of bounds.
    MemoryFill(Value, Value, Value),
    /// A direct call: the callee's position in [`Unit::functions`].
    Call(u32, Vec<Value>),
    /// A host function.
    Host(HostFunction, Vec<Value>),
    /// Ends the call with a trap if the `i32` is not zero.
    TrapIf(Value, TrapCode),
    /// The fuel that is left, an `i64`: at the beginning of a function and
    /// after a call, since the callee spends of the same.
    FuelLoad,
    /// Puts it back: before a call and before a return.
    FuelStore(Value),
    /// The packet's length, an `i32`, where nothing writes metadata: only what is certainly not
    /// beyond the window is compared with it, and no sum that may wrap.
    PacketLength,
    /// The same number, of which the verifier knows nothing: at the entry of
    /// loops, and where ways join that later decide a branch.
    Opaque(Value),
}

/// Runs the code behind `|operand|` for each operand of an [`Op`], in order: a reference that is as
/// mutable as that of the operation. A macro, because a function is one or the other.
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

    /// Calls `change` with each operand, to put another in its place.
    pub fn for_each_use_mut(&mut self, mut change: impl FnMut(&mut Value)) {
        for_each_operand!(self, |operand| change(operand));
    }

    /// Returns true when the operation does nothing but give its result, the same for the same
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

    /// Returns true when the operation can go if nobody uses its results.
    #[must_use]
    pub const fn can_be_dropped(&self) -> bool {
        match self {
            Self::Load { access, .. } => !access.bounds_check,
            Self::GlobalGet(_) | Self::MemorySize | Self::FuelLoad => true,
            _ => self.is_pure(),
        }
    }
}

/// An address, and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// An `i32`, unsigned.
    pub address: Value,
    /// Added without overflow (33 bits).
    pub offset: u32,
    /// Where it may point.
    pub region: Region,
    /// Whether `address + offset + width` may lie beyond the memory; if not,
    /// an earlier check or the address itself shows it.
    pub bounds_check: bool,
}

/// Where an access may lie. Where there is no packet (hooks, the conformance
/// suite) it is [`Region::Memory`] or [`Region::Behind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Certainly outside metadata and window.
    Memory,
    /// What the compiler keeps behind the memory: tables that change, passive
    /// segments. Only its own accesses lie there, and none needs a check.
    Behind,
    /// Certainly in the declared window: packet bytes.
    Window,
    /// Certainly in the 64 bytes of metadata.
    Metadata,
    /// Decided when it runs. `below` says that it is probably below the
    /// metadata (derived from the stack pointer), so which test comes first.
    Unknown {
        /// See above.
        below: bool,
    },
}

/// Bytes of an access.
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

/// Of one operand, with a result of the same type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// Leading zeros.
    Clz,
    /// Trailing zeros.
    Ctz,
    /// Ones.
    Popcnt,
    /// `extend8_s`.
    Extend8,
    /// `extend16_s`.
    Extend16,
    /// `i64.extend32_s`.
    Extend32,
    /// The bytes in reverse order: WebAssembly has no such operator; passes
    /// find it in shifts and masks.
    ByteSwap,
    /// The low two bytes in reverse order, the others zero.
    ByteSwap16,
}

/// Of two operands, with a result of the same type.
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

/// `eqz` is [`CompareOp::Eq`] with a zero.
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
    /// The comparison with its operands in the other order.
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

/// Where control goes, with the values for the target's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The block.
    pub target: BlockId,
    /// One for each of its parameters.
    pub arguments: Vec<Value>,
}

/// How a block ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Terminator {
    /// On.
    Jump(Edge),
    /// By an `i32`: not zero, then the first, else the second.
    Branch(Value, Edge, Edge),
    /// `br_table`: by an unsigned `i32`, beyond the list the default.
    Switch(Value, Vec<Edge>, Edge),
    /// Back, with the results.
    Return(Vec<Value>),
    /// Ends the call.
    Trap(TrapCode, Place),
}

impl Terminator {
    /// The edges, in order: of a branch first the taken one, of a switch last the default.
    pub fn edges(&self) -> impl Iterator<Item = &Edge> {
        let (list, last, second): (&[Edge], _, _) = match self {
            Self::Jump(edge) => (&[], Some(edge), None),
            Self::Branch(_, taken, not) => (&[], Some(taken), Some(not)),
            Self::Switch(_, list, default) => (list, Some(default), None),
            Self::Return(_) | Self::Trap(..) => (&[], None, None),
        };
        list.iter().chain(last).chain(second)
    }

    /// The edges, to change them.
    pub fn edges_mut(&mut self) -> impl Iterator<Item = &mut Edge> {
        let (list, last, second): (&mut [Edge], _, _) = match self {
            Self::Jump(edge) => (&mut [], Some(edge), None),
            Self::Branch(_, taken, not) => (&mut [], Some(taken), Some(not)),
            Self::Switch(_, list, default) => (list, Some(default), None),
            Self::Return(_) | Self::Trap(..) => (&mut [], None, None),
        };
        list.iter_mut().chain(last).chain(second)
    }

    /// Calls `visit` with the value that decides and those that are returned.
    pub fn for_each_own_use(&self, visit: impl FnMut(Value)) {
        match self {
            Self::Branch(value, ..) | Self::Switch(value, ..) => {
                [*value].into_iter().for_each(visit)
            }
            Self::Return(values) => values.iter().copied().for_each(visit),
            Self::Jump(_) | Self::Trap(..) => {}
        }
    }

    /// Calls `visit` with each value that is used, arguments of edges too.
    pub fn for_each_use(&self, mut visit: impl FnMut(Value)) {
        self.for_each_own_use(&mut visit);
        for edge in self.edges() {
            edge.arguments.iter().copied().for_each(&mut visit);
        }
    }

    /// Calls `change` with each value that is used, arguments of edges too.
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
