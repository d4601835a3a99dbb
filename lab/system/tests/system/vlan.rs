//! vlan
