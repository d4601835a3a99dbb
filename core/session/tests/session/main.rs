//! What sessions reserve is kept: random sets and histories, against a simulated core, a simulated
//! wire, and sums of their own. 1,000 of each in an ordinary run, 100,000 with `TAM_SOAK=1`.

mod admission;
mod egress;
mod executor;
mod machine;
mod memory;
mod seeds;
mod set;
mod wire;
