/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Parser: frame to struct packet, the input of classification and routing.
 *
 * base/wire's parse_frame decides the same in Rust; levels/bpf compares the two on
 * golden, random and mutated frames. Bounds are checked against data_end before each
 * read; lengths that the frame claims are never trusted.
 */
#ifndef TAM_PARSE_H
#define TAM_PARSE_H

#include "tam_bpf.h"
#include "tam_maps.h"

/* ICMPv6 types of neighbour discovery: router solicitation to redirect (RFC 4861). */
#define ND_FIRST 133
#define ND_LAST 137

/* Length of an Ethernet header and TAM_VLAN_TAGS_MAX tags. */
#define TAM_L3_OFFSET_MAX (14 + 4 * TAM_VLAN_TAGS_MAX)
/* Limit of header offsets, bytes: headers that begin beyond it are not read. */
#define TAM_HEADERS_MAX 4096
#define TAM_TCP_FLAGS_IN 13	/* offset of the flags in a TCP header */

/* Number of the port that this copy of the program serves; set before loading. */
const volatile __u32 port_number = 0;

struct packet {
	struct tam_key key;	/* unset after parse_common() */
	__u32 length;		/* of the frame */
	__u32 ip_length;	/* of the IP packet */
	__u16 l3_offset;
	__u16 l4_offset;
	__u16 fragment_id;	/* identification; of IPv6 its low half */
	__u16 vlan_id;
	__u8 vlan_tags;
	__u8 ttl;
	__u8 options;		/* IPv4 options or a hop-by-hop header */
	__u8 tos;		/* traffic class, whole byte */
	__u8 tcp_flags;		/* byte 13 of a TCP header that is there, else 0 */
	__u8 outcome;		/* of a frame that is not IP, when no rule says otherwise */
};

/* Returns the outcome of an Ethernet or IP header that ends behind the linear part: cut
 * off, or in a later buffer of a frame that has several, which the kernel's stack can
 * read. */
static __always_inline int cut_off(tam_context *ctx)
{
	__u64 linear = ctx->data_end - ctx->data;

	return whole_length(ctx) > linear ? TAM_KERNEL_OTHER : TAM_DROP_TRUNCATED;
}

/* Returns the required length of an L4 header in bytes, or 0 when the protocol is
 * unknown. */
static __always_inline __u32 l4_header_length(__u8 protocol)
{
	switch (protocol) {
	case IPPROTO_TCP:
		return 20;
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return 8;
	case IPPROTO_SCTP:
	case IPPROTO_DCCP:
		return 12;
	default:
		return 0;
	}
}

/* Parses the L4 header at `offset`; `end` is the end of the IP packet, from the frame's
 * start. Missing or unreadable parts are hidden: forwarding needs none of them. */
static __always_inline int parse_l4(tam_context *ctx, struct packet *packet, __u32 offset, __u32 end)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	__u32 length = l4_header_length(packet->key.protocol);

	packet->l4_offset = TAM_OFFSET_NONE;
	if (packet->key.fragment == TAM_FRAGMENT_LATER)
		return -1;
	if (offset + length <= end)
		packet->l4_offset = offset;
	if (!length || packet->key.protocol == IPPROTO_ICMP)
		return -1;

	int is_read = offset <= TAM_HEADERS_MAX && offset + 4 <= end && data + offset + 4 <= data_end;

	if (packet->key.protocol == IPPROTO_ICMPV6) {
		/* RFC 4861 section 7.1: valid only with a hop limit of 255. */
		if (!is_read || packet->ttl != 255 || offset + length > end)
			return -1;

		__u8 type = *(__u8 *)(data + offset);

		return type >= ND_FIRST && type <= ND_LAST ? TAM_KERNEL_LINK_LOCAL : -1;
	}
	if (!is_read) {
		packet->key.hidden = TAM_HIDDEN_PORTS;
		return -1;
	}
	packet->key.source_port_be = *(__be16 *)(data + offset);
	packet->key.destination_port_be = *(__be16 *)(data + offset + 2);
	if (packet->key.protocol == IPPROTO_TCP) {
		if (offset + TAM_TCP_FLAGS_IN < end && data + offset + TAM_TCP_FLAGS_IN + 1 <= data_end)
			packet->tcp_flags = *(__u8 *)(data + offset + TAM_TCP_FLAGS_IN);
		else
			packet->key.hidden = TAM_HIDDEN_FLAGS;
	}
	return -1;
}

