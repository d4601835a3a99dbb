//! System tests in fresh network namespaces. The tests are in `tests/system`; the library is empty.
#![forbid(unsafe_code)]
