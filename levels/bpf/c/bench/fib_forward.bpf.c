// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Baseline of the `forward` benchmark: the least that forwards correctly. Parses Ethernet
 * and IP, asks the kernel's FIB for route and neighbour, rewrites MACs and TTL, and
 * redirects. Anything unusual is left to the kernel. No rules, no counters, no VLAN.
 *
 * The shape is that of the kernel's own sample (samples/bpf/xdp_fwd_kern.c at v5.15); the
 * code is ours. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define FAMILY_V4 2	/* AF_INET; its header is not for BPF */
#define FAMILY_V6 10	/* AF_INET6 */
#define DEVICES_MAX 256	/* largest interface index in the benchmark's namespace */

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, DEVICES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} devices SEC(".maps");

/* RFC 1141: TTL is the upper byte of its word. */
static __always_inline void decrease_ttl(struct iphdr *ip)
{
	__u32 check = ip->check + bpf_htons(0x0100);

	ip->check = check + (check >= 0xffff);
	ip->ttl--;
}

SEC("xdp")
int fib_forward(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct bpf_fib_lookup fib = {};
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);

	if ((void *)(eth + 1) > end)
		return XDP_DROP;
	fib.ifindex = ctx->ingress_ifindex;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		if ((void *)(ip + 1) > end || ip->ihl != 5 || ip->ttl <= 1)
			return XDP_PASS;
		fib.family = FAMILY_V4;
		fib.tos = ip->tos;
		fib.l4_protocol = ip->protocol;
		fib.tot_len = bpf_ntohs(ip->tot_len);
		fib.ipv4_src = ip->saddr;
		fib.ipv4_dst = ip->daddr;
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		if ((void *)(ip6 + 1) > end || ip6->hop_limit <= 1)
			return XDP_PASS;
		fib.family = FAMILY_V6;
		fib.flowinfo = *(__be32 *)ip6 & bpf_htonl(0x0fffffff);
		fib.l4_protocol = ip6->nexthdr;
		fib.tot_len = bpf_ntohs(ip6->payload_len) + sizeof(*ip6);
		__builtin_memcpy(fib.ipv6_src, &ip6->saddr, sizeof(ip6->saddr));
		__builtin_memcpy(fib.ipv6_dst, &ip6->daddr, sizeof(ip6->daddr));
	} else {
		return XDP_PASS;
	}
	if (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return XDP_PASS;
	if (fib.family == FAMILY_V4)
		decrease_ttl(ip);
	else
		ip6->hop_limit--;
	__builtin_memcpy(eth->h_dest, fib.dmac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, fib.smac, ETH_ALEN);
	return bpf_redirect_map(&devices, fib.ifindex, XDP_PASS);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