/* Returns true unless the ones' complement sum over an IPv4 header without options is
 * 0xffff. */
static __always_inline int checksum_wrong(const struct iphdr *ip)
{
	const __u32 *words = (const __u32 *)ip;
	__u64 sum = (__u64)words[0] + words[1] + words[2] + words[3] + words[4];

	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum != 0xffff;
}

/* Checks the sum with options: rare, and not inlined into the common path. */
__noinline int checksum_wrong_options(tam_context *ctx, __u32 l3, __u32 header_length)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	__u32 sum = 0;

	if (l3 > TAM_L3_OFFSET_MAX)
		return 1;
	for (__u32 at = 0; at < 60 && at < header_length; at += 2) {
		__u16 *word = data + l3 + at;

		if ((void *)(word + 1) > data_end)
			return 1;
		sum += *word;
	}
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum != 0xffff;
}

/* Returns true for fe80::/10: of one link, and so the kernel's (RFC 4291 section 2.5.6). */
static __always_inline int is_link_local(const __u8 *address)
{
	return address[0] == 0xfe && (address[1] & 0xc0) == 0x80;
}

static __always_inline int parse_ipv4(tam_context *ctx, struct packet *packet, __u32 l3)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + l3;

	if ((void *)(ip + 1) > data_end)
		return cut_off(ctx);
	if (ip->version != 4)
		return TAM_DROP_IP_VERSION;
	if (ip->ihl < 5)
		return TAM_DROP_HEADER_LENGTH;

	__u32 header_length = ip->ihl * 4;
	__u32 total_length = bpf_ntohs(ip->tot_len);

	if (data + l3 + header_length > data_end)
		return cut_off(ctx);
	if (total_length < header_length)
		return TAM_DROP_TOTAL_LENGTH;
	if (l3 + total_length != packet->length) {	/* padding, several buffers, or a wrong length */
		packet->length = whole_length(ctx);
		if (l3 + total_length > packet->length)
			return TAM_DROP_TOTAL_LENGTH;
	}
	if (header_length == sizeof(*ip) ? checksum_wrong(ip)
					 : checksum_wrong_options(ctx, l3, header_length))
		return TAM_DROP_CHECKSUM;

	__u16 fragment = bpf_ntohs(ip->frag_off);

	packet->ip_length = total_length;
	packet->ttl = ip->ttl;
	packet->tos = ip->tos;
	packet->options = header_length > sizeof(*ip);
	packet->fragment_id = ip->id;
	packet->key.ip_version = 4;
	packet->key.protocol = ip->protocol;
	packet->key.dscp = ip->tos >> 2;
	if (fragment & 0x1fff)
		packet->key.fragment = TAM_FRAGMENT_LATER;
	else if (fragment & 0x2000)
		packet->key.fragment = TAM_FRAGMENT_FIRST;
	*(__be32 *)packet->key.source = ip->saddr;
	*(__be32 *)packet->key.destination = ip->daddr;
	return parse_l4(ctx, packet, l3 + header_length, l3 + total_length);
}

/* Walks IPv6 extension headers (RFC 8200 section 4) to the protocol behind them. A chain
 * that is cut off, too long or too far behind hides it: a router reads none but the
 * hop-by-hop header. */
