/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Head of a packet on egress: one hop less, the egress port's tag or none, the next hop's
 * MACs. base/wire's rewrite.rs is the same in Rust. */
#ifndef TAM_REWRITE_H
#define TAM_REWRITE_H

#include "context.h"

/* Decrements the TTL and updates the header's checksum (RFC 1624). */
static __always_inline void decrease_ttl(struct iphdr *ip)
{
	__u32 sum = ip->check + bpf_htons(0x0100);

	ip->check = (__u16)(sum + (sum >= 0xffff));
	ip->ttl--;
}

/* Returns the length of a frame without the trailer behind its IP packet. */
static __always_inline __u32 without_trailer(__u32 l3, __u32 ip_length)
{
	return l3 + ip_length < TAM_FRAME_MIN ? TAM_FRAME_MIN : l3 + ip_length;
}

/* Returns the length in the IP header at `l3`; 0 when there is no whole header. */
static __always_inline __u32 ip_length_at(void *l3, const void *data_end)
{
	const struct iphdr *ip = l3;
	const struct ipv6hdr *ip6 = l3;

	if ((void *)(ip + 1) > data_end)
		return 0;
	if (ip->version == 4)
		return bpf_ntohs(ip->tot_len);
	if (ip->version != 6 || (void *)(ip6 + 1) > data_end)
		return 0;
	return sizeof(*ip6) + bpf_ntohs(ip6->payload_len);
}

/* Cuts the trailer behind the IP packet at `l3` off, as Linux does (ip_rcv_core): it
 * belongs to the arrival link, and the packet must fit the next one. Returns 0, or an
 * error; packet pointers must be reloaded. */
static __always_inline int trim(void *ctx, enum tam_level level, __u32 l3)
{
	void *data = first_byte(ctx, level), *data_end = last_byte(ctx, level);
	__u32 ip_length = ip_length_at(data + l3, data_end);
	__u32 length = without_trailer(l3, ip_length);

	return ip_length && frame_length(ctx, level) > length ? set_length(ctx, level, length) : 0;
}

/* Gives the frame the tag of its egress, or none, and its MACs. The IP header is at `l3`,
 * behind the frame's tags. Returns 0, or -1 when the head cannot move. */
static __always_inline int readdress(void *ctx, enum tam_level level, const struct tam_meta *passage,
				     const __u8 own_mac[ETH_ALEN], __u32 l3)
{
	__u16 vlan = passage->egress_vlan;
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
	__builtin_memcpy(eth->h_dest, passage->next_hop, ETH_ALEN);
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
