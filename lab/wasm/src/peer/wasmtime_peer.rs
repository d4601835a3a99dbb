//! Engine wasmtime.

use wasmtime::{Config, Engine, Linker, Module, RefType, Store, Trap, Val, ValType};

use super::{FUEL, Peer, PeerError, bits, returned, values};
use crate::outcome::{Ending, Outcome};

/// Instance in wasmtime.
pub struct Wasmtime {
    store: Store<()>,
    instance: wasmtime::Instance,
}

impl Wasmtime {
    /// Returns the engine, which all instances of a run share.
    ///
    /// # Errors
    /// The engine cannot be made on this machine.
    pub fn engine() -> Result<Engine, PeerError> {
        let mut config = Config::new();
        config.consume_fuel(true);
        Engine::new(&config).map_err(|error| module_error(&error))
    }

    /// Instantiates a module that imports nothing.
    ///
    /// # Errors
    /// The module is not valid there, or its start function traps.
    pub fn new(engine: &Engine, bytes: &[u8]) -> Result<Self, PeerError> {
        let module = Module::new(engine, bytes).map_err(|error| module_error(&error))?;
        let mut store = Store::new(engine, ());
        store.set_fuel(FUEL).map_err(|error| module_error(&error))?;
        let instance = Linker::new(engine)
            .instantiate(&mut store, &module)
            .map_err(|error| module_error(&error))?;
        Ok(Self { store, instance })
    }
}

impl Peer for Wasmtime {
    const ENGINE: &'static str = "wasmtime";

    fn try_call(&mut self, name: &str, arguments: &[u64]) -> Result<Outcome, String> {
        let function = self.instance.get_func(&mut self.store, name);
        let function = function.ok_or("there is no such function")?;
        let ty = function.ty(&self.store);
        let values = values(ty.params(), arguments, value)?;
        let mut results = vec![Val::I32(0); ty.results().len()];
        self.store.set_fuel(FUEL).map_err(|error| error.to_string())?;
        match function.call(&mut self.store, &values, &mut results) {
            Ok(()) => returned(results.iter().map(|value| match value {
                // Every engine numbers functions differently.
                Val::FuncRef(function) => Some(u64::from(function.is_some())),
                _ => bits(value.i32(), value.i64()),
            })),
            Err(error) => match error.downcast_ref::<Trap>().and_then(|trap| ending(*trap)) {
                Some(ending) => Ok(Outcome::Trapped(ending)),
                None => Err(format!("{error:#}")),
            },
        }
    }

    fn memory(&mut self, name: &str) -> Option<Vec<u8>> {
        let memory = self.instance.get_memory(&mut self.store, name)?;
        Some(memory.data(&self.store).to_vec())
    }

    fn global(&mut self, name: &str) -> Option<u64> {
        let value = self.instance.get_global(&mut self.store, name)?.get(&mut self.store);
        bits(value.i32(), value.i64())
    }
}

fn value(ty: ValType, bits: u64) -> Option<Val> {
    match ty {
        ValType::I32 => Some(Val::I32(bits as u32 as i32)),
        ValType::I64 => Some(Val::I64(bits as i64)),
        ValType::Ref(ty) if bits == 0 && ty.matches(&RefType::FUNCREF) => Some(Val::FuncRef(None)),
        _ => None,
    }
}

fn ending(trap: Trap) -> Option<Ending> {
    Some(match trap {
        Trap::UnreachableCodeReached => Ending::Unreachable,
        Trap::MemoryOutOfBounds => Ending::OutOfBounds,
        Trap::IntegerDivisionByZero => Ending::DivisionByZero,
        Trap::IntegerOverflow => Ending::IntegerOverflow,
        Trap::TableOutOfBounds => Ending::TableOutOfBounds,
        Trap::IndirectCallToNull => Ending::NullFunction,
        Trap::BadSignature => Ending::WrongSignature,
        Trap::OutOfFuel | Trap::StackOverflow => Ending::Exhausted,
        _ => return None,
    })
}

fn module_error(error: &wasmtime::Error) -> PeerError {
    PeerError::Module { engine: Wasmtime::ENGINE, message: format!("{error:#}") }
}