__noinline int walk_extensions(tam_context *ctx, struct packet *packet, __u32 end)
{
	if (!packet)
		return 0;

	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	__u32 offset = packet->l4_offset;
	__u8 protocol = packet->key.protocol;

	packet->l4_offset = TAM_OFFSET_NONE;
	for (int walked = 0; walked <= TAM_EXTENSIONS_MAX; walked++) {
		__u32 length;

		packet->key.protocol = protocol;
		switch (protocol) {
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
		case IPPROTO_AH:
		case IPPROTO_FRAGMENT:
		case 135:	/* mobility, RFC 6275 */
		case 139:	/* HIP, RFC 7401 */
		case 140:	/* shim6, RFC 5533 */
			break;
		default:
			packet->l4_offset = protocol == IPPROTO_NONE ? TAM_OFFSET_NONE : offset;
			return 0;
		}
		if (protocol == IPPROTO_HOPOPTS)
			packet->options = 1;
		if (walked == TAM_EXTENSIONS_MAX || offset > TAM_HEADERS_MAX || offset + 8 > end ||
		    data + offset + 8 > data_end)
			break;

		__u8 *header = data + offset;

		if (protocol == IPPROTO_FRAGMENT) {
			__u16 fragment = header[2] << 8 | header[3];

			packet->fragment_id = header[6] << 8 | header[7];
			packet->key.fragment = fragment & 0xfff8 ? TAM_FRAGMENT_LATER
					     : fragment & 1	 ? TAM_FRAGMENT_FIRST
								 : packet->key.fragment;
			length = 8;
		} else if (protocol == IPPROTO_AH) {
			length = (header[1] + 2) * 4;
		} else {
			length = (header[1] + 1) * 8;
		}
		if (offset + length > end)
			break;
		protocol = header[0];
		offset += length;
		if (packet->key.fragment == TAM_FRAGMENT_LATER) {
			packet->key.protocol = protocol;
			return 0;
		}
	}
	packet->key.hidden = TAM_HIDDEN_PROTOCOL;
	return 0;
}

static __always_inline int parse_ipv6(tam_context *ctx, struct packet *packet, __u32 l3)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip6 = data + l3;

	if ((void *)(ip6 + 1) > data_end)
		return cut_off(ctx);
	if (ip6->version != 6)
		return TAM_DROP_IP_VERSION;

	__u32 payload_length = bpf_ntohs(ip6->payload_len);
	__u32 total_length = sizeof(*ip6) + payload_length;

	if (l3 + total_length != packet->length) {	/* padding, several buffers, or a wrong length */
		packet->length = whole_length(ctx);
		if (l3 + total_length > packet->length)
			return TAM_DROP_TOTAL_LENGTH;
	}
	if (!payload_length && ip6->nexthdr == IPPROTO_HOPOPTS)
		return TAM_DROP_TOTAL_LENGTH;	/* a jumbogram, RFC 2675 */

	packet->ip_length = total_length;
	packet->ttl = ip6->hop_limit;
	packet->tos = ip6->priority << 4 | ip6->flow_lbl[0] >> 4;
	packet->key.ip_version = 6;
	packet->key.protocol = ip6->nexthdr;
	packet->key.dscp = packet->tos >> 2;
	__builtin_memcpy(packet->key.source, &ip6->saddr, 16);
	__builtin_memcpy(packet->key.destination, &ip6->daddr, 16);
	packet->l4_offset = l3 + sizeof(*ip6);
	if (ip6->nexthdr != IPPROTO_TCP && ip6->nexthdr != IPPROTO_UDP) {
		walk_extensions(ctx, packet, l3 + total_length);
		if (packet->l4_offset == TAM_OFFSET_NONE)
			return -1;
	}
	return parse_l4(ctx, packet, packet->l4_offset, l3 + total_length);
}

