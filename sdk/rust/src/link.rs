//! Linking of a service: for the `build.rs` of a service project.
//!
//! The linker must keep the addresses of the packet and its metadata free. The flags apply to the
//! service itself only, so its own build script has to set them.

use crate::layout::{DATA_ADDRESS, META_ADDRESS};

/// Sets the linker flags of a module: the only call in the `main` of a service's `build.rs`.
pub fn configure() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = std::env::var("CARGO_CFG_TARGET_ARCH");
    if target.as_deref() != Ok("wasm32") {
        return;
    }
    // rustc passes --stack-first: the stack occupies the addresses from 0 up to the metadata.
    println!("cargo::rustc-link-arg-cdylib=-zstack-size={META_ADDRESS}");
    println!("cargo::rustc-link-arg-cdylib=--global-base={DATA_ADDRESS}");
}
