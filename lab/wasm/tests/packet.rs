//! Access of modules to packet, metadata and memory at run-time addresses, and through host
//! functions, in the kernel, compared with a model of plain byte arrays.

use std::sync::atomic::Ordering;

use cell::below::give_bytes;
use wasm_lab::{Instance, Loaded};
use wasm_to_bpf::{Entry, Flavour, Options, TrapCode, layout};

const MEMORY: usize = 65_536;
const METADATA: usize = 0x8000;
const METADATA_LENGTH: usize = 64;
const WINDOW: usize = 0x8102;
const WINDOW_LENGTH: usize = 64;
/// Addresses in the module's memory of its order, and of its results.
const ORDER: usize = 0x9100;
const RESULT: usize = ORDER + 24;
/// Random orders for each module and level; the seed is fixed.
const ROUNDS: u32 = 10_000;

/// Order to the module: an operation, three operands, a value.
#[derive(Clone, Copy, Debug)]
struct Order {
    operation: u32,
    a: u32,
    b: u32,
    c: u32,
    value: u64,
}

/// Operations of [`module`], in the order of its `br_table`.
const LOADS: [(usize, &str); 4] =
    [(1, "i64.load8_u"), (2, "i64.load16_u"), (4, "i64.load32_u"), (8, "i64.load")];
const STORES: [(usize, &str); 4] =
    [(1, "i64.store8"), (2, "i64.store16"), (4, "i64.store32"), (8, "i64.store")];
const COPY: u32 = 8;
const FILL: u32 = 9;
const PACKET_LOAD: u32 = 10;
const PACKET_STORE: u32 = 11;
const RESIZE_HEAD: u32 = 12;
const RESIZE_TAIL: u32 = 13;
const HEAD_FIXED: u32 = 14;
const OPERATIONS: u32 = 16;
/// Bytes by which the last two operations move the head.
const FIXED: [i32; 2] = [20, -12];

/// Returns a module that executes one operation. `address` makes an address of operand a; `first`
/// runs before everything else.
fn module(address: &str, first: &str, operations: u32) -> String {
    let at = |offset: usize| format!("(i32.load (i32.const {}))", ORDER + offset);
    let (a, b, c) = (at(4), at(8), at(12));
    let value = format!("(i64.load (i32.const {}))", ORDER + 16);
    let address = address.replace("$a", &a);
    let give = |what: String| format!("(i64.store (i32.const {RESULT}) {what})");
    let give32 = |what: String| give(format!("(i64.extend_i32_u {what})"));
    let mut bodies: Vec<String> = Vec::new();
    bodies.extend(LOADS.map(|(_, load)| give(format!("({load} {address})"))));
    bodies.extend(STORES.map(|(_, store)| format!("({store} {address} {value})")));
    bodies.push(format!("(memory.copy {a} {b} {c})"));
    bodies.push(format!("(memory.fill {a} {b} {c})"));
    bodies.push(give32(format!("(call $load {a} {b} {c})")));
    bodies.push(give32(format!("(call $store {a} {b} {c})")));
    bodies.push(give32(format!("(call $head {a})")));
    bodies.push(give32(format!("(call $tail {a})")));
    bodies.extend(FIXED.map(|by| give32(format!("(call $head (i32.const {by}))"))));
    bodies.truncate(operations as usize);
    let blocks = "(block ".repeat(bodies.len() + 1);
    let table: Vec<String> = (0..=bodies.len()).map(|number| number.to_string()).collect();
    let arms: String =
        bodies.iter().map(|body| format!(") {body} (return (i32.const 0))\n")).collect();
    format!(
        r#"(module
  (import "tam" "packet_load" (func $load (param i32 i32 i32) (result i32)))
  (import "tam" "packet_store" (func $store (param i32 i32 i32) (result i32)))
  (import "tam" "packet_resize_head" (func $head (param i32) (result i32)))
  (import "tam" "packet_resize_tail" (func $tail (param i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "on_packet") (result i32)
    {first}
    {blocks} (br_table {} {}) {arms} )
    i32.const 1))"#,
        table.join(" "),
        at(0)
    )
}

