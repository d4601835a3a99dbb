//! Engine wasmi, an interpreter that shares no code with wasmtime.

use wasmi::errors::{ErrorKind, TableError};
use wasmi::{Config, Engine, Linker, Module, Store, TrapCode, Val, ValType};

use super::{FUEL, Peer, PeerError, bits, returned, values};
use crate::outcome::{Ending, Outcome};

/// Instance in wasmi.
pub struct Wasmi {
    store: Store<()>,
    instance: wasmi::Instance,
}

impl Wasmi {
    /// Returns the engine, which all instances of a run share.
    #[must_use]
    pub fn engine() -> Engine {
        let mut config = Config::default();
        config.consume_fuel(true);
        Engine::new(&config)
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
            .instantiate_and_start(&mut store, &module)
            .map_err(|error| module_error(&error))?;
        Ok(Self { store, instance })
    }
}

impl Peer for Wasmi {
    const ENGINE: &'static str = "wasmi";

    fn try_call(&mut self, name: &str, arguments: &[u64]) -> Result<Outcome, String> {
        let function = self.instance.get_func(&self.store, name);
        let function = function.ok_or("there is no such function")?;
        let ty = function.ty(&self.store);
        let values = values(ty.params().iter(), arguments, value)?;
        let mut results = vec![Val::I32(0); ty.results().len()];
        self.store.set_fuel(FUEL).map_err(|error| error.to_string())?;
        match function.call(&mut self.store, &values, &mut results) {
            Ok(()) => returned(results.iter().map(|value| bits(value.i32(), value.i64()))),
            Err(error) => match ended(&error) {
                Some(ending) => Ok(Outcome::Trapped(ending)),
                None => Err(error.to_string()),
            },
        }
    }

    fn memory(&mut self, name: &str) -> Option<Vec<u8>> {
        let memory = self.instance.get_memory(&self.store, name)?;
        Some(memory.data(&self.store).to_vec())
    }

    fn global(&mut self, name: &str) -> Option<u64> {
        let value = self.instance.get_global(&self.store, name)?.get(&self.store);
        bits(value.i32(), value.i64())
    }
}

fn value(ty: &ValType, bits: u64) -> Option<Val> {
    match ty {
        ValType::I32 => Some(Val::I32(bits as u32 as i32)),
        ValType::I64 => Some(Val::I64(bits as i64)),
        _ => None,
    }
}

/// Returns the reason of a trap, also of the one that has no trap code in wasmi.
fn ended(error: &wasmi::Error) -> Option<Ending> {
    match error.kind() {
        ErrorKind::Table(TableError::CopyOutOfBounds) => Some(Ending::TableOutOfBounds),
        _ => ending(error.as_trap_code()?),
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
    PeerError::Module { engine: Wasmi::ENGINE, message: error.to_string() }
}
