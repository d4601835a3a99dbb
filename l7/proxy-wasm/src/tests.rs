//! Tests of the host: with small modules as text, and filters made with public SDKs.

mod bounds;
mod callbacks;
mod checks;
mod compress;
mod functions;
#[cfg(feature = "peers")]
mod go;
mod hostile;
mod sdk;
mod values;

use crate::abi::{self, Action, CALLBACKS, ENV, LogLevel, Status, WASI};
use crate::{
    Answer, Call, CallError, Effect, Engine, HeaderMap, Now, Outcome, Protocol, Random, Shared,
    StartFailure, Starting, Stream, Vm, VmSpec,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::rc::Rc;
use std::sync::OnceLock;

const NOW: Now = Now { real_ns: 1_700_000_000_000_000_000, monotonic_ns: 5_000_000 };

/// Address at which scripts store the results of their calls, one word each.
const ANSWERS: u32 = 0x1000;
/// Address at which scripts' allocators start.
const HEAP: u32 = 0x4000;

/// Status numbers.
const OK: u32 = Status::Ok.number();
const NOT_FOUND: u32 = Status::NotFound.number();
const BAD_ARGUMENT: u32 = Status::BadArgument.number();
const NO_MEMORY_THERE: u32 = Status::InvalidMemoryAccess.number();
const EMPTY: u32 = Status::Empty.number();
const CAS_MISMATCH: u32 = Status::CasMismatch.number();
const FAILED: u32 = Status::InternalFailure.number();
const SERIALIZATION_FAILED: u32 = Status::SerializationFailure.number();

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::new().unwrap())
}

struct Sevens;

impl Random for Sevens {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

fn spec() -> VmSpec {
    let upper: crate::ForeignFunction = Rc::new(|_, bytes| Ok(bytes.to_ascii_uppercase()));
    let fails: crate::ForeignFunction = Rc::new(|_, _| Err(abi::Status::SerializationFailure));
    VmSpec {
        number: 3,
        plugin_name: "filter".to_owned(),
        root_id: "root".to_owned(),
        vm_id: "vm".to_owned(),
        vm_configuration: Rc::from(b"vm-conf".as_slice()),
        plugin_configuration: Rc::from(b"filter-conf".as_slice()),
        environment: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
        upstreams: BTreeSet::from(["authority".to_owned()]),
        log_level: LogLevel::Trace,
        memory_bytes_max: 16 << 20,
        // All tests of pace raise the shared epoch.
        call_slices: 1 << 40,
        pace: None,
        room: None,
        random: Rc::new(Sevens),
        foreign: Rc::new(BTreeMap::from([
            ("upper".to_owned(), upper),
            ("fails".to_owned(), fails),
        ])),
        shared: Rc::new(RefCell::new(Shared::default())),
    }
}

fn http(headers: &[(&str, &str)]) -> Stream {
    let mut stream = Stream::new(Protocol::Http);
    stream.downstream.headers = headers.iter().collect_fields();
    stream
}

trait CollectFields {
    fn collect_fields(self) -> HeaderMap;
}

impl<'a, I: Iterator<Item = &'a (&'a str, &'a str)>> CollectFields for I {
    fn collect_fields(self) -> HeaderMap {
        self.copied().collect()
    }
}

fn fields(headers: &[(&str, &str)]) -> HeaderMap {
    headers.iter().collect_fields()
}

/// VM under test.
struct Tried {
    vm: Option<Box<Vm>>,
    /// Log lines so far.
    log: Vec<String>,
    /// Other effects so far.
    effects: Vec<Effect>,
}

impl Tried {
    fn start(wasm: &[u8], spec: VmSpec) -> Result<Self, StartFailure> {
        crate::check(wasm).unwrap();
        let (vm, effects) = Starting::new(&engine().program(wasm).unwrap(), spec, NOW).finish()?;
        let mut tried = Self { vm: Some(vm), log: Vec::new(), effects: Vec::new() };
        tried.note(effects);
        Ok(tried)
    }

    fn text(text: &str) -> Self {
        Self::start(&wat::parse_str(text).unwrap(), spec()).unwrap()
    }

