//! wasmi, an interpreter that shares no code with wasmtime.

use wasmi::{Config, Engine, Extern, Linker, Module, Store, TrapCode, Val, ValType};

use super::{FUEL, Peer, PeerError};
use crate::outcome::{Ending, Outcome};

const ENGINE: &str = "wasmi";

/// An instance in wasmi.
pub struct Wasmi {
    store: Store<()>,
    instance: wasmi::Instance,
}

impl Wasmi {
    /// The engine, which all instances of a run share.
    #[must_use]
    pub fn engine() -> Engine {
        let mut config = Config::default();
        config.consume_fuel(true);
        Engine::new(&config)
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
            .instantiate_and_start(&mut store, &module)
            .map_err(|error| module_error(&error))?;
        Ok(Self { store, instance })
    }
}

impl Peer for Wasmi {
    fn call(&mut self, name: &str, arguments: &[u64]) -> Result<Outcome, PeerError> {
        let refused =
            |message: String| PeerError::Call { engine: ENGINE, name: name.into(), message };
        let Some(function) = self.instance.get_func(&self.store, name) else {
            return Err(refused("there is no such function".into()));
        };
        let ty = function.ty(&self.store);
        if ty.params().len() != arguments.len() {
            return Err(refused(format!("it takes {} arguments", ty.params().len())));
        }
        let value = |(ty, bits): (&ValType, &u64)| match ty {
            ValType::I32 => Some(Val::I32(*bits as u32 as i32)),
            ValType::I64 => Some(Val::I64(*bits as i64)),
            _ => None,
        };
        let values: Option<Vec<Val>> = ty.params().iter().zip(arguments).map(value).collect();
        let values = values.ok_or_else(|| refused("an argument is no integer".into()))?;
        let mut results = vec![Val::I32(0); ty.results().len()];
        self.store.set_fuel(FUEL).map_err(|error| refused(error.to_string()))?;
        match function.call(&mut self.store, &values, &mut results) {
            Ok(()) => {
                let bits: Option<Vec<u64>> = results.iter().map(bits).collect();
                let bits = bits.ok_or_else(|| refused("a result is no integer".into()))?;
                Ok(Outcome::Returned(bits))
            }
            Err(error) => match error.as_trap_code().and_then(ending) {
                Some(ending) => Ok(Outcome::Trapped(ending)),
                None => Err(refused(error.to_string())),
            },
        }
    }

    fn memory(&mut self, name: &str) -> Option<Vec<u8>> {
        let memory = self.instance.get_memory(&self.store, name)?;
        Some(memory.data(&self.store).to_vec())
    }

    fn global(&mut self, name: &str) -> Option<u64> {
        match self.instance.get_export(&self.store, name)? {
            Extern::Global(global) => bits(&global.get(&self.store)),
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

fn ending(trap: TrapCode) -> Option<Ending> {
    Some(match trap {
        TrapCode::UnreachableCodeReached => Ending::Unreachable,
        TrapCode::MemoryOutOfBounds => Ending::OutOfBounds,
        TrapCode::IntegerDivisionByZero => Ending::DivisionByZero,
        TrapCode::IntegerOverflow => Ending::IntegerOverflow,
        TrapCode::TableOutOfBounds => Ending::TableOutOfBounds,
        TrapCode::IndirectCallToNull => Ending::NullFunction,
        TrapCode::BadSignature => Ending::WrongSignature,
        TrapCode::OutOfFuel | TrapCode::StackOverflow => Ending::Exhausted,
        _ => return None,
    })
}

fn module_error(error: &wasmi::Error) -> PeerError {
    PeerError::Module { engine: ENGINE, message: error.to_string() }
}
