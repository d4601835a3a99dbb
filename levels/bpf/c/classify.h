/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Rules and routes: the flow cache, and its misses.
 *
 * Rules are searched by search.h.
 *
 * A cache entry holds rule and route of one flow: one CPU, no lock.
 *
 *   tam_flows[CPU][slot(key)] = key | generation | rule ... | egress, MACs, MTU
 *
 * An entry is valid while its generation is the node's. The daemon makes a new generation
 * for every change of rules, routes, neighbours, addresses and devices that it is
 * notified of, and renews routes_heard as long as it listens. Behind this cache lies a
 * larger one, if the node has it (large_cache.h).
 */
#ifndef TAM_CLASSIFY_H
#define TAM_CLASSIFY_H

#include "search.h"

/* Returns true if an IPv4 packet claims to come from this machine and its device does not
 * accept that: Linux drops it as a martian source (fib_validate_source,
 * net/ipv4/fib_frontend.c). IPv6 is forwarded whoever sent it. */
__noinline int source_is_own(const struct packet *packet, const struct tam_port_config *config)
{
	if (!packet || !config || packet->key.ip_version != 4)
		return 0;

	struct tam_own_prefix source = {
		.length = 32,
		.address_be = *(const __be32 *)packet->key.source,
	};
	struct tam_vlan_key key = {
		.ifindex = config->ifindex,
		.vlan = packet->key.vlan & 0x0fff,
	};

	if (!bpf_map_lookup_elem(&tam_own, &source))
		return 0;

	struct tam_vlan *vlan = packet->key.vlan ? bpf_map_lookup_elem(&tam_vlans, &key) : 0;

	return !((vlan ? vlan->flags : config->flags) & TAM_PORT_ACCEPTS_OWN);
}

#ifndef TAM_AT_TC
/* Returns true for source addresses that the kernel must judge: it answers or logs, this
 * program does not. */
static __always_inline int source_is_odd(const struct tam_key *key)
{
	const __u8 *a = key->source;

	if (key->ip_version == 4)
		return a[0] == 0 || a[0] == 127 || a[0] >= 224;
	return a[0] == 0xff || !(((__u64 *)a)[0] | (((__u64 *)a)[1] & bpf_cpu_to_be64(~1ULL)));
}

/* Returns true for destinations that are no unicast address, whatever the routes say: the
 * FIB helper would follow a default route. For IPv6 it does not. */
static __always_inline int destination_is_odd(const struct tam_key *key)
{
	const __u8 *a = key->destination;

	return key->ip_version == 4 && (a[0] == 0 || a[0] == 127 || (a[0] & 0xf0) == 0xe0 ||
					*(const __u32 *)a == 0xffffffff);
}

static __always_inline void fib_addresses(struct bpf_fib_lookup *fib, const __u8 *source,
					  const __u8 *destination, __u8 ip_version)
{
	if (ip_version == 4) {
		fib->family = AF_INET;
		fib->ipv4_src = *(const __be32 *)source;
		fib->ipv4_dst = *(const __be32 *)destination;
	} else {
		fib->family = AF_INET6;
		__builtin_memcpy(fib->ipv6_src, source, 16);
		__builtin_memcpy(fib->ipv6_dst, destination, 16);
	}
}

/* Checks the reverse path (RFC 3704), by the port's sysctl. `fib` is zero before and
 * after. */
static __noinline int source_unreachable(struct xdp_md *ctx, const struct packet *packet, __u32 rpf,
					 __u32 ifindex, struct bpf_fib_lookup *fib)
{
	int answer, unreachable;

	if (!packet || !fib)
		return 1;
	fib->ifindex = ifindex;
	fib_addresses(fib, packet->key.destination, packet->key.source, packet->key.ip_version);
	answer = bpf_fib_lookup(ctx, fib, sizeof(*fib), BPF_FIB_LOOKUP_SKIP_NEIGH);
	unreachable = answer != BPF_FIB_LKUP_RET_SUCCESS ||
		      (rpf == TAM_RPF_STRICT && fib->ifindex != ifindex);
	__builtin_memset(fib, 0, sizeof(*fib));
	return unreachable;
}

static __always_inline int fib_outcome(long answer)
{
	switch (answer) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		return TAM_FORWARDED;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		return TAM_KERNEL_LOCAL;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return TAM_KERNEL_NEIGHBOUR;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return TAM_KERNEL_TOO_BIG;
	default:
		return TAM_KERNEL_OTHER;
	}
}

