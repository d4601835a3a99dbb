/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* DNS name match: queries for listed names are dropped with reason 1.
 *
 * The name of the first query in a packet to UDP port 53 is read label by
 * label, in lower case, and hashed (FNV-1a, 32 bits, length bytes included). The
 * hash picks one of 256 slots; if the slot holds the same hash and length, the
 * names are compared byte by byte. Names over 64 bytes, compressed ones and
 * those that end beyond the window pass. */
#include "function.h"

#define PLACES 256
#define LISTED_LENGTH_MAX 27
#define NAME_LENGTH_MAX 64
#define DNS_LENGTH 12
#define NAME (UDP_DATA + DNS_LENGTH)

struct listed {
	u32 hash;
	u8 length; /* with length bytes, without the root's; 0: empty */
	u8 name[LISTED_LENGTH_MAX];
};

#define FIRST_names                                                           \
	{                                                                     \
		[59] = {0x6fddfd3b, 13, "\7malware\4test"},                   \
		[69] = {0x416c5245, 12, "\3ads\7example"},                    \
		[187] = {0x193147bb, 20, "\7tracker\7example\3net"},          \
		[207] = {0x9cad4ccf, 20, "\7metrics\7example\3org"},          \
	}
#define TABLES(TABLE) TABLE(struct listed, names, PLACES)
DEFINE_TABLES(TABLES)

FUNCTION(dns_match, 128)

INLINE u32 lower(u32 byte)
{
	return byte - 'A' < 26 ? byte | 0x20 : byte;
}

INLINE u32 is_listed(const struct packet *packet, const struct listed TABLE_SPACE *listed,
		     u32 length)
{
	for (u32 i = 0; i < LISTED_LENGTH_MAX; i++) {
		if (i == length)
			return 1;
		i32 byte = byte_at(packet, NAME + i);
		if (byte < 0 || lower(byte) != listed->name[i])
			return 0;
	}
	return 1;
}

u32 handle(struct packet *packet)
{
	if (!has(packet, NAME) || !is_ipv4(packet) || GET8(packet, IP_PROTOCOL) != PROTOCOL_UDP ||
	    GET16(packet, L4_DESTINATION) != TAM_BE16(53))
		return TAM_PASS;
	u32 hash = 0x811c9dc5, left = 0, length;
	for (length = 0; length < NAME_LENGTH_MAX; length++) {
		i32 byte = byte_at(packet, NAME + length);
		if (byte < 0)
			return TAM_PASS;
		if (left == 0) {
			if (byte == 0)
				break;
			if (byte > 63)
				return TAM_PASS;
			left = byte;
		} else {
			byte = lower(byte);
			left--;
		}
		hash = (hash ^ byte) * 0x01000193;
	}
	const struct listed TABLE_SPACE *listed = AT(names, hash % PLACES);
	if (MISSING(listed) || listed->hash != hash || listed->length != length)
		return TAM_PASS;
	return is_listed(packet, listed, length) ? TAM_DROP(1) : TAM_PASS;
}
