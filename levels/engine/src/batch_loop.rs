//! Loop module that goes from one packet to the next: the same for every service.
//!
//! ```wat
//! (func (export "run") (local $verdict i32)
//!   (loop $next
//!     (if (call $step (local.get $verdict))
//!       (then (local.set $verdict (call $on_packet)) (br $next)))))
//! ```

use crate::MemoryKind;
use std::sync::{Arc, OnceLock};
use wasm_encoder::{
    BlockType, CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection,
    ImportSection, TypeSection, ValType,
};
use wasmtime::Module;

/// Name of its function.
pub(crate) const RUN: &str = "run";

/// Loop module compiled once for each kind of memory, since engines differ by it.
#[derive(Clone, Default)]
pub(crate) struct Loops(Arc<[OnceLock<Module>; MemoryKind::ALL.len()]>);

impl Loops {
    pub(crate) fn of(
        &self,
        kind: MemoryKind,
        engine: &wasmtime::Engine,
    ) -> wasmtime::Result<Module> {
        let place = &self.0[kind as usize];
        if let Some(module) = place.get() {
            return Ok(module.clone());
        }
        let module = Module::new(engine, wasm())?;
        Ok(place.get_or_init(|| module).clone())
    }
}

fn wasm() -> Vec<u8> {
    let mut types = TypeSection::new();
    types.ty().function([ValType::I32], [ValType::I32]);
    types.ty().function([], [ValType::I32]);
    types.ty().function([], []);
    let mut imports = ImportSection::new();
    imports.import("", "step", EntityType::Function(0));
    imports.import("", "on_packet", EntityType::Function(1));
    let mut functions = FunctionSection::new();
    functions.function(2);
    let mut exports = ExportSection::new();
    exports.export(RUN, ExportKind::Func, 2);
    let mut run = Function::new([(1, ValType::I32)]);
    run.instructions()
        .loop_(BlockType::Empty)
        .local_get(0)
        .call(0)
        .if_(BlockType::Empty)
        .call(1)
        .local_set(0)
        .br(1)
        .end()
        .end()
        .end();
    let mut code = CodeSection::new();
    code.function(&run);
    let mut module = wasm_encoder::Module::new();
    module.section(&types).section(&imports).section(&functions).section(&exports).section(&code);
    module.finish()
}
