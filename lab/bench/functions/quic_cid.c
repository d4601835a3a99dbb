/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Connections of QUIC, by the hash of their connection ID.
 *
 * A packet with a long header begins a connection, whose ID has up to 20 bytes;
 * one with a short header (IDs of eight bytes) must belong to one. Version
 * negotiation passes. Dropped: with reason 1 a packet that is no QUIC, with 2 a longer ID,
 * with 3 a truncated one, with 4 an unknown one, with 5 one without a slot among
 * eight. */
#include "function.h"

struct conn {
	u64 hash; /* 0: none */
	u32 packets;
	u32 bytes;
};

#define FIRST_conns {{0, 0, 0}}
#define TABLES(TABLE) TABLE(struct conn, conns, 1024)
DEFINE_TABLES(TABLES)

FUNCTION(quic_cid, 128)

u32 handle(struct packet *packet)
{
	if (!has(packet, UDP_DATA + 16) || !is_ipv4(packet) || GET8(packet, IP_PROTOCOL) != PROTOCOL_UDP ||
	    GET16(packet, L4_DESTINATION) != TAM_BE16(443))
		return TAM_PASS;
	u32 first = GET8(packet, UDP_DATA), at, length, is_long = first >> 7;
	if (!(first & 0x40))
		return TAM_DROP(1);
	if (is_long) {
		if (GET32(packet, UDP_DATA + 1) == 0)
			return TAM_PASS; /* version negotiation */
		length = GET8(packet, UDP_DATA + 5);
		at = UDP_DATA + 6;
		if (length > 20)
			return TAM_DROP(2);
	} else {
		length = 8;
		at = UDP_DATA + 1;
	}
	u64 hash = 0xcbf29ce484222325ull;
	for (u32 i = 0; i < 20; i++) {
		if (i >= length)
			break;
		i32 byte = byte_at(packet, at + i);
		if (byte < 0)
			return TAM_DROP(3);
		hash = (hash ^ (u32)byte) * 0x100000001b3ull;
	}
	hash |= 1;
	u32 place = (u32)(hash >> 32) ^ (u32)hash >> 7;
	for (u32 probe = 0; probe < 8; probe++) {
		struct conn TABLE_SPACE *conn = AT(conns, (place + probe) & 1023);
		if (MISSING(conn))
			return TAM_PASS;
		if (conn->hash == hash) {
			conn->packets++;
			conn->bytes += length_of(packet);
			return TAM_PASS;
		}
		if (conn->hash == 0) {
			if (!is_long)
				return TAM_DROP(4);
			conn->hash = hash;
			conn->packets = 1;
			conn->bytes = length_of(packet);
			return TAM_PASS;
		}
	}
	return TAM_DROP(5);
}
