/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Removal of a GRE header (RFC 2784, 2890), whose length depends on its flags.
 *
 * A GRE packet loses outer IPv4 header and GRE header, 24 to 36 bytes, and keeps
 * its Ethernet header. The source address and the key pick the tunnel. Dropped:
 * with reason 1 another version or content, with 2 an unknown tunnel, with 3 a
 * sequence number that is older than the last one, with 4 a packet that cannot be
 * shortened. */
#include "function.h"

#define PROTOCOL_GRE 47
#define GRE L4
#define HAS_CHECKSUM 0x80
#define HAS_KEY 0x20
#define HAS_SEQUENCE 0x10
#define TUNNELS 8

struct tunnel {
	u32 remote; /* 0: none */
	u32 key;
	u32 sequence;
	u32 packets;
	u64 bytes;
};

#define TUNNEL(a, key) {ADDRESS(192, 0, 2, a), key, 0, 0, 0}
#define FIRST_tunnels {TUNNEL(1, 0), TUNNEL(2, 7), TUNNEL(2, 8), TUNNEL(3, 0), TUNNEL(4, 99)}
#define TABLES(TABLE) TABLE(struct tunnel, tunnels, TUNNELS)
DEFINE_TABLES(TABLES)

FUNCTION(gre_decap, 96)

u32 handle(struct packet *packet)
{
	if (!is_ipv4(packet) || GET8(packet, IP_PROTOCOL) != PROTOCOL_GRE)
		return TAM_PASS;
	if (!has(packet, GRE + 16) || (GET8(packet, GRE + 1) & 7) != 0 ||
	    GET16(packet, GRE + 2) != TYPE_IPV4)
		return TAM_DROP(1);
	u32 flags = GET8(packet, GRE), remote = GET32(packet, IP_SOURCE), length = 4;
	u32 key = 0, sequence = 0;
	if (flags & HAS_CHECKSUM)
		length += 4;
	if (flags & HAS_KEY) {
		u8 *field = bytes_at(packet, GRE + length, 4);
		if (!field)
			return TAM_DROP(1);
		key = TAM_BE32(*(packet_u32 *)field);
		length += 4;
	}
	if (flags & HAS_SEQUENCE) {
		u8 *field = bytes_at(packet, GRE + length, 4);
		if (!field)
			return TAM_DROP(1);
		sequence = TAM_BE32(*(packet_u32 *)field);
		length += 4;
	}
	u32 found = TUNNELS;
	for (u32 i = 0; i < TUNNELS && found == TUNNELS; i++) {
		struct tunnel TABLE_SPACE *tunnel = AT(tunnels, i);
		if (MISSING(tunnel) || tunnel->remote == 0)
			break;
		if (tunnel->remote == remote && tunnel->key == key)
			found = i;
	}
	if (found == TUNNELS)
		return TAM_DROP(2);
	struct tunnel TABLE_SPACE *tunnel = AT(tunnels, found);
	if (MISSING(tunnel))
		return TAM_DROP(2);
	if (flags & HAS_SEQUENCE) {
		if ((i32)(sequence - tunnel->sequence) < 0)
			return TAM_DROP(3);
		tunnel->sequence = sequence;
	}
	u32 ethernet[3] = {GET32(packet, 0), GET32(packet, 4), GET32(packet, 8)};
	u32 bytes = length_of(packet);
	if (!resize_head(packet, -(i32)(20 + length)) || !has(packet, IP))
		return TAM_DROP(4);
	PUT32(packet, 0, ethernet[0]);
	PUT32(packet, 4, ethernet[1]);
	PUT32(packet, 8, ethernet[2]);
	PUT16(packet, ETH_TYPE, TYPE_IPV4);
	tunnel->packets++;
	tunnel->bytes += bytes;
	return TAM_PASS;
}
