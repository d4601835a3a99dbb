//! Hooks: what runs in an instance beside packets. They stand still like packets when their turn is
//! over, and so does the start of an instance.

use crate::host::{Host, window_of};
use crate::instance::{Instance, InstanceSpec};
use crate::state::{Kept, StateError};
use crate::trap::{StartError, StartRefusal, Trap};
use crate::{Engine, Program};
use abi::PacketBytes;
use abi::host::{Hook, QUEUE_DROPPED, QUEUE_HEAD_MAX, QUEUE_LONG, QUEUE_SHORT};
use abi::layout::WINDOW_LENGTH_MAX;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use wasmtime::Store;

/// A hook to run.
#[derive(Clone, Debug)]
pub enum Call {
    /// `on_timer`.
    Timer {
        /// The node's time.
        now_ms: u64,
    },
    /// `on_message`, with the message where the window lies.
    Message {
        /// The message.
        message: Rc<[u8]>,
        /// The node's time.
        now_ms: u64,
    },
    /// `on_memory_low`: what its session uses of its memory, and how much that is, in KiB.
    MemoryLow {
        /// What it uses.
        used: u32,
        /// What it has.
        most: u32,
        /// The node's time.
        now_ms: u64,
    },
    /// `on_queue`: what happened to its session's queue.
    Queue {
        /// What, and how much waits.
        event: QueueEvent,
        /// The node's time.
        now_ms: u64,
    },
    /// `state_out`.
    StateOut {
        /// The node's time.
        now_ms: u64,
    },
}

/// What happens to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueEvent {
    /// No more waits than the lower threshold; so many KiB do.
    Short(u32),
    /// More waits than the higher one.
    Long(u32),
    /// There was no room for a packet that began so; at most [`QUEUE_HEAD_MAX`] bytes.
    Dropped(Rc<[u8]>),
}

/// How a hook ended. The instance must not be called again after a trap.
#[derive(Debug)]
pub enum Ended {
    /// `on_timer`, `on_memory_low` or `on_queue`; also when the module has none.
    Timer(Result<(), Trap>),
    /// `on_message`: its answer, `None` when the module has no such hook or the message is too
    /// long.
    Message(Result<Option<i32>, Trap>),
    /// `state_out`: what it wrote.
    State(Result<Kept, StateError>),
}

type Start<P> = Pin<Box<dyn Future<Output = Result<Instance<P>, StartError>>>>;

/// An instance whose `on_start` or `state_in` has not ended yet. Dropped, it ends there.
pub struct Starting<P: 'static>(Start<P>);

/// How far a start has come.
pub enum Started<P: 'static> {
    /// To its end.
    Ended(Result<Box<Instance<P>>, StartError>),
    /// It stands still.
    Suspended(Starting<P>),
}

impl<P: PacketBytes + 'static> Program<P> {
    /// Makes an instance: fresh memory, then what `kept` says of an instance before; `on_start`
    /// runs when it is resumed.
    ///
    /// # Errors
    /// When memory or exports are not as the ABI says.
    pub fn begin(
        &self,
        engine: &Engine,
        spec: &InstanceSpec,
        kept: Option<Kept>,
        now_ms: u64,
    ) -> Result<Starting<P>, StartError> {
        let mut instance = self.make(engine, spec)?;
        Ok(Starting(Box::pin(async move {
            match kept {
                None => instance.started().await?,
                Some(Kept::Memory { bytes, globals }) => {
                    instance.put_memory(&bytes, &globals)?;
                    instance.started().await?;
                }
                Some(Kept::Handed { bytes, counters }) => {
                    instance.started().await?;
                    instance.state_in(bytes, &counters, now_ms).await?;
                }
            }
            Ok(instance)
        })))
    }

    /// Starts an instance to its end, however long that takes.
    ///
    /// # Errors
    /// As [`Program::begin`], and when `on_start` traps or refuses.
    pub fn start(&self, engine: &Engine, spec: &InstanceSpec) -> Result<Instance<P>, StartError> {
        self.start_with(engine, spec, None, 0)
    }

    /// The same in the place of another, with what that one left.
    ///
    /// # Errors
    /// As [`Program::start`], and when the state cannot be taken.
    pub fn start_with(
        &self,
        engine: &Engine,
        spec: &InstanceSpec,
        kept: Option<Kept>,
        now_ms: u64,
    ) -> Result<Instance<P>, StartError> {
        let mut starting = self.begin(engine, spec, kept, now_ms)?;
        loop {
            match starting.resume() {
                Started::Ended(ended) => return ended.map(|instance| *instance),
                Started::Suspended(again) => starting = again,
            }
        }
    }
}

impl<P: PacketBytes + 'static> Starting<P> {
    /// Goes on, as far as its pace lets it.
    #[must_use]
    pub fn resume(mut self) -> Started<P> {
        // Nobody is to be woken: whoever suspended it resumes it.
        let mut context = Context::from_waker(Waker::noop());
        match self.0.as_mut().poll(&mut context) {
            Poll::Ready(ended) => Started::Ended(ended.map(Box::new)),
            Poll::Pending => Started::Suspended(self),
        }
    }
}

