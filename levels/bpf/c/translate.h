/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Source addresses changed by a module, in packets that the kernel finishes: it resolves the
 * next hop, fragments, filters, or answers with an ICMP error. As with the kernel's own NAT the
 * source is rewritten last:
 *
 *   arrives       module         give_back_source()                kernel        tam_translate, at tcx egress
 *   A:1 > B:2 ──▶ R:9 > B:2 ──▶ A:1 > B:2, and R:9 recorded ──▶ routes it ──▶ R:9 > B:2
 *
 * An error of the kernel's own quotes the packet as the kernel had it. Where a module has changed the
 * destination, tam_translate restores the original one in the quoted packet:
 *
 *   arrives       module         kernel                        tam_translate
 *   C:5 > R:9 ──▶ C:5 > A:1 ──▶ R > C: too big (C:5 > A:1) ──▶ R > C: too big (C:5 > R:9)
 *
 * So no source is an address of the router's own, which the kernel drops as martian (RFC 1812,
 * 5.3.8); filters and routing rules see the sender; and ICMP errors go to it and quote its packet.
 * Rejected alternatives: docs/adr/0015.
 *
 * A packet reaches the kernel as its module left it when it leaves by no port, when the module put
 * another IP header in front, and where the source is not in the common place: behind IPv6
 * extension headers. Nothing here runs for packets that the kernel does not get.
 *
 */
#ifndef TAM_TRANSLATE_H
#define TAM_TRANSLATE_H

#include "passage.h"
#include "share.h"

/* Flows of which the kernel has packets at one moment: each record is needed from here to
 * tcx egress. */
#define TAM_TRANSLATIONS_MAX 65536
/* Jiffies for which a record is valid: a packet waits for its next hop for 3 s
 * (net/core/neighbour.c), and later packets of a removed service must not be changed. */
#define TAM_TRANSLATION_LIFE 4000
/* Least jiffies between two renewals of a record. */
#define TAM_TRANSLATION_RENEWAL 500
/* Continue with the next program at egress (TCX_NEXT of newer headers). */
#define TAM_EGRESS_NEXT -1

/* Key of a packet as the kernel has it. */
struct tam_translation_key {
	struct tam_end source;	/* of a later fragment the port is the IP identification */
	struct tam_end destination;
	__u8 protocol;
	__u8 ip_version;
	__u8 later;		/* 1: a later fragment */
	__u8 arrival;		/* 1 + arrival_by() of the arrival device; 0: of a quoted packet */
};
_Static_assert(TAM_STACK_ARRIVALS < 255, "arrivals have credits in the key");

struct tam_translation {
	struct tam_end end;	/* source with which it leaves, or destination with which it arrived */
	__u32 noted;		/* jiffies */
	__u8 tos;		/* traffic class of the FIB query */
	__u8 zero[7];
	__u64 generation;	/* generation of the routes by which it leaves by a port */
};

/* Fields of a packet that translation uses. Offsets begin at the IP header. */
struct tam_ends {
	struct tam_translation_key key;
	__u16 port_at;		/* 0: none */
	__u16 check_at;		/* offset of the L4 checksum; 0: none that changes */
	__u8 is_pseudo;		/* the checksum covers the addresses */
	__u8 may_be_0;		/* UDP over IPv4: 0 means no checksum */
	__u8 ttl;
	__u8 is_first;		/* further fragments follow */
	__u8 tos;		/* traffic class */
};

/* Original source of a packet that a module may change; ip_version 0: it is not to be
 * restored. */
struct tam_origin {
	struct tam_end source;
	struct tam_end destination;
	__u8 protocol;
	__u8 ip_version;
	__u8 later;
	__u8 arrival;		/* as in the key of a note */
	/* Working memory: the packet as it is now, and the source that its module gave
	 * it. */
	struct tam_ends ends;
	struct tam_end given;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tam_origin);
} tam_origins SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TAM_TRANSLATIONS_MAX);
	__type(key, struct tam_translation_key);
	__type(value, struct tam_translation);
} tam_translations SEC(".maps");

