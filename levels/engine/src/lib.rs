//! Wasmtime behind the packet ABI.