static __always_inline int parse_ethernet(tam_context *ctx, const struct tam_port_config *config,
					  struct packet *packet)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	__u32 l3 = sizeof(*eth);

	packet->length = data_end - data;
	if ((void *)(eth + 1) > data_end)
		return TAM_DROP_TRUNCATED;

	/* Frames for another MAC are parsed no further, except for the ethertype. */
	int others = !config->bridge && (*(__u32 *)eth->h_dest != *(__u32 *)config->mac ||
					 *(__u16 *)(eth->h_dest + 4) != *(__u16 *)(config->mac + 4));
	__be16 ethertype = eth->h_proto;

	__builtin_memcpy(packet->key.destination_mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(packet->key.source_mac, eth->h_source, ETH_ALEN);
	for (int tag = 0; tag <= TAM_VLAN_TAGS_MAX; tag++) {
		if (ethertype != bpf_htons(ETH_P_8021Q) && ethertype != bpf_htons(ETH_P_8021AD))
			break;
		if (tag == TAM_VLAN_TAGS_MAX)
			return others ? TAM_KERNEL_NOT_FOR_US : TAM_KERNEL_VLAN_DEPTH;

		struct vlan_header *vlan = data + l3;

		if ((void *)(vlan + 1) > data_end)
			return others ? TAM_KERNEL_NOT_FOR_US : TAM_DROP_TRUNCATED;
		if (!tag)
			packet->key.vlan = TAM_VLAN_PRESENT | (bpf_ntohs(vlan->tci_be) & 0x0fff);
		packet->vlan_tags++;
		ethertype = vlan->ethertype_be;
		l3 += sizeof(*vlan);
	}
#ifdef TAM_AT_TC
	/* The stack has stripped the outer tag from the frame. */
	if (ctx->vlan_present) {
		packet->key.vlan = TAM_VLAN_PRESENT | (ctx->vlan_tci & 0x0fff);
		packet->vlan_tags++;
	}
#endif
	packet->l3_offset = l3;
	packet->key.ethertype_be = bpf_ntohs(ethertype) < ETH_P_802_3_MIN
					   ? bpf_htons(TAM_ETHERTYPE_LENGTH)
					   : ethertype;
	if (ethertype == bpf_htons(ETH_P_IP))
		return others ? TAM_KERNEL_NOT_FOR_US : parse_ipv4(ctx, packet, l3);
	if (ethertype == bpf_htons(ETH_P_IPV6)) {
		int outcome = others ? TAM_KERNEL_NOT_FOR_US : parse_ipv6(ctx, packet, l3);

		/* No router forwards them; but a bridge carries them from host to host. */
		if (outcome < 0 && !config->bridge &&
		    (is_link_local(packet->key.source) || is_link_local(packet->key.destination)))
			return TAM_KERNEL_LINK_LOCAL;
		return outcome;
	}
	packet->l4_offset = TAM_OFFSET_NONE;
	packet->outcome = others ? TAM_KERNEL_NOT_FOR_US : TAM_KERNEL_NOT_IP;
	return packet->outcome;
}

/* Fills `packet`. Returns -1 when it can be classified, else its outcome. The length is
 * set in both cases. */
static __always_inline int parse(tam_context *ctx, const struct tam_port_config *config,
				 struct packet *packet)
{
	int outcome = parse_ethernet(ctx, config, packet);

	if (outcome >= 0)
		packet->length = whole_length(ctx);
	return outcome;
}

/* Key of the flow cache: eight words.
 *
 * of any packet         struct tam_key
 * of the common frame   its bytes 0..15, 20..23 (protocol), 26..37 (addresses, L4 ports), then
 *                       arrival port and, if rules match on them, TCP flags; six words
 *
 * The common frame has no tag, IPv4 without options, no fragment, TCP or UDP. Its
 * bytes are compared in place: nothing is parsed before a cache hit. */
#define TAM_KEY_WORDS 8
#define TAM_COMMON_WORDS 6
#define TAM_COMMON (1ULL << 63)		/* in word 5, where struct tam_key is zero */
#define TAM_COMMON_FLAGS 32		/* position of the TCP flags in word 5 */
#define TAM_TCP_FLAGS_AT (14 + 20 + 13)	/* offset of the TCP flags in the common frame */

struct common_head {
	__u64 words[5];
} __attribute__((packed));

struct common_key {
	__u64 words[TAM_KEY_WORDS];	/* the last two are zero */
};

