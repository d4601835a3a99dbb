/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Ports without Ethernet: TUN devices, whose packets begin with the IP header.
 *
 *   arrives          │ IP ... │
 *   is handled as    │ 00:00:00:00:00:00 │ 00:00:00:00:00:00 │ type │ IP ... │
 *   leaves           │ IP ... │, when it is for the kernel or for a TUN device
 *
 * A frame for a TUN device crosses at tc (bridge.h), where the kernel strips the header.
 *
 * So rules, routes, modules and the cell see one kind of packet. The constant is false
 * on other ports, and all of this is removed from their copy of the program.
 *
 */
#ifndef TAM_TUN_H
#define TAM_TUN_H

#include "classify.h"

/* True if the packets of this copy's port arrive without an Ethernet header; set before
 * loading. */
const volatile __u32 begins_with_ip = 0;

/* Adds an Ethernet header. Returns 0, or an error: an empty packet, or no space. */
static __always_inline int put_ethernet(struct xdp_md *ctx)
{
	const __u8 *version = (void *)(long)ctx->data;

	if ((const void *)(version + 1) > (void *)(long)ctx->data_end)
		return -1;

	__be16 type = *version >> 4 == 6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);

	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(struct ethhdr)))
		return -1;

	struct ethhdr *eth = (void *)(long)ctx->data;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return -1;
	__builtin_memset(eth, 0, 2 * ETH_ALEN);
	eth->h_proto = type;
	return 0;
}

/* Removes the Ethernet header before the packet goes to the kernel, or back by the
 * driver. */
static __always_inline int take_ethernet(struct xdp_md *ctx, int action)
{
	if (action != XDP_PASS && action != XDP_TX)
		return action;
	return bpf_xdp_adjust_head(ctx, sizeof(struct ethhdr)) ? XDP_DROP : action;
}

#endif
