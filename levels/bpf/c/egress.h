/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Egress port of a packet that the kernel is to route: netfilter, a queueing discipline
 * or a device that takes no redirected frames requires that, or a module has re-addressed
 * the packet. A session's share applies to a port, whoever sends there.
 *
 *   the packet as it is now ─▶ FIB (rules included), no neighbour ─▶ device ─▶ VLAN's device ─▶ port
 *
 * Kernel features beyond that (a netfilter mark that a routing rule matches, DNAT, an
 * IPsec policy) may lead elsewhere. The owner of a share controls none of these.
 */
#ifndef TAM_EGRESS_H
#define TAM_EGRESS_H

#include "classify.h"
#include "context.h"

/* No egress port: the packet is the kernel's own, is answered, or leaves by no port. */
#define TAM_NO_EGRESS 0
/* No egress port: the packet is too big, and the kernel answers with an ICMP error. */
#define TAM_ANSWERED 0xffffffff

/* Fills the FIB query for an IPv4 packet. Returns 0 when the packet is not forwarded. */
static __always_inline int ask_v4(const struct iphdr *ip, const void *end, struct bpf_fib_lookup *fib)
{
	const __be16 *ports = (const void *)(ip + 1);

	if ((const void *)(ip + 1) > end || ip->ttl <= 1)
		return 0;

	__u8 first = ((const __u8 *)&ip->daddr)[0];

	/* No unicast address, whatever the routes say: the FIB would follow a default
	 * route. */
	if (!first || first == 127 || first >= 224)
		return 0;
	fib->family = AF_INET;
	fib->tos = ip->tos;
	fib->l4_protocol = ip->protocol;
	fib->tot_len = bpf_ntohs(ip->tot_len);
	fib->ipv4_src = ip->saddr;
	fib->ipv4_dst = ip->daddr;
	/* Multipath routes are chosen by these. */
	if (ip->ihl == 5 && !(ip->frag_off & bpf_htons(0x3fff)) && (const void *)(ports + 2) <= end) {
		fib->sport = ports[0];
		fib->dport = ports[1];
	}
	return 1;
}

static __always_inline int ask_v6(const struct ipv6hdr *ip, const void *end, struct bpf_fib_lookup *fib)
{
	const __be16 *ports = (const void *)(ip + 1);

	if ((const void *)(ip + 1) > end || ip->hop_limit <= 1 || ip->daddr.s6_addr[0] == 0xff)
		return 0;
	fib->family = AF_INET6;
	fib->flowinfo = *(const __be32 *)ip & bpf_htonl(0x0fffffff);
	fib->l4_protocol = ip->nexthdr;
	fib->tot_len = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	__builtin_memcpy(fib->ipv6_src, &ip->saddr, 16);
	__builtin_memcpy(fib->ipv6_dst, &ip->daddr, 16);
	if ((ip->nexthdr == IPPROTO_TCP || ip->nexthdr == IPPROTO_UDP) &&
	    (const void *)(ports + 2) <= end) {
		fib->sport = ports[0];
		fib->dport = ports[1];
	}
	return 1;
}

/* Returns the egress of a packet whose IP header is at `l3`, and which arrives by the
 * device `ifindex`: 1 + the number of the port, TAM_NO_EGRESS or TAM_ANSWERED. */
static __always_inline __u32 egress_of(void *ctx, enum tam_level level, __u32 l3, __u32 ifindex)
{
	__u32 zero = 0;
	struct tam_scratch *scratch = bpf_map_lookup_elem(&tam_scratch, &zero);
	const void *data = first_byte(ctx, level), *end = last_byte(ctx, level);
	const struct iphdr *ip;
	long answer;

	if (!scratch || l3 > TAM_L3_OFFSET_MAX)
		return TAM_NO_EGRESS;

	struct bpf_fib_lookup *fib = &scratch->fib;

	__builtin_memset(fib, 0, sizeof(*fib));
	ip = data + l3;
	if ((const void *)(ip + 1) > end)
		return TAM_NO_EGRESS;
	if (ip->version == 4 ? !ask_v4(ip, end, fib) : !ask_v6((const void *)ip, end, fib))
		return TAM_NO_EGRESS;

	int may_be_cut = ip->version == 4 && !(ip->frag_off & bpf_htons(0x4000));

	fib->ifindex = ifindex;
	answer = bpf_fib_lookup(ctx, fib, sizeof(*fib), BPF_FIB_LOOKUP_SKIP_NEIGH);
	if (answer == BPF_FIB_LKUP_RET_FRAG_NEEDED && may_be_cut) {
		/* The result has the MTU in place of the length, and leaves the device
		 * unset. */
		fib->tot_len = 0;
		fib->ifindex = ifindex;
		answer = bpf_fib_lookup(ctx, fib, sizeof(*fib), BPF_FIB_LOOKUP_SKIP_NEIGH);
		/* At tc the helper compares the length all the same, with the device. */
		if (answer == BPF_FIB_LKUP_RET_FRAG_NEEDED)
			answer = BPF_FIB_LKUP_RET_SUCCESS;
	}
	if (answer == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return TAM_ANSWERED;
	if (answer != BPF_FIB_LKUP_RET_SUCCESS)
		return TAM_NO_EGRESS;

	__u32 device = fib->ifindex;
	struct tam_vlan_key up = { .ifindex = device, .vlan = TAM_VLAN_UP };
	struct tam_vlan *below = bpf_map_lookup_elem(&tam_vlans, &up);

	if (below)
		device = below->ifindex;

	__u32 *number = bpf_map_lookup_elem(&tam_egress, &device);

	return number ? 1 + *number : TAM_NO_EGRESS;
}

#endif