/// Module in the kernel.
struct Subject {
    instance: Instance,
    program: Loaded,
}

impl Subject {
    fn new(text: &str, flavour: Flavour) -> Self {
        let bytes = wat::parse_str(text).unwrap();
        let window = WINDOW_LENGTH as u32;
        let entry = Entry::Packet { window, standalone: true };
        let options =
            Options { entry, flavour, memory_pages_max: 1, functions: Default::default() };
        let program = wasm_to_bpf::compile(&bytes, &options).unwrap_or_else(|refusals| {
            panic!("{}", refusals.iter().map(ToString::to_string).collect::<String>())
        });
        let instance = Instance::new(&program.image).unwrap();
        let program = instance.load(&program).unwrap();
        Self { instance, program }
    }

    fn run(&self, before: &Model, order: Order) -> Model {
        self.instance.write(0, &before.memory).unwrap();
        let hand_over = self.instance.hand_over();
        give_bytes(hand_over, before.metadata.as_slice().try_into().unwrap());
        self.instance.write(ORDER as u64, &order.bytes()).unwrap();
        let block = self.instance.block();
        block.u32(layout::TRAP_CODE).unwrap().store(0, Ordering::Release);
        let run = self.instance.packet(&self.program, &before.packet);
        let run = run.unwrap_or_else(|error| panic!("{error} after {order:x?}"));
        let code = block.u32(layout::TRAP_CODE).unwrap().load(Ordering::Acquire);
        assert_eq!(run.retval == u32::MAX, code != 0, "a verdict or a trap: {order:?}");
        let padded = hand_over.u32(layout::hand_over::PADDED).unwrap();
        assert_eq!(padded.load(Ordering::Acquire), 0, "{order:?}");
        let metadata = (0..METADATA_LENGTH as u32).step_by(8);
        let metadata = metadata.map(|at| hand_over.u64(at).unwrap().load(Ordering::Acquire));
        Model {
            memory: self.instance.memory().unwrap(),
            metadata: metadata.flat_map(u64::to_le_bytes).collect(),
            packet: run.data_out,
            trap: (code != 0).then_some(code),
        }
    }
}

impl Order {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = [self.operation, self.a, self.b, self.c]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        bytes.extend(self.value.to_le_bytes());
        bytes
    }
}

/// Model of the module's view, as byte arrays.
#[derive(Clone, PartialEq, Eq)]
struct Model {
    memory: Vec<u8>,
    metadata: Vec<u8>,
    packet: Vec<u8>,
    trap: Option<u32>,
}

impl Model {
    fn get(&self, address: usize) -> u8 {
        match address {
            METADATA.. if address < METADATA + METADATA_LENGTH => self.metadata[address - METADATA],
            WINDOW.. if address < WINDOW + WINDOW_LENGTH => {
                self.packet.get(address - WINDOW).copied().unwrap_or(0)
            }
            _ => self.memory[address],
        }
    }

    fn put(&mut self, address: usize, byte: u8) {
        match address {
            METADATA.. if address < METADATA + METADATA_LENGTH => {
                self.metadata[address - METADATA] = byte;
            }
            WINDOW.. if address < WINDOW + WINDOW_LENGTH => {
                if let Some(place) = self.packet.get_mut(address - WINDOW) {
                    *place = byte;
                }
            }
            _ => self.memory[address] = byte,
        }
    }

    fn read(&self, address: usize, length: usize) -> Vec<u8> {
        (address..address + length).map(|at| self.get(at)).collect()
    }

    fn write(&mut self, address: usize, bytes: &[u8]) {
        for (at, &byte) in (address..).zip(bytes) {
            self.put(at, byte);
        }
    }

    fn give(&mut self, result: u64) {
        self.memory[RESULT..RESULT + 8].copy_from_slice(&result.to_le_bytes());
    }

