//! Tests of session guarantees: random sets and histories, against a simulated core, a simulated
//! wire and independent sums. 1,000 of each in an ordinary run, 100,000 with `TAM_SOAK=1`.

mod admission;
mod egress;
mod executor;
mod machine;
mod memory;
mod seeds;
mod set;
mod wire;