/* Original destinations of packets, for errors that quote them. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TAM_TRANSLATIONS_MAX);
	__type(key, struct tam_translation_key);
	__type(value, struct tam_translation);
} tam_quoted SEC(".maps");

/* Jiffies of the last record of each kind: without a recent one nothing is looked up at
 * egress. */
#define TAM_NOTED_SOURCE 0
#define TAM_NOTED_DESTINATION 1
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} tam_translated SEC(".maps");

/* Returns the address of the packet's bytes from `at` on, or 0 when they are not all in
 * its linear part. */
static __always_inline void *linear_at(void *ctx, enum tam_level level, __u32 at, __u32 bytes)
{
	void *from = first_byte(ctx, level) + at;

	return at <= TAM_HEADERS_MAX && from + bytes <= last_byte(ctx, level) ? from : 0;
}

static __always_inline long load_at(void *ctx, enum tam_level level, __u32 at, void *to, __u32 bytes)
{
	const void *from = linear_at(ctx, level, at, bytes);

	if (from) {
		__builtin_memcpy(to, from, bytes);
		return 0;
	}
	return level == TAM_LEVEL_NIC ? bpf_xdp_load_bytes(ctx, at, to, bytes)
				      : bpf_skb_load_bytes(ctx, at, to, bytes);
}

/* Writes into a packet on ingress, or (`leaves`) at tc egress: a program that writes
 * directly there has every packet copied that a local sender may send again
 * (tc_cls_act_prologue). */
static __always_inline long store_at(void *ctx, enum tam_level level, int leaves, __u32 at,
				     const void *from, __u32 bytes)
{
	void *to = leaves ? 0 : linear_at(ctx, level, at, bytes);

	if (to) {
		__builtin_memcpy(to, from, bytes);
		return 0;
	}
	return level == TAM_LEVEL_NIC ? bpf_xdp_store_bytes(ctx, at, (void *)from, bytes)
				      : bpf_skb_store_bytes(ctx, at, from, bytes, 0);
}

/* Reads the L4 header at `l4`, behind an IP header of `header` bytes. Returns 0, or -1
 * where the source cannot be changed. */
static __always_inline int read_l4(void *ctx, enum tam_level level, __u32 l4, __u32 header,
				   struct tam_ends *ends)
{
	struct {
		__be16 source_be;
		__be16 destination_be;
		__be16 third_be;
	} words;
	__u8 protocol = ends->key.protocol, is_v4 = ends->key.ip_version == 4, type;

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP && protocol != IPPROTO_ICMP &&
	    protocol != IPPROTO_ICMPV6)
		/* Their checksums cover the addresses; and IPv6 has its extension headers
		 * here. */
		return is_v4 && protocol != IPPROTO_UDPLITE && protocol != IPPROTO_DCCP ? 0 : -1;
	if (load_at(ctx, level, l4, &words, sizeof(words)))
		return -1;
	if (protocol == IPPROTO_TCP || protocol == IPPROTO_UDP) {
		ends->key.source.port_be = words.source_be;
		ends->key.destination.port_be = words.destination_be;
		ends->port_at = header;
		ends->check_at = header + (protocol == IPPROTO_TCP ? 16 : 6);
		ends->is_pseudo = 1;
		ends->may_be_0 = protocol == IPPROTO_UDP;
		return 0;
	}
	type = *(__u8 *)&words;
	ends->is_pseudo = !is_v4;
	ends->check_at = header + 2;
	/* Echo, and of IPv4 timestamps: requests and replies. */
	if (is_v4 ? type == 0 || type == 8 || type == 13 || type == 14 : type == 128 || type == 129) {
		ends->key.source.port_be = words.third_be;
		ends->port_at = header + 4;
	} else if (is_v4) {
		ends->check_at = 0;
	}
	return 0;
}

