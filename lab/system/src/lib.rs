//! System tests in fresh network namespaces. The tests are in `tests/system`; there is
//! nothing here for others to use.
#![forbid(unsafe_code)]
