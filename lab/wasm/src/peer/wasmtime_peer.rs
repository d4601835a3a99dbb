//! wasmtime.

use wasmtime::{Config, Engine, Extern, Linker, Module, Store, Trap, Val, ValType};

use super::{FUEL, Peer, PeerError};
use crate::outcome::{Ending, Outcome};

const ENGINE: &str = "wasmtime";

/// An instance in wasmtime.
pub struct Wasmtime {
    store: Store<()>,
    instance: wasmtime::Instance,
}

impl Wasmtime {
    /// The engine, which all instances of a run share.
    ///
    /// # Errors
    /// When it cannot be made on this machine.
    pub fn engine() -> Result<Engine, PeerError> {
        let mut config = Config::new();
        config.consume_fuel(true);
        Engine::new(&config).map_err(|error| module_error(&error))
    }

    /// An instance of a module that imports nothing.
    ///
    /// # Errors
    /// When it is not valid there, or its start traps.
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
    fn call(&mut self, name: &str, arguments: &[u64]) -> Result<Outcome, PeerError> {
        let refused =
            |message: String| PeerError::Call { engine: ENGINE, name: name.into(), message };
        let Some(function) = self.instance.get_func(&mut self.store, name) else {
            return Err(refused("there is no such function".into()));
        };
        let ty = function.ty(&self.store);
        if ty.params().len() != arguments.len() {
            return Err(refused(format!("it takes {} arguments", ty.params().len())));
        }
        let value = |(ty, bits): (ValType, &u64)| match ty {
            ValType::I32 => Some(Val::I32(*bits as u32 as i32)),
            ValType::I64 => Some(Val::I64(*bits as i64)),
            _ => None,
        };
        let values: Option<Vec<Val>> = ty.params().zip(arguments).map(value).collect();
        let values = values.ok_or_else(|| refused("an argument is no integer".into()))?;
        let mut results = vec![Val::I32(0); ty.results().len()];
        self.store.set_fuel(FUEL).map_err(|error| refused(error.to_string()))?;
        match function.call(&mut self.store, &values, &mut results) {
            Ok(()) => {
                let bits: Option<Vec<u64>> = results.iter().map(bits).collect();
                let bits = bits.ok_or_else(|| refused("a result is no integer".into()))?;
                Ok(Outcome::Returned(bits))
            }
            Err(error) => match error.downcast_ref::<Trap>().and_then(|trap| ending(*trap)) {
                Some(ending) => Ok(Outcome::Trapped(ending)),
                None => Err(refused(format!("{error:#}"))),
            },
        }
    }

    fn memory(&mut self, name: &str) -> Option<Vec<u8>> {
        let memory = self.instance.get_memory(&mut self.store, name)?;
        Some(memory.data(&self.store).to_vec())
    }

    fn global(&mut self, name: &str) -> Option<u64> {
        match self.instance.get_export(&mut self.store, name)? {
            Extern::Global(global) => bits(&global.get(&mut self.store)),
            _ => None,
        }
    }
}

fn bits(value: &Val) -> Option<u64> {
    match value {
        Val::I32(number) => Some(u64::from(*number as u32)),
        Val::I64(number) => Some(*number as u64),
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
    PeerError::Module { engine: ENGINE, message: format!("{error:#}") }
}