static __always_inline int read_ends_at(void *ctx, enum tam_level level, __u32 l3,
					struct tam_ends *ends)
{
	__u32 zero = 0, header = sizeof(struct ipv6hdr);
	struct tam_scratch *scratch = bpf_map_lookup_elem(&tam_scratch, &zero);

	if (!scratch)
		return -1;	/* the map has every index: not reached */

	struct ipv6hdr *ip6 = &scratch->ip;
	const struct iphdr *ip = (void *)ip6;

	__builtin_memset(ends, 0, sizeof(*ends));
	if (load_at(ctx, level, l3, ip6, sizeof(*ip)))
		return -1;
	if (ip->version == 4) {
		__u32 offset = bpf_ntohs(ip->frag_off);

		header = ip->ihl * 4;
		ends->key.ip_version = 4;
		ends->key.protocol = ip->protocol;
		ends->ttl = ip->ttl;
		ends->tos = ip->tos;
		__builtin_memcpy(ends->key.source.address, &ip->saddr, sizeof(ip->saddr));
		__builtin_memcpy(ends->key.destination.address, &ip->daddr, sizeof(ip->daddr));
		if (offset & 0x1fff) {
			ends->key.later = 1;
			ends->key.source.port_be = ip->id;
			return 0;
		}
		ends->is_first = offset >> 13 & 1;
	} else {
		if (ip->version != 6 || load_at(ctx, level, l3, ip6, sizeof(*ip6)))
			return -1;
		ends->key.ip_version = 6;
		ends->key.protocol = ip6->nexthdr;
		ends->ttl = ip6->hop_limit;
		ends->tos = ip6->priority << 4 | ip6->flow_lbl[0] >> 4;
		__builtin_memcpy(ends->key.source.address, &ip6->saddr, sizeof(ip6->saddr));
		__builtin_memcpy(ends->key.destination.address, &ip6->daddr, sizeof(ip6->daddr));
	}
	return read_l4(ctx, level, l3 + header, header, ends);
}

static __noinline int read_ends_nic(struct xdp_md *ctx, __u32 l3, struct tam_ends *ends)
{
	return read_ends_at(ctx, TAM_LEVEL_NIC, l3, ends);
}

static __noinline int read_ends_tc(struct __sk_buff *ctx, __u32 l3, struct tam_ends *ends)
{
	return read_ends_at(ctx, TAM_LEVEL_KERNEL, l3, ends);
}

/* Reads the key of a packet's translation. Returns 0, or -1 where its source cannot be
 * changed. */
static __always_inline int read_ends(void *ctx, enum tam_level level, __u32 l3,
				     struct tam_ends *ends)
{
	return level == TAM_LEVEL_NIC ? read_ends_nic(ctx, l3, ends) : read_ends_tc(ctx, l3, ends);
}

/* Returns the key of the later fragments of the datagram whose first one has this key. */
static __always_inline void key_of_later(struct __sk_buff *ctx, __u32 l3,
					 struct tam_translation_key *key)
{
	key->later = 1;
	key->destination.port_be = 0;
	bpf_skb_load_bytes(ctx, l3 + 4, &key->source.port_be, sizeof(key->source.port_be));
}

static __always_inline int same_end(const struct tam_end *x, const struct tam_end *y)
{
	const __u32 *a = (const void *)x, *b = (const void *)y;

	return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) | (a[4] ^ b[4]));
}

