//! Text form of the intermediate representation, for people and tests. Nothing
//! parses it.
//!
//! ```text
//! function 3 'on_packet' () -> i32
//! b0():
//!   v0 = const 32772
//!   v1: i32 = load4u [v0 + 0 metadata]
//!   branch v1 ? b1() : b2()
//! ```

use std::fmt::{self, Display, Formatter};

use crate::ir::{
    Access, Block, BlockId, Edge, Function, Instruction, Op, Region, Terminator, Type, Unit, Value,
    Width,
};

impl Display for Unit {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        if let Some(memory) = &self.memory {
            writeln!(out, "memory {} to {} pages", memory.pages_min, memory.pages_max)?;
        }
        for (index, global) in self.globals.iter().enumerate() {
            let how = if global.mutable { "mutable" } else { "constant" };
            writeln!(out, "global {index}: {} = {:#x} {how}", global.ty, global.initial)?;
        }
        self.functions.iter().try_for_each(|function| writeln!(out, "{function}"))
    }
}

impl Display for Function {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("");
        let parameters = List(&self.parameters);
        writeln!(
            out,
            "function {} '{name}' ({parameters}) -> {}",
            self.index.0,
            List(&self.results)
        )?;
        for (index, block) in self.blocks.iter().enumerate() {
            write!(out, "b{index}")?;
            write_block(self, block, out)?;
        }
        Ok(())
    }
}

fn write_block(function: &Function, block: &Block, out: &mut Formatter<'_>) -> fmt::Result {
    let typed = |value: &Value| typed(function, *value);
    let parameters: Vec<_> = block.parameters.iter().map(typed).collect();
    write!(out, "({})", List(&parameters))?;
    if block.loop_depth > 0 {
        write!(out, " depth {}", block.loop_depth)?;
    }
    writeln!(out, "{}:", if block.is_loop_header { " loop" } else { "" })?;
    for Instruction { op, results, .. } in &block.instructions {
        let results: Vec<_> = results.iter().map(typed).collect();
        match results.is_empty() {
            true => writeln!(out, "  {op}")?,
            false => writeln!(out, "  {} = {op}", List(&results))?,
        }
    }
    writeln!(out, "  {}", block.terminator)
}

fn typed(function: &Function, value: Value) -> String {
    match function.types.get(value.0 as usize) {
        Some(ty) => format!("{value}: {ty}"),
        None => format!("{value}: ?"),
    }
}

impl Display for Op {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Const(value) => write!(out, "const {value:#x}"),
            Self::Unary(op, a) => write!(out, "{} {a}", lower(op)),
            Self::Binary(op, a, b) => write!(out, "{} {a}, {b}", lower(op)),
            Self::Compare(op, a, b) => write!(out, "{} {a}, {b}", lower(op)),
            Self::ExtendUnsigned(a) => write!(out, "extend_u {a}"),
            Self::ExtendSigned(a) => write!(out, "extend_s {a}"),
            Self::Wrap(a) => write!(out, "wrap {a}"),
            Self::Select(a, b, c) => write!(out, "select {a} ? {b} : {c}"),
            Self::Load { width, signed, access } => {
                write!(out, "load{width}{} {access}", if *signed { "s" } else { "u" })
            }
            Self::Store { width, value, access } => write!(out, "store{width} {access}, {value}"),
            Self::GlobalGet(index) => write!(out, "global.get {index}"),
            Self::GlobalSet(index, a) => write!(out, "global.set {index}, {a}"),
            Self::MemorySize => write!(out, "memory.size"),
            Self::MemoryGrow(a) => write!(out, "memory.grow {a}"),
            Self::MemoryCopy(a, b, c) => write!(out, "memory.copy {a}, {b}, {c}"),
            Self::MemoryFill(a, b, c) => write!(out, "memory.fill {a}, {b}, {c}"),
            Self::Call(callee, arguments) => write!(out, "call f{callee}({})", List(arguments)),
            Self::Host(host, arguments) => {
                write!(out, "host {}({})", host.spec().name, List(arguments))
            }
            Self::TrapIf(a, code) => write!(out, "trap_if {a}, {code:?}"),
            Self::FuelLoad => write!(out, "fuel.load"),
            Self::FuelStore(a) => write!(out, "fuel.store {a}"),
            Self::PacketLength => write!(out, "packet.length"),
            Self::Opaque(a) => write!(out, "opaque {a}"),
        }
    }
}

impl Display for Terminator {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jump(edge) => write!(out, "jump {edge}"),
            Self::Branch(a, taken, not) => write!(out, "branch {a} ? {taken} : {not}"),
            Self::Switch(a, list, default) => {
                write!(out, "switch {a} [{}] else {default}", List(list))
            }
            Self::Return(values) => write!(out, "return {}", List(values)),
            Self::Trap(code, _) => write!(out, "trap {code:?}"),
        }
    }
}

impl Display for Access {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let region = match self.region {
            Region::Memory => "memory",
            Region::Behind => "behind",
            Region::Window => "window",
            Region::Metadata => "metadata",
            Region::Unknown { below: false } => "unknown",
            Region::Unknown { below: true } => "unknown, probably below",
        };
        let check = if self.bounds_check { ", checked" } else { "" };
        write!(out, "[{} + {} {region}{check}]", self.address, self.offset)
    }
}

impl Display for Edge {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{}({})", self.target, List(&self.arguments))
    }
}

impl Display for Value {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "v{}", self.0)
    }
}

impl Display for BlockId {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "b{}", self.0)
    }
}

impl Display for Type {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::I32 => "i32",
            Self::I64 => "i64",
        })
    }
}

impl Display for Width {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.bytes())
    }
}

/// Items separated by commas.
struct List<'a, T>(&'a [T]);

impl<T: Display> Display for List<'_, T> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        for (index, item) in self.0.iter().enumerate() {
            if index > 0 {
                out.write_str(", ")?;
            }
            item.fmt(out)?;
        }
        Ok(())
    }
}

fn lower(name: &impl fmt::Debug) -> String {
    format!("{name:?}").to_lowercase()
}
