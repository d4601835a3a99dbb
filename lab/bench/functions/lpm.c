/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Longest-prefix match: a next hop for the destination address.
 *
 * A trie with a stride of eight bits: nodes of 256 entries, the root is node 0.
 * An entry with CHILD set names the node for the next byte, otherwise it is the
 * number of the next hop; 0 is none, and the packet is dropped with reason 1.
 * The next hop gives the MAC addresses, and counts. Run on its own result it
 * does the same work again.
 *
 *	0.0.0.0/0 but 127/8	hop 1	10.1.2.0/24	hop 4
 *	10.0.0.0/8		hop 2	10.1.2.128/25	hop 5
 *	10.1.0.0/16		hop 3	192.0.2.0/24	none */
#include "function.h"

#define CHILD 0x80000000u
#define NODE(n) (CHILD | (n))
#define FIRST_trie                                                                       \
	{                                                                                \
		[0 ... 9] = 1, [10] = NODE(1), [11 ... 126] = 1, [127] = 0,              \
		[128 ... 191] = 1, [192] = NODE(4), [193 ... 255] = 1,                   \
		[256 + 0] = 2, [256 + 1] = NODE(2), [256 + 2 ... 256 + 255] = 2,         \
		[512 + 0 ... 512 + 1] = 3, [512 + 2] = NODE(3), [512 + 3 ... 512 + 255] = 3, \
		[768 + 0 ... 768 + 127] = 4, [768 + 128 ... 768 + 255] = 5,              \
		[1024 + 0] = NODE(5), [1024 + 1 ... 1024 + 255] = 1,                     \
		[1280 + 0 ... 1280 + 1] = 1, [1280 + 2] = 0, [1280 + 3 ... 1280 + 255] = 1, \
	}
#define NODES 16

struct hop {
	u32 destination_low; /* of the MAC addresses */
	u16 destination_high;
	u16 source_high;
	u32 source_low;
	u32 packets;
};
#define HOP(n) {0x00000002u, TAM_BE16(0x1000 + (n)), TAM_BE16(0x2000 + (n)), 0x00000002u, 0}
#define HOPS 16
#define FIRST_hops {[1] = HOP(1), HOP(2), HOP(3), HOP(4), HOP(5)}

#define TABLES(TABLE)                  \
	TABLE(u32, trie, NODES * 256)  \
	TABLE(struct hop, hops, HOPS)
DEFINE_TABLES(TABLES)

FUNCTION(lpm, 64)

u32 handle(struct packet *packet)
{
	if (!is_ipv4(packet))
		return TAM_PASS;
	u32 found = NODE(0);
	for (u32 depth = 0; depth < 4 && found & CHILD; depth++) {
		u32 byte = GET8(packet, IP_DESTINATION + depth);
		const u32 TABLE_SPACE *entry = AT(trie, found % NODES * 256 + byte);
		if (MISSING(entry))
			return TAM_PASS;
		found = *entry;
	}
	if (found == 0)
		return TAM_DROP(1);
	struct hop TABLE_SPACE *hop = AT(hops, found % HOPS);
	if (MISSING(hop))
		return TAM_PASS;
	hop->packets++;
	PUT32(packet, ETH_DESTINATION, hop->destination_low);
	PUT16(packet, ETH_DESTINATION + 4, hop->destination_high);
	PUT32(packet, ETH_SOURCE, hop->source_low);
	PUT16(packet, ETH_SOURCE + 4, hop->source_high);
	return TAM_PASS;
}