static __always_inline __u16 folded(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Updates a checksum in the packet by a difference (RFC 1624). Returns 0, or an error. */
static __always_inline long follow(void *ctx, enum tam_level level, int leaves, __u32 at,
				   __u32 difference, int may_be_0)
{
	__u16 check;
	__u32 sum;

	if (load_at(ctx, level, at, &check, sizeof(check)))
		return -1;
	if (may_be_0 && !check)
		return 0;
	sum = (__u16)~check;
	sum += difference & 0xffff;
	sum += difference >> 16;
	check = ~folded(sum);
	if (may_be_0 && !check)
		check = 0xffff;
	return store_at(ctx, level, leaves, at, &check, sizeof(check));
}

/* Replaces a packet's source, with every checksum that covers it. A packet on egress may
 * have an L4 checksum that only the device completes: the kernel's helper knows. Returns
 * 0, or an error. */
static __always_inline long set_source(void *ctx, enum tam_level level, int leaves, __u32 l3,
				       const struct tam_ends *ends, const struct tam_end *to)
{
	const struct tam_end *from = &ends->key.source;
	__u32 address = bpf_csum_diff((void *)from->address, 16, (void *)to->address, 16, 0);
	__u32 port = bpf_csum_diff((void *)&from->port_be, 4, (void *)&to->port_be, 4, 0);
	__u32 check_at = l3 + ends->check_at;
	__u64 udp = ends->may_be_0 ? BPF_F_MARK_MANGLED_0 : 0;
	long failed;

	if (ends->key.ip_version == 4)
		failed = store_at(ctx, level, leaves, l3 + 12, to->address, 4) ||
			 follow(ctx, level, leaves, l3 + 10, address, 0);
	else
		failed = store_at(ctx, level, leaves, l3 + 8, to->address, 16);
	if (ends->port_at)
		failed |= store_at(ctx, level, leaves, l3 + ends->port_at, &to->port_be,
				   sizeof(to->port_be));
	if (!ends->check_at || failed)
		return failed;
	if (!leaves)
		return follow(ctx, level, 0, check_at,
			      folded(port) + (ends->is_pseudo ? folded(address) : 0), ends->may_be_0);
	if (ends->is_pseudo)
		failed = bpf_l4_csum_replace(ctx, check_at, 0, address, BPF_F_PSEUDO_HDR | udp);
	return failed | bpf_l4_csum_replace(ctx, check_at, 0, port, udp);
}

/* Returns true if a current record says that such packets leave with this source, and by
 * a port with the current routes: the FIB need not be asked again. */
static __always_inline int is_noted(const struct tam_ends *ends, const struct tam_end *source)
{
	__u32 zero = 0;
	__u64 now = bpf_jiffies64();
	const struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &zero);
	const struct tam_translation *known = bpf_map_lookup_elem(&tam_translations, &ends->key);

	return known && shared && same_end(&known->end, source) && known->tos == ends->tos &&
	       (__u32)now - known->noted < TAM_TRANSLATION_RENEWAL &&
	       known->generation == *(volatile const __u64 *)&shared->generation &&
	       now - *(volatile const __u64 *)&shared->routes_heard < TAM_ROUTES_LEASE;
}

/* Records one new end of packets with this key. */
static __always_inline void note_in(void *notes, __u32 kind, const struct tam_translation_key *key,
				    __u8 tos, const struct tam_end *end)
{
	__u32 now = bpf_jiffies64(), zero = 0;
	const struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &zero);
	__u64 generation = shared ? *(volatile const __u64 *)&shared->generation : 0;
	__u32 *last = bpf_map_lookup_elem(&tam_translated, &kind);
	const struct tam_translation *known = bpf_map_lookup_elem(notes, key);

	if (last && now - *(volatile __u32 *)last > TAM_TRANSLATION_RENEWAL)
		*(volatile __u32 *)last = now;
	if (known && same_end(&known->end, end) && now - known->noted < TAM_TRANSLATION_RENEWAL &&
	    known->generation == generation && known->tos == tos)
		return;

	struct tam_translation fresh = {
		.end = *end,
		.noted = now,
		.tos = tos,
		.generation = generation,
	};

	bpf_map_update_elem(notes, key, &fresh, BPF_ANY);
}

/* Records that such packets leave with this source. */
static __noinline int note(const struct tam_ends *ends, const struct tam_end *source)
{
	if (ends && source)
		note_in(&tam_translations, TAM_NOTED_SOURCE, &ends->key, ends->tos, source);
	return 0;
}

/* Records that packets with this key arrived with this destination. */
static __noinline int note_destination(const struct tam_translation_key *key,
				       const struct tam_end *destination)
{
	if (key && destination)
		note_in(&tam_quoted, TAM_NOTED_DESTINATION, key, 0, destination);
	return 0;
}

