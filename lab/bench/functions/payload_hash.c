/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Hash over the payload: a payload repeated within a second is dropped with reason 1.
 *
 * The digest (64 bits, the rounds of XXH64) of the first 256 bytes after the UDP
 * header, eight at a time and the rest one by one, picks one of 1,024 slots of a
 * table that holds the last digest of each. */
#include "function.h"

#define PAYLOAD_MAX 256
#define PLACES 1024
#define PATIENCE_MS 1000
#define PRIME_1 0x9e3779b185ebca87ull
#define PRIME_2 0xc2b2ae3d27d4eb4full
#define PRIME_3 0x165667b19e3779f9ull
#define PRIME_4 0x85ebca77c2b2ae63ull
#define PRIME_5 0x27d4eb2f165667c5ull

struct seen {
	u64 digest;
	u64 last_ms;
	u32 first;
	u32 again;
};

#define FIRST_digests {{0, 0, 0, 0}}
#define TABLES(TABLE) TABLE(struct seen, digests, PLACES)
DEFINE_TABLES(TABLES)

FUNCTION(payload_hash, 298)

INLINE u64 rotated_64(u64 value, u32 by)
{
	return value << by | value >> (64 - by);
}

INLINE u64 digest_of(const struct packet *packet, u32 end)
{
	u64 hash = PRIME_5 + (end - UDP_DATA);
	u32 at = UDP_DATA;
	for (u32 i = 0; i < PAYLOAD_MAX / 8; i++) {
		if (at + 8 > end)
			break;
		u8 *word = bytes_at(packet, at, 8);
		if (!word)
			break;
		hash ^= rotated_64(*(packet_u64 *)word * PRIME_2, 31) * PRIME_1;
		hash = rotated_64(hash, 27) * PRIME_1 + PRIME_4;
		at += 8;
	}
	for (u32 i = 0; i < 7; i++) {
		if (at >= end)
			break;
		i32 byte = byte_at(packet, at);
		if (byte < 0)
			break;
		hash = rotated_64(hash ^ (u64)(u32)byte * PRIME_5, 11) * PRIME_1;
		at++;
	}
	hash = (hash ^ hash >> 33) * PRIME_2;
	hash = (hash ^ hash >> 29) * PRIME_3;
	return hash ^ hash >> 32;
}

u32 handle(struct packet *packet)
{
	if (!has(packet, UDP_DATA) || !is_ipv4(packet) || GET8(packet, IP_PROTOCOL) != PROTOCOL_UDP)
		return TAM_PASS;
	u32 end = length_of(packet);
	if (end > UDP_DATA + PAYLOAD_MAX)
		end = UDP_DATA + PAYLOAD_MAX;
	u64 digest = digest_of(packet, end), now = now_ms();
	struct seen TABLE_SPACE *seen = AT(digests, digest % PLACES);
	if (MISSING(seen))
		return TAM_PASS;
	if (seen->digest == digest && now - seen->last_ms < PATIENCE_MS) {
		seen->again++;
		return TAM_DROP(1);
	}
	seen->digest = digest;
	seen->last_ms = now;
	seen->first++;
	return TAM_PASS;
}