    fn run(mut self, order: Order, address: u64) -> Self {
        self.memory[ORDER..ORDER + 24].copy_from_slice(&order.bytes());
        let before = self.clone();
        if self.perform(order, address).is_none() {
            self = Self { trap: Some(TrapCode::OutOfBounds as u32), ..before };
        }
        self
    }

    /// Executes an order in the model; `None` if it traps.
    fn perform(&mut self, order: Order, address: u64) -> Option<()> {
        let Order { operation, a, b, c, value } = order;
        let [a, b, c] = [a, b, c].map(|operand| operand as usize);
        let inside = |at: u64, length: usize| at + length as u64 <= MEMORY as u64;
        let operation_index = operation as usize;
        if let Some((width, _)) = LOADS.get(operation_index) {
            inside(address, *width).then_some(())?;
            let mut bytes = self.read(address as usize, *width);
            bytes.resize(8, 0);
            self.give(u64::from_le_bytes(bytes.try_into().unwrap()));
        } else if let Some((width, _)) = STORES.get(operation_index.wrapping_sub(4)) {
            inside(address, *width).then_some(())?;
            self.write(address as usize, &value.to_le_bytes()[..*width]);
        } else {
            match operation {
                COPY => {
                    (inside(a as u64, c) && inside(b as u64, c)).then_some(())?;
                    let bytes = self.read(b, c);
                    self.write(a, &bytes);
                }
                FILL => {
                    inside(a as u64, c).then_some(())?;
                    self.write(a, &vec![b as u8; c]);
                }
                PACKET_LOAD | PACKET_STORE => {
                    let fits = a + c <= self.packet.len() && inside(b as u64, c);
                    if fits && operation == PACKET_LOAD {
                        let bytes = self.packet[a..a + c].to_vec();
                        self.write(b, &bytes);
                    } else if fits {
                        let bytes = self.read(b, c);
                        self.packet[a..a + c].copy_from_slice(&bytes);
                    }
                    self.give(u64::from(if fits { 0 } else { u32::MAX }));
                }
                RESIZE_HEAD | RESIZE_TAIL => self.resize(order.a as i32, operation == RESIZE_HEAD),
                _ => self.resize(FIXED[(operation - HEAD_FIXED) as usize], true),
            }
        }
        Some(())
    }

    fn resize(&mut self, by: i32, head: bool) {
        let length = self.packet.len() as i32 + by;
        // The kernel leaves no packet below an Ethernet header.
        let fits = by <= 128 && length >= 14;
        if fits {
            let more = vec![0; by.max(0) as usize];
            let less = (-by).max(0) as usize;
            match (by > 0, head) {
                (true, true) => drop(self.packet.splice(0..0, more)),
                (true, false) => self.packet.extend(more),
                (false, true) => drop(self.packet.drain(..less)),
                (false, false) => self.packet.truncate(self.packet.len() - less),
            }
            let shown = (length as usize).min(WINDOW_LENGTH) as u32;
            self.metadata[..4].copy_from_slice(&(length as u32).to_le_bytes());
            self.metadata[4..8].copy_from_slice(&shown.to_le_bytes());
        }
        self.give(u64::from(if fits { 0 } else { -3i32 as u32 }));
    }
}

/// Generator of the same random numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u32 {
        (self.next() % limit) as u32
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }

    /// Returns an address, mostly near an edge; never among the order's own bytes.
    fn address(&mut self) -> u32 {
        let around =
            |random: &mut Self, edge: usize| (edge as u32 + random.below(40)).saturating_sub(20);
        match self.below(8) {
            0 => around(self, METADATA),
            1 => around(self, METADATA + METADATA_LENGTH),
            2 | 3 => WINDOW as u32 + self.below(WINDOW_LENGTH as u64),
            4 => around(self, WINDOW + WINDOW_LENGTH),
            5 => around(self, MEMORY),
            6 => 0x9200 + self.below(2000),
            _ => around(self, 0),
        }
    }

    fn order(&mut self, operations: u32) -> Order {
        let operation = self.below(u64::from(operations));
        let mut order = Order {
            operation,
            a: self.address(),
            b: self.address(),
            c: if self.below(8) == 0 { self.below(700) } else { self.below(40) },
            value: self.next(),
        };
        match operation {
            PACKET_LOAD | PACKET_STORE => order.a = self.below(220),
            RESIZE_HEAD | RESIZE_TAIL => order.a = self.below(300).wrapping_sub(150),
            _ => {}
        }
        order
    }
}

