//! Modules by digest: a directory in OCI layout.