/* Stores the original IPv4 source in a packet's metadata, for modules at the levels
 * above; or takes it from there, if another level has stored it. */
static __always_inline void share_origin(struct tam_meta *meta, struct tam_end *source)
{
	__u8 *address = meta->next_hop, *port = meta->next_hop + sizeof(__be32);

	if (meta->egress_port == TAM_ORIGIN_BELOW) {
		__builtin_memcpy(source->address, address, sizeof(__be32));
		__builtin_memcpy(&source->port_be, port, sizeof(source->port_be));
		return;
	}
	meta->egress_port = TAM_ORIGIN_BELOW;
	__builtin_memcpy(address, source->address, sizeof(__be32));
	__builtin_memcpy(port, &source->port_be, sizeof(source->port_be));
}

/* Keeps the source of a packet that the kernel may have to finish, before the first
 * module that sees it. A packet with a route keeps nothing, at no cost. */
static __always_inline int keep_origin(void *ctx, enum tam_level level)
{
	__u32 zero = 0;
	struct tam_passage *passage = bpf_map_lookup_elem(&tam_passages, &zero);
	struct tam_origin *origin = bpf_map_lookup_elem(&tam_origins, &zero);

	if (!passage || !origin)
		return 0;

	struct tam_ends *ends = &origin->ends;

	origin->ip_version = 0;
	if (passage->meta.flags & (TAM_META_ROUTED | TAM_META_BRIDGED) || !(passage->meta.flags >> 8 & 0xff) ||
	    read_ends(ctx, level, passage->meta.l3_offset, ends))
		return 0;
	origin->source = ends->key.source;
	origin->destination = ends->key.destination;
	origin->protocol = ends->key.protocol;
	origin->later = ends->key.later;
	origin->arrival = 1 + passage->meta.arrival_port;
	origin->ip_version = ends->key.ip_version;
	if (origin->ip_version == 4)
		share_origin(&passage->meta, &origin->source);
	return 0;
}

__noinline int keep_origin_nic(struct xdp_md *ctx)
{
	return keep_origin(ctx, TAM_LEVEL_NIC);
}

__noinline int keep_origin_tc(struct __sk_buff *ctx)
{
	return keep_origin(ctx, TAM_LEVEL_KERNEL);
}

/* Returns true if the kernel sends a packet by a port where tam_translate is, or answers
 * it; `egress` is the result of egress_of(). */
static __always_inline int is_translated_at(__u32 egress, const struct tam_ends *ends)
{
	__u32 port = egress - 1;
	const struct tam_port_config *config;

	if (egress == TAM_ANSWERED || ends->ttl <= 1)
		return 1;
	if (egress == TAM_NO_EGRESS)
		return 0;
	config = bpf_map_lookup_elem(&tam_ports, &port);
	return config && !(config->flags & TAM_PORT_PACKET);
}

/* Restores the original source of a packet, and records the one that its module gave it,
 * and its original destination. Returns 0, or an error. The IP header is at `l3`. */
static __always_inline long give_back(void *ctx, enum tam_level level, __u32 l3)
{
	__u32 zero = 0;
	struct tam_origin *origin = bpf_map_lookup_elem(&tam_origins, &zero);
	long failed = 0;

	if (!origin || !origin->ip_version)
		return 0;

	struct tam_ends *ends = &origin->ends;

	if (read_ends(ctx, level, l3, ends) || ends->key.ip_version != origin->ip_version ||
	    ends->key.protocol != origin->protocol || ends->key.later != origin->later)
		return 0;
	if (!same_end(&ends->key.source, &origin->source)) {
		ends->key.arrival = origin->arrival;
		origin->given = ends->key.source;
		ends->key.source = origin->source;

		int known = is_noted(ends, &origin->given);

		ends->key.source = origin->given;
		if (known || is_translated_at(egress_at(ctx, level, l3), ends)) {
			failed = set_source(ctx, level, 0, l3, ends, &origin->source);
			ends->key.source = origin->source;
			if (!known)
				note(ends, &origin->given);
		}
	}
	ends->key.arrival = 0;
	if (!same_end(&ends->key.destination, &origin->destination))
		note_destination(&ends->key, &origin->destination);
	return failed;
}