/* Looks up the route of a packet, into `flow`. Returns TAM_FORWARDED or the reason why
 * the kernel routes it. */
__noinline int find_route(struct xdp_md *ctx, const struct packet *packet,
			  const struct tam_port_config *config, struct tam_flow *flow)
{
	__u32 zero = 0;
	struct tam_scratch *scratch = bpf_map_lookup_elem(&tam_scratch, &zero);

	if (!packet || !config || !flow || !scratch)
		return TAM_KERNEL_OTHER;

	struct bpf_fib_lookup *fib = &scratch->fib;
	__u32 ifindex = config->ifindex, rpf = config->rpf, flags = config->flags;
	int outcome;

	if (config->slow & ~TAM_SLOW_NO_REDIRECT)
		return TAM_KERNEL_SLOW;
	if (source_is_odd(&packet->key))
		return TAM_KERNEL_SOURCE;
	if (destination_is_odd(&packet->key))
		return TAM_KERNEL_LOCAL;
	if (packet->vlan_tags > 1)
		return TAM_KERNEL_VLAN_DEPTH;
	if (packet->key.vlan) {
		struct tam_vlan_key key = {
			.ifindex = ifindex,
			.vlan = packet->key.vlan & 0x0fff,
		};
		struct tam_vlan *vlan = bpf_map_lookup_elem(&tam_vlans, &key);

		if (!vlan)
			return TAM_KERNEL_OTHER;
		ifindex = vlan->ifindex;
		rpf = vlan->rpf;
		flags = vlan->flags;
	}
	/* The FIB helper ignores the device's own setting, which alone decides whether it
	 * routes. */
	if (packet->key.ip_version == 6 && flags & TAM_PORT_NO_V6)
		return TAM_KERNEL_OTHER;
	__builtin_memset(fib, 0, sizeof(*fib));
	if (rpf != TAM_RPF_NONE && source_unreachable(ctx, packet, rpf, ifindex, fib))
		return TAM_KERNEL_SOURCE;

	fib->ifindex = ifindex;
	fib->tos = packet->tos;
	fib->l4_protocol = packet->key.protocol;
	fib->sport = packet->key.source_port_be;
	fib->dport = packet->key.destination_port_be;
	fib->tot_len = packet->ip_length;
	fib_addresses(fib, packet->key.source, packet->key.destination, packet->key.ip_version);
	outcome = fib_outcome(bpf_fib_lookup(ctx, fib, sizeof(*fib), 0));
	if (outcome != TAM_FORWARDED)
		return outcome;

	__u32 egress = fib->ifindex;
	struct tam_vlan_key up = { .ifindex = egress, .vlan = TAM_VLAN_UP };
	struct tam_vlan *below = bpf_map_lookup_elem(&tam_vlans, &up);

	if (below) {
		egress = below->ifindex;
		flow->meta.egress_vlan = TAM_VLAN_PRESENT | below->vlan;
	}

	__u32 *number = bpf_map_lookup_elem(&tam_egress, &egress);

	if (!number)
		return TAM_KERNEL_EGRESS;
	if (fib->ifindex == ifindex)
		return TAM_KERNEL_OTHER;	/* back where it came from: the kernel sends a redirect */

	struct tam_port_config *port = bpf_map_lookup_elem(&tam_ports, number);

	if (port && port->flags & (TAM_PORT_RAW | TAM_PORT_PACKET))
		return TAM_KERNEL_EGRESS;	/* the kernel has the neighbour, or there is none */
	if (!port || port->slow)
		return TAM_KERNEL_SLOW;
	flow->meta.egress_port = *number;
	flow->mtu = fib->mtu_result;
	__builtin_memcpy(flow->meta.next_hop, fib->dmac, ETH_ALEN);
	__builtin_memcpy(flow->own_mac, fib->smac, ETH_ALEN);
	return TAM_FORWARDED;
}

/* Returns true if the L4 checksum looks unfinished. A sender that offloads checksums over
 * a device without wire (veth) leaves the folded sum of the pseudo-header in the field.
 * Redirected, the packet would lose the note that it must be completed; the kernel keeps
 * it. One flow in 65,536 looks so by chance, and only loses the fast path. */
