//! Module under attack in the kernel, and a witness beside it that must not be affected.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cell::below::give_bytes;
use rustix::time::{ClockId, clock_gettime};
use wasm_lab::{Instance, KernelError, Loaded};
use wasm_to_bpf::{Entry, Flavour, Options, Program, layout};

pub const WINDOW: u32 = 64;
/// Limits of a worker that compiles one module: `node/cell/src/compile.rs`.
const COMPILE_TIME_MAX: Duration = Duration::from_secs(20);
/// Most instructions that the verifier accepts.
const INSTRUCTIONS_MAX: usize = 1_000_000;
/// Fuel of a call that shall not end.
pub const FUEL: u64 = 1 << 20;
pub const FLAVOURS: [Flavour; 2] = [Flavour::Xdp, Flavour::Tc];

/// End of an attack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The compiler refused with this code.
    Refused(&'static str),
    /// The verifier gave up on its complexity.
    TooComplex,
    /// The module runs.
    Runs,
}

pub fn compile(bytes: &[u8], flavour: Flavour) -> Result<Program, &'static str> {
    let entry = Entry::Packet { window: WINDOW, standalone: true };
    let options = Options { entry, flavour, memory_pages_max: 4, functions: Default::default() };
    let begun = processor_time();
    let compiled = wasm_to_bpf::compile(bytes, &options);
    let took = processor_time() - begun;
    assert!(took < COMPILE_TIME_MAX, "compiling took {took:?} of processor time");
    match compiled {
        Ok(program) => {
            assert!(program.instructions.len() <= INSTRUCTIONS_MAX);
            Ok(program)
        }
        Err(refusals) => {
            let first = refusals.first().expect("a refusal has a reason");
            assert_ne!(first.code(), "internal", "{first}");
            Err(first.code())
        }
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Module in the kernel.
pub struct Subject {
    pub instance: Instance,
    pub program: Loaded,
}

impl Subject {
    pub fn load(bytes: &[u8], flavour: Flavour) -> Result<Self, End> {
        let program = compile(bytes, flavour).map_err(End::Refused)?;
        let instance = Instance::new(&program.image).unwrap();
        instance.block().u64(layout::FUEL_BUDGET).unwrap().store(FUEL, Ordering::Release);
        match instance.load(&program) {
            Ok(program) => Ok(Self { instance, program }),
            Err(KernelError::Load(bpf::RawLoadError::TooComplex { .. })) => Err(End::TooComplex),
            Err(error) => panic!("neither a typed reason nor a program: {error}"),
        }
    }

    /// Runs a packet; returns the verdict, or the trap code.
    pub fn run(&self, packet: &[u8]) -> Result<u32, u32> {
        let length = packet.len() as u64;
        let mut metadata = [0; 64];
        metadata[..8].copy_from_slice(&(length | length.min(WINDOW.into()) << 32).to_ne_bytes());
        give_bytes(self.instance.hand_over(), &metadata);
        let code = self.instance.block().u32(layout::TRAP_CODE).unwrap();
        code.store(0, Ordering::Release);
        let run = self.instance.packet(&self.program, packet).unwrap();
        match code.load(Ordering::Acquire) {
            0 => Ok(run.retval),
            code => Err(code),
        }
    }

    pub fn fuel_used(&self) -> u64 {
        let account = self.instance.hand_over().u64(layout::hand_over::FUEL_USED);
        account.unwrap().load(Ordering::Acquire)
    }
}

/// Module that drops each packet with its number as the reason.
pub const WITNESS: &str = r#"(module (memory (export "memory") 1)
    (global $n (mut i32) (i32.const 0))
    (func (export "on_packet") (result i32)
      (global.set $n (i32.add (global.get $n) (i32.const 1)))
      (i32.or (i32.const 1) (i32.shl (global.get $n) (i32.const 16)))))"#;

/// Program that was loaded before the attack.
pub struct Witness {
    subject: Subject,
    packets: u32,
}

impl Witness {
    pub fn new() -> Self {
        let subject = Subject::load(&wat::parse_str(WITNESS).unwrap(), Flavour::Xdp);
        Self { subject: subject.unwrap_or_else(|end| panic!("{end:?}")), packets: 0 }
    }

    pub fn works(&mut self) {
        self.packets += 1;
        assert_eq!(self.subject.run(&[0; 64]), Ok(1 | self.packets << 16));
    }
}

pub fn privileged() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        testbase::skip_this("BPF programs need root");
    }
    root
}