/// Returns true if an access crosses an edge of metadata or window, which has no defined result.
fn is_undefined(order: Order, address: u64) -> bool {
    let width = match order.operation {
        operation @ 0..8 => LOADS[operation as usize % 4].0 as u64,
        _ => return false,
    };
    let edges = [METADATA, METADATA + METADATA_LENGTH, WINDOW, WINDOW + WINDOW_LENGTH];
    edges.iter().any(|&edge| address < edge as u64 && address + width > edge as u64)
}

/// Returns true if the access overlaps the order's bytes, which cannot be compared.
fn touches_order(order: Order) -> bool {
    let range = |start: u32| start as usize <= ORDER + 32 && (start + order.c) as usize + 8 > ORDER;
    match order.operation {
        COPY => range(order.a) || range(order.b),
        FILL => range(order.a),
        PACKET_LOAD | PACKET_STORE => range(order.b),
        _ => false,
    }
}

fn compare(text: &str, address: impl Fn(u32) -> u64, flavour: Flavour, operations: u32) {
    let subject = Subject::new(text, flavour);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let memory = random.bytes(MEMORY);
    for round in 0..ROUNDS {
        let length = 14 + random.below(150) as usize;
        let mut metadata = random.bytes(METADATA_LENGTH);
        metadata[..4].copy_from_slice(&(length as u32).to_le_bytes());
        metadata[4..8].copy_from_slice(&(length.min(WINDOW_LENGTH) as u32).to_le_bytes());
        let mut packet = random.bytes(length);
        // Test-run refuses an IP packet without its header.
        packet[12] = 0;
        let before = Model { memory: memory.clone(), metadata, packet, trap: None };
        let order = random.order(operations);
        if is_undefined(order, address(order.a)) || touches_order(order) {
            continue;
        }
        let found = subject.run(&before, order);
        let expected = before.clone().run(order, address(order.a));
        let about = format!("round {round}, {length} bytes at {flavour:?}: {order:x?}");
        assert_eq!(found.trap, expected.trap, "trap in {about}");
        if expected.trap.is_some() {
            continue;
        }
        let different = [0..METADATA, METADATA + 0x1000..MEMORY]
            .into_iter()
            .find(|range| found.memory[range.clone()] != expected.memory[range.clone()])
            .and_then(|mut range| range.find(|&at| found.memory[at] != expected.memory[at]));
        let shown = different.map(|at| {
            (
                at,
                found.memory[at..].iter().take(8).copied().collect::<Vec<_>>(),
                expected.memory[at..].iter().take(8).copied().collect::<Vec<_>>(),
            )
        });
        assert_eq!(shown, None, "memory after {about}");
        assert_eq!(found.metadata, expected.metadata, "metadata after {about}");
        assert_eq!(found.packet, expected.packet, "packet after {about}");
    }
}

/// Access at an offset from the sequence's address, of some width.
#[derive(Clone, Copy, Debug)]
struct Step {
    stores: bool,
    width: usize,
    offset: usize,
    condition: Condition,
}

/// Condition of a step.
#[derive(Clone, Copy, Debug)]
enum Condition {
    Nothing,
    /// The step's bit of operand b is set.
    Bit,
    /// The window extends by this many bytes beyond the address; `strictly`: by at least one more;
    /// `ends`: otherwise the steps after it are skipped, too.
    Length {
        bytes: usize,
        strictly: bool,
        ends: bool,
    },
}

