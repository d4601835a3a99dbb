//! Nothing: the modules are in `examples`.
#![forbid(unsafe_code)]
