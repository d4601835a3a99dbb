//! System tests in fresh network namespaces.
