//! What system tests share: packets in and out of devices, namespaces, a node under test.
