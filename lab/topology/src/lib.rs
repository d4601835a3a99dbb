//! Hosts, routers and links in network namespaces, from ten lines of TOML.