__noinline int give_back_nic(struct xdp_md *ctx, __u32 l3)
{
	return give_back(ctx, TAM_LEVEL_NIC, l3) ? -1 : 0;
}

__noinline int give_back_tc(struct __sk_buff *ctx, __u32 l3)
{
	return give_back(ctx, TAM_LEVEL_KERNEL, l3) ? -1 : 0;
}

/* Restores the source of a packet that the kernel gets. Returns 0, or an error. */
static __always_inline int give_back_source(void *ctx, enum tam_level level, __u32 l3)
{
	return level == TAM_LEVEL_NIC ? give_back_nic(ctx, l3) : give_back_tc(ctx, l3);
}

/* Returns the offset of the IP header of a packet that leaves by a port; -1: it has none. */
static __always_inline int l3_of_leaving(struct __sk_buff *ctx)
{
	__u32 device = ctx->ifindex, *number = bpf_map_lookup_elem(&tam_egress, &device);
	const struct tam_port_config *config = number ? bpf_map_lookup_elem(&tam_ports, number) : 0;
	__u32 l3;

	if (!config)
		return -1;
	if (config->flags & TAM_PORT_RAW)
		return 0;
	l3 = find_l3((void *)(long)ctx->data, (void *)(long)ctx->data_end);
	return l3 ? (int)l3 : -1;
}

/* Overwrites a part of a quoted packet, at an even offset, and updates the checksum at
 * `check_at` of the message around it. Returns 0, or an error. `bytes` are 2, with 2 more
 * of zero behind, or a multiple of 4. */
static __always_inline long mend(struct __sk_buff *ctx, __u32 check_at, __u32 at, const void *to,
				 __u32 bytes)
{
	__u32 old[4] = {}, whole = bytes < 4 ? 4 : bytes;

	if (bpf_skb_load_bytes(ctx, at, old, bytes) || bpf_skb_store_bytes(ctx, at, to, bytes, 0))
		return -1;
	return bpf_l4_csum_replace(ctx, check_at, 0,
				   bpf_csum_diff(old, whole, (void *)to, whole, 0), 0);
}

/* Adds a difference to a quoted checksum, as mend(); one that was cut off needs nothing. */
static __always_inline long mend_check(struct __sk_buff *ctx, __u32 check_at, __u32 at,
				       __u32 difference, int may_be_0)
{
	__u16 check[2] = {};

	if (bpf_skb_load_bytes(ctx, at, check, sizeof(*check)) || (may_be_0 && !check[0]))
		return 0;
	check[0] = ~folded((__u16)~check[0] + (difference & 0xffff) + (difference >> 16));
	if (may_be_0 && !check[0])
		check[0] = 0xffff;
	return mend(ctx, check_at, at, check, sizeof(*check));
}

/* Returns the offset of the ICMP header of the kernel's own error; 0: the packet is none. */
static __always_inline __u32 find_error(struct __sk_buff *ctx, __u32 l3)
{
	struct ipv6hdr ip6;
	const struct iphdr *ip = (void *)&ip6;
	__u32 icmp = l3 + sizeof(ip6);
	__u8 type, is_v4;

	if (bpf_skb_load_bytes(ctx, l3, &ip6, sizeof(*ip)))
		return 0;
	is_v4 = ip->version == 4;
	if (is_v4 ? ip->protocol != IPPROTO_ICMP || ip->frag_off & bpf_htons(0x1fff)
		  : ip6.nexthdr != IPPROTO_ICMPV6)
		return 0;
	if (is_v4)
		icmp = l3 + ip->ihl * 4;
	if (bpf_skb_load_bytes(ctx, icmp, &type, sizeof(type)))
		return 0;
	/* Unreachable, time exceeded, parameter problem; too big. */
	return (is_v4 ? type == 3 || type == 11 || type == 12 : type >= 1 && type <= 4) ? icmp : 0;
}