/// Number of steps of a sequence.
const STEPS: usize = 6;
/// Number of addresses of a sequence, from the window's first byte on.
const ADDRESSES: usize = 24;
/// Number of iterations of a counted sequence.
const ITERATIONS: usize = 8;

/// Returns a module that executes the steps at an address in the window, or at each of
/// [`ITERATIONS`] of them.
fn sequence(steps: &[Step], goes_round: bool) -> String {
    let base = if goes_round { 0 } else { WINDOW };
    let body: String = (0..)
        .zip(steps)
        .map(|(number, step): (usize, _)| {
            let (index, offset) = (step.width.trailing_zeros() as usize, base + step.offset);
            let at = format!("offset={offset} (local.get $at)");
            let access = if step.stores {
                format!("({} {at} (local.get $sum))", STORES[index].1)
            } else {
                let turned = "(i64.rotl (local.get $sum) (i64.const 7))";
                format!("(local.set $sum (i64.add {turned} ({} {at})))", LOADS[index].1)
            };
            let question = match step.condition {
                Condition::Nothing => return access,
                Condition::Bit => {
                    format!(
                        "i32.and (i32.load (i32.const {})) (i32.const {})",
                        ORDER + 8,
                        1 << number
                    )
                }
                Condition::Length { bytes, strictly, .. } => {
                    let compare = if strictly { "lt" } else { "le" };
                    let number = bytes.wrapping_sub(if goes_round { WINDOW } else { 0 }) as i32;
                    format!(
                        "i32.{compare}_u (i32.add (local.get $at) (i32.const {number}))
                           (i32.load (i32.const {}))",
                        METADATA + 4
                    )
                }
            };
            if let Condition::Length { ends: true, .. } = step.condition {
                return format!("(br_if $done (i32.eqz ({question}))) {access}");
            }
            format!("(if ({question}) (then {access}))")
        })
        .collect();
    let body = format!("(block $done {body})");
    let body = if goes_round {
        format!(
            "(local.set $at (i32.const {WINDOW}))
             (loop $next {body} (br_if $next (i32.ne (i32.const {})
               (local.tee $at (i32.add (local.get $at) (i32.const 1))))))",
            WINDOW + ITERATIONS
        )
    } else {
        let at = format!("(i32.load (i32.const {}))", ORDER + 4);
        format!("(local.set $at (i32.rem_u {at} (i32.const {ADDRESSES}))) {body}")
    };
    format!(
        r#"(module (memory (export "memory") 1)
          (func (export "on_packet") (result i32) (local $at i32) (local $sum i64)
            (local.set $sum (i64.load (i32.const {})))
            {body}
            (i64.store (i32.const {RESULT}) (local.get $sum))
            i32.const 0))"#,
        ORDER + 16
    )
}

impl Model {
    /// Executes [`sequence`] in the model.
    fn run_steps(mut self, steps: &[Step], goes_round: bool, order: Order) -> Self {
        self.memory[ORDER..ORDER + 24].copy_from_slice(&order.bytes());
        let mut sum = order.value;
        let first = if goes_round { 0 } else { order.a as usize % ADDRESSES };
        for at in first..first + if goes_round { ITERATIONS } else { 1 } {
            for (number, step) in steps.iter().enumerate() {
                let address = WINDOW + at + step.offset;
                let window = self.packet.len().min(WINDOW_LENGTH);
                let is_done = match step.condition {
                    Condition::Nothing => true,
                    Condition::Bit => order.b & 1 << number != 0,
                    Condition::Length { bytes, strictly, .. } => {
                        at + bytes + usize::from(strictly) <= window
                    }
                };
                match step.condition {
                    _ if is_done => {}
                    Condition::Length { ends: true, .. } => break,
                    _ => continue,
                }
                if step.stores {
                    self.write(address, &sum.to_le_bytes()[..step.width]);
                } else {
                    let mut bytes = self.read(address, step.width);
                    bytes.resize(8, 0);
                    let read = u64::from_le_bytes(bytes.try_into().unwrap());
                    sum = sum.rotate_left(7).wrapping_add(read);
                }
            }
        }
        self.give(sum);
        self
    }
}