static const __u64 common_type = 0x450008ULL << 32;	/* bytes 12..14: IPv4, five words long */
#define TAM_COMMON_TYPE_MASK (0xffffffULL << 32)
#define TAM_COMMON_FRAGMENT_MASK (0xffbfULL << 32)	/* bytes 20..21 except "do not fragment" */
#define TAM_COMMON_PROTOCOL_MASK (0xffULL << 56)	/* byte 23 */

/* Returns true if this is the common frame and its header is correct; then `packet` is
 * complete except for its key, and `key` is set. Checks no less than parse() does.
 * `flags` are the TCP flags that rules match on. */
static __always_inline int parse_common(tam_context *ctx, struct packet *packet, __u8 flags,
					__u64 key[TAM_COMMON_WORDS])
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	const struct common_head *head = data;
	const struct iphdr *ip = data + sizeof(struct ethhdr);
	__u32 total_length, protocol;

	if (data + sizeof(struct ethhdr) + sizeof(struct iphdr) + 8 > data_end)
		return 0;
#ifdef TAM_AT_TC
	if (ctx->vlan_present)
		return 0;
#endif
	key[1] = head->words[1];
	key[2] = head->words[2];
	if ((key[1] & TAM_COMMON_TYPE_MASK) != common_type || key[2] & TAM_COMMON_FRAGMENT_MASK)
		return 0;
	protocol = key[2] >> 56;
	total_length = bpf_ntohs(ip->tot_len);
	packet->length = data_end - data;
	if (protocol == IPPROTO_TCP ? total_length < sizeof(struct iphdr) + 20
				    : protocol != IPPROTO_UDP || total_length < sizeof(struct iphdr) + 8)
		return 0;
	if (sizeof(struct ethhdr) + total_length != packet->length) {	/* as in parse_ipv4() */
		packet->length = whole_length(ctx);
		if (sizeof(struct ethhdr) + total_length > packet->length)
			return 0;
	}
	if (checksum_wrong(ip))
		return 0;
	packet->ip_length = total_length;
	packet->l3_offset = sizeof(struct ethhdr);
	packet->l4_offset = sizeof(struct ethhdr) + sizeof(struct iphdr);
	packet->vlan_tags = 0;
	packet->options = 0;
	packet->ttl = ip->ttl;
	key[0] = head->words[0];
	key[2] &= TAM_COMMON_PROTOCOL_MASK;
	key[3] = head->words[3] & ~0xffffULL;
	key[4] = head->words[4] & ~(0xffffULL << 48);
	key[5] = TAM_COMMON | port_number;
	if (flags && protocol == IPPROTO_TCP) {
		if (data + TAM_TCP_FLAGS_AT + 1 > data_end)
			return 0;
		key[5] |= (__u64)(*(__u8 *)(data + TAM_TCP_FLAGS_AT) & flags) << TAM_COMMON_FLAGS;
	}
	return 1;
}

/* Computes a hash that both directions of a flow share, for lanes. Fragments have no L4
 * ports in it, so that all of a datagram meet. base/wire's flow_hash is the same. */
static __always_inline __u32 flow_hash(const struct packet *packet)
{
	const __u32 *a = (const __u32 *)packet->key.source;
	const __u32 *b = (const __u32 *)packet->key.destination;
	__u32 x = a[0] ^ b[0], y;

	y = a[1] ^ b[1];
	x ^= y << 7 | y >> 25;
	y = a[2] ^ b[2];
	x ^= y << 14 | y >> 18;
	y = a[3] ^ b[3];
	x ^= y << 21 | y >> 11;
	if (packet->key.fragment == TAM_FRAGMENT_NONE)
		x ^= bpf_ntohs(packet->key.source_port_be) ^ bpf_ntohs(packet->key.destination_port_be);
	x ^= (__u32)packet->key.protocol << 24;
	x ^= x >> 16;
	x *= 0x85ebca6b;
	x ^= x >> 13;
	x *= 0xc2b2ae35;
	return x ^ x >> 16;
}

#endif