/* Restores the original destination in the packet that an error of the kernel quotes. */
static __noinline int mend_quoted(struct __sk_buff *ctx)
{
	int l3 = l3_of_leaving(ctx);
	__u32 icmp = l3 < 0 ? 0 : find_error(ctx, l3), now = bpf_jiffies64(), quoted = icmp + 8;
	const struct tam_translation *found;
	struct tam_ends ends;
	struct tam_end to;
	__u32 address, port, check_at = icmp + 2;
	long failed;

	if (!icmp || read_ends(ctx, TAM_LEVEL_KERNEL, quoted, &ends))
		return TAM_EGRESS_NEXT;
	found = bpf_map_lookup_elem(&tam_quoted, &ends.key);
	if (!found || now - found->noted > TAM_TRANSLATION_LIFE)
		return TAM_EGRESS_NEXT;
	to = found->end;
	address = bpf_csum_diff((void *)ends.key.destination.address, 16, (void *)to.address, 16, 0);
	port = bpf_csum_diff((void *)&ends.key.destination.port_be, 4, (void *)&to.port_be, 4, 0);
	if (ends.key.ip_version == 4)
		failed = mend(ctx, check_at, quoted + 16, to.address, 4) ||
			 mend_check(ctx, check_at, quoted + 10, address, 0);
	else
		failed = mend(ctx, check_at, quoted + 24, to.address, 16);
	if (ends.is_pseudo && ends.port_at && ends.key.protocol != IPPROTO_ICMPV6)
		failed |= mend(ctx, check_at, quoted + ends.port_at + 2, &to.port_be,
			       sizeof(to.port_be));
	if (ends.is_pseudo && ends.check_at)
		failed |= mend_check(ctx, check_at, quoted + ends.check_at,
				     folded(port) + folded(address), ends.may_be_0);
	return failed ? TC_ACT_SHOT : TAM_EGRESS_NEXT;	/* no other counter: as the kernel's own */
}

/* Gives packets that leave by the kernel the source that their module gave them, and
 * packets quoted by the kernel's errors their original destination. */
SEC("tcx/egress")
int tam_translate(struct __sk_buff *ctx)
{
	__u32 kind = ctx->ingress_ifindex ? TAM_NOTED_SOURCE : TAM_NOTED_DESTINATION;
	__u32 now = bpf_jiffies64();
	const __u32 *last = bpf_map_lookup_elem(&tam_translated, &kind);
	const struct tam_translation *found;
	struct tam_ends ends;
	struct tam_end source;
	int l3;

	if (!last || now - *(volatile const __u32 *)last > TAM_TRANSLATION_LIFE)
		return TAM_EGRESS_NEXT;
	/* A packet that was not forwarded has not passed a module. */
	if (kind == TAM_NOTED_DESTINATION)
		return mend_quoted(ctx);
	l3 = l3_of_leaving(ctx);
	if (l3 < 0 || read_ends(ctx, TAM_LEVEL_KERNEL, l3, &ends))
		return TAM_EGRESS_NEXT;
	ends.key.arrival = 1 + arrival_by(ctx->ingress_ifindex);
	found = bpf_map_lookup_elem(&tam_translations, &ends.key);
	if (!found || now - found->noted > TAM_TRANSLATION_LIFE)
		return TAM_EGRESS_NEXT;
	source = found->end;
	if (set_source(ctx, TAM_LEVEL_KERNEL, 1, l3, &ends, &source))
		return TC_ACT_SHOT;	/* no other counter: as the kernel's own */
	if (ends.is_first) {
		key_of_later(ctx, l3, &ends.key);
		source.port_be = ends.key.source.port_be;
		note(&ends, &source);
	}
	return TAM_EGRESS_NEXT;
}

#endif
