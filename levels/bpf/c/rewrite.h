/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* What a packet's head becomes on its way out: one hop less, the egress port's
 * tag or none, the next hop's MACs. base/wire's rewrite.rs is the same in Rust. */
#ifndef TAM_REWRITE_H
#define TAM_REWRITE_H

#include "context.h"

/* RFC 1624: the checksum of a header whose TTL byte falls by one. */
static __always_inline void decrease_ttl(struct iphdr *ip)
{
	__u32 sum = ip->check + bpf_htons(0x0100);

	ip->check = (__u16)(sum + (sum >= 0xffff));
	ip->ttl--;
}

/* Gives the frame the tag of its egress, or none, and its MACs. The IP header is
 * at `l3`, behind the tags that the frame has. Returns 0, or -1 when the head cannot move. */
static __always_inline int readdress(void *ctx, enum tam_level level, const struct tam_meta *way,
				     const __u8 own_mac[ETH_ALEN], __u32 l3)
{
	__u16 vlan = way->egress_vlan;
	int insert = vlan && l3 == sizeof(struct ethhdr);

	if (!vlan && l3 != sizeof(struct ethhdr)) {
		if (cut_tags(ctx, level, l3 - sizeof(struct ethhdr)))
			return -1;
	} else if (insert) {
		if (add_head(ctx, level, sizeof(struct vlan_header)))
			return -1;
	}

	void *data = first_byte(ctx, level), *data_end = last_byte(ctx, level);

	hide(data);

	struct ethhdr *eth = data;
	struct vlan_header *tag = data + sizeof(*eth);

	if ((void *)(eth + 1) > data_end)
		return -1;
	__builtin_memcpy(eth->h_dest, way->next_hop, ETH_ALEN);
	__builtin_memcpy(eth->h_source, own_mac, ETH_ALEN);
	if (!vlan)
		return 0;	/* the ethertype in front of the IP header is the frame's now */
	if ((void *)(tag + 1) > data_end)
		return -1;
	if (insert) {
		eth->h_proto = bpf_htons(ETH_P_8021Q);
		tag->tci_be = 0;
	}
	tag->tci_be = (tag->tci_be & bpf_htons(0xf000)) | bpf_htons(vlan & 0x0fff);
	return 0;
}

#endif
