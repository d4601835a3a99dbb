/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* State in arrays of structures: sources in a cache of 256 sets of four.
 *
 * The source address picks a set; the way that holds it has its packets and bytes
 * of this second. A new source takes the way that was used least recently. Packets of
 * a source beyond LIMIT bytes within a second are dropped with reason 1 until the
 * second is over. */
#include "function.h"

#define SETS 256
#define WAYS 4
#define SECOND_SHIFT 10
#define LIMIT 4096

struct way {
	u32 address; /* 0: none */
	u32 used; /* milliseconds */
	u32 second;
	u32 bytes;
	u32 packets;
	u32 dropped;
};

#define FIRST_ways {{0, 0, 0, 0, 0, 0}}
#define TABLES(TABLE) TABLE(struct way, ways, SETS * WAYS)
DEFINE_TABLES(TABLES)

FUNCTION(set_cache, 64)

INLINE u32 account(struct way TABLE_SPACE *way, u32 now, u32 length)
{
	way->used = now;
	if (way->second != now >> SECOND_SHIFT) {
		way->second = now >> SECOND_SHIFT;
		way->bytes = 0;
	}
	way->packets++;
	if (way->bytes + length > LIMIT) {
		way->dropped++;
		return TAM_DROP(1);
	}
	way->bytes += length;
	return TAM_PASS;
}

u32 handle(struct packet *packet)
{
	if (!is_ipv4(packet))
		return TAM_PASS;
	u32 address = GET32(packet, IP_SOURCE), now = now_ms(), length = length_of(packet);
	u32 set = finished(address) % SETS * WAYS, oldest = set, oldest_used = 0xffffffff;
	for (u32 i = 0; i < WAYS; i++) {
		struct way TABLE_SPACE *way = AT(ways, set + i);
		if (MISSING(way))
			return TAM_PASS;
		if (way->address == address)
			return account(way, now, length);
		if (way->used < oldest_used) {
			oldest_used = way->used;
			oldest = set + i;
		}
	}
	struct way TABLE_SPACE *way = AT(ways, oldest);
	if (MISSING(way))
		return TAM_PASS;
	way->address = address;
	way->used = now;
	way->second = now >> SECOND_SHIFT;
	way->bytes = length;
	way->packets = 1;
	way->dropped = 0;
	return TAM_PASS;
}