/// Compares sequences of accesses near one address, where the packet may end between two of them,
/// and where the module checks for its end.
fn compare_sequences(flavour: Flavour, goes_round: bool) {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let memory = random.bytes(MEMORY);
    for _ in 0..60 {
        let steps: [Step; STEPS] = std::array::from_fn(|_| Step {
            stores: random.below(3) == 0,
            width: 1 << random.below(4),
            offset: random.below(12) as usize,
            condition: match random.below(6) {
                0 | 1 => Condition::Nothing,
                2 => Condition::Bit,
                // The end of the access, or any other length.
                far => {
                    let bytes = random.below(20) as usize;
                    Condition::Length { bytes, strictly: far == 3, ends: random.below(2) == 0 }
                }
            },
        });
        let subject = Subject::new(&sequence(&steps, goes_round), flavour);
        for _ in 0..150 {
            let length = 14 + random.below(40) as usize;
            let mut metadata = random.bytes(METADATA_LENGTH);
            metadata[..4].copy_from_slice(&(length as u32).to_le_bytes());
            metadata[4..8].copy_from_slice(&(length.min(WINDOW_LENGTH) as u32).to_le_bytes());
            let mut packet = random.bytes(length);
            // Test-run refuses an IP packet without its header.
            packet[12] = 0;
            let (a, b) = (random.next() as u32, random.next() as u32);
            let order = Order { operation: 0, a, b, c: 0, value: random.next() };
            let before = Model { memory: memory.clone(), metadata, packet, trap: None };
            let found = subject.run(&before, order);
            let expected = before.run_steps(&steps, goes_round, order);
            let about = format!("{length} bytes at {flavour:?}: {order:x?} {steps:?}");
            assert_eq!(found.trap, None, "trap in {about}");
            let result = RESULT..RESULT + 8;
            assert_eq!(found.memory[result.clone()], expected.memory[result], "sum of {about}");
            assert_eq!(found.packet, expected.packet, "packet after {about}");
        }
    }
}

fn identity(a: u32) -> u64 {
    u64::from(a)
}

#[test]
fn addresses_are_decided_when_they_are_known() {
    if testbase::root_or_skip("accesses decided at run time") {
        compare(&module("$a", "", COPY), identity, Flavour::Xdp, COPY);
        compare(&module("$a", "", COPY), identity, Flavour::Tc, COPY);
    }
}

#[test]
fn addresses_counted_from_the_window_try_it_first() {
    if testbase::root_or_skip("accesses decided at run time") {
        let address = "(i32.add $a (i32.const 0x8102))";
        let sum = |a: u32| u64::from(a.wrapping_add(0x8102));
        // The operands are drawn around edges; only few of the sums are.
        compare(&module(address, "", COPY), sum, Flavour::Xdp, COPY);
        let address = "(i32.add (i32.and $a (i32.const 31)) (i32.const 0x8120))";
        let masked = |a: u32| u64::from(a & 31) + 0x8120;
        compare(&module(address, "", COPY), masked, Flavour::Xdp, COPY);
        compare(&module(address, "", COPY), masked, Flavour::Tc, COPY);
    }
}

#[test]
fn accesses_of_one_address_each_end_where_the_packet_does() {
    if testbase::root_or_skip("accesses of the window in the kernel") {
        for flavour in [Flavour::Xdp, Flavour::Tc] {
            compare_sequences(flavour, false);
            compare_sequences(flavour, true);
        }
    }
}

#[test]
fn host_functions_do_what_byte_arrays_do() {
    if testbase::root_or_skip("host functions in the kernel") {
        compare(&module("$a", "", OPERATIONS), identity, Flavour::Xdp, OPERATIONS);
        compare(&module("$a", "", RESIZE_HEAD), identity, Flavour::Tc, RESIZE_HEAD);
    }
}
