//! Keeps the packet's addresses free of the module's own data.

fn main() {
    tam::link::configure();
}