__noinline int checksum_is_partial(struct xdp_md *ctx, const struct packet *packet)
{
	if (!packet)
		return 0;

	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	const __u32 *words = (const __u32 *)packet->key.source;
	__u32 l4 = packet->l4_offset, length = packet->ip_length + packet->l3_offset - l4;
	__u64 sum = 0;
	__u32 field;

	if (packet->key.protocol == IPPROTO_TCP)
		field = l4 + 16;
	else if (packet->key.protocol == IPPROTO_UDP)
		field = l4 + 6;
	else
		return 0;
	if (packet->key.fragment || packet->key.hidden || field > TAM_HEADERS_MAX ||
	    data + field + 2 > data_end)
		return 0;
	/* Source and destination are adjacent; IPv4 leaves zeroes. */
	for (int word = 0; word < 8; word++)
		sum += words[word];
	sum += bpf_htons(packet->key.protocol) + bpf_htons(length);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return *(__u16 *)(data + field) == sum && sum;
}
#endif

/* Returns 1 for a frame that is tagged for a VLAN of which its port has no device: the kernel drops
 * it. An identifier of 0 is only a priority (802.1Q, 9.6). */
__noinline int is_of_unknown_vlan(__u32 ifindex, __u16 tag)
{
	struct tam_vlan_key key = { .ifindex = ifindex, .vlan = tag & 0x0fff };

	return key.vlan && !bpf_map_lookup_elem(&tam_vlans, &key);
}

/* Resolves rule and route of a packet in this generation, into its cache slot. */
static __noinline void resolve(tam_context *ctx, const struct packet *packet,
			       const struct tam_config *shared, struct tam_flow *flow,
			       __u64 generation)
{
	__u32 set = generation & 1, port = port_number;
	struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &port);

	if (!config)
		return;		/* the map is as large as port_number allows: not reached */
	flow->generation = 0;
	flow->mtu = 0;
	__builtin_memset(&flow->meta, 0, sizeof(flow->meta));
	flow->meta.arrival_port = port_number;
	flow->meta.flow_hash = flow_hash(packet);
	flow->meta.flags = (packet->key.fragment ? TAM_META_FRAGMENT : 0) |
			   (packet->key.fragment == TAM_FRAGMENT_LATER ? TAM_META_LATER_FRAGMENT : 0) |
			   (__u32)packet->key.ip_version << 8 | (__u32)packet->key.protocol << 16;
	if (packet->key.hidden)
		find_hidden(set, shared);
	find_rule(set, shared);

	int hidden = take_rules(packet, flow);

	/* The cell completes the checksum itself; a module below cannot. */
	if (hidden)
		flow->outcome = TAM_DROP_L4_HIDDEN;
	else if (!packet->key.ip_version)
		flow->outcome = config->bridge ? TAM_BRIDGED : packet->outcome;
	else if (!config->bridge && source_is_own(packet, config))
		flow->outcome = TAM_DROP_OWN_SOURCE;
	else if (config->flags & TAM_PORT_TC)
		flow->outcome = TAM_KERNEL_SLOW;	/* already in the stack */
#ifndef TAM_AT_TC
	else if ((flow->action == TAM_ACTION_FORWARD || flow->action == TAM_ACTION_SERVICE ||
		  flow->action == TAM_ACTION_OUT ||
		  config->bridge) &&
		 checksum_is_partial(ctx, packet))
		flow->outcome = TAM_KERNEL_PARTIAL;
	else
		flow->outcome = config->bridge ? TAM_BRIDGED : find_route(ctx, packet, config, flow);
#endif
	if (config->bridge) {
		flow->meta.egress_port = config->bridge - 1;
		flow->meta.flags |= TAM_META_BRIDGED;
	} else if (packet->key.ip_version && packet->key.vlan &&
		   is_of_unknown_vlan(config->ifindex, packet->key.vlan)) {
		flow->meta.egress_vlan = TAM_VLAN_UNKNOWN;	/* no such frame has a route */
	}
	/* A neighbour being resolved, or a packet that was too big, does not determine
	 * the next packet: look it up again. */
	if (flow->outcome != TAM_KERNEL_NEIGHBOUR && flow->outcome != TAM_KERNEL_TOO_BIG)
		flow->generation = generation;
}

#endif
