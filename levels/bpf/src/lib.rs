//! The front door in C, and the thin safe layer over libbpf that loads it.
