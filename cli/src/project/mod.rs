//! Service projects: `tam new` writes one, `tam build` makes a module of one.
//!
//! Plain functions; how they are called and what is printed is the commands' part.

mod build;
mod build_c;
mod build_error;
mod new;
mod sdk;
mod toolchain;

pub use build::{BuildError, Built, build};
pub use new::{NewError, Template, create};
pub use toolchain::{CToolchain, Libraries, Toolchain};
