//! Descriptors, namespaces, netlink, offloads, signals: what the kernel offers besides BPF.
