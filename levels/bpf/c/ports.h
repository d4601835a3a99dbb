/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* The maps that say which devices are ports of the node, and what the daemon tells of them. */
#ifndef TAM_PORTS_H
#define TAM_PORTS_H

#include "tam_bpf.h"
#include "tam_maps.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tam_config);
} tam_shared SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TAM_PORTS_MAX);
	__type(key, __u32);
	__type(value, struct tam_port_config);
} tam_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * TAM_VLANS_MAX);
	__type(key, struct tam_vlan_key);
	__type(value, struct tam_vlan);
} tam_vlans SEC(".maps");

/* Which port a device is: ifindex -> port number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TAM_PORTS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} tam_egress SEC(".maps");

#endif
