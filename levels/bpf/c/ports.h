/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Maps that say which devices are ports of the node, and their configuration. */
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

/* Port of a device: ifindex -> port number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TAM_PORTS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} tam_egress SEC(".maps");

/* Returns the number of the port by which the device's packets arrive, TAM_STACK_OWN, or
 * TAM_STACK_ARRIVALS for those of other devices. */
static __always_inline __u32 arrival_by(__u32 device)
{
	__u32 zero = 0;
	const struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &zero);
	const __u32 *port = bpf_map_lookup_elem(&tam_egress, &device);
	struct tam_vlan_key above = { .ifindex = device, .vlan = TAM_VLAN_UP };
	const struct tam_vlan *vlan;

	if (port)
		return *port;
	if (shared && *(volatile const __u32 *)&shared->kernel_ifindex == device)
		return TAM_STACK_OWN;
	vlan = bpf_map_lookup_elem(&tam_vlans, &above);
	if (!vlan)
		return TAM_STACK_ARRIVALS;
	device = vlan->ifindex;
	port = bpf_map_lookup_elem(&tam_egress, &device);
	return port ? *port : TAM_STACK_ARRIVALS;
}

#endif
