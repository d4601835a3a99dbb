//! Start of a VM: instantiation, and the callbacks until it is configured.

use crate::abi::LogLevel;
use crate::effect::Effect;
use crate::epoch::watch;
use crate::host::Host;
use crate::limits::CONFIGURATION_LENGTH_MAX;
use crate::program::Program;
use crate::spec::{Now, VmSpec};
use crate::vm::{StartError, Vm};
use engine::Trap;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use wasmtime::Store;

/// A start failed; its effects may include the module's own reason in the log.
#[derive(Debug)]
pub struct StartFailure {
    /// Reason of the failure.
    pub error: StartError,
    /// Effects of the start.
    pub effects: Vec<Effect>,
}

impl StartFailure {
    /// Returns the reason, with the last error that the module has logged, if any.
    #[must_use]
    pub fn reason(&self) -> String {
        let logged = self.effects.iter().rev().find_map(|effect| match effect {
            Effect::Log { level, text } if *level >= LogLevel::Error => Some(text.as_str()),
            _ => None,
        });
        logged.map_or_else(|| self.error.to_string(), |logged| format!("{}: {logged}", self.error))
    }
}

/// Progress of a start.
pub enum Started {
    /// Ended start: a VM, and the effects of its start.
    Ended(Result<(Box<Vm>, Vec<Effect>), StartFailure>),
    /// Suspended start, until it is resumed.
    Suspended(Starting),
}

type Start = Pin<Box<dyn Future<Output = Result<(Box<Vm>, Vec<Effect>), StartFailure>>>>;

/// Start that has not ended yet. Dropping it abandons the start.
pub struct Starting {
    running: Start,
    stop: Rc<Cell<bool>>,
}

impl Starting {
    /// Prepares the start of a VM: the module's own start, the root context, `proxy_on_vm_start`,
    /// `proxy_on_configure`. It runs when it is resumed.
    #[must_use]
    pub fn new(program: &Program, spec: VmSpec, now: Now) -> Self {
        let stop = Rc::new(Cell::new(false));
        let (program, flag) = (program.clone(), Rc::clone(&stop));
        let running = Box::pin(async move { start(&program, spec, now, flag).await });
        Self { running, stop }
    }

    /// Resumes the start, as far as its pace allows.
    #[must_use]
    pub fn resume(mut self) -> Started {
        // No waker is needed: the caller that suspended it resumes it.
        match self.running.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(ended) => Started::Ended(ended),
            Poll::Pending => Started::Suspended(self),
        }
    }

    /// Ends the suspended callback with [`engine::TrapKind::TimeLimit`].
    #[must_use]
    pub fn stop(self) -> Started {
        self.stop.set(true);
        self.resume()
    }

    /// Runs the start to its end, however long that takes.
    ///
    /// # Errors
    /// The start failed.
    pub fn finish(mut self) -> Result<(Box<Vm>, Vec<Effect>), StartFailure> {
        loop {
            match self.resume() {
                Started::Ended(ended) => return ended,
                Started::Suspended(again) => self = again,
            }
        }
    }
}

/// Instantiates a module and runs its start, as the store's pace allows.
async fn start(
    program: &Program,
    spec: VmSpec,
    now: Now,
    stop: Rc<Cell<bool>>,
) -> Result<(Box<Vm>, Vec<Effect>), StartFailure> {
    let without = |error| StartFailure { error, effects: Vec::new() };
    for configuration in [&spec.vm_configuration, &spec.plugin_configuration] {
        let bytes = configuration.len();
        if bytes > CONFIGURATION_LENGTH_MAX {
            return Err(without(StartError::Configuration { bytes }));
        }
    }
    let call_slices = if spec.pace.is_some() { 1 } else { spec.call_slices };
    let mut store = Store::new(program.engine.inner(), Host::new(spec, Rc::clone(&stop)));
    store.limiter(|host| &mut host.limits);
    watch(&mut store);
    store.set_epoch_deadline(call_slices);
    let host = store.data_mut();
    host.now = now;
    host.calls += 1;
    let made = program.ready.instantiate_async(&mut store).await;
    let instance = match made {
        Ok(instance) => instance,
        Err(error) => {
            store.data_mut().end_lines();
            let effects = store.data_mut().effects.take().0;
            let is_trap = error.is::<wasmtime::Trap>();
            let error = if is_trap {
                StartError::Trapped("the start function", Trap::from_error(&error))
            } else {
                StartError::Instantiate(format!("{error:#}"))
            };
            return Err(StartFailure { error, effects });
        }
    };
    let mut vm = Box::new(Vm::new(store, &instance, stop, call_slices));
    match vm.start().await {
        Ok(()) => {
            let effects = vm.take_effects().0;
            Ok((vm, effects))
        }
        Err(error) => Err(StartFailure { error, effects: vm.take_effects().0 }),
    }
}
