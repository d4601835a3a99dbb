// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Smallest program that moves a frame from one port to another: fixed MACs, fixed device,
 * no parsing. An upper bound of speed, not a router. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

struct macs {
	__u8 destination[ETH_ALEN];
	__u8 source[ETH_ALEN];
};

struct macs macs;	/* set before loading */

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} device SEC(".maps");

SEC("xdp")
int fixed_redirect(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + sizeof(struct ethhdr) > end)
		return XDP_DROP;
	__builtin_memcpy(data, &macs, sizeof(macs));
	return bpf_redirect_map(&device, 0, XDP_DROP);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
