//! Reserves the packet's addresses in linear memory.

fn main() {
    tam::link::configure();
}
