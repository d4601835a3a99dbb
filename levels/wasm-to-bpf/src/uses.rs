//! Which values an operation or a terminator uses, for passes and allocation.
//! No pass is here, only the walk over operands.

use crate::ir::{Edge, Op, Terminator, Value};

impl Op {
    /// Calls `visit` with each operand, in order.
    pub fn for_each_use(&self, mut visit: impl FnMut(Value)) {
        match self {
            Self::Const(_)
            | Self::GlobalGet(_)
            | Self::MemorySize
            | Self::PacketLength
            | Self::FuelLoad => {}
            Self::Unary(_, a)
            | Self::ExtendUnsigned(a)
            | Self::ExtendSigned(a)
            | Self::Wrap(a)
            | Self::GlobalSet(_, a)
            | Self::MemoryGrow(a)
            | Self::TrapIf(a, _)
            | Self::FuelStore(a)
            | Self::Opaque(a) => visit(*a),
            Self::Load { access, .. } => visit(access.address),
            Self::Store { value, access, .. } => {
                visit(access.address);
                visit(*value);
            }
            Self::Binary(_, a, b) | Self::Compare(_, a, b) => {
                visit(*a);
                visit(*b);
            }
            Self::Select(a, b, c) | Self::MemoryCopy(a, b, c) | Self::MemoryFill(a, b, c) => {
                visit(*a);
                visit(*b);
                visit(*c);
            }
            Self::Call(_, arguments) | Self::Host(_, arguments) => {
                arguments.iter().copied().for_each(visit);
            }
        }
    }

    /// Calls `change` with each operand, to put another in its place.
    pub fn for_each_use_mut(&mut self, mut change: impl FnMut(&mut Value)) {
        match self {
            Self::Const(_)
            | Self::GlobalGet(_)
            | Self::MemorySize
            | Self::PacketLength
            | Self::FuelLoad => {}
            Self::Unary(_, a)
            | Self::ExtendUnsigned(a)
            | Self::ExtendSigned(a)
            | Self::Wrap(a)
            | Self::GlobalSet(_, a)
            | Self::MemoryGrow(a)
            | Self::TrapIf(a, _)
            | Self::FuelStore(a)
            | Self::Opaque(a) => change(a),
            Self::Load { access, .. } => change(&mut access.address),
            Self::Store { value, access, .. } => {
                change(&mut access.address);
                change(value);
            }
            Self::Binary(_, a, b) | Self::Compare(_, a, b) => {
                change(a);
                change(b);
            }
            Self::Select(a, b, c) | Self::MemoryCopy(a, b, c) | Self::MemoryFill(a, b, c) => {
                change(a);
                change(b);
                change(c);
            }
            Self::Call(_, arguments) | Self::Host(_, arguments) => {
                arguments.iter_mut().for_each(change);
            }
        }
    }

    /// Whether it does nothing but give its result, the same for the same operands.
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

    /// Whether it can go when nobody uses its results.
    #[must_use]
    pub const fn can_be_dropped(&self) -> bool {
        match self {
            Self::Load { access, .. } => !access.bounds_check,
            Self::GlobalGet(_) | Self::MemorySize | Self::FuelLoad => true,
            _ => self.is_pure(),
        }
    }
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
