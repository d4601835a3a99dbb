/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the functions are written with. Each is one source and becomes a
 * Tamandua module (clang --target=wasm32), an XDP program with its tables in a
 * BPF arena (--target=bpf), and one with them in array maps (-DTABLES_IN_MAPS).
 *
 *	FIRST_name	what is in the table called `name` in the beginning
 *	TABLES(T)	T(type of an entry, name, number of entries) for each table
 *	DEFINE_TABLES	makes them
 *	FUNCTION	the manifest's name and the window, or the XDP program
 *	handle()	the function itself
 *
 * An entry is reached with AT(table, index), whose index is in range; it is
 * MISSING() never, but the verifier wants map lookups to be asked. */
#ifndef FUNCTION_H
#define FUNCTION_H

#ifdef __wasm__
#include "module.h"
#else
#include "xdp.h"
#endif

#define INLINE static inline __attribute__((always_inline))

/* Where things are in an untagged IPv4 packet without options. */
enum {
	ETH_DESTINATION = 0,
	ETH_SOURCE = 6,
	ETH_TYPE = 12,
	IP = 14,
	IP_TOS = IP + 1,
	IP_LENGTH = IP + 2,
	IP_FRAGMENT = IP + 6,
	IP_TTL = IP + 8,
	IP_PROTOCOL = IP + 9,
	IP_CHECKSUM = IP + 10,
	IP_SOURCE = IP + 12,
	IP_DESTINATION = IP + 16,
	L4 = IP + 20,
	L4_SOURCE = L4,
	L4_DESTINATION = L4 + 2,
	UDP_CHECKSUM = L4 + 6,
	UDP_DATA = L4 + 8,
	TCP_FLAGS = L4 + 13,
	TCP_CHECKSUM = L4 + 16,
	TCP_END = L4 + 20,
};

#define TYPE_IPV4 TAM_BE16(0x0800)
#define VERSION_AND_LENGTH 0x45
#define PROTOCOL_IPIP 4
#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

#define ADDRESS(a, b, c, d) ((u32)(a) | (u32)(b) << 8 | (u32)(c) << 16 | (u32)(d) << 24)

/* Numbers as they lie in the packet: network byte order, on any address that
 * the processor takes in one piece (clang would go byte by byte for the BPF
 * target if it were told that they may be unaligned). */
typedef u16 __attribute__((may_alias)) packet_u16;
typedef u32 __attribute__((may_alias)) packet_u32;
typedef u64 __attribute__((may_alias)) packet_u64;
#define GET8(packet, at) (HEAD(packet)[at])
#define GET16(packet, at) (*(packet_u16 *)(HEAD(packet) + (at)))
#define GET32(packet, at) (*(packet_u32 *)(HEAD(packet) + (at)))
#define PUT8(packet, at, value) (HEAD(packet)[at] = (u8)(value))
#define PUT16(packet, at, value) (*(packet_u16 *)(HEAD(packet) + (at)) = (u16)(value))
#define PUT32(packet, at, value) (*(packet_u32 *)(HEAD(packet) + (at)) = (u32)(value))

/* Whether it is IPv4 without options and no later fragment; its first 34 bytes are there. */
INLINE int is_ipv4(const struct packet *packet)
{
	return has(packet, L4) && GET16(packet, ETH_TYPE) == TYPE_IPV4 &&
	       GET8(packet, IP) == VERSION_AND_LENGTH &&
	       (GET16(packet, IP_FRAGMENT) & TAM_BE16(0x3fff)) == 0;
}

/* A flow as the packet has it: everything in network byte order. */
struct flow {
	u32 source;
	u32 destination;
	u32 ports; /* the source's in the low half */
	u32 protocol;
};

/* Whether it is TCP or UDP over IPv4; then its first 38 bytes are there. */
INLINE int flow_of(const struct packet *packet, struct flow *flow)
{
	if (!has(packet, L4 + 4) || !is_ipv4(packet))
		return 0;
	flow->protocol = GET8(packet, IP_PROTOCOL);
	if (flow->protocol != PROTOCOL_TCP && flow->protocol != PROTOCOL_UDP)
		return 0;
	flow->source = GET32(packet, IP_SOURCE);
	flow->destination = GET32(packet, IP_DESTINATION);
	flow->ports = GET32(packet, L4);
	return 1;
}

INLINE u32 rotated(u32 value, u32 by)
{
	return value << by | value >> (32 - by);
}

/* Adds a word to a hash (MurmurHash3, 32 bits). */
INLINE u32 mixed(u32 hash, u32 word)
{
	hash ^= rotated(word * 0xcc9e2d51, 15) * 0x1b873593;
	return rotated(hash, 13) * 5 + 0xe6546b64;
}

/* Ends a hash. */
INLINE u32 finished(u32 hash)
{
	hash = (hash ^ hash >> 16) * 0x85ebca6b;
	hash = (hash ^ hash >> 13) * 0xc2b2ae35;
	return hash ^ hash >> 16;
}

INLINE u32 hash_of(const struct flow *flow, u32 seed)
{
	u32 hash = mixed(seed, flow->source);
	hash = mixed(hash, flow->destination);
	return finished(mixed(hash, flow->ports) ^ flow->protocol);
}

/* A checksum after `before` became `after` in what it covers (RFC 1624, equation 3). */
INLINE u16 checksum_after(u16 checksum, u32 before, u32 after)
{
	u32 sum = (u16)~checksum;
	sum += (u16)~before;
	sum += (u16)(~before >> 16);
	sum += (u16)after;
	sum += after >> 16;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Brings the L4 checksum up to date; 38 bytes are there. A UDP checksum of
 * zero says that there is none, and one that becomes zero is sent as 0xffff. */
INLINE void update_l4_checksum(const struct packet *packet, u32 protocol, u32 before, u32 after,
			       u16 port_before, u16 port_after)
{
	if (protocol == PROTOCOL_TCP) {
		if (!has(packet, TCP_CHECKSUM + 2))
			return;
		u16 sum = checksum_after(GET16(packet, TCP_CHECKSUM), before, after);
		PUT16(packet, TCP_CHECKSUM, checksum_after(sum, port_before, port_after));
		return;
	}
	if (!has(packet, UDP_CHECKSUM + 2) || GET16(packet, UDP_CHECKSUM) == 0)
		return;
	u16 sum = checksum_after(GET16(packet, UDP_CHECKSUM), before, after);
	sum = checksum_after(sum, port_before, port_after);
	PUT16(packet, UDP_CHECKSUM, sum ? sum : 0xffff);
}

#endif
