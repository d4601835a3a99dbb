//! Service projects: `tam new` writes one, `tam build` makes a module of one.
//!
//! Plain functions; what they say to people and how they are asked is the
//! commands' business.

mod build;
mod build_c;
mod build_error;
mod new;
mod sdk;
mod toolchain;

pub use build::{BuildError, Built, build};
pub use new::{NewError, Template, create};
pub use toolchain::{CToolchain, Libraries, Toolchain};