    fn note(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Log { text, .. } => self.log.push(text),
                other => self.effects.push(other),
            }
        }
    }

    fn outcome(&mut self, call: Call) -> Outcome {
        let (vm, mut outcome) = self.vm.take().unwrap().call(call, NOW).finish();
        self.vm = Some(vm);
        self.note(std::mem::take(&mut outcome.effects));
        outcome
    }

    fn call(&mut self, call: Call) -> Result<Answer, CallError> {
        self.outcome(call).answer
    }

    fn action(&mut self, call: Call) -> Action {
        match self.call(call) {
            Ok(Answer::Action(action)) => action,
            other => panic!("no action: {other:?}"),
        }
    }

    fn create(&mut self, stream: Stream) -> u32 {
        match self.call(Call::Create(Box::new(stream))) {
            Ok(Answer::Created(context)) => context,
            other => panic!("not created: {other:?}"),
        }
    }

    fn stream(&mut self, context: u32) -> &mut Stream {
        self.vm.as_mut().unwrap().stream_mut(context).unwrap()
    }

    fn memory(&self, address: u32, length: usize) -> Vec<u8> {
        let vm = self.vm.as_ref().unwrap();
        let memory = vm.store.data().memory.unwrap();
        memory.data(&vm.store)[address as usize..][..length].to_vec()
    }

    fn word(&self, address: u32) -> u32 {
        u32::from_le_bytes(self.memory(address, 4).try_into().unwrap())
    }

    /// Returns the bytes whose address and length are at these addresses.
    fn answer_at(&self, data_at: u32, size_at: u32) -> Vec<u8> {
        self.memory(self.word(data_at), self.word(size_at) as usize)
    }

    fn answers(&self, count: usize) -> Vec<u32> {
        (0..count as u32).map(|index| self.word(ANSWERS + 4 * index)).collect()
    }
}

/// Host function with its arguments.
type Step<'a> = (&'a str, &'a [i64]);

/// Builder of a module that makes calls in its callbacks, and stores the results.
#[derive(Default)]
struct Script {
    imports: BTreeSet<String>,
    functions: String,
    data: String,
    count: u32,
    has_allocator: bool,
}

impl Script {
    fn new() -> Self {
        Self::default()
    }

    /// Adds bytes to the initial memory.
    fn data(mut self, address: u32, bytes: &[u8]) -> Self {
        let escaped: String = bytes.iter().map(|byte| format!("\\{byte:02x}")).collect();
        let _ = write!(self.data, "(data (i32.const {address}) \"{escaped}\")");
        self
    }

    /// Adds a callback that makes these calls and returns `result`.
    fn on(mut self, callback: &str, steps: &[Step<'_>], result: u32) -> Self {
        let mut body = String::new();
        for (name, arguments) in steps {
            let address = ANSWERS + 4 * self.count;
            self.count += 1;
            let call = self.invocation(name, arguments);
            let _ = write!(body, "(i32.store (i32.const {address}) {call})");
        }
        let _ = write!(body, "(i32.const {result})");
        self.exporting(callback, &body)
    }

    /// Adds a callback with this body, which leaves the result; surplus values are dropped.
    fn exporting(mut self, callback: &str, body: &str) -> Self {
        self.has_allocator |= callback == "proxy_on_memory_allocate";
        let signature = CALLBACKS.iter().find(|it| it.name == callback).unwrap().signature;
        let parameters = types(signature.parameters);
        let (result, drop) = match signature.results {
            "" => ("", "drop"),
            _ => ("(result i32)", ""),
        };
        let _ = write!(
            self.functions,
            r#"(func (export "{callback}") (param {parameters}) {result} {body} {drop})"#
        );
        self
    }

    /// Returns a call of a host function as text, and adds its import.
    fn invocation(&mut self, name: &str, arguments: &[i64]) -> String {
        let module = if abi::host_function(ENV, name).is_some() { ENV } else { WASI };
        let signature = abi::host_function(module, name).unwrap();
        assert_eq!(signature.parameters.len(), arguments.len(), "{name}");
        let result = if signature.results.is_empty() { "" } else { "(result i32)" };
        self.imports.insert(format!(
            r#"(import "{module}" "{name}" (func ${name} (param {}) {result}))"#,
            types(signature.parameters)
        ));
        let mut call = format!("(call ${name}");
        for (letter, argument) in signature.parameters.chars().zip(arguments) {
            let ty = if letter == 'i' { "i32" } else { "i64" };
            let argument =
                if letter == 'i' { i64::from(*argument as u32 as i32) } else { *argument };
            let _ = write!(call, " ({ty}.const {argument})");
        }
        call + ")"
    }

    /// Returns the module as text. Without an allocator of its own it gets one that never frees.
    fn text(&self) -> String {
        let allocator = if self.has_allocator {
            ""
        } else {
            r#"(func (export "proxy_on_memory_allocate") (param i32) (result i32)
                 (global.get $heap)
                 (global.set $heap (i32.add (global.get $heap) (local.get 0))))"#
        };
        let imports: String = self.imports.iter().map(String::as_str).collect();
        format!(
            r#"(module {imports} (memory (export "memory") 1)
               (global $heap (mut i32) (i32.const {HEAP}))
               (func (export "proxy_abi_version_0_2_1")) {allocator} {} {})"#,
            self.functions, self.data
        )
    }

    fn start_with(&self, spec: VmSpec) -> Tried {
        Tried::start(&wat::parse_str(self.text()).unwrap(), spec).unwrap()
    }

    fn start(&self) -> Tried {
        self.start_with(spec())
    }
}

fn types(letters: &str) -> String {
    letters.chars().map(|letter| if letter == 'i' { "i32 " } else { "i64 " }).collect()
}