impl<P: PacketBytes + 'static> Instance<P> {
    /// Runs `on_timer`, when the module has one, to its end: for those in whose way nobody is.
    ///
    /// # Errors
    /// The trap that ended the instance.
    pub fn on_timer(&mut self, now_ms: u64) -> Result<(), Trap> {
        let mut running = pin!(self.timer(now_ms));
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(ended) = running.as_mut().poll(&mut context) {
                return ended;
            }
        }
    }

    /// Runs a hook.
    pub(crate) async fn end(&mut self, call: Call) -> Ended {
        match call {
            Call::Timer { now_ms } => Ended::Timer(self.timer(now_ms).await),
            Call::Message { message, now_ms } => {
                Ended::Message(self.message(&message, now_ms).await)
            }
            Call::MemoryLow { used, most, now_ms } => {
                Ended::Timer(self.memory_low(used, most, now_ms).await)
            }
            Call::Queue { event, now_ms } => Ended::Timer(self.queue(&event, now_ms).await),
            Call::StateOut { now_ms } => Ended::State(self.state_out(now_ms).await),
        }
    }

    async fn timer(&mut self, now_ms: u64) -> Result<(), Trap> {
        let Some(on_timer) = self.rest.on_timer.clone() else { return Ok(()) };
        self.hook(Hook::OnTimer, now_ms, async |store| on_timer.call_async(store, ()).await).await
    }

    async fn message(&mut self, message: &[u8], now_ms: u64) -> Result<Option<i32>, Trap> {
        let Some(on_message) = self.rest.on_message.clone() else { return Ok(None) };
        let memory = self.memory.data_mut(&mut self.store);
        let Some(window) =
            window_of(memory, message.len()).filter(|w| w.len() <= WINDOW_LENGTH_MAX as usize)
        else {
            return Ok(None);
        };
        window.copy_from_slice(message);
        let length = message.len() as u32;
        let hook = async |store: &mut Store<Host<P>>| on_message.call_async(store, length).await;
        self.hook(Hook::OnMessage, now_ms, hook).await.map(Some)
    }

    async fn memory_low(&mut self, used: u32, most: u32, now_ms: u64) -> Result<(), Trap> {
        let Some(on_memory_low) = self.rest.on_memory_low.clone() else { return Ok(()) };
        let hook =
            async |store: &mut Store<Host<P>>| on_memory_low.call_async(store, (used, most)).await;
        self.hook(Hook::OnMemoryLow, now_ms, hook).await
    }

    async fn queue(&mut self, event: &QueueEvent, now_ms: u64) -> Result<(), Trap> {
        let Some(on_queue) = self.rest.on_queue.clone() else { return Ok(()) };
        let arguments = match event {
            QueueEvent::Short(waits) => (QUEUE_SHORT, *waits),
            QueueEvent::Long(waits) => (QUEUE_LONG, *waits),
            QueueEvent::Dropped(head) => {
                let head = &head[..head.len().min(QUEUE_HEAD_MAX)];
                let memory = self.memory.data_mut(&mut self.store);
                let Some(window) = window_of(memory, head.len()) else { return Ok(()) };
                window.copy_from_slice(head);
                (QUEUE_DROPPED, head.len() as u32)
            }
        };
        let hook = async |store: &mut Store<Host<P>>| on_queue.call_async(store, arguments).await;
        self.hook(Hook::OnQueue, now_ms, hook).await
    }

    /// Once, before the first packet.
    async fn started(&mut self) -> Result<(), StartError> {
        self.store.data_mut().hook = Hook::OnPacket;
        let Some(on_start) = self.rest.on_start.take() else { return Ok(()) };
        let hook = async |store: &mut Store<Host<P>>| on_start.call_async(store, ()).await;
        match self.hook(Hook::OnStart, 0, hook).await {
            Ok(0) => {
                self.rest.refusals.clear();
                Ok(())
            }
            Ok(number) => {
                let known = u16::try_from(number).ok();
                let meaning = known.and_then(|number| self.rest.refusals.remove(&number));
                Err(StartError::Refused(StartRefusal { number, meaning }))
            }
            Err(trap) => Err(StartError::Trapped(trap)),
        }
    }

    pub(crate) async fn hook<R>(
        &mut self,
        hook: Hook,
        now_ms: u64,
        call: impl AsyncFnOnce(&mut Store<Host<P>>) -> wasmtime::Result<R>,
    ) -> Result<R, Trap> {
        let host = self.store.data_mut();
        host.hook = hook;
        host.now_ms = now_ms;
        host.calls += 1;
        host.can_suspend = true;
        self.arm();
        let result = call(&mut self.store).await;
        let host = self.store.data_mut();
        host.hook = Hook::OnPacket;
        host.can_suspend = false;
        result.map_err(|error| host.trap(&error))
    }
}
