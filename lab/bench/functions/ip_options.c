/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Walk over IPv4 options: some pass, some are marked as full, some drop the packet.
 *
 * Each option's type picks one of 256 policies. An option in which routers record
 * values is marked as full: its pointer is set beyond its end, and the header's
 * checksum is updated. A packet with a denied option is dropped with reason 1,
 * one with a malformed list with reason 2. */
#include "function.h"

#define OPTIONS (IP + 20)
#define OPTIONS_MAX 40
#define END_OF_LIST 0
#define NO_OPERATION 1

enum { ALLOW = 0, FILL = 1, DENY = 2 };

struct policy {
	u32 action;
	u32 seen;
};

/* Record route and timestamps are marked as full; source routes and the stream identifier are denied. */
#define FIRST_policies                                                   \
	{                                                                \
		[7] = {FILL, 0}, [68] = {FILL, 0}, [82] = {FILL, 0},     \
		[131] = {DENY, 0}, [136] = {DENY, 0}, [137] = {DENY, 0}, \
	}
#define TABLES(TABLE) TABLE(struct policy, policies, 256)
DEFINE_TABLES(TABLES)

FUNCTION(ip_options, 128)

u32 handle(struct packet *packet)
{
	if (!has(packet, OPTIONS) || GET16(packet, ETH_TYPE) != TYPE_IPV4 ||
	    GET8(packet, IP) >> 4 != 4)
		return TAM_PASS;
	u32 at = OPTIONS, end = IP + (GET8(packet, IP) & 15) * 4;
	for (u32 i = 0; i < OPTIONS_MAX; i++) {
		if (at >= end)
			break;
		i32 type = byte_at(packet, at);
		if (type < 0)
			return TAM_DROP(2);
		if (type == END_OF_LIST)
			break;
		if (type == NO_OPERATION) {
			at++;
			continue;
		}
		i32 size = byte_at(packet, at + 1);
		if (size < 2 || at + size > end)
			return TAM_DROP(2);
		struct policy TABLE_SPACE *policy = AT(policies, type);
		if (MISSING(policy))
			return TAM_PASS;
		policy->seen++;
		if (policy->action == DENY)
			return TAM_DROP(1);
		if (policy->action == FILL) {
			u8 *pointer = bytes_at(packet, at + 2, 1);
			if (size < 3 || !pointer)
				return TAM_DROP(2);
			u32 shift = at % 2 * 8, before = *pointer, after = size + 1;
			*pointer = after;
			u16 sum = GET16(packet, IP_CHECKSUM);
			PUT16(packet, IP_CHECKSUM,
			      checksum_after(sum, before << shift, after << shift));
		}
		at += size;
	}
	return TAM_PASS;
}
