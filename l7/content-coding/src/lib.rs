//! HTTP content coding (RFC 9110, section 8.4.1): streaming encoders for gzip, deflate, br and
//! zstd behind one type. Sans-IO: a body comes in as slices, the coded body goes out by a `Vec`.
//!
//! ```text
//!  body ─▶ write ─▶ ┌ up to 64 KiB gather ┐ ─ finish ─▶ coded as a whole, by a shared codec
//!                   └──────────┬──────────┘
//!                              └ more, or flush ─▶ a stream of its own ─▶ coded as it comes
//! ```
//!
//! Most responses are small. They are gathered and coded in one piece: that takes half the time of
//! a stream, and no state but the bytes themselves. zlib gives out nothing of them before their
//! end either. A larger body gets a stream, whose memory is bounded ([`memory_bytes`]) and which
//! goes back to its [`Pool`] afterwards.
//!
//! What is coded, and with what, is decided elsewhere: `services/compress` says so by a [`Wish`].
//! [`choose_level`] says how hard to try. There is no decoder, no clock and no thread.
//!
//! ```
//! use content_coding::{Coding, Level, Pool};
//!
//! let pool = Pool::new();
//! let mut encoder = pool.encoder(Coding::Gzip, Level::DEFAULT);
//! let mut coded = Vec::new();
//! for part in [&b"<p>one</p>"[..], b"<p>two</p>"] {
//!     encoder.write(part, &mut coded)?;
//! }
//! encoder.flush(&mut coded)?; // Whoever has `coded` can read both parts now.
//! encoder.finish(&mut coded)?;
//! # Ok::<(), content_coding::Failed>(())
//! ```

#![forbid(unsafe_code)]

mod brotli;
mod coding;
mod deflate;
mod encoder;
mod load;
mod memory;
mod pool;
mod wish;
mod zstd;

pub use coding::{Coding, Failed, Level};
pub use encoder::{Encoder, GATHER_MAX, coded_length_max};

pub use load::{Load, Speed, choose_level, measured};
pub use memory::{SHARED_BYTES_MAX, memory_bytes};
pub use pool::{IDLE_BYTES_MAX, Pool};
pub use wish::{FUNCTION, Wish, WishError};
